package hub

import (
	"slices"
	"sort"
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
	gaps []gap    // that passed the cursor, in order
	lane laneKey  // where history is read; without a topic: not known yet
	seg  *segment // where the ring has what comes at pos, if it has
	at   int      // entry of seg to look at next
}

// gap is a Gap entry clipped to [from, next).
type gap struct {
	e          *Entry
	from, next int64
}

// Bounds of what one subscription reads at a time.
const (
	maxActive = 8    // partitions read from history at once; the others wait for their turn
	maxScan   = 8000 // records looked at for one batch of a keyed subscription
)

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
	bh.pos, bh.epoch, bh.target, bh.ahead = m.next, m.epoch, target, m.next > target
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

// miss notes a gap that passed the cursor. Gaps are as rare as retention under a live reader, so their number has no bound of its own.
func (bh *behind) miss(e *Entry, from int64) {
	if e.Next > bh.pos {
		r := bh.more()
		r.gaps = append(r.gaps, gap{e, max(from, bh.pos), e.Next})
	}
}

// jump goes on at next, where another log or a new stretch of it begins.
func (bh *behind) jump(next int64) {
	bh.pos, bh.target, bh.epoch, bh.reads = next, next, -1, nil
}

// cut forgets what was known above next, which the log has lost.
func (bh *behind) cut(next int64) {
	bh.target = next
	if r := bh.reads; r != nil {
		r.seg = nil
		for i := range r.gaps {
			if g := &r.gaps[i]; g.next > next {
				g.next = max(next, g.from)
			}
		}
		r.gaps = slices.DeleteFunc(r.gaps, func(g gap) bool { return g.from >= g.next })
	}
}

// pullBehind reads what lies between positions and targets. Up to maxActive partitions are read from history, always the first ones, so that
// those that are begun reach the seam.
func (s *Subscription) pullBehind(b *Batch) {
	active, again, dropped := 0, false, false
	for k := 0; k < len(s.behind) && active < maxActive && s.final == nil; k++ {
		bh := &s.behind[k]
		if bh.ahead {
			continue
		}
		if b.full() || b.scan <= 0 {
			again = true
			break
		}
		if s.read(b, bh) {
			active++
		}
		dropped = dropped || bh.pos == bh.target
	}
	if dropped {
		for k := len(s.behind) - 1; k >= 0; k-- {
			if s.behind[k].pos == s.behind[k].target {
				s.drop(k)
			}
		}
		again = true // others may have their turn
	}
	s.again = s.again || again
}

// read reads on in one partition. waits: history was asked for.
func (s *Subscription) read(b *Batch, bh *behind) (waits bool) {
	r := bh.more()
	for s.final == nil && !b.full() && b.scan > 0 {
		limit := bh.target
		if len(r.gaps) > 0 {
			if g := r.gaps[0]; bh.pos >= g.from {
				if bh.pos < g.next {
					b.add(g.e, 0, 0, bh.pos, g.next)
					bh.pos = g.next
				}
				r.gaps = r.gaps[1:]
				continue
			}
			limit = min(limit, r.gaps[0].from)
		}
		if s.limits != nil {
			if stop, ok := s.limits.stops[bh.partition]; ok {
				limit = min(limit, stop)
			}
		}
		if bh.pos >= limit {
			return false
		}
		if s.topic.brokenAfter(bh.partition, s.seq) {
			s.again = true // the cursor will come to where the order is broken
			return true
		}
		if s.readRing(b, bh, limit) {
			continue
		}
		if !s.readHistory(b, bh, limit) {
			return true
		}
	}
	return true
}

// readRing reads from the ring. It returns false if that does not have pos.
func (s *Subscription) readRing(b *Batch, bh *behind, limit int64) bool {
	r := bh.reads
	if r.seg == nil || r.seg.data.Load() == nil {
		if r.seg, r.at = s.topic.locate(bh.partition, bh.pos, s.seq); r.seg == nil {
			return false
		}
	}
	for {
		g := r.seg
		data := g.data.Load()
		if data == nil {
			r.seg = nil
			return false
		}
		n := int(g.n.Load())
		for ; r.at < n; r.at++ {
			st := &g.steps[r.at]
			if st.partition != bh.partition || st.next <= bh.pos {
				continue
			}
			e := (*data)[r.at]
			if st.from >= limit || e.Kind != Records && e.Kind != Advance {
				r.seg = nil
				return false
			}
			if s.deliver(b, bh, e, min(st.next, limit)) || bh.pos >= limit {
				return true
			}
		}
		after, moved, evicted := g.next(n)
		switch {
		case moved:
		case evicted, after == nil:
			r.seg = nil
			return false
		default:
			r.seg, r.at = after, 0
		}
	}
}

// readHistory reads from chunks. It returns false if the next one has to come first.
func (s *Subscription) readHistory(b *Batch, bh *behind, limit int64) bool {
	r := bh.reads
	if r.lane.topic == nil && !s.findLane(bh) {
		return false // the cursor will come to where another log begins
	}
	chunk, outOfRange := s.hub.history.get(r.lane, bh.pos, limit, bh.target, s)
	if outOfRange != nil {
		return s.outOfRange(b, bh, limit, outOfRange)
	}
	if chunk == nil {
		return false
	}
	if s.topic.brokenAfter(bh.partition, s.seq) { // meanwhile: the chunk may have been read beyond that
		s.again = true
		return false
	}
	i := sort.Search(len(chunk.entries), func(i int) bool { return chunk.entries[i].Next > bh.pos })
	for ; i < len(chunk.entries) && bh.pos < limit; i++ {
		e := chunk.entries[i]
		if s.deliver(b, bh, e, min(e.Next, limit)) {
			return true
		}
	}
	return true
}

// findLane finds out in which log pos lies. It returns false while that is not the one that can be read.
func (s *Subscription) findLane(bh *behind) bool {
	t := s.topic
	t.mu.Lock()
	p := &t.parts[bh.partition]
	id, later, stale := p.id, p.recreated > s.seq, p.id != t.id
	t.mu.Unlock()
	if later || stale {
		s.again = s.again || later
		return false
	}
	bh.reads.lane = laneKey{topic: t, id: id, partition: bh.partition}
	if s.keyed() && s.hub.filters {
		bh.reads.lane.owner = s
		if !slices.Contains(s.filter.lanes, bh.reads.lane) {
			s.filter.lanes = append(s.filter.lanes, bh.reads.lane)
		}
	}
	return true
}

// brokenAfter says whether the ring has a break of a partition's order that the cursor did not come to: what is read now may lie beyond it.
func (t *Topic) brokenAfter(partition int32, seq Seq) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.parts[partition].cut > seq
}

// outOfRange acts by policy where the log has lost what is to be read.
func (s *Subscription) outOfRange(b *Batch, bh *behind, limit int64, err *OffsetOutOfRangeError) bool {
	to := min(err.Oldest, limit)
	switch s.policy {
	case OutOfRangeFail:
		s.final = err
		return false
	case OutOfRangeLatest:
		to = bh.target
		bh.reads.gaps = nil
	}
	e := &Entry{Kind: Gap, Reason: GapRetention, Partition: bh.partition, From: bh.pos, Next: to, End: err.End}
	b.add(e, 0, 0, bh.pos, to)
	bh.pos = to
	return true
}

// deliver passes e up to the offset to, as far as there is room, and moves bh. It returns true if the batch is full.
func (s *Subscription) deliver(b *Batch, bh *behind, e *Entry, to int64) (full bool) {
	if b.full() || b.scan <= 0 {
		return true
	}
	lo, hi := 0, len(e.Meta)
	if bh.pos > e.From {
		lo = e.search(bh.pos)
	}
	if to < e.Next {
		hi = e.search(to)
	}
	if s.keyed() {
		b.scan -= hi - lo + 1
		return s.deliverKeyed(b, bh, e, lo, hi, to)
	}
	if cut := b.fit(e, lo, hi); cut < hi {
		if cut > lo {
			last := &e.Meta[cut-1]
			b.add(e, lo, cut, bh.pos, last.Offset+1)
			bh.pos, bh.epoch = last.Offset+1, last.Epoch
		}
		return true
	}
	b.add(e, lo, hi, bh.pos, to)
	bh.pos = to
	if lo < hi {
		bh.epoch = e.Meta[hi-1].Epoch
	}
	return false
}

// deliverKeyed is deliver for a subscription with keys, which gets runs of matching records.
func (s *Subscription) deliverKeyed(b *Batch, bh *behind, e *Entry, lo, hi int, to int64) (full bool) {
	keys, told := s.filter.keys, -1
	for i := lo; i < hi; i++ {
		if !has(keys, e, i) {
			continue
		}
		n := i + 1
		for n < hi && has(keys, e, n) {
			n++
		}
		cut := i
		if !b.full() {
			cut = b.fit(e, i, n)
		}
		if cut == i {
			if bh.pos = e.Meta[i].Offset; i > 0 {
				bh.epoch = e.Meta[i-1].Epoch
			}
			b.stuffed = true
			return true
		}
		last := &e.Meta[cut-1]
		told = len(b.Parts)
		b.add(e, i, cut, bh.pos, last.Offset+1)
		bh.pos, bh.epoch = last.Offset+1, last.Epoch
		if cut < n {
			return true
		}
		i = n - 1
	}
	if told >= 0 {
		b.Parts[told].Next = to
	}
	if bh.pos = to; hi > lo {
		bh.epoch = e.Meta[hi-1].Epoch
	}
	return false
}

// has says whether record i of an entry has one of the keys.
func has(keys map[string]struct{}, e *Entry, i int) bool {
	m := &e.Meta[i]
	if m.Key < 0 {
		return false
	}
	_, ok := keys[string(e.Body[m.Key:m.Key+m.KeyLen])]
	return ok
}
