package hub

import (
	"slices"
	"sort"
)

// pullWhole takes what the ring has from the cursor on, for a subscription to a whole topic.
func (s *Subscription) pullWhole(b *Batch) {
	for s.final == nil {
		g := s.seg
		data := g.data.Load()
		if data == nil {
			if g := s.topic.find(s.seq); g != nil {
				s.seg = g // it stood at the end of what was evicted
				continue
			}
			s.fall(b)
			return
		}
		n := int(g.n.Load())
		for i := int(s.seq - g.base); i < n; i++ {
			if !s.take(b, (*data)[i], &g.steps[i]) {
				return
			}
			s.seq++
		}
		after, moved, evicted := g.next(n)
		switch {
		case evicted, moved:
		case after == nil:
			return
		default:
			s.seg = after
		}
	}
}

// take takes the entry at the cursor. It returns false if there is no room for it, or it ends the subscription: then the cursor stays.
func (s *Subscription) take(b *Batch, e *Entry, st *step) bool {
	if b.full() {
		return false
	}
	switch e.Kind {
	case Records, Advance:
	default:
		s.control(b, control{s.seq, e, st.from})
		return s.final == nil
	}
	from, lo := st.from, 0
	k, apart := s.find(e.Partition)
	if apart {
		bh := &s.behind[k]
		switch {
		case !bh.ahead:
			bh.target = e.Next // history brings it
			return true
		case bh.pos >= e.Next:
			if bh.target = e.Next; bh.pos == bh.target {
				s.drop(k)
			}
			return true
		}
		from, lo = bh.pos, e.search(bh.pos)
	}
	hi := b.fit(e, lo, len(e.Meta))
	if hi < len(e.Meta) && b.Records > 0 {
		return false
	}
	if hi < len(e.Meta) {
		last := &e.Meta[hi-1]
		b.add(e, lo, hi, from, last.Offset+1)
		s.setAhead(e.Partition, mark{last.Offset + 1, last.Epoch}, st.from)
		return false
	}
	b.add(e, lo, hi, from, e.Next)
	if apart {
		s.drop(k)
	}
	return true
}

// control takes an entry that is more than records.
func (s *Subscription) control(b *Batch, c control) {
	e := c.e
	switch e.Kind {
	case Deleted:
		s.final = ErrTopicDeleted
		return
	case Topology:
		s.takeTopology(b, e)
		return
	case seek:
		s.gain(b, c)
		return
	}
	if !s.reads(e.Partition) {
		return
	}
	k, apart := s.find(e.Partition)
	pos := c.from
	if apart {
		if pos = s.behind[k].pos; s.behind[k].ahead {
			pos = max(pos, c.from)
		}
	}
	back := e.Kind == Recreated || e.Next < c.from
	if back {
		s.forgetConflation(e.Partition)
	}
	switch {
	case e.Kind == Recreated, back && pos > e.Next:
		b.add(e, 0, 0, pos, e.Next)
		if apart {
			s.behind[k].jump(e.Next)
		}
	case back:
		s.behind[k].cut(e.Next)
	case apart && (!s.behind[k].ahead || e.Next <= pos):
		s.behind[k].target = e.Next // below, history says that it is gone
	default:
		s.miss(b, e, max(pos, e.From))
		k, apart = s.find(e.Partition)
	}
	if apart && !s.falling && s.behind[k].pos == s.behind[k].target {
		s.drop(k)
	}
}

// miss acts by policy on a gap ahead: from is the first offset that the reader misses.
func (s *Subscription) miss(b *Batch, e *Entry, from int64) {
	to := e.Next
	switch {
	case e.Reason != GapRetention:
	case s.policy == OutOfRangeFail:
		s.final = &OffsetOutOfRangeError{Topic: s.topic.name, Partition: e.Partition, Offset: from, Oldest: e.Next, End: e.End}
		return
	case s.policy == OutOfRangeLatest:
		to = max(to, s.topic.endAt(e.Partition, s.seq))
	}
	b.add(e, 0, 0, from, to)
	if _, apart := s.find(e.Partition); apart || to > e.Next {
		s.setBehind(e.Partition, mark{to, -1}, e.Next)
	}
}

// endAt returns the end of a partition as far as it is known to be that of the log which a reader at a place is in, else -1.
func (t *Topic) endAt(partition int32, at Seq) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := &t.parts[partition]; p.cut <= at {
		return p.end
	}
	return -1
}

// takeTopology tells a new number of partitions. Their positions come with the entries that say where they begin.
func (s *Subscription) takeTopology(b *Batch, e *Entry) {
	if e.shrinks {
		s.shrink(b, e)
		return
	}
	if e.Count <= s.count {
		return
	}
	was := s.count
	s.count = e.Count
	b.add(e, 0, 0, 0, 0)
	switch f := s.filter; {
	case f == nil:
	case f.grows:
		for p := was; p < s.count; p++ {
			s.await(p)
		}
	case f.all:
		for int32(len(f.told)) < s.count {
			f.told = append(f.told, 0)
		}
	case f.hashed:
		s.rehash()
	}
}

// gain begins to read a partition that was added, where c says.
func (s *Subscription) gain(b *Batch, c control) {
	e := c.e
	if !s.gains(c) {
		return
	}
	if f := s.filter; f != nil {
		f.waiting = slices.DeleteFunc(f.waiting, func(p int32) bool { return p == e.Partition })
	}
	if e.From > 0 {
		b.add(&Entry{Kind: Advance, Partition: e.Partition, From: 0, Next: e.From, End: e.End}, 0, 0, 0, e.From)
	}
	if s.falling || e.From != e.Next {
		s.setBehind(e.Partition, mark{e.From, -1}, e.Next)
		if s.slow != nil {
			s.slow.armed = false // there it starts in the past
		}
	}
}

// gains says whether a seek is the beginning of a partition that the subscription waits for.
func (s *Subscription) gains(c control) bool {
	f, p := s.filter, c.e.Partition
	if c.e.Next < 0 || p >= s.count {
		return false
	}
	if f == nil || f.all {
		return c.from < 0
	}
	return slices.Contains(f.waiting, p)
}

// fall turns the positions at a cursor that fell off the ring into positions behind, and goes on at the head.
func (s *Subscription) fall(b *Batch) {
	g, seq := s.topic.front()
	if s.filter != nil {
		for g = nil; g == nil; g = s.topic.find(seq) { // nil: all up to there was evicted meanwhile
			seq = s.topic.refresh()
		}
	}
	s.retreat()
	s.falling = true
	for _, c := range s.topic.controlsIn(s.seq, seq) {
		if s.final == nil {
			s.control(b, c)
		}
	}
	s.falling = false
	if s.final != nil {
		return // its positions are those before what ended it
	}
	s.seg, s.seq = g, seq
	s.retarget()
}

// controlsIn returns the control entries of [from, to) that are still known.
func (t *Topic) controlsIn(from, to Seq) []control {
	cs := *t.controls.Load()
	if len(cs) == 0 || cs[len(cs)-1].seq < from {
		return nil
	}
	at := func(seq Seq) int { return sort.Search(len(cs), func(i int) bool { return cs[i].seq >= seq }) }
	return cs[at(from):at(to)]
}
