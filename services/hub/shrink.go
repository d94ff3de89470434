package hub

import (
	"slices"
	"time"
)

// resize takes a number of partitions that was told. mu is held.
func (t *Topic) resize(e *Entry) {
	count := min(e.Count, maxCount)
	switch {
	case e.TopicID != "" && e.TopicID != t.id:
	case count > t.number:
		t.extend(count)
		t.control(e, -1)
		t.put(e, step{partition: -1})
		t.grown.Store(true)
	case e.TopicID != "":
		t.shrink(count)
	}
}

// extend makes it count partitions. mu is held.
func (t *Topic) extend(count int32) {
	for i := t.number; i < int32(len(t.parts)); i++ {
		t.parts[i].id = t.id // there is one again
	}
	for int32(len(t.parts)) < count {
		t.parts = append(t.parts, partition{mark: unmarked, end: -1, seen: -1, id: t.id})
	}
	t.number = count
}

// recreate lets a partition go on in another log. mu is held.
func (t *Topic) recreate(e *Entry, p *partition) {
	if e.TopicID != "" && e.TopicID == p.id {
		return
	}
	if e.TopicID != "" {
		t.id = e.TopicID
	}
	if e.Count > 0 {
		t.shrink(e.Count)
	}
	if p.over {
		return
	}
	t.cut(e, p, e.Next)
	p.id = t.id
	p.recreated = p.cut
}

// shrink ends the partitions that the log of t.id does not have, if it was created with count of them. What is known to be of that log stays: it
// has grown since. Readers are told a gap for each that ends, without the new id, so that their positions stay those of the old log until
// all of them, and the new number, are told. mu is held.
func (t *Topic) shrink(count int32) {
	n := t.number
	for n > max(count, 1) && t.parts[n-1].id != t.id {
		n--
	}
	if n == t.number {
		return
	}
	for i := n; i < t.number; i++ {
		p := &t.parts[i]
		p.id = ""
		t.setAway(p, false)
		if p.next < 0 {
			continue
		}
		t.cut(&Entry{Kind: Recreated, Partition: i, From: p.next, Next: 0, End: -1}, p, 0)
		p.recreated, p.over = p.cut, true
	}
	t.number = n
	e := &Entry{Kind: Topology, Partition: -1, Count: n, End: -1, TopicID: t.id, shrinks: true}
	t.control(e, -1)
	t.put(e, step{partition: -1})
	t.shrunk = t.place()
	t.grown.Store(true)
}

// quit has partitions unfollowed that are over. followMu is held.
func (t *Topic) quit() {
	var left []int32
	t.mu.Lock()
	for i := range t.follows {
		if f := &t.follows[i]; f.state == live && t.parts[i].over {
			f.state, f.gone = leaving, make(chan struct{})
			left = append(left, int32(i))
		}
	}
	t.mu.Unlock()
	if len(left) > 0 {
		t.hub.tasks.Go(func() { t.unfollow(left) })
	}
}

// shrink goes on with fewer partitions. Keys may hash to others now; who named one that is over ends.
func (s *Subscription) shrink(b *Batch, e *Entry) {
	s.count = e.Count
	b.add(e, 0, 0, 0, 0)
	s.behind = slices.DeleteFunc(s.behind, func(bh behind) bool {
		if bh.partition >= s.count {
			s.abandon(&bh)
		}
		return bh.partition >= s.count
	})
	s.ends = slices.DeleteFunc(s.ends, func(end endMark) bool { return end.partition >= s.count })
	switch f := s.filter; {
	case f == nil:
	case f.all:
		f.told = f.told[:min(int(s.count), len(f.told))]
	case f.hashed:
		s.cede()
		s.rehash()
	case f.grows:
		s.cede()
	default:
		if n := len(f.scope); n > 0 && f.scope[n-1] >= s.count {
			i, _ := slices.BinarySearch(f.scope, s.count)
			s.final = &UnknownPartitionError{Topic: s.topic.name, Partition: f.scope[i], Count: s.count, TopicID: e.TopicID}
			s.cede()
		}
	}
}

// cede gives up the partitions that are over.
func (s *Subscription) cede() {
	f, t, now := s.filter, s.topic, int64(time.Since(s.hub.began))
	n, _ := slices.BinarySearch(f.scope, s.count)
	over := f.scope[n:]
	f.scope, f.told = f.scope[:n:n], f.told[:n:n]
	f.waiting = slices.DeleteFunc(f.waiting, func(p int32) bool { return p >= s.count })
	t.followMu.Lock()
	for _, p := range over {
		t.follows[p].refs--
		t.follows[p].idleSince = now
	}
	t.followMu.Unlock()
	f.terms = slices.DeleteFunc(f.terms, func(st *subTerm) bool {
		if st.partition < s.count {
			return false
		}
		st.unwatch(st)
		t.terms.leave(st.term, now)
		return true
	})
}
