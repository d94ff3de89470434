package ops

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of a Log.
const (
	logRoom  = 1 << 20 // bytes that wait to be written; as many may be under way
	logGrace = time.Second
)

// LogConfig is how a Log is written.
type LogConfig struct {
	// Level of the least lines.
	Level slog.Level
	// JSON: an object a line, instead of text.
	JSON bool
}

// Log is a process's log and its way to standard error, without waiting for it. A terminal that is held, or a collector of logs that hangs, would
// otherwise stop whoever logs: handshakes, sessions, and the drain itself.
//
// Values that come from clients stand in it as any others do: what is not printable is escaped, and a text is cut at 512 bytes. A message
// that is repeated, but for those that say how a session starts and ends, is limited to 10 lines a second, after 100 at once; left_out of the
// next one says how many were left out, and so does a line at the end.
//
// Its methods may be called concurrently.
type Log struct {
	to    io.Writer
	json  bool
	limit *limiter
	level slog.Level
	ended chan struct{} // closed when all was written

	mu     sync.Mutex
	some   *sync.Cond // there is something to write, or the end
	lines  []byte
	lost   int // lines left out since the last that was taken
	closed bool
}

// NewLog returns a Log that writes to to, in a goroutine that Close ends.
func NewLog(to io.Writer, cfg LogConfig) *Log {
	l := &Log{to: to, json: cfg.JSON, level: cfg.Level, limit: newLimiter(), ended: make(chan struct{})}
	l.some = sync.NewCond(&l.mu)
	go l.run()
	return l
}

// Logger returns what the parts of the process log with.
func (l *Log) Logger() *slog.Logger { return slog.New(&limited{next: l.handler(l), limit: l.limit}) }

func (l *Log) handler(to io.Writer) slog.Handler {
	if l.json {
		return slog.NewJSONHandler(to, &slog.HandlerOptions{Level: l.level, ReplaceAttr: plainJSON})
	}
	return slog.NewTextHandler(to, &slog.HandlerOptions{Level: l.level, ReplaceAttr: plain})
}

// OpenLog returns a Log as the settings -log-level (debug, info, warn, error) and -log-format (text, json, or auto: text on a terminal) ask for, and its
// Logger.
func OpenLog(to io.Writer, level, format string) (*Log, *slog.Logger) {
	cfg := LogConfig{JSON: format == "json" || format == "auto" && !IsTerminal(to)}
	_ = cfg.Level.UnmarshalText([]byte(level)) // the settings have these words only
	l := NewLog(to, cfg)
	return l, l.Logger()
}

// IsTerminal says whether a writer is a terminal: somebody looks at it.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}

// Write takes a copy of line, which is a whole line or several, and never waits. Where 1 MiB waits already the line is left out, and a line of the log
// says later how many were. It never fails.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines)+len(line) > logRoom {
		l.lost++
		return len(line), nil
	}
	l.note()
	l.lines = append(l.lines, line...)
	l.some.Signal()
	return len(line), nil
}

// note says how many lines were left out. mu is held.
func (l *Log) note() {
	if l.lost == 0 {
		return
	}
	var line strings.Builder
	slog.New(l.handler(&line)).Warn("lines were left out here: the log was not taken", slog.Int("left_out", l.lost))
	l.lines, l.lost = append(l.lines, line.String()...), 0
}

// Close returns when all was written, and after a second at the latest. What is written later is written as before, or lost at the end of the
// process. Call it once.
func (l *Log) Close() {
	if left := l.limit.leftOut(); left != "" {
		slog.New(l.handler(l)).Warn("lines were left out: they repeated others", slog.String("left_out", left))
	}
	l.mu.Lock()
	l.closed = true
	l.note()
	l.some.Signal()
	l.mu.Unlock()
	select {
	case <-l.ended:
	case <-time.After(logGrace):
	}
}

func (l *Log) run() {
	defer close(l.ended)
	var lines []byte
	for {
		l.mu.Lock()
		for len(l.lines) == 0 && !l.closed {
			l.some.Wait()
		}
		lines, l.lines = l.lines, lines[:0]
		l.mu.Unlock()
		if len(lines) == 0 {
			return // closed
		}
		_, _ = l.to.Write(lines) // there is nowhere to say that the log cannot be written
	}
}

// maxText is how many bytes of a text a line has; of a stack more.
const (
	maxText  = 512
	maxStack = 64 << 10
)

// plain cuts texts. The text handler quotes what is not printable.
func plain(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case string:
		a.Value = slog.StringValue(cut(a.Key, v))
	case error:
		a.Value = slog.StringValue(cut(a.Key, v.Error()))
	case time.Duration:
		a.Value = slog.StringValue(v.String())
	}
	return a
}

// plainJSON also escapes what JSON leaves as it is and a terminal would obey, and writes durations as seconds.
func plainJSON(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
		return a
	}
	a = plain(groups, a)
	if a.Value.Kind() == slog.KindString {
		a.Value = slog.StringValue(escape(a.Value.String()))
	}
	return a
}

func cut(key, text string) string {
	most := maxText
	if strings.HasPrefix(key, "stack") {
		most = maxStack
	}
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s… (%d bytes)", strings.ToValidUTF8(text[:most], ""), len(text))
}
