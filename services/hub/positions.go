package hub

import "slices"

// placeOf returns the position in a partition that is read.
func (s *Subscription) placeOf(partition int32) mark {
	if i, ok := s.find(partition); ok {
		return s.clip(partition, mark{s.behind[i].pos, s.behind[i].epoch})
	}
	return s.clip(partition, s.seg.markAt(partition, s.seq))
}

// clip keeps a position within the stop, and gives a partition that was just gained its beginning.
func (s *Subscription) clip(partition int32, m mark) mark {
	m.next = max(m.next, 0)
	if s.limits != nil {
		if stop, ok := s.limits.stops[partition]; ok && m.next > stop {
			m.next = stop
		}
	}
	return m
}

// each calls do with every partition that is read, and the position there.
func (s *Subscription) each(do func(slot int, partition int32, m mark)) {
	all := s.filter == nil || s.filter.all
	n := s.count
	if !all {
		n = int32(len(s.filter.scope))
	}
	var ms []mark
	if n > 8 {
		ms = s.seg.marks(s.seq, max(s.count, int32(len(s.seg.start))))
	}
	b := 0
	for slot := range n {
		partition := slot
		if !all {
			partition = s.filter.scope[slot]
		}
		for b < len(s.behind) && s.behind[b].partition < partition {
			b++
		}
		m := unmarked
		switch {
		case b < len(s.behind) && s.behind[b].partition == partition:
			m = mark{s.behind[b].pos, s.behind[b].epoch}
		case !all && slices.Contains(s.filter.waiting, partition):
		case ms != nil && int(partition) < len(ms):
			m = ms[partition]
		case ms == nil:
			m = s.seg.markAt(partition, s.seq)
		}
		do(int(slot), partition, s.clip(partition, m))
	}
}

// Moved appends the positions that moved without a record since they were last told (by a Part, by Started or by Moved), for heartbeats. For
// subscriptions to a whole topic parts tell everything. An idle subscription gives the memory free that its old place keeps.
func (s *Subscription) Moved(dst []Position) []Position {
	if s.filter == nil || s.closed.Load() || s.final != nil || len(s.prelude) > 0 {
		return dst
	}
	s.skipOthers()
	told := s.filter.told
	s.each(func(slot int, partition int32, m mark) {
		if told[slot] != m.next {
			told[slot] = m.next
			dst = append(dst, Position{Partition: partition, Offset: m.next, Epoch: m.epoch})
		}
	})
	s.addEpochs(dst)
	if s.started != nil && s.caughtUp() || s.stopReached() {
		s.wake() // the next Pull says so
	}
	return dst
}

// Positions appends the current position of every partition. A partition that was added and could not be resolved yet is at 0.
func (s *Subscription) Positions(dst []Position) []Position {
	s.each(func(_ int, partition int32, m mark) {
		dst = append(dst, Position{Partition: partition, Offset: m.next, Epoch: m.epoch})
	})
	s.addEpochs(dst)
	return dst
}

// InLog deletes from ps, which Positions has given, those that are not of the log of topicID, which s was told last (by Started or a Recreated
// part): while a topic is created anew, partitions go on in the new log one after the other.
func (s *Subscription) InLog(ps []Position, topicID string) []Position {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	return slices.DeleteFunc(ps, func(p Position) bool {
		if int(p.Partition) >= len(s.topic.parts) {
			return true
		}
		state := &s.topic.parts[p.Partition]
		return (state.id == topicID) != (state.recreated <= s.seq)
	})
}

// addEpochs fills in epochs that the ring does not know, as a reader of history found them.
func (s *Subscription) addEpochs(ps []Position) {
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	for i := range ps {
		p := &ps[i]
		if _, apart := s.find(p.Partition); p.Epoch >= 0 || apart || int(p.Partition) >= len(s.topic.parts) {
			continue
		}
		if state := &s.topic.parts[p.Partition]; state.cut <= s.seq {
			p.Epoch = state.seen
		}
	}
}

// Unavailable appends the partitions that cannot be read at the moment.
func (s *Subscription) Unavailable(dst []int32) []int32 {
	if s.topic.away.Load() == 0 {
		return dst
	}
	s.topic.mu.Lock()
	defer s.topic.mu.Unlock()
	for i := range s.topic.parts {
		if s.topic.parts[i].unavailable && s.includes(int32(i)) {
			dst = append(dst, int32(i))
		}
	}
	return dst
}

// Lag is the number of offsets between the positions and the ends, as far as known.
func (s *Subscription) Lag() (lag int64) {
	t := s.topic
	t.mu.Lock()
	ends := make([]int64, len(t.parts))
	for i := range t.parts {
		ends[i] = t.parts[i].end
	}
	t.mu.Unlock()
	s.each(func(_ int, partition int32, m mark) {
		if int(partition) < len(ends) {
			lag += max(0, ends[partition]-m.next)
		}
	})
	return lag
}
