package stream

import (
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// freeInput is how many bytes of a request come in whatever the others hold, so that nearly all requests go on while large ones are too many.
const freeInput = 16 << 10

// input bounds what all requests hold together: those of unary calls while they arrive and are answered, that of a Subscribe until it is made, and
// each message of a PublishStream until it is handed over.
type input struct {
	max  int64 // bytes
	held atomic.Int64
}

// of makes the body of an exchange count. Whoever reads it gives back what the exchange was charged, with leave.
func (in *input) of(r *http.Request, c *call) io.ReadCloser {
	return &body{ReadCloser: r.Body, in: in, call: c}
}

// leave gives back what was charged so far. It is called by the goroutine that reads the body, or behind its end.
func (in *input) leave(c *call) {
	in.held.Add(-c.charged)
	c.charged = 0
}

// body is a request's, read by the goroutine of its handler, or by the one that receives for it.
type body struct {
	io.ReadCloser
	in   *input
	call *call
}

// Read fails with LIMIT when this request is one too many.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.call.bounded && n > 0 {
		b.call.charged += int64(n)
		if b.in.held.Add(int64(n)) > b.in.max && b.call.charged > freeInput {
			return 0, toConnect(judge(&hub.LimitError{Limit: "bytes of requests at once", Value: b.in.max, Retry: time.Second}), "")
		}
	}
	return n, err
}
