package hub

import "slices"

// subscribe makes the subscription that was planned. followMu, mu and, where it is filtered, feedMu are held.
func (o *opening) subscribe() *Subscription {
	t := o.topic
	for i, p := range o.scope {
		if t.follows[p].state == idle {
			r := o.resolved[p].ResolvedPartition
			r.Start = r.End // from here on it is live
			t.seekTo(p, r.Oldest, r.End, r.End)
			o.fresh = append(o.fresh, r)
			o.begin[i].end = r.End
		}
	}
	s := &Subscription{
		hub: o.hub, topic: t, waker: o.waker, token: o.token, count: t.number, policy: o.request.OnOutOfRange,
		started: &Started{TopicID: t.id, Count: t.number, Partitioner: t.partitioner, Partitions: make([]StartedPartition, len(o.scope))},
		limits:  newLimits(o.request), slow: newSlowness(o.request.Slow),
	}
	if s.slow != nil {
		t.paced()
	}
	for i, p := range o.scope {
		at := &o.begin[i]
		s.started.Partitions[i] = StartedPartition{Partition: p, Start: at.next, End: max(at.end, at.next), Incomplete: at.incomplete}
		if at.next < at.end {
			s.ends = append(s.ends, endMark{p, at.end})
		}
		if at.gap != nil {
			s.prelude = append(s.prelude, Part{Entry: at.gap, From: at.gap.From, Next: at.gap.Next})
		}
	}
	o.stop(s)
	s.filter = o.filter()
	s.seg, s.seq = t.seg, t.place()
	if len(o.fresh) == 0 {
		if g, seq := o.rewind(); g != nil {
			s.seg, s.seq = g, seq
		}
	}
	if s.filter != nil {
		o.watch(s)
	}
	o.behind(s)
	if f := s.filter; f != nil && f.keys == nil && !f.all && !f.grows && len(f.scope) == 1 {
		s.stands.only = f.scope[0] + 1
	}
	s.stand(true)
	if o.request.Start.Kind == AtPositions && o.resolved == nil {
		o.hub.ringHits.Add(1)
	}
	return s
}

// stop fills in where a subscription ends.
func (o *opening) stop(s *Subscription) {
	stop := &o.request.Stop
	if s.limits == nil {
		return
	}
	positions := make(map[int32]int64, len(stop.Positions))
	for _, pos := range stop.Positions {
		positions[pos.Partition] = pos.Offset
	}
	for i, p := range o.scope {
		at, stops := positions[p]
		if stop.AtEnd {
			at, stops = o.begin[i].end, true
		}
		if stops {
			s.limits.stops[p] = max(at, o.begin[i].next)
			s.limits.left = append(s.limits.left, p)
		}
	}
	s.limits.stopAll = len(s.limits.left) > 0
}

// filter returns what is read if that is not all.
func (o *opening) filter() *filter {
	r := o.request
	if !o.filters() {
		return nil
	}
	f := &filter{
		all:    r.Partitions == nil && !o.hashes() && !o.skips(),
		hashed: r.Partitions == nil && o.hashes(),
		grows:  r.Partitions == nil && !o.hashes() && o.skips(),
		told:   make([]int64, len(o.scope)),

		partitioner: o.topic.partitioner,
	}
	for i := range o.scope {
		f.told[i] = o.begin[i].next
	}
	if !f.all {
		f.scope = slices.Clone(o.scope)
	}
	if r.Keys != nil {
		f.keys = make(map[string]struct{}, len(r.Keys))
		for _, key := range r.Keys {
			f.keys[string(key)] = struct{}{}
		}
	}
	return f
}

// watch makes or finds the terms of a filtered subscription. Where their logs don't go back to the cursor, it goes to the head.
func (o *opening) watch(s *Subscription) {
	t, since := o.topic, o.topic.place()
	if f := s.filter; f.keys != nil {
		for key := range f.keys {
			s.watch(t.terms.useKey([]byte(key), since))
		}
	} else {
		for _, p := range f.scope {
			s.watch(t.terms.usePartition(p, since))
		}
	}
	for _, tm := range s.filter.terms {
		if !tm.covers(s.seq) {
			s.seg, s.seq = t.seg, since
			break
		}
	}
}

// rewind returns the newest place from which on the ring has all that the positions in it need; nil: the head. It does not go back beyond
// where the order of a partition is broken.
func (o *opening) rewind() (*segment, Seq) {
	t := o.topic
	var first *segment
	at, whole := 0, t.shrunk
	wanted := map[int32]int64{}
	for i, p := range o.scope {
		pos := o.begin[i].next
		whole = max(whole, t.parts[p].cut)
		if pos >= t.parts[p].next {
			continue
		}
		g, n := t.locateLocked(p, pos)
		switch {
		case g == nil:
			continue // history brings it
		case first == nil || g.base < first.base:
			first, at = g, n
			clear(wanted)
		case g == first:
			at = min(at, n)
		default:
			continue
		}
		wanted[p] = pos
	}
	if first == nil {
		return nil, 0
	}
	for i := at; i < t.count(first); i++ {
		st, seq := &first.steps[i], first.base+Seq(i)
		if pos, ok := wanted[st.partition]; ok && st.next > pos && seq >= t.parts[st.partition].cut {
			if seq >= whole {
				return first, seq
			}
			return t.findPut(whole), whole
		}
	}
	return nil, 0
}

// findPut is find for what may not be published yet. mu is held.
func (t *Topic) findPut(seq Seq) *segment {
	if seq >= t.seg.base {
		return t.seg
	}
	return t.find(seq)
}

// behind puts the partitions behind that do not begin where the cursor stands.
func (o *opening) behind(s *Subscription) {
	t := o.topic
	var ms []mark
	for i, p := range o.scope {
		at := o.begin[i].mark
		if s.seg == t.seg && s.seq == t.place() {
			if t.parts[p].next == at.next {
				continue
			}
			s.setBehind(p, at, t.parts[p].next)
		} else {
			if ms == nil {
				ms = s.seg.marks(s.seq, int32(len(t.parts)))
			}
			if ms[p].next == at.next {
				continue
			}
			s.setBehind(p, at, ms[p].next)
		}
	}
}
