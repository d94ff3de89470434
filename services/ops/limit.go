package ops

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/time/rate"
)

// Bounds of what is logged again and again.
const (
	linesPerSecond = 10
	linesAtOnce    = 100
	// Messages are constants of the code, so that there are not many; beyond it, others share one bound.
	maxMessages = 1000
)

// Sessions of all kinds have a line when they start and one when they end, however many there are: without them nobody can tell what became
// of a client. Each costs its client a connection or a stream.
func unlimited(message string) bool {
	return message == "session started" || message == "session ended"
}

// kind is a message up to its first digit: those of the HTTP servers are no constants, and have addresses in them.
func kind(message string) string {
	if i := strings.IndexAny(message, "0123456789"); i > 0 {
		return message[:i]
	}
	return message
}

// limiter bounds the lines of each message.
type limiter struct {
	mu    sync.Mutex
	lines map[string]*repeated
}

type repeated struct {
	rate *rate.Limiter
	left int // out since the last line
}

func newLimiter() *limiter { return &limiter{lines: map[string]*repeated{}} }

// pass says whether a line may be written, and how many like it were left out before.
func (l *limiter) pass(r slog.Record) (left int, ok bool) {
	if unlimited(r.Message) {
		return 0, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	message := kind(r.Message)
	if l.lines[message] == nil && len(l.lines) >= maxMessages {
		message = "others"
	}
	x := l.lines[message]
	if x == nil {
		x = &repeated{rate: rate.NewLimiter(linesPerSecond, linesAtOnce)}
		l.lines[message] = x
	}
	if !x.rate.AllowN(r.Time, 1) {
		x.left++
		return 0, false
	}
	left, x.left = x.left, 0
	return left, true
}

// leftOut tells what was left out and not told yet, and forgets it.
func (l *limiter) leftOut() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for message, x := range l.lines {
		if x.left > 0 {
			out = append(out, fmt.Sprintf("%q: %d", message, x.left))
			x.left = 0
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// limited is a handler with a limiter in front.
type limited struct {
	next  slog.Handler
	limit *limiter
}

func (h *limited) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *limited) Handle(ctx context.Context, r slog.Record) error {
	left, ok := h.limit.pass(r)
	if !ok {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return h.next.Handle(ctx, r)
}

func (h *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limited{h.next.WithAttrs(attrs), h.limit}
}

func (h *limited) WithGroup(name string) slog.Handler {
	return &limited{h.next.WithGroup(name), h.limit}
}

// escape writes characters that are not printable, and bytes that are no characters, as Go does in quotes.
func escape(text string) string {
	if strings.IndexFunc(text, func(r rune) bool {
		return !unicode.IsPrint(r) && r != '\n' && r != '\t' || r == unicode.ReplacementChar
	}) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			b.WriteRune(r)
			continue
		}
		b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
	}
	return b.String()
}
