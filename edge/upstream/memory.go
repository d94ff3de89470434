package upstream

import (
	"context"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// memory is what services said a moment ago, by what was asked for. An answer costs them several questions to Kafka each time; when an edge has lost
// its memory all its clients come back at once, and many pages may be open. The zero value remembers nothing: age and most are needed.
type memory[T any] struct {
	age  time.Duration // of an answer that still serves
	most int           // answers; all are forgotten then

	mu      sync.Mutex
	answers map[string]*remembered[T]
}

// remembered is one answer, also while it is waited for.
type remembered[T any] struct {
	asked time.Time
	done  chan struct{} // closed when the rest is valid
	value T
	err   error // as the hub knows it
	left  bool  // the one who asked has gone; what it got is nobody else's answer
}

// ask returns what call says. All who ask for the same within the age have one answer, also where it is an error, but for hub.ErrUnavailable.
func (m *memory[T]) ask(ctx context.Context, what string, call func() (T, error)) (T, error) {
	for {
		r, leads := m.of(what)
		if leads {
			r.value, r.err = call()
			r.left = r.err != nil && ctx.Err() != nil
			if r.left || isUnavailable(r.err) {
				m.forget(what, r)
			}
			close(r.done)
			return r.value, r.err
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			var none T
			return none, hub.ErrUnavailable
		}
		if !r.left {
			return r.value, r.err
		}
	}
}

// of returns the answer; leads: the caller is to get it.
func (m *memory[T]) of(what string) (r *remembered[T], leads bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.answers[what]; r != nil && time.Since(r.asked) <= m.age {
		return r, false
	}
	if m.answers == nil || len(m.answers) >= m.most {
		m.answers = map[string]*remembered[T]{}
	}
	r = &remembered[T]{asked: time.Now(), done: make(chan struct{})}
	m.answers[what] = r
	return r, true
}

func (m *memory[T]) forget(what string, r *remembered[T]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers[what] == r {
		delete(m.answers, what)
	}
}
