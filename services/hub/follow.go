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

// rehash adds the partitions that keys hash to now. The old ones stay.
func (s *Subscription) rehash() {
	for key := range s.filter.keys {
		s.await(PartitionOf([]byte(key), s.count))
	}
}

// await adds a partition whose start is not known yet.
func (s *Subscription) await(partition int32) {
	f, t := s.filter, s.topic
	k, ok := slices.BinarySearch(f.scope, partition)
	if ok {
		return
	}
	f.scope = slices.Insert(f.scope, k, partition)
	f.told = slices.Insert(f.told, k, 0)
	f.waiting = append(f.waiting, partition)
	t.followMu.Lock()
	t.room(partition + 1)
	t.follows[partition].refs++
	t.follows[partition].wanted = true
	if f.keys == nil {
		t.feedMu.Lock()
		t.mu.Lock()
		since := t.place()
		t.mu.Unlock()
		s.watch(t.terms.usePartition(partition, since))
		t.feedMu.Unlock()
	}
	t.followMu.Unlock()
	t.grown.Store(true)
	t.hub.callKeeper()
}

func (s *Subscription) watch(tm *term) {
	st := &subTerm{term: tm}
	tm.watch(s, st)
	s.filter.terms = append(s.filter.terms, st)
}

// follow starts a task that follows the partitions which subscriptions wait for.
func (h *Hub) follow(ctx context.Context, t *Topic) {
	t.followMu.Lock()
	defer t.followMu.Unlock()
	if t.growing {
		return // it looks again before it ends
	}
	t.growing = true
	h.tasks.Go(func() { h.growTask(ctx, t) })
}

func (h *Hub) growTask(ctx context.Context, t *Topic) {
	for rest := time.Duration(0); ; rest = min(max(2*rest, restAtFirst), restAtMost) {
		if pause(ctx, rest) != nil || t.deleted.Load() {
			t.followMu.Lock()
			t.growing = false
			t.followMu.Unlock()
			return
		}
		need, gone := t.needed()
		if gone != nil {
			<-gone
			rest = 0
			continue
		}
		if len(need) == 0 {
			return
		}
		// One that is away must not hold up the others.
		for _, p := range need {
			if h.growBy(ctx, t, p) {
				rest = 0
			}
		}
	}
}

// growBy follows one partition that subscriptions wait for.
func (h *Hub) growBy(ctx context.Context, t *Topic, partition int32) bool {
	asked := t.Head()
	r, err := h.src.Resolve(ctx, t.name, Query{Partitions: []int32{partition}, Start: Start{Kind: Earliest}})
	if err == nil {
		return h.followOldest(t, r, asked)
	}
	t.mu.Lock()
	if p := &t.parts[partition]; p.next < 0 && partition < t.number && ctx.Err() == nil {
		t.setAway(p, true)
	}
	t.announce(t.commit())
	return false
}

// needed returns the partitions that subscriptions wait for; gone is what to wait for first. With neither, the task is over.
func (t *Topic) needed() (need []int32, gone chan struct{}) {
	count := t.Count()
	t.followMu.Lock()
	defer t.followMu.Unlock()
	t.room(count)
	t.quit()
	for p := range count {
		f := &t.follows[p]
		if f.wanted && f.refs == 0 {
			f.wanted = false
		}
		switch {
		case f.wanted && f.state == live, (f.wanted || t.whole > 0) && f.state == idle:
			need = append(need, p)
		case (f.wanted || t.whole > 0) && f.state == leaving:
			return nil, f.gone
		}
	}
	if len(need) == 0 {
		t.growing = false
	}
	return need, nil
}

// followOldest follows partitions for readers that begin with the oldest record. It returns false if the answer is of another log, or of
// one that was truncated since it was asked for.
func (h *Hub) followOldest(t *Topic, r Resolved, asked Seq) bool {
	t.followMu.Lock()
	defer t.followMu.Unlock()
	t.mu.Lock()
	stale := func(p ResolvedPartition) bool {
		if int(p.Partition) >= len(t.parts) {
			return false
		}
		part := &t.parts[p.Partition]
		another := int(p.Partition) < len(t.follows) && t.follows[p.Partition].state == live && part.id != t.id // its Recreated is yet to come
		return asked < part.truncated || part.over || another
	}
	if r.TopicID != "" && r.TopicID != t.id || slices.ContainsFunc(r.Partitions, stale) {
		t.mu.Unlock()
		return false
	}
	var from []ResolvedPartition
	for _, p := range r.Partitions {
		if p.Partition >= t.number || int(p.Partition) >= len(t.follows) {
			continue
		}
		switch f := &t.follows[p.Partition]; {
		case f.state == live && f.wanted:
			t.gain(p.Partition, p.Oldest)
		case f.state == idle:
			// What is short comes live; what is long would hold up the others.
			p.Start = p.Oldest
			if p.End-p.Oldest > MaxChunkRecords {
				p.Start = p.End
			}
			t.seekTo(p.Partition, p.Oldest, p.Start, p.End)
			from = append(from, p)
		}
	}
	t.announce(t.commit())
	for _, p := range r.Partitions {
		if int(p.Partition) < len(t.follows) {
			t.follows[p.Partition].wanted = false
		}
	}
	t.followFrom(from)
	return true
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
		delete(h.topics, t.name)
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
