package edge

import "sync"

// tasks runs calls that block, a bounded number at a time, each in a goroutine that ends. The queue behind it is bounded by its callers: a
// session has at most a few calls under way.
type tasks struct {
	max int

	mu      sync.Mutex
	running int
	queue   []func()
	done    sync.WaitGroup
}

// run runs call as soon as there is room.
func (t *tasks) run(call func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == t.max {
		t.queue = append(t.queue, call)
		return
	}
	t.running++
	t.done.Go(func() {
		for call != nil {
			call()
			call = t.next()
		}
	})
}

func (t *tasks) next() (call func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		t.queue = nil
		t.running--
		return nil
	}
	call = t.queue[0]
	t.queue[0] = nil
	t.queue = t.queue[1:]
	return call
}

// wait waits for all calls to end, the queued ones too.
func (t *tasks) wait() { t.done.Wait() }
