package hub

import "sync/atomic"

// standing is where a subscription stands, for metrics: written by its owner, read by anybody.
type standing struct {
	place atomic.Int64 // twice the Seq, and 1 if the last Pull brought something
	owed  atomic.Int64 // offsets to be read from history, or behind the cursor
	owes  bool         // the owner's: owed is not 0
	only  int32        // 1 + the one partition that is read; 0: others too
}

func (st *standing) at(seq Seq, more bool) {
	v := int64(seq) << 1
	if more {
		v |= 1
	}
	st.place.Store(v)
}

// stand notes where a Pull has left the subscription.
func (s *Subscription) stand(more bool) {
	s.stands.at(s.seq, more)
	if len(s.behind) == 0 && !s.stands.owes {
		return
	}
	var owed int64
	for i := range s.behind {
		if bh := &s.behind[i]; !bh.ahead {
			owed += max(0, bh.target-bh.pos)
		}
	}
	s.stands.owed.Store(owed)
	s.stands.owes = owed > 0
}

// lags returns by how many offsets the topic's subscriptions lie behind its end: the one that lies most, and all together. It is exact for those
// that read all of the topic or one partition; others count as if they read all of it, for as long as they have something to read. Behind the
// ring it is what the ring holds, at least.
func (t *Topic) lags() (most, sum int64) {
	t.mu.Lock()
	ends := make([]int64, len(t.parts))
	for i := range t.parts {
		ends[i] = t.parts[i].end
	}
	t.mu.Unlock()
	whole := map[Seq]int64{}
	t.followMu.Lock()
	defer t.followMu.Unlock()
	for s := range t.subs {
		place := s.stands.place.Load()
		seq, lag := Seq(place>>1), s.stands.owed.Load()
		switch only := s.stands.only - 1; {
		case s.filter != nil && place&1 == 0 && !s.woken.Load(): // it has had all that there is for it
		case only >= 0:
			lag += t.behindEnd(seq, ends, only)
		default:
			n, ok := whole[seq]
			if !ok {
				n = t.behindEnd(seq, ends, -1)
				whole[seq] = n
			}
			lag += n
		}
		most, sum = max(most, lag), sum+lag
	}
	return most, sum
}

// behindEnd is how many offsets lie between a place and the ends, of one partition, or of all (-1).
func (t *Topic) behindEnd(seq Seq, ends []int64, only int32) (n int64) {
	g := t.find(seq)
	switch {
	case g != nil:
	case seq >= t.Head(): // it began where what was put is not published yet
		g, seq = t.front()
	default:
		g = (*t.list.Load())[0]
		seq = min(max(seq, g.base), g.end())
	}
	if only >= 0 {
		if m := g.markAt(only, seq); m.next >= 0 && int(only) < len(ends) {
			return max(0, ends[only]-m.next)
		}
		return 0
	}
	for p, m := range g.marks(seq, int32(len(ends))) {
		if m.next >= 0 {
			n += max(0, ends[p]-m.next)
		}
	}
	return n
}
