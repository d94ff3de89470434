package hub

import (
	"bytes"
	"cmp"
	"slices"
)

// Bounds of one conflation of a subscription, all partitions together; beyond them it is skipped to the head. All subscriptions of a hub together
// may keep one part of the budget in conflateShare.
const (
	MaxConflatedRecords = 10_000
	MaxConflatedBytes   = 4 << 20
	conflateShare       = 8
	keptBytes           = 320 // what a kept record costs beside its piece and its key
)

// conflation is how one partition of a slow reader is read, up to where the ring's head was when it began: nothing is delivered until all of it
// was looked at, then the latest record of each key, in order. What is left out between two records that are delivered neighbours is one gap,
// so that each position told is exact: below it everything was delivered or told. The position stays where it is until then.
type conflation struct {
	cursor  behind           // how far the log was looked at; its target is where the conflation ends
	latest  map[string]*kept // by key
	keyless []*kept          // nothing supersedes a record without a key
	gaps    []*kept          // of the log, found on the way
	order   []*kept          // all that is to be told; nil: not all is looked at yet
	seen    int64            // records of the subscription's own
	told    int64            // of these, delivered or counted in a gap
	held    int64            // bytes charged
}

// kept is what a conflation delivers: one record, or a gap of the log.
type kept struct {
	entry *Entry
	nth   int64 // a record: how many came before it
}

func (k *kept) cost() int64 {
	n := len(k.entry.Body) + keptBytes
	if len(k.entry.Meta) > 0 {
		n += int(max(k.entry.Meta[0].KeyLen, 0))
	}
	return int64(n)
}

// conflate begins to conflate all that lies before the head. It returns false if nothing does.
func (s *Subscription) conflate(b *Batch) bool {
	sl := s.slow
	sl.kept, sl.keptBytes = 0, 0
	s.left(b, func(bh *behind, to int64) {
		c := &conflation{latest: map[string]*kept{}}
		c.cursor = behind{partition: bh.partition, epoch: bh.epoch, pos: bh.pos, target: to, reads: &reading{into: c}}
		s.abandon(bh)
		sl.conflations = append(sl.conflations, c)
	})
	if len(sl.conflations) == 0 {
		return false
	}
	sl.acted = SlowConflate
	return true
}

// conflationOf returns what is under way in a partition, nil if nothing is.
func (s *Subscription) conflationOf(partition int32) *conflation {
	if s.slow == nil || len(s.slow.conflations) == 0 {
		return nil
	}
	cs := s.slow.conflations
	i, ok := slices.BinarySearchFunc(cs, partition, func(c *conflation, p int32) int { return cmp.Compare(c.cursor.partition, p) })
	if !ok {
		return nil
	}
	return cs[i]
}

// readBehind reads on in one partition, conflating if that is under way. waits: history was asked for.
func (s *Subscription) readBehind(b *Batch, bh *behind) (waits bool) {
	c := s.conflationOf(bh.partition)
	if c == nil {
		return s.read(b, bh)
	}
	if c.order == nil {
		if waits := s.read(b, &c.cursor); c.cursor.pos < c.cursor.target || s.slow.spilled || s.final != nil {
			return waits
		}
		c.arrange()
	}
	s.tell(b, bh, c)
	return false
}

// gather looks at the records [lo, hi) of e. It returns true if no more can be looked at in this turn.
func (c *conflation) gather(s *Subscription, b *Batch, e *Entry, lo, hi int, to int64) (full bool) {
	b.scan -= hi - lo + 1
	was := c.seen
	for i := lo; i < hi; i++ {
		if !s.keyed() || has(s.filter.keys, e, i) {
			c.seen++
		}
	}
	// Backwards, so that what is superseded within the entry is not copied.
	for i, nth := hi-1, c.seen-1; i >= lo; i-- {
		if s.keyed() && !has(s.filter.keys, e, i) {
			continue
		}
		if !s.keep(c, e, i, nth, was) {
			s.slow.spilled, s.again, b.stuffed = true, true, true
			return true
		}
		nth--
	}
	c.cursor.pos = to
	if hi > lo {
		c.cursor.epoch = e.Meta[hi-1].Epoch
	}
	return false
}

// keep keeps record i of an entry whose first record is that numbered was, unless a later one is kept. It returns false if that is too much.
func (s *Subscription) keep(c *conflation, e *Entry, i int, nth, was int64) bool {
	m := e.Meta[i]
	if m.Key < 0 {
		c.keyless = append(c.keyless, s.retain(c, e, i, nth))
		return s.fits()
	}
	key := e.Body[m.Key : m.Key+m.KeyLen]
	if k := c.latest[string(key)]; k == nil {
		c.latest[string(key)] = s.retain(c, e, i, nth)
	} else if k.nth < was {
		s.letGo(c, k)
		*k = *s.retain(c, e, i, nth)
	}
	return s.fits()
}

// retain copies one record: its entry may be of a chunk that is given up.
func (s *Subscription) retain(c *conflation, e *Entry, i int, nth int64) *kept {
	m := e.Meta[i]
	base := e.bodyAt(i)
	m.End -= base
	if m.Key >= 0 {
		m.Key -= base
	}
	k := &kept{nth: nth, entry: &Entry{
		Kind: Records, Partition: e.Partition, From: m.Offset, Next: m.Offset + 1, End: -1, Meta: []Meta{m}, Body: bytes.Clone(e.Piece(i, i+1)),
	}}
	s.slow.kept++
	s.slow.keptBytes += len(k.entry.Body)
	s.hold(c, k.cost())
	return k
}

// letGo undoes retain.
func (s *Subscription) letGo(c *conflation, k *kept) {
	s.slow.kept--
	s.slow.keptBytes -= len(k.entry.Body)
	s.hold(c, -k.cost())
}

func (s *Subscription) fits() bool {
	return s.slow.kept <= MaxConflatedRecords && s.slow.keptBytes <= MaxConflatedBytes &&
		s.hub.slow.held.Load() <= s.hub.cfg.MemoryBudget/conflateShare
}

// hold charges what a conflation keeps.
func (s *Subscription) hold(c *conflation, bytes int64) {
	c.held += bytes
	s.hub.slow.held.Add(bytes)
}

// miss notes a gap of the log.
func (c *conflation) miss(e *Entry, from, next int64) {
	c.gaps = append(c.gaps, &kept{nth: c.seen, entry: &Entry{
		Kind: Gap, Reason: e.Reason, Partition: e.Partition, From: from, Next: next, End: e.End,
	}})
}

// arrange puts what is to be told in order.
func (c *conflation) arrange() {
	c.order = make([]*kept, 0, len(c.latest)+len(c.keyless)+len(c.gaps))
	for _, k := range c.latest {
		c.order = append(c.order, k)
	}
	c.order = append(append(c.order, c.keyless...), c.gaps...)
	slices.SortFunc(c.order, func(a, b *kept) int { return cmp.Compare(a.entry.From, b.entry.From) })
	c.latest, c.keyless, c.gaps = nil, nil, nil
}

// tell delivers what is kept, as far as there is room, and gaps for what is left out.
func (s *Subscription) tell(b *Batch, bh *behind, c *conflation) {
	for ; len(c.order) > 0; c.order = c.order[1:] {
		if b.full() {
			return
		}
		k := c.order[0]
		c.leaveOut(b, bh, k.nth, k.entry.From)
		if k.entry.Kind == Gap {
			b.add(k.entry, 0, 0, k.entry.From, k.entry.Next)
			bh.pos = k.entry.Next
			continue
		}
		if b.full() || b.fit(k.entry, 0, 1) == 0 {
			return
		}
		b.add(k.entry, 0, 1, bh.pos, k.entry.Next)
		bh.pos, bh.epoch = k.entry.Next, k.entry.Meta[0].Epoch
		c.told++
		c.order[0] = nil
		s.hold(c, -k.cost())
	}
	to := c.cursor.target
	if bh.pos < to && b.full() {
		return
	}
	c.leaveOut(b, bh, c.seen, to)
	if bh.pos < to {
		b.add(&Entry{Kind: Advance, Partition: bh.partition, From: bh.pos, Next: to, End: -1}, 0, 0, bh.pos, to)
	}
	bh.pos, bh.epoch = to, c.cursor.epoch
	s.forgetConflation(bh.partition)
}

// leaveOut tells the records below the one numbered nth, which are not delivered, if there are any: up to an offset.
func (c *conflation) leaveOut(b *Batch, bh *behind, nth, to int64) {
	n := nth - c.told
	if n == 0 {
		return
	}
	e := &Entry{Kind: Gap, Reason: GapConflated, Partition: bh.partition, From: bh.pos, Next: to, End: -1, Left: n}
	b.add(e, 0, 0, bh.pos, to)
	bh.pos = to
	c.told = nth
}

// forgetConflation ends what is under way in a partition; it is read as ever from where its position is.
func (s *Subscription) forgetConflation(partition int32) {
	c := s.conflationOf(partition)
	if c == nil {
		return
	}
	s.hold(c, -c.held)
	s.abandon(&c.cursor)
	s.slow.conflations = slices.DeleteFunc(s.slow.conflations, func(other *conflation) bool { return other == c })
}

// dropConflations ends all.
func (s *Subscription) dropConflations() {
	for _, c := range s.slow.conflations {
		s.hold(c, -c.held)
		s.abandon(&c.cursor)
	}
	s.slow.conflations = nil
}
