package hub

import (
	"context"
	"errors"
	"slices"
	"time"
)

// rehash adds the partitions that keys hash to now. The old ones stay.
func (s *Subscription) rehash() {
	for key := range s.filter.keys {
		at := s.filter.partitioner.Partition([]byte(key), s.count)
		if at < 0 { // anywhere: the other keys ask for nothing more
			for p := range s.count {
				s.await(p)
			}
			return
		}
		s.await(at)
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
	t.quit() // at once: a task under way may rest
	if t.growing {
		return // it looks again before it ends
	}
	t.growing = true
	h.tasks.Go(func() { h.growTask(ctx, t) })
}

// goneAfter is how long a topic must be unknown, with nothing followed that would tell, to count as deleted. A broker that has just started, or that has
// not heard of a topic created anew yet, knows none for a moment.
const goneAfter = 10 * time.Second

func (h *Hub) growTask(ctx context.Context, t *Topic) {
	var missing time.Time // since when it is unknown
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
		unknown := false
		for _, p := range need {
			err := h.growBy(ctx, t, p)
			unknown = unknown || errors.Is(err, ErrUnknownTopic)
			if err == nil {
				rest = 0
			}
		}
		switch {
		case !unknown:
			missing = time.Time{}
		case missing.IsZero():
			missing = time.Now()
		case time.Since(missing) >= goneAfter:
			t.vanish()
		}
	}
}

// vanish ends a topic that was deleted, if nothing is followed: then nobody else would tell of it.
func (t *Topic) vanish() {
	t.followMu.Lock()
	defer t.followMu.Unlock()
	t.mu.Lock()
	if !t.busy() {
		t.add(&Entry{Kind: Deleted, Partition: -1, End: -1})
	}
	t.announce(t.commit())
}

// errStale: an answer is not of the log that is followed, or not of what is there of it now.
var errStale = errors.New("stale answer")

// growBy follows one partition that subscriptions wait for; err is why it is to be asked again later.
func (h *Hub) growBy(ctx context.Context, t *Topic, partition int32) error {
	asked := t.Head()
	r, err := h.src.Resolve(ctx, t.name, Query{Partitions: []int32{partition}, Start: Start{Kind: Earliest}})
	if err == nil {
		if !h.followOldest(t, r, asked) {
			return errStale
		}
		return nil
	}
	if e, ok := errors.AsType[*UnknownPartitionError](err); ok && t.moved(e.TopicID, e.Count) {
		return nil
	}
	t.mu.Lock()
	if p := &t.parts[partition]; p.next < 0 && partition < t.number && ctx.Err() == nil {
		t.setAway(p, true)
	}
	t.announce(t.commit())
	return err
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

// moved goes on with another log, if id is another and nothing is followed: then nobody else would tell of it.
func (t *Topic) moved(id string, count int32) bool {
	t.followMu.Lock()
	defer t.followMu.Unlock()
	t.mu.Lock()
	moves := id != "" && id != t.id && !t.busy()
	if moves {
		t.adopt(id, count)
	}
	t.announce(t.commit())
	return moves
}

// busy says whether a partition is followed, or is being left. followMu is held.
func (t *Topic) busy() bool {
	return slices.ContainsFunc(t.follows, func(f follow) bool { return f.state != idle })
}

// followOldest follows partitions for readers that begin with the oldest record. It returns false if the answer is of another log, or of
// one that was truncated since it was asked for.
func (h *Hub) followOldest(t *Topic, r Resolved, asked Seq) bool {
	t.moved(r.TopicID, r.Count)
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
