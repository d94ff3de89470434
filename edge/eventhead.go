package edge

import (
	"bytes"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// isEvents says whether a request is for a stream of events: /sse/ and a topic.
func isEvents(r *http.Request) bool {
	return len(r.URL.Path) > len("/sse/") && strings.HasPrefix(r.URL.Path, "/sse/")
}

// refusalOfEvents answers a request for a stream at once, or returns the session to be, which is counted in.
func (s *Server) refusalOfEvents(r *http.Request) (*session, *refused) {
	x, no := s.judgeEvents(r)
	if no != nil && no.status >= 300 {
		s.metrics.refused.WithLabelValues(kindEvents, strconv.Itoa(no.status)).Inc()
	}
	return x, no
}

func (s *Server) judgeEvents(r *http.Request) (*session, *refused) {
	if no := s.judgePage(r, http.MethodGet, http.MethodHead); no != nil {
		return nil, no
	}
	origin := r.Header.Get("Origin")
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return nil, refusedBy(frame.Invalid("subscribe", "", "body", "a stream is asked for without one"), origin)
	}
	op, id, bad := frame.ParseEventsURL(r.URL.Path[len("/sse/"):], r.URL.RawQuery, r.Header["Last-Event-Id"])
	switch {
	case bad != nil:
		return nil, refusedBy(bad, origin)
	case id.Done:
		return nil, &refused{status: http.StatusNoContent, header: crossOriginHeader(origin)} // that is how a stream tells EventSource to stay away
	case r.Method == http.MethodHead:
		return nil, &refused{status: http.StatusOK, header: streamHeader(origin)}
	}
	switch s.enter(r.RemoteAddr) {
	case full:
		return nil, s.fullOfEvents(http.StatusServiceUnavailable, origin)
	case crowded:
		return nil, s.fullOfEvents(http.StatusTooManyRequests, origin)
	case entered:
	}
	resumed := op.Request.Start.Kind == hub.AtPositions
	return &session{form: &protocolJSON, url: op, deaf: true, parent: s.parentOf(r), events: &events{origin: origin, resumed: resumed}}, nil
}

// fullOfEvents is the answer where there is no room: a stream that ends at once, since EventSource would not come back after a status. It is
// counted by the status that a socket is refused with.
func (s *Server) fullOfEvents(status int, origin string) *refused {
	s.metrics.refused.WithLabelValues(kindEvents, strconv.Itoa(status)).Inc()
	var body bytes.Buffer
	body.Write(appendRetry(nil, comeBackSpread, 2*comeBackSpread))
	e := frame.ErrorOf("subscribe", frame.URLID, &hub.LimitError{Limit: "sessions of an edge", Retry: comeBackSpread})
	body.Write(frame.AppendEvent(nil, "error", nil, frame.AppendError(nil, e)))
	return &refused{status: http.StatusOK, text: body.String(), header: streamHeader(origin)}
}

// judgePage judges what is judged alike for streams and publishes: the method, who may ask for it from a page, under which name. It answers the
// requests by which a browser asks first (Fetch standard, section 3.3.6).
func (s *Server) judgePage(r *http.Request, methods ...string) *refused {
	allowed := strings.Join(append(methods, http.MethodOptions), ", ")
	origin := r.Header.Get("Origin")
	known := false
	for _, m := range methods {
		known = known || r.Method == m
	}
	switch {
	case r.Host == "":
		return &refused{status: http.StatusBadRequest, text: "no Host"}
	case !access.HostAllowed(r.Host, s.cfg.AllowedHosts):
		return &refused{status: http.StatusMisdirectedRequest, text: misdirected}
	case !known && r.Method != http.MethodOptions:
		return &refused{http.StatusMethodNotAllowed, "allowed are " + allowed, http.Header{"Allow": {allowed}}}
	case !originAllowed(r, s.cfg.AllowedOrigins):
		return &refused{status: http.StatusForbidden, text: "this origin is not allowed"}
	case r.Method == http.MethodOptions:
		h := crossOriginHeader(origin)
		h.Set("Allow", allowed)
		if origin != "" {
			h.Set("Access-Control-Allow-Methods", allowed)
			h.Set("Access-Control-Allow-Headers", "Content-Type, Last-Event-ID, Cache-Control")
			h.Set("Access-Control-Max-Age", "600")
		}
		return &refused{status: http.StatusNoContent, header: h}
	}
	return nil
}

// crossOriginHeader lets the page of an allowed origin read an answer (Fetch standard, section 3.3).
func crossOriginHeader(origin string) http.Header {
	h := http.Header{"Vary": {"Origin"}}
	if origin != "" {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
		h.Set("Access-Control-Expose-Headers", "Retry-After")
	}
	return h
}

// refusedBy answers with an error, by the status of its code.
func refusedBy(e *frame.Error, origin string) *refused {
	h := crossOriginHeader(origin)
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if e.Retryable {
		h.Set("Retry-After", strconv.FormatInt((e.RetryAfterMs+999)/1000, 10))
	}
	return &refused{statusOf(e.Code), string(frame.AppendError(nil, e)), h}
}

// statusOf is the HTTP status of a Connect code (Connect protocol, "Error codes").
func statusOf(code string) int {
	switch code {
	case "invalid_argument", "failed_precondition", "out_of_range":
		return http.StatusBadRequest
	case "unauthenticated":
		return http.StatusUnauthorized
	case "permission_denied":
		return http.StatusForbidden
	case "not_found":
		return http.StatusNotFound
	case "already_exists", "aborted":
		return http.StatusConflict
	case "resource_exhausted":
		return http.StatusTooManyRequests
	case "canceled":
		return 499
	case "unimplemented":
		return http.StatusNotImplemented
	case "unavailable":
		return http.StatusServiceUnavailable
	case "deadline_exceeded":
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}

// takeOver makes a stream of a connection that has served requests before.
func (s *Server) takeOver(w http.ResponseWriter, x *session) (handed bool) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		s.log.Info("handshake failed", "cause", err) // the client left meanwhile
		return false
	}
	tcp, _, err := unwrap(conn, buffered.Reader)
	if err != nil {
		s.log.Info("handshake failed", "cause", err) // the client left meanwhile
		_ = conn.Close()
		return false
	}
	return s.stream(tcp, x)
}

// stream hands a stream of events to a worker; false if it could not, and the connection is closed.
func (s *Server) stream(conn *net.TCPConn, x *session) (handed bool) {
	err := conn.SetDeadline(time.Time{})
	if err == nil {
		err = s.hand(conn, x)
	}
	if err != nil {
		s.log.Info("handshake failed", "cause", err) // the client left meanwhile
		_ = conn.Close()
	}
	return err == nil
}
