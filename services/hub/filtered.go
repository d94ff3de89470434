package hub

import (
	"cmp"
	"slices"
)

// scratch holds the refs that a filtered subscription pulls through.
type scratch struct{ refs []ref }

func (h *Hub) takeScratch() *scratch {
	if sc, ok := h.scratches.Get().(*scratch); ok {
		return sc
	}
	return new(scratch)
}

// pullFiltered takes what the logs of the subscription's terms have from the cursor on.
func (s *Subscription) pullFiltered(b *Batch) {
	sc := s.hub.takeScratch()
	defer s.hub.scratches.Put(sc)
	for s.final == nil {
		if b.full() {
			return
		}
		fed := s.topic.refresh()
		if s.seq >= fed {
			return
		}
		horizon, ok := s.collect(sc, fed)
		if !ok {
			s.fall(b)
			return
		}
		switch s.replay(b, sc.refs) {
		case replayFull:
			s.retarget()
			return
		case replayEvicted:
			s.fall(b)
			return
		case replayGrown:
			s.retarget()
			continue
		}
		g := s.topic.find(horizon)
		if g == nil {
			continue // evicted, without anything of this subscription
		}
		s.seg, s.seq = g, horizon
		s.retarget()
		if horizon == fed {
			return
		}
	}
}

// collect gathers the refs of [s.seq, horizon) from the logs of terms and of control entries, in order. !ok: something was evicted.
func (s *Subscription) collect(sc *scratch, fed Seq) (horizon Seq, ok bool) {
	sc.refs = sc.refs[:0]
	sources := 0
	horizon = fed
	for _, tm := range s.filter.terms {
		had := len(sc.refs)
		var upTo Seq
		sc.refs, upTo, ok = tm.read(sc.refs, s.seq, fed)
		if !ok {
			return s.seq, false
		}
		horizon = min(horizon, upTo)
		if len(sc.refs) > had {
			sources++
		}
	}
	grows := false
	for _, c := range s.topic.controlsIn(s.seq, fed) {
		grows = grows || c.e.Kind == Topology
		if c.e.Kind == seek && !grows && !s.gains(c) {
			continue // nothing to this subscription
		}
		sc.refs = append(sc.refs, ref{c.seq, -2})
		sources = 2
	}
	if sources > 1 {
		slices.SortFunc(sc.refs, func(a, b ref) int {
			if c := cmp.Compare(a.seq, b.seq); c != 0 {
				return c
			}
			return cmp.Compare(a.record, b.record)
		})
	}
	if horizon < fed {
		n, _ := slices.BinarySearchFunc(sc.refs, horizon, func(r ref, h Seq) int { return cmp.Compare(r.seq, h) })
		sc.refs = sc.refs[:n]
	}
	return horizon, true
}

type replayed uint8

const (
	replayDone replayed = iota
	replayFull
	replayEvicted
	replayGrown // there are more terms, or fewer; what they have of the entries that follow is not among the refs
)

// replay takes the entries that refs name. The cursor follows.
func (s *Subscription) replay(b *Batch, refs []ref) replayed {
	terms := len(s.filter.terms)
	for len(refs) > 0 && s.final == nil {
		seq, n := refs[0].seq, 1
		for n < len(refs) && refs[n].seq == seq {
			n++
		}
		g := s.seg
		if seq >= g.end() || g.data.Load() == nil {
			if g = s.topic.find(seq); g == nil {
				return replayEvicted
			}
		}
		data := g.data.Load()
		if data == nil {
			return replayEvicted
		}
		s.seg, s.seq = g, seq
		e, st := (*data)[seq-g.base], &g.steps[seq-g.base]
		var fits bool
		if refs[0].record < 0 || s.filter.keys == nil {
			fits = s.take(b, e, st)
		} else {
			fits = s.takeRecords(b, e, st, refs[:n])
		}
		if !fits {
			return replayFull
		}
		s.seq++
		if len(s.filter.terms) != terms {
			return replayGrown
		}
		refs = refs[n:]
	}
	return replayDone
}

// takeRecords takes the records of the entry at the cursor that refs name, as runs. It returns false if there is no room for all: then the
// cursor stays, and the partition is ahead of it by what was taken.
func (s *Subscription) takeRecords(b *Batch, e *Entry, st *step, refs []ref) bool {
	if !s.reads(e.Partition) {
		return true
	}
	from := st.from
	if k, apart := s.find(e.Partition); apart {
		if bh := &s.behind[k]; !bh.ahead || bh.pos >= e.Next {
			return true
		}
		from = max(from, s.behind[k].pos) // what passed meanwhile had nothing of this subscription's
	}
	told := -1
	for i := 0; i < len(refs); {
		lo := int(refs[i].record)
		if e.Meta[lo].Offset < from {
			i++
			continue
		}
		hi := lo + 1
		for i++; i < len(refs) && int(refs[i].record) == hi; i++ {
			hi++
		}
		cut := lo
		if !b.full() {
			cut = b.fit(e, lo, hi)
		}
		if cut == lo {
			if told >= 0 {
				last := &e.Meta[lo-1]
				b.Parts[told].Next = last.Offset + 1
				s.setAhead(e.Partition, mark{last.Offset + 1, last.Epoch}, st.from)
			}
			return false
		}
		last := &e.Meta[cut-1]
		told = len(b.Parts)
		b.add(e, lo, cut, from, last.Offset+1)
		from = last.Offset + 1
		if cut < hi {
			s.setAhead(e.Partition, mark{from, last.Epoch}, st.from)
			return false
		}
	}
	if told >= 0 {
		b.Parts[told].Next = e.Next
	}
	return true
}

// setAhead notes that a partition is ahead of the cursor: a part of the entry there was taken.
func (s *Subscription) setAhead(partition int32, m mark, target int64) {
	s.setBehind(partition, m, target).ahead = true
}

// skipOthers moves the cursor up to the next entry that is the subscription's own.
func (s *Subscription) skipOthers() {
	fed := s.topic.refresh()
	if s.seq >= fed {
		return
	}
	sc := s.hub.takeScratch()
	defer s.hub.scratches.Put(sc)
	to, ok := s.collect(sc, fed)
	if !ok {
		return // the next Pull falls back on history
	}
	if len(sc.refs) > 0 {
		to = sc.refs[0].seq
	}
	if g := s.topic.find(to); g != nil && to > s.seq {
		s.seg, s.seq = g, to
		s.retarget()
	}
}
