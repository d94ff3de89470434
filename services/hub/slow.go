package hub

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// slowness is what a subscription with a slow policy keeps.
//
// A reader is slow when it has not taken a record of its own that arrived Config.SlowAfter or more before the topic's newest one: so much
// traffic it is behind. Where the ring has the record, that is looked at by each Pull; where the ring has given it up, when it was
// read from history and is about to be delivered. That the ring has given something up does not make a reader slow by itself.
//
// It counts only once the subscription has been live, with nothing left behind, after CaughtUp: whoever starts in the past may take as long
// as it takes to come to the head for the first time.
type slowness struct {
	policy      SlowPolicy
	armed       bool          // it has been live
	seen        *overdue      // the ring has nothing of its own before this
	due         bool          // the policy is to act: something overdue came from history
	acted       SlowPolicy    // in this Pull
	conflations []*conflation // by partition
	kept        int           // records of the conflations under way, delivered or not
	keptBytes   int           // of their pieces
	spilled     bool          // that is more than a conflation may keep
}

// slowCounts counts what slow policies did.
type slowCounts struct {
	skips, conflations, spills, fails atomic.Int64
	held                              atomic.Int64 // bytes that conflations keep
}

func newSlowness(policy SlowPolicy) *slowness {
	if policy == SlowCatchUp {
		return nil
	}
	return &slowness{policy: policy}
}

// CheckSlowAfter says why a Config.SlowAfter cannot be.
func CheckSlowAfter(d time.Duration) error {
	if d < 100*time.Millisecond || d > time.Hour {
		return errors.New("want 100ms to 1h")
	}
	return nil
}

// police acts by the slow policy, if the reader is slow.
func (s *Subscription) police(b *Batch) {
	sl := s.slow
	switch {
	case sl.spilled:
		s.dropConflations()
		s.hub.slow.spills.Add(1)
		s.skip(b)
	case !sl.armed, len(sl.conflations) > 0:
	case !sl.due && !s.lags():
	case sl.policy == SlowFail:
		s.hub.slow.fails.Add(1)
		s.final = &LaggedError{Records: s.Lag()}
	case sl.policy == SlowConflate:
		if s.conflate(b) {
			s.hub.slow.conflations.Add(1)
		}
	default:
		if s.skip(b) {
			s.hub.slow.skips.Add(1)
		}
	}
	sl.due = false
}

// arm notes that the subscription is live, if it is.
func (s *Subscription) arm() {
	if s.slow.armed || s.started != nil {
		return
	}
	for i := range s.behind {
		if bh := &s.behind[i]; bh.ahead || bh.pos < s.stopOf(bh.partition) {
			return
		}
	}
	s.slow.armed = !s.lags()
}

// lags says whether the ring has a record of the subscription's own that is overdue.
func (s *Subscription) lags() (lags bool) {
	sl, o := s.slow, s.topic.overdue.Load()
	if o == nil || o == sl.seen {
		return false
	}
	s.own(s.seq, o.seq, func(*Entry) bool { lags = true; return false })
	if !lags {
		sl.seen = o
	}
	return lags
}

// lagsAt says whether the shared reading at the cursor must end, since the policy may have to act.
func (s *Subscription) lagsAt() bool {
	if s.slow == nil {
		return false
	}
	o := s.topic.overdue.Load()
	return o != nil && s.seq < o.seq
}

// overdue says whether a record that is about to be delivered from behind makes the policy act. Then it does, in the next Pull.
func (s *Subscription) overdue(b *Batch, bh *behind, offset int64) bool {
	sl := s.slow
	if sl == nil || !sl.armed || len(sl.conflations) > 0 {
		return false
	}
	if o := s.topic.overdue.Load(); o == nil || !o.before(s.topic, bh.partition, offset) {
		return false
	}
	sl.due, s.again, b.stuffed = true, true, true
	return true
}

// own calls do with the entries of [from, to) in the ring that hold records of the subscription's own, in no order, until it returns false. It
// returns false if there may be more, which the ring has given up.
func (s *Subscription) own(from, to Seq, do func(*Entry) bool) (known bool) {
	if s.filter == nil {
		for seq := from; seq < to; {
			g := s.topic.find(seq)
			if g == nil || g.end() <= seq {
				return false
			}
			data := g.data.Load()
			if data == nil {
				return false
			}
			for end := min(to, g.end()); seq < end; seq++ {
				if e := (*data)[seq-g.base]; s.wants(e) && !do(e) {
					return true
				}
			}
		}
		return true
	}
	s.topic.refresh()
	sc := s.hub.takeScratch()
	defer s.hub.scratches.Put(sc)
	for _, tm := range s.filter.terms {
		for at := from; at < to; {
			var ok bool
			if sc.refs, at, ok = tm.read(sc.refs[:0], at, to); !ok {
				return false
			}
			for _, r := range sc.refs {
				g := s.topic.find(r.seq)
				if g == nil {
					return false
				}
				data := g.data.Load()
				if data == nil {
					return false
				}
				if e := (*data)[r.seq-g.base]; s.wants(e) && !do(e) {
					return true
				}
			}
		}
	}
	return true
}

// wants says whether an entry has records that are to be delivered, keys aside.
func (s *Subscription) wants(e *Entry) bool {
	return e.Kind == Records && len(e.Meta) > 0 && s.reads(e.Partition) && e.Meta[0].Offset < s.stopOf(e.Partition)
}

// stopOf is the first offset of a partition that is not to be delivered.
func (s *Subscription) stopOf(partition int32) int64 {
	if s.limits != nil {
		if stop, ok := s.limits.stops[partition]; ok {
			return stop
		}
	}
	return math.MaxInt64
}

// left goes to the head and leaves behind what lies before it. What it calls do with is that of each partition, in order: where records, or gaps
// to tell, lie or may lie between the position and to. Other partitions are live at once.
func (s *Subscription) left(b *Batch, do func(bh *behind, to int64)) {
	from := s.seq
	tell := map[int32]struct{}{}
	for i := range s.behind {
		if bh := &s.behind[i]; !bh.ahead {
			tell[bh.partition] = struct{}{} // what is read from history is not known before
		}
	}
	s.fall(b)
	if s.final != nil {
		return
	}
	known := s.own(from, s.seq, func(e *Entry) bool { tell[e.Partition] = struct{}{}; return true })
	for _, c := range s.topic.controlsIn(from, s.seq) {
		switch c.e.Kind {
		case Gap, Recreated, seek: // what they leave to be read need not be in the ring
			tell[c.e.Partition] = struct{}{}
		default:
		}
	}
	for i := range s.behind {
		bh := &s.behind[i]
		to := min(bh.target, s.stopOf(bh.partition))
		if bh.ahead || bh.pos >= to {
			continue
		}
		_, tells := tell[bh.partition]
		if tells || !known {
			do(bh, to)
			continue
		}
		if s.filter == nil { // whose parts tell everything
			b.add(&Entry{Kind: Advance, Partition: bh.partition, From: bh.pos, Next: to, End: -1}, 0, 0, bh.pos, to)
		}
		s.pass(bh, to)
	}
	for k, bh := range slices.Backward(s.behind) {
		if bh.pos == bh.target {
			s.drop(k)
		}
	}
}

// pass moves a position without reading.
func (s *Subscription) pass(bh *behind, to int64) {
	s.abandon(bh)
	bh.pos, bh.epoch, bh.reads = to, -1, nil
}

// abandon gives up what history was asked for in a partition.
func (s *Subscription) abandon(bh *behind) {
	if r := bh.reads; r != nil && r.lane.topic != nil {
		s.hub.history.abandon(r.lane, bh.pos, s)
	}
}

// abandon notes that s does not come for the chunk at pos, so that nobody else has to wait until it is given up.
func (hs *history) abandon(key laneKey, pos int64, s *Subscription) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	l := hs.lanes[key]
	if l == nil {
		return
	}
	if c := l.cover(pos); c != nil {
		hs.arrived(c) // if another waits for it too, it may have to be read again
	}
	for _, w := range l.wants {
		w.waiters = slices.DeleteFunc(w.waiters, func(other *Subscription) bool { return other == s })
	}
}

// skip jumps to the head, and tells a gap for each partition where something is passed over. It returns false if there is none.
func (s *Subscription) skip(b *Batch) (skipped bool) {
	s.slow.spilled = false
	s.left(b, func(bh *behind, to int64) {
		b.add(&Entry{Kind: Gap, Reason: GapSlow, Partition: bh.partition, From: bh.pos, Next: to, End: -1}, 0, 0, bh.pos, to)
		s.pass(bh, to)
		skipped = true
	})
	if skipped {
		s.slow.acted = SlowSkip
	}
	return skipped
}
