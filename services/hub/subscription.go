package hub

import (
	"io"
	"math"
	"slices"
	"sync/atomic"
)

// Subscription is a cursor. It has no goroutine and no queue. It belongs to one goroutine at a time, its owner.
type Subscription struct {
	hub    *Hub
	topic  *Topic
	waker  Waker
	token  uint64
	woken  atomic.Bool // since the last Pull
	closed atomic.Bool

	// The owner's.
	historyTurn bool
	falling     bool  // in fall
	again       bool  // there is more to do than this Pull did
	count       int32 // of partitions, as told
	policy      OutOfRange
	seg         *segment // of seq; its index outlives its eviction
	seq         Seq
	filter      *filter   // nil: the whole topic
	behind      []behind  // partitions whose position is not the ring's at seq, in order
	prelude     []Part    // gaps between what was asked for and the start
	started     *Started  // until caught up
	ends        []endMark // not reached yet; the first was found wanting last
	limits      *limits   // nil: none
	final       error
	parts       []Part // of the last batch
}

// endMark is an offset of a partition to be reached.
type endMark struct {
	partition int32
	offset    int64
}

// filter is what a subscription reads if not all of a topic.
type filter struct {
	all     bool                // every partition, also later ones
	hashed  bool                // partitions are those that keys hash to, also later
	grows   bool                // scope gains all partitions that are added later
	scope   []int32             // partitions, in order, unless all
	keys    map[string]struct{} // nil: all records
	terms   []*subTerm
	told    []int64   // position of each partition of scope (or, all, of each) as told
	waiting []int32   // partitions gained, whose start is not known yet
	lanes   []laneKey // of this subscription alone
}

type subTerm struct {
	*term
	at int // in term.subs; guarded by term.mu
}

// Topic is what is subscribed to.
func (s *Subscription) Topic() *Topic { return s.topic }

// Started tells how the subscription was resolved. It is kept until CaughtUp was told.
func (s *Subscription) Started() Started {
	if s.started == nil {
		return Started{}
	}
	return *s.started
}

// reads says whether a partition is read. One that the subscription has gained is not, until it is known where it begins.
func (s *Subscription) reads(partition int32) bool {
	return s.includes(partition) && (s.filter == nil || !slices.Contains(s.filter.waiting, partition))
}

// includes says whether a partition belongs to the subscription.
func (s *Subscription) includes(partition int32) bool {
	if s.filter == nil || s.filter.all {
		return true
	}
	_, ok := slices.BinarySearch(s.filter.scope, partition)
	return ok
}

func (s *Subscription) keyed() bool { return s.filter != nil && s.filter.keys != nil }

// At returns the subscription's place. shared: it is live on the whole topic with nothing of its own pending, so that its next Pull is
// exactly Topic.Read(at): one frame serves all subscriptions that stand there.
func (s *Subscription) At() (at Seq, shared bool) {
	if s.filter != nil || len(s.behind) > 0 || s.limits != nil || s.started != nil || len(s.prelude) > 0 || s.final != nil ||
		s.closed.Load() || s.hub.draining.Load() {
		return s.seq, false
	}
	data := s.seg.data.Load()
	if data == nil {
		g := s.topic.find(s.seq) // it may have stood at the end of what was evicted
		if g == nil {
			return s.seq, false
		}
		s.seg = g
		if data = g.data.Load(); data == nil {
			return s.seq, false
		}
	}
	if i := int(s.seq - s.seg.base); i < int(s.seg.n.Load()) {
		return s.seq, !(*data)[i].apart()
	}
	if next := s.seg.after.Load(); next != nil && next.n.Load() > 0 {
		if data := next.data.Load(); data == nil || (*data)[0].apart() {
			return s.seq, false
		}
	}
	return s.seq, true
}

// Skip moves a shared subscription past a batch that Topic.Read(at) gave and that the owner sent for it.
func (s *Subscription) Skip(b *Batch) {
	if b.seg != nil && b.next > s.seq {
		s.seg, s.seq = b.seg, b.next
	}
}

// placeOf returns the position in a partition that is read.
func (s *Subscription) placeOf(partition int32) mark {
	m := unmarked
	if i, ok := s.find(partition); ok {
		m = mark{s.behind[i].pos, s.behind[i].epoch}
	} else {
		m = s.seg.markAt(partition, s.seq)
	}
	return s.clip(partition, m)
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

// Close gives up the subscription. Idempotent. A call of its Waker may still be under way when Close returns.
func (s *Subscription) Close() {
	if s.closed.Swap(true) {
		return
	}
	s.topic.leave(s)
	if s.filter != nil && len(s.filter.lanes) > 0 {
		s.hub.history.leave(s.filter.lanes)
	}
	s.behind, s.parts, s.prelude, s.started, s.ends = nil, nil, nil, nil, nil
}

// Pull returns what comes next, at most size bytes of pieces or one record; it never blocks; an empty batch (no parts, not CaughtUp) means:
// wait for the Waker. Parts of Kind Records may hold no record: they move the position only. A Topology part has no position.
// Final errors: io.EOF (a stop was reached), *LaggedError, *OffsetOutOfRangeError, ErrTopicDeleted, ErrDraining, ErrClosed. Everything
// before the error was returned by earlier calls.
func (s *Subscription) Pull(size int) (Batch, error) {
	if s.closed.Load() {
		return Batch{}, ErrClosed
	}
	s.woken.Store(false)
	s.again = false
	clear(s.parts)
	b := Batch{Parts: s.parts[:0]}
	told := 0
	if s.final == nil {
		s.bound(&b, size)
		b.Parts = append(b.Parts, s.prelude...)
		told, s.prelude = len(b.Parts), nil
		if s.stopReached() {
			s.final = io.EOF
		} else {
			s.pull(&b)
		}
		s.finish(&b, told)
	}
	if len(b.Parts) == 0 && !b.CaughtUp {
		s.parts = nil
		if cap(b.Parts) > 0 {
			s.hub.partsPool.Put(&b.Parts)
		}
		if s.final == nil && s.hub.draining.Load() {
			s.final = ErrDraining
		}
		if s.again && s.final == nil {
			s.wake()
		}
		return Batch{}, s.final
	}
	s.parts = b.Parts
	return b, nil
}

// bound says how much a batch may hold: with limits, no more than they leave, so that no position moves beyond them.
func (s *Subscription) bound(b *Batch, size int) {
	if l := s.limits; l != nil {
		b.most = int(min(l.records, math.MaxInt32))
		size = int(min(int64(size), l.bytes))
	}
	b.size, b.scan = max(size, 1), maxScan
}

// pull takes turns between the ring and history, so that neither starves the other.
func (s *Subscription) pull(b *Batch) {
	if cap(b.Parts) == 0 {
		b.Parts = *s.hub.partsPool.Get().(*[]Part)
	}
	if s.historyTurn = !s.historyTurn; s.historyTurn && len(s.behind) > 0 {
		s.pullBehind(b)
	}
	s.pullLive(b)
	if len(s.behind) > 0 && (!s.historyTurn || len(b.Parts) == 0) { // the cursor may have fallen off just now
		s.pullBehind(b)
	}
}

func (s *Subscription) pullLive(b *Batch) {
	if s.filter == nil {
		s.pullWhole(b)
	} else {
		s.pullFiltered(b)
	}
}

// finish applies limits, and notes what the batch tells; its first parts are the prelude.
func (s *Subscription) finish(b *Batch, prelude int) {
	if s.limits != nil {
		s.limit(b, prelude)
	}
	if f := s.filter; f != nil {
		for i := range b.Parts {
			p := &b.Parts[i]
			if p.Kind == Topology {
				continue
			}
			slot, ok := int(p.Partition), true
			if !f.all {
				slot, ok = slices.BinarySearch(f.scope, p.Partition)
			}
			if ok {
				f.told[slot] = p.Next
			}
		}
	}
	if s.started != nil && s.caughtUp() {
		b.CaughtUp = true
		s.started, s.ends = nil, nil
		if s.filter != nil && (s.limits == nil || !s.limits.stopAll) {
			s.topic.calm(s)
		}
	}
}

// caughtUp says whether all ends that Started told were reached, at one time or another.
func (s *Subscription) caughtUp() bool {
	for len(s.ends) > 0 {
		if s.placeOf(s.ends[0].partition).next < s.ends[0].offset {
			return false
		}
		s.ends = s.ends[1:]
	}
	return true
}

// limits are what ends a subscription, or cuts pieces out of it.
type limits struct {
	stops   map[int32]int64 // first offsets not to be delivered
	left    []int32         // partitions of stops, not reached yet
	stopAll bool            // there are stops
	records int64           // left; math.MaxInt64: no limit
	bytes   int64
	most    int // bytes of a record; 0: no limit
}

func newLimits(r *Request) *limits {
	l := &limits{stops: map[int32]int64{}, records: math.MaxInt64, bytes: math.MaxInt64, most: r.MaxRecordBytes}
	if r.Stop.Records > 0 {
		l.records = r.Stop.Records
	}
	if r.Stop.Bytes > 0 {
		l.bytes = r.Stop.Bytes
	}
	if l.records == math.MaxInt64 && l.bytes == math.MaxInt64 && l.most == 0 && len(r.Stop.Positions) == 0 && !r.Stop.AtEnd {
		return nil
	}
	return l
}
