package hub

import (
	"context"
	"sync"
)

// queue holds the topics that have news, each once. It is bounded by the number of topics.
type queue struct {
	mu     sync.Mutex
	topics []*Topic
	signal chan struct{} // a slot for each waker; never closed
}

// signal queues the topic for a waker.
func (t *Topic) signal() {
	if t.queued.Load() || t.queued.Swap(true) {
		return
	}
	q := &t.hub.news
	q.mu.Lock()
	q.topics = append(q.topics, t)
	q.mu.Unlock()
	select {
	case q.signal <- struct{}{}:
	default: // all are awake, and look again before they sleep
	}
}

func (q *queue) take() *Topic {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.topics) == 0 {
		q.topics = nil
		return nil
	}
	t := q.topics[0]
	q.topics[0] = nil
	q.topics = q.topics[1:]
	return t
}

// wake is the goroutine that tells owners of news.
func (h *Hub) wake(ctx context.Context) {
	var scratch []*Subscription
	for {
		for t := h.news.take(); t != nil; t = h.news.take() {
			t.queued.Store(false)
			scratch = t.tell(scratch)
		}
		select {
		case <-h.news.signal:
		case <-ctx.Done():
			return
		}
	}
}

// tell tells the owners of whole-topic subscriptions that the topic moved, and those of filtered ones that something of theirs came; and all
// that partitions became unavailable or available.
func (t *Topic) tell(scratch []*Subscription) []*Subscription {
	t.feedMu.Lock()
	head := t.feed()
	dirty := t.dirty
	t.dirty = nil
	for _, tm := range dirty {
		tm.dirty = false
	}
	told, turned := t.toldCtl, t.turned.Swap(false)
	t.toldCtl = head
	t.feedMu.Unlock()

	for _, w := range *t.movers.Load() {
		w.Moved(t)
	}
	scratch = scratch[:0]
	for _, tm := range dirty {
		tm.mu.Lock()
		for _, w := range tm.subs {
			scratch = append(scratch, w.sub)
		}
		tm.mu.Unlock()
	}
	scratch = t.concerned(scratch, told, head, turned)
	for _, s := range scratch {
		s.wake()
	}
	clear(scratch)
	return scratch
}

// concerned adds the filtered subscriptions that [from, to) matters to although it may have no records of theirs. turned: other partitions
// are unavailable, which may matter to all.
func (t *Topic) concerned(dst []*Subscription, from, to Seq, turned bool) []*Subscription {
	growing, all := false, turned
	for _, c := range t.controlsIn(from, to) {
		all = all || c.e.Kind != seek
		growing = growing || c.e.Kind == seek && c.e.Next >= 0
	}
	t.followMu.Lock()
	defer t.followMu.Unlock()
	for s := range t.restless {
		dst = append(dst, s)
	}
	if !growing && !all {
		return dst
	}
	for s := range t.subs {
		if f := s.filter; f != nil && (all || f.all || f.hashed || f.grows) {
			dst = append(dst, s)
		}
	}
	return dst
}

// wake tells the owner, unless it was told since its last Pull or At.
func (s *Subscription) wake() {
	if s.closed.Load() || s.woken.Load() || s.woken.Swap(true) {
		return
	}
	s.waker.Ready(s.token)
}
