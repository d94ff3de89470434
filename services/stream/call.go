package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"connectrpc.com/connect"
)

// call is one HTTP exchange: its deadlines, and what its log line and metrics will say. It belongs to the goroutine of its handler.
type call struct {
	rc    *http.ResponseController
	cfg   *Config
	began time.Time
	peer  string // its host

	bounded bool  // the request counts as input
	charged int64 // bytes of it that count at the moment

	// What a handler tells of its stream.
	session string // its name in the log, once it has started
	stretch bool   // it reads a stretch of a log and ends by itself: its two lines are for debugging
	topic   string
	records int64
	bytes   int64
	// quiet is the longest silence between two sends that the handler promises; 0: it promises nothing.
	quiet time.Duration

	writeBy time.Time // the write deadline in force, zero without one
}

type callKey struct{}

// withCall gives every exchange its call, through the context: the RPC library hands the http.ResponseWriter to nobody.
func withCall(next http.Handler, cfg *Config, in *input) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{rc: http.NewResponseController(w), cfg: cfg, began: time.Now()}
		c.peer, _, _ = net.SplitHostPort(r.RemoteAddr) // none: not TCP
		defer c.disarm()                               // HTTP/1.1: the connection goes on
		defer in.leave(c)
		r = r.WithContext(context.WithValue(r.Context(), callKey{}, c))
		r.Body = in.of(r, c)
		next.ServeHTTP(w, r)
	})
}

func callFrom(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// gate bounds the memory of all requests, and the time in which that of a unary or server-stream call must arrive. Streams from the caller may take
// as long as they like.
func gate(ctx context.Context, spec connect.Spec, _ connect.Peer, _ http.Header) (context.Context, error) {
	c := callFrom(ctx)
	c.bounded = true
	if spec.StreamType == connect.StreamTypeUnary || spec.StreamType == connect.StreamTypeServer {
		_ = c.rc.SetReadDeadline(time.Now().Add(c.cfg.BodyTimeout)) // both servers of net/http have deadlines
	}
	return ctx, nil
}

// bodyRead ends the bound of gate. On HTTP/1.1 the server goes on reading, to notice that the caller left, and must not time out.
func (c *call) bodyRead() { _ = c.rc.SetReadDeadline(time.Time{}) }

// arm sets the write deadline for what is sent next. Setting it costs HTTP/2 a message to the connection's goroutine, so a stream that
// promises to send at least every quiet keeps a deadline that lies further away by quiet, and renews it only now and then.
func (c *call) arm() {
	now := time.Now()
	by := now.Add(c.cfg.StallTimeout + c.quiet)
	if !c.writeBy.IsZero() && by.Sub(c.writeBy) < c.cfg.StallTimeout/4 {
		return
	}
	c.writeBy = by
	_ = c.rc.SetWriteDeadline(by)
}

func (c *call) disarm() {
	if !c.writeBy.IsZero() {
		c.writeBy = time.Time{}
		_ = c.rc.SetWriteDeadline(time.Time{})
	}
}

// stalled says that the write deadline has passed, which is what ended the stream then.
func (c *call) stalled() bool { return !c.writeBy.IsZero() && !time.Now().Before(c.writeBy) }

// guarded is a stream whose sends have a deadline, and tell why they failed.
type guarded struct {
	connect.StreamingHandlerConn
	ctx  context.Context //nolint:containedctx // that of the exchange, as in http.Request
	call *call
}

// Send blocks until the message is on its way, at most for the stall timeout.
func (g *guarded) Send(message any) error {
	g.call.arm()
	err := g.StreamingHandlerConn.Send(message)
	if err != nil {
		return g.cause(err)
	}
	if g.call.quiet == 0 {
		g.call.disarm()
	}
	return nil
}

// cause keeps the RPC library's own error for its text only: its code is a guess, and would win over the cause.
//
//nolint:errorlint // on purpose, see above
func (g *guarded) cause(err error) error {
	switch coded := (*connect.Error)(nil); {
	case g.call.stalled() || errors.Is(err, os.ErrDeadlineExceeded): // a deadline that was renewed a moment too late has passed too
		return fmt.Errorf("send: %w: %v", errStalled, err)
	case g.ctx.Err() != nil:
		return fmt.Errorf("send: %w: %v", g.ctx.Err(), err)
	case errors.As(err, &coded) && (coded.Code() == connect.CodeInternal || coded.Code() == connect.CodeResourceExhausted):
		return err // a message that can't be encoded, or is too large
	default:
		return fmt.Errorf("send: %w: %v", errGone, err)
	}
}
