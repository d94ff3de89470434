package hub

import (
	"slices"
	"sort"
)

// find returns the segment of a Seq, or nil if it was evicted or lies ahead. The head belongs to the last segment.
func (t *Topic) find(seq Seq) *segment {
	list := *t.list.Load()
	i := sort.Search(len(list), func(i int) bool { return list[i].base > seq }) - 1
	if i < 0 || seq > list[i].end() {
		return nil
	}
	return list[i]
}

// front returns the place after the newest entry.
func (t *Topic) front() (*segment, Seq) {
	list := *t.list.Load()
	g := list[len(list)-1]
	return g, g.end()
}

// next returns the successor of a segment that a reader stands at the end of, at entry n. moved: look again, there is more in g itself.
// evicted: g is, and what comes after it is not known.
func (g *segment) next(n int) (after *segment, moved, evicted bool) {
	after = g.after.Load()
	if after == nil {
		return nil, false, g.data.Load() == nil
	}
	return after, int(g.n.Load()) > n, false
}

// apart says whether an entry is not for shared reading: what it means depends on the reader.
func (e *Entry) apart() bool {
	switch e.Kind {
	case Topology, Deleted, seek:
		return true
	default:
		return e.Kind == Gap && e.Reason == GapRetention // by policy
	}
}

// Read returns entries from a Seq on, at most size bytes of pieces or one entry; ok is false if they were evicted. It takes no lock. It stops
// before entries that mean something else to each reader (a new partition, lost records, the topic's end): subscriptions that stand there
// are not shared, they Pull. dst is emptied first, its memory used again; dst.Next is the place after the batch.
func (t *Topic) Read(from Seq, size int, dst *Batch) (ok bool) {
	*dst = Batch{Parts: dst.Parts[:0], next: from, size: size}
	g := t.find(from)
	if g == nil {
		return from == t.Head()
	}
	for {
		data := g.data.Load()
		if data == nil {
			return len(dst.Parts) > 0
		}
		i, n := int(dst.next-g.base), int(g.n.Load())
		dst.seg = g
		for ; i < n; i++ {
			e, s := (*data)[i], &g.steps[i]
			if e.apart() || len(dst.Parts) > 0 && (dst.full() || dst.Bytes+len(e.Body) > size) {
				return true
			}
			dst.addWhole(e, s)
			dst.next++
		}
		after, moved, evicted := g.next(n)
		switch {
		case evicted:
			return len(dst.Parts) > 0
		case moved:
			continue
		case after == nil:
			return true
		}
		g = after
	}
}

// addWhole adds an entry as a reader without anything of its own gets it.
func (b *Batch) addWhole(e *Entry, s *step) {
	from := s.from
	if e.Kind == Gap && e.Next > e.From {
		from = max(from, e.From)
	}
	b.add(e, 0, len(e.Meta), from, e.Next)
}

// evict takes the oldest segment out of the ring and returns the bytes it held. The logs of terms are trimmed through what they have in
// it. It may be called concurrently.
func (t *Topic) evict() int64 {
	t.feedMu.Lock()
	defer t.feedMu.Unlock()
	var list []*segment
	for {
		fed := t.feed()
		t.mu.Lock()
		if list = *t.list.Load(); len(list) == 1 {
			if t.n == 0 {
				t.mu.Unlock()
				return 0
			}
			t.roll()
			list = *t.list.Load()
		}
		if fed >= list[1].base {
			break
		}
		t.mu.Unlock() // more was appended since
	}
	g := list[0]
	rest := slices.Clone(list[1:])
	t.list.Store(&rest)
	bytes := g.bytes
	t.mu.Unlock()

	if t.feedSeg == g { // all of it was fed
		t.feedSeg = rest[0]
	}
	for _, term := range g.terms {
		term.trim(rest[0].base)
	}
	g.terms = nil
	g.data.Store(nil)
	g.after.Store(nil)
	g.forms.close()
	bytes += g.refBytes
	t.bytes.Add(-bytes)
	t.hub.ringBytes.Add(-bytes)
	return bytes
}

// expired says whether all of the oldest segment came before a time of the keeper's clock.
func (t *Topic) expired(before int64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := *t.list.Load()
	if len(list) > 1 {
		return list[1].opened < before
	}
	return t.n > 0 && t.touched < before
}

// locate returns where the ring holds what comes at pos in a partition: the segment, and the first entry in it to look at. nil: the ring
// does not go back so far without a break, or breaks after the reader's own place.
func (t *Topic) locate(id int32, pos int64, at Seq) (*segment, int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.parts[id].cut > at {
		return nil, 0
	}
	return t.locateLocked(id, pos)
}

func (t *Topic) locateLocked(id int32, pos int64) (*segment, int) {
	p := &t.parts[id]
	list := *t.list.Load()
	first := max(sort.Search(len(list), func(i int) bool { return list[i].base > p.cut })-1, 0)
	at := max(p.cut, list[first].base)
	if at > list[first].base+Seq(t.count(list[first])) {
		return nil, 0
	}
	if m := list[first].markAt(id, at); p.next < 0 || m.next < 0 || pos < m.next || pos > p.next {
		return nil, 0
	}
	later := list[first+1:]
	n := sort.Search(len(later), func(i int) bool {
		start := later[i].start
		return int(id) >= len(start) || start[id].next > pos
	})
	if n == 0 {
		return list[first], int(at - list[first].base)
	}
	return later[n-1], 0
}

// count returns the entries of a segment, also those that were put and are not published yet. mu is held.
func (t *Topic) count(g *segment) int {
	if g == t.seg {
		return t.n
	}
	return int(g.n.Load())
}
