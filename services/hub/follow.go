package hub

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// follow is whether a partition is followed, and for whom.
type follow struct {
	state     followState
	refs      int   // subscriptions that need this partition, beside those that need all
	idleSince int64 // nanoseconds since Hub.began
	wanted    bool  // somebody waits to be told where it begins
	unfollow  func()
	gone      chan struct{} // closed when it has been left
}

type followState uint8

const (
	idle followState = iota
	live
	leaving // unfollow is under way
)

const unfollowsAtOnce = 16

// following counts the followed partitions.
func (t *Topic) following() (n int) {
	t.followMu.Lock()
	defer t.followMu.Unlock()
	for i := range t.follows {
		if t.follows[i].state != idle {
			n++
		}
	}
	return n
}

// room makes follows as long as parts. followMu is held.
func (t *Topic) room(count int32) {
	for int32(len(t.follows)) < count {
		t.follows = append(t.follows, follow{})
	}
}

// register puts a subscription on the books. followMu is held.
func (t *Topic) register(s *Subscription) {
	t.subs[s] = struct{}{}
	t.watched.Add(1)
	if s.filter == nil || s.filter.all {
		t.whole++
	} else {
		for _, p := range s.filter.scope {
			t.follows[p].refs++
		}
	}
	if s.filter != nil {
		if len(s.ends) > 0 || s.limits != nil && s.limits.stopAll {
			t.restless[s] = struct{}{}
		}
		return
	}
	if t.wakers[s.waker]++; t.wakers[s.waker] == 1 {
		ws := append(slices.Clone(*t.movers.Load()), s.waker)
		t.movers.Store(&ws)
	}
}

// calm notes that only its own records matter to a subscription from now on.
func (t *Topic) calm(s *Subscription) {
	t.followMu.Lock()
	defer t.followMu.Unlock()
	delete(t.restless, s)
}

// leave takes a subscription off the books.
func (t *Topic) leave(s *Subscription) {
	now := int64(time.Since(t.hub.began))
	t.followMu.Lock()
	delete(t.subs, s)
	delete(t.restless, s)
	t.watched.Add(-1)
	if s.filter == nil || s.filter.all {
		if t.whole--; t.whole == 0 {
			t.wholeIdle = now
		}
	} else {
		for _, p := range s.filter.scope {
			if f := &t.follows[p]; f.refs > 0 {
				f.refs--
				f.idleSince = now
			}
		}
	}
	if s.filter == nil {
		if t.wakers[s.waker]--; t.wakers[s.waker] == 0 {
			delete(t.wakers, s.waker)
			ws := slices.DeleteFunc(slices.Clone(*t.movers.Load()), func(w Waker) bool { return w == s.waker })
			t.movers.Store(&ws)
		}
	}
	t.followMu.Unlock()
	if s.filter == nil {
		return
	}
	for _, st := range s.filter.terms {
		st.unwatch(st)
		t.terms.leave(st.term, now)
	}
}

// followFrom follows partitions from their Start. followMu is held.
func (t *Topic) followFrom(ps []ResolvedPartition) {
	now := int64(time.Since(t.hub.began))
	for _, p := range ps {
		f := &t.follows[p.Partition]
		f.state, f.idleSince = live, now
		f.unfollow = t.hub.src.Follow(t, p.Partition, p.Start)
	}
}

// release unfollows what nobody has needed for the linger, and lets go of a topic of which nothing is followed.
func (h *Hub) release(t *Topic, now int64) {
	t.followMu.Lock()
	var left []int32
	if t.whole == 0 {
		for p := range t.follows {
			f := &t.follows[p]
			if f.state == live && f.refs == 0 && now-max(f.idleSince, t.wholeIdle) >= int64(h.cfg.Linger) {
				f.state, f.gone = leaving, make(chan struct{})
				left = append(left, int32(p))
			}
		}
	}
	t.followMu.Unlock()
	if len(left) > 0 {
		h.tasks.Go(func() {
			t.unfollow(left)
			h.letGo(t)
		})
		return
	}
	h.letGo(t)
}

// letGo forgets a topic if nobody needs it.
func (h *Hub) letGo(t *Topic) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.pins == 0 && t.abandoned() {
		h.forget(t)
	}
}

// forget lets go of a topic that nobody needs. mu is held.
func (h *Hub) forget(t *Topic) {
	if h.topics[t.name] == t {
		h.takeOut(t)
	}
	delete(h.retired, t)
	h.history.forget(t)
	for t.evict() > 0 {
		continue
	}
}

// abandoned says whether nobody needs the topic.
func (t *Topic) abandoned() bool {
	t.followMu.Lock()
	defer t.followMu.Unlock()
	if len(t.subs) > 0 || t.growing {
		return false
	}
	for i := range t.follows {
		if t.follows[i].state != idle {
			return false
		}
	}
	return true
}

// unfollow leaves partitions whose state is leaving.
func (t *Topic) unfollow(left []int32) {
	var g errgroup.Group
	g.SetLimit(unfollowsAtOnce)
	for _, p := range left {
		g.Go(func() error {
			t.followMu.Lock()
			stop := t.follows[p].unfollow
			t.followMu.Unlock()
			stop()
			t.followMu.Lock()
			defer t.followMu.Unlock()
			t.mu.Lock()
			t.seekTo(p, -1, -1, -1)
			t.announce(t.commit())
			f := &t.follows[p]
			f.state, f.unfollow = idle, nil
			close(f.gone)
			return nil
		})
	}
	_ = g.Wait()        // they return no errors
	t.grown.Store(true) // somebody may wait for one of them again
}

// unfollowAll leaves everything, at the end of Run.
func (h *Hub) unfollowAll(t *Topic) {
	t.followMu.Lock()
	var left []int32
	for p := range t.follows {
		if f := &t.follows[p]; f.state == live {
			f.state, f.gone = leaving, make(chan struct{})
			left = append(left, int32(p))
		}
	}
	t.followMu.Unlock()
	h.tasks.Go(func() { t.unfollow(left) })
}

// pause waits for d, or for the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
