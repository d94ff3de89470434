package hub

import (
	"slices"
)

// behind is a partition whose position is not the ring's next at the cursor (target). Below it, [pos, target) is read from history or from
// the ring, and what passes the cursor is skipped and raises target. Ahead of it, what passes the cursor is clipped. Either way the
// partition is live again when pos == target.
type behind struct {
	partition   int32
	epoch       int32 // of the last record before pos
	ahead       bool
	pos, target int64
	reads       *reading // nil until needed
}

// reading is how a partition is read that is below its target.
type reading struct {
	into *conflation // of what is read; nil: it is delivered
	lane laneKey     // where history is read; without a topic: not known yet
	seg  *segment    // where the ring has what comes at pos, if it has
	at   int         // entry of seg to look at next
}

// find returns where a partition is, or would be, in s.behind.
func (s *Subscription) find(partition int32) (int, bool) {
	if len(s.behind) == 0 {
		return 0, false
	}
	return slices.BinarySearchFunc(s.behind, partition, func(b behind, p int32) int { return int(b.partition) - int(p) })
}

func (s *Subscription) setBehind(partition int32, m mark, target int64) *behind {
	k, ok := s.find(partition)
	if !ok {
		s.behind = slices.Insert(s.behind, k, behind{partition: partition})
	}
	bh := &s.behind[k]
	// In a fall, what passed between target and the head is not taken: there only retarget knows what is ahead.
	bh.pos, bh.epoch, bh.target, bh.ahead = m.next, m.epoch, target, m.next > target && !s.falling
	return bh
}

// drop makes a partition live again.
func (s *Subscription) drop(k int) {
	if bh := &s.behind[k]; bh.epoch >= 0 && !bh.ahead {
		s.topic.saw(bh.partition, bh.epoch, s.seq, s.seg)
	}
	s.behind = slices.Delete(s.behind, k, k+1)
	if len(s.behind) == 0 {
		s.behind = nil
	}
}

// saw notes the epoch of the last record below what the ring has of a partition, from a reader that came from there.
func (t *Topic) saw(partition, epoch int32, at Seq, g *segment) {
	if g.markAt(partition, at).epoch >= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := &t.parts[partition]; p.cut <= at {
		p.seen = max(p.seen, epoch)
	}
}

// retreat puts every partition behind, at its position.
func (s *Subscription) retreat() {
	ms := s.seg.marks(s.seq, max(s.count, int32(len(s.seg.start))))
	all := make([]behind, 0, len(s.behind)+8)
	add := func(partition int32) {
		if k, ok := s.find(partition); ok {
			s.behind[k].ahead = false
			all = append(all, s.behind[k])
		} else if int(partition) < len(ms) && ms[partition].next >= 0 {
			m := ms[partition]
			all = append(all, behind{partition: partition, epoch: m.epoch, pos: m.next, target: m.next})
		}
	}
	if s.filter == nil || s.filter.all {
		for p := range s.count {
			add(p)
		}
	} else {
		for _, p := range s.filter.scope {
			if !slices.Contains(s.filter.waiting, p) {
				add(p)
			}
		}
	}
	s.behind = all
}

// retarget takes the targets from where the cursor stands now, and drops what is live there.
func (s *Subscription) retarget() {
	if len(s.behind) == 0 {
		return
	}
	var ms []mark
	if len(s.behind) > 8 {
		ms = s.seg.marks(s.seq, max(s.count, int32(len(s.seg.start))))
	}
	kept := s.behind[:0]
	for _, bh := range s.behind {
		m := unmarked
		if ms == nil {
			m = s.seg.markAt(bh.partition, s.seq)
		} else if int(bh.partition) < len(ms) {
			m = ms[bh.partition]
		}
		bh.target = m.next
		switch {
		case bh.pos == m.next, bh.ahead && bh.pos < m.next:
			if bh.epoch >= 0 && !bh.ahead {
				s.topic.saw(bh.partition, bh.epoch, s.seq, s.seg)
			}
			continue
		case bh.pos > m.next:
			bh.ahead = true
		}
		kept = append(kept, bh)
	}
	clear(s.behind[len(kept):])
	if s.behind = kept; len(kept) == 0 {
		s.behind = nil
	}
}

func (bh *behind) more() *reading {
	if bh.reads == nil {
		bh.reads = &reading{}
	}
	return bh.reads
}

// lose passes a gap of the log, up to next.
func (bh *behind) lose(b *Batch, e *Entry, next int64) {
	if c := bh.reads.into; c != nil {
		c.miss(e, bh.pos, next)
	} else {
		b.add(e, 0, 0, bh.pos, next)
	}
	bh.pos = next
}

// jump goes on at next, where another log or a new stretch of it begins.
func (bh *behind) jump(next int64) {
	bh.pos, bh.target, bh.epoch, bh.reads = next, next, -1, nil
}

// cut forgets what was known above next, which the log has lost.
func (bh *behind) cut(next int64) {
	bh.target = next
	if bh.reads != nil {
		bh.reads.seg = nil
	}
}
