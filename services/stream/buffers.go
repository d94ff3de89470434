package stream

import (
	"runtime/debug"
	"sync"
)

// maxKeptBuffer is the largest buffer that is kept for the next message; a single record may need a larger one.
const maxKeptBuffer = maxBatchBytes + maxBatchBytes/2

// buffers are shared by all streams, and held only while a message is being sent: thousands of idle streams hold none.
type buffers struct{ pool sync.Pool }

func (b *buffers) take() *[]byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return p
	}
	return new([]byte)
}

func (b *buffers) give(p *[]byte) {
	if cap(*p) <= maxKeptBuffer {
		b.pool.Put(p)
	}
}

func stack() string { return string(debug.Stack()) }
