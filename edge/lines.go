package edge

import (
	"log/slog"
	"net/http"
	"time"
)

// identify returns the attributes that all lines of a session begin with. Their names are those of the service; the table is in services/README.md.
func (s *session) identify() []slog.Attr {
	attrs := make([]slog.Attr, 0, 12)
	attrs = append(attrs, slog.String("session", s.name), slog.String("kind", s.kind()), slog.String("peer", s.conn.RemoteAddr().String()))
	if s.url != nil {
		attrs = append(attrs, slog.String("topic", s.url.Request.Topic))
	}
	return attrs
}

// refusing logs a handshake that is refused. Anybody can have as many as they like, so that the log bounds these lines. The query, in which keys
// may stand, is not logged.
func (s *Server) refusing(peer, path string, no *refused) {
	if no.status == http.StatusNoContent { // a browser asks what it may, or is told to stay away
		return
	}
	s.log.LogAttrs(s.ctx, slog.LevelInfo, "session refused",
		slog.String("peer", peer), slog.String("path", path), slog.Int("code", no.status), slog.String("cause", no.text))
}

// postEnded logs a publish by request: failures, and the rest at debug.
func (s *Server) postEnded(r *http.Request, began time.Time, no *refused) {
	level, what := slog.LevelDebug, "call ended"
	attrs := []slog.Attr{slog.String("kind", "post"), slog.String("peer", r.RemoteAddr), slog.String("path", r.URL.Path), slog.Int("code", no.status)}
	if no.status >= http.StatusBadRequest {
		level, what = slog.LevelInfo, "call failed"
		attrs = append(attrs, slog.String("cause", no.text))
	}
	s.log.LogAttrs(s.ctx, level, what, append(attrs, slog.Duration("duration", time.Since(began).Round(time.Microsecond)))...) //nolint:sloglint // one of two
}
