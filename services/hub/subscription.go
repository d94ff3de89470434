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
	woken  atomic.Bool // since the last Pull or At
	closed atomic.Bool
	stands standing

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
	slow        *slowness // nil: it catches up
	parts       *[]Part   // of the last batch; from the hub's pool
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

	partitioner Partitioner // of hashed
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

// IsCaughtUp says whether the subscription has passed the ends that Started told: what it reads from then on is live.
func (s *Subscription) IsCaughtUp() bool { return s.started == nil }

// reads says whether a partition is read. One that the subscription has gained is not, until it is known where it begins.
func (s *Subscription) reads(partition int32) bool {
	return s.includes(partition) && (s.filter == nil || !slices.Contains(s.filter.waiting, partition))
}

// includes says whether a partition belongs to the subscription.
func (s *Subscription) includes(partition int32) bool {
	if s.filter == nil || s.filter.all {
		return partition < s.count
	}
	_, ok := slices.BinarySearch(s.filter.scope, partition)
	return ok
}

func (s *Subscription) keyed() bool { return s.filter != nil && s.filter.keys != nil }

// At returns the subscription's place. shared: it is live on the whole topic with nothing of its own pending, so that its next Pull is
// exactly Topic.Read(at): one frame serves all subscriptions that stand there.
func (s *Subscription) At() (at Seq, shared bool) {
	if s.woken.Load() {
		s.woken.Store(false) // who reads by Read and Skip does not Pull; before draining is looked at, or Drain's call could be lost
	}
	if s.filter != nil || len(s.behind) > 0 || s.limits != nil || s.started != nil || len(s.prelude) > 0 || s.final != nil ||
		s.closed.Load() || s.hub.draining.Load() || s.lagsAt() {
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
		s.stands.at(s.seq, false)
	}
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
	if s.slow != nil {
		s.dropConflations()
		s.topic.unpaced()
	}
	for i := range s.behind {
		s.abandon(&s.behind[i])
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
	parts := s.parts
	if parts == nil {
		parts = s.hub.takeParts()
	}
	clear(*parts)
	b := Batch{Parts: append((*parts)[:0], s.prelude...)}
	if s.final == nil {
		prelude := len(s.prelude)
		s.prelude = nil
		s.bound(&b, size)
		if s.stopReached() {
			s.final = io.EOF
		} else {
			if s.slow != nil {
				s.police(&b)
			}
			s.pull(&b)
		}
		s.finish(&b, prelude)
	}
	*parts = b.Parts
	s.stand(len(b.Parts) > 0)
	if len(b.Parts) > 0 || b.CaughtUp {
		s.parts = parts
		return b, nil
	}
	s.parts = nil
	s.hub.parts.Put(parts)
	if s.final == nil && s.hub.draining.Load() {
		s.final = ErrDraining
	}
	if s.again && s.final == nil {
		s.wake()
	}
	return Batch{Slow: b.Slow}, s.final
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
			slot := int(p.Partition)
			ok := slot < len(f.told)
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
	if s.slow != nil {
		s.arm()
		b.Slow, s.slow.acted = s.slow.acted, SlowCatchUp
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
