package hub

import (
	"slices"
	"sort"
)

// Bounds of what one subscription reads at a time.
const (
	maxActive = 8    // partitions read from history at once; the others wait for their turn
	maxScan   = 8000 // records looked at for one batch of a keyed subscription
)

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
		if s.readBehind(b, bh) {
			active++
		}
		dropped = dropped || bh.pos == bh.target
	}
	if dropped {
		for k, bh := range slices.Backward(s.behind) {
			if bh.pos == bh.target {
				s.drop(k)
			}
		}
		again = true // others may have their turn
	}
	s.again = s.again || again || b.scan <= 0
}

// read reads on in one partition. waits: history was asked for.
func (s *Subscription) read(b *Batch, bh *behind) (waits bool) {
	bh.more()
	for s.final == nil && !b.full() && b.scan > 0 {
		limit := min(bh.target, s.stopOf(bh.partition))
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
		had := b.Records
		more := s.readHistory(b, bh, limit)
		b.History = b.History || had == 0 && b.Records > 0
		if !more {
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
	}
	e := &Entry{Kind: Gap, Reason: GapRetention, Partition: bh.partition, From: bh.pos, Next: to, End: err.End}
	bh.lose(b, e, to)
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
	if c := bh.reads.into; c != nil {
		return c.gather(s, b, e, lo, hi, to)
	}
	if s.keyed() {
		b.scan -= hi - lo + 1
		return s.deliverKeyed(b, bh, e, lo, hi, to)
	}
	if lo < hi && s.overdue(b, bh, e.Meta[lo].Offset) {
		return true
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
		if late := told < 0 && s.overdue(b, bh, e.Meta[i].Offset); !late && !b.full() {
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
