package hub

const refBytes = 16

// refresh makes the logs of terms complete up to the head, and returns it.
func (t *Topic) refresh() Seq {
	if fed := t.fed.Load(); fed == t.head.Load() {
		return Seq(fed)
	}
	t.feedMu.Lock()
	defer t.feedMu.Unlock()
	return t.feed()
}

// feed enters what is new in the ring into the logs of terms. feedMu is held, so that nothing unfed is evicted.
func (t *Topic) feed() Seq {
	fed, head := Seq(t.fed.Load()), t.Head()
	if fed == head {
		return fed
	}
	t.terms.mu.RLock()
	defer t.terms.mu.RUnlock()
	g := t.feedSeg
	var bytes int64
	for fed < head {
		if end := g.end(); fed == end {
			g = g.after.Load() // there is one, head lies beyond
			continue
		}
		if len(t.terms.keys) == 0 && len(t.terms.partitions) == 0 {
			fed = min(head, g.end())
			continue
		}
		data := *g.data.Load()
		var refs int64
		for until := min(head, g.end()); fed < until; fed++ {
			refs += t.enter(g, data[fed-g.base], fed)
		}
		g.refBytes += refs * refBytes
		bytes += refs * refBytes
	}
	t.feedSeg = g
	t.fed.Store(int64(fed))
	if bytes > 0 {
		t.bytes.Add(bytes)
		t.hub.ringBytes.Add(bytes)
	}
	return fed
}

// enter enters one entry and returns how many refs it became.
func (t *Topic) enter(g *segment, e *Entry, seq Seq) (refs int64) {
	if e.Kind != Records && e.Kind != Advance {
		return 0 // control entries have a log of their own
	}
	if len(t.terms.partitions) > 0 {
		if tm := t.terms.partitions[e.Partition]; tm != nil {
			t.note(g, tm, ref{seq, -1})
			refs++
		}
	}
	if len(t.terms.keys) == 0 {
		return refs
	}
	for i := range e.Meta {
		m := &e.Meta[i]
		if m.Key < 0 {
			continue
		}
		if tm := t.terms.keys[string(e.Body[m.Key:m.Key+m.KeyLen])]; tm != nil {
			t.note(g, tm, ref{seq, int32(i)})
			refs++
		}
	}
	return refs
}

func (t *Topic) note(g *segment, tm *term, r ref) {
	tm.add(r)
	if tm.last != g {
		tm.last = g
		g.terms = append(g.terms, tm)
	}
	if !tm.dirty {
		tm.dirty = true
		t.dirty = append(t.dirty, tm)
	}
}
