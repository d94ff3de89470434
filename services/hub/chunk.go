package hub

import "slices"

// chunk is a piece of history: entries that cover [from, next).
type chunk struct {
	lane       *lane
	from, next int64
	entries    []*Entry
	bytes      int64
	forms      formAccount
	awaited    int64 // until when it stays for those who wait for it, by the keeper's clock; 0: they came
	newer      *chunk
	older      *chunk
}

// cover returns a chunk with pos.
func (l *lane) cover(pos int64) *chunk {
	lo, hi := 0, len(l.chunks)
	for lo < hi {
		if mid := (lo + hi) / 2; l.chunks[mid].from <= pos {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for i := lo - 1; i >= max(0, lo-3); i-- { // chunks may overlap; a miss is only read again
		if c := l.chunks[i]; pos < c.next {
			return c
		}
	}
	return nil
}

// insert keeps a chunk. mu is held.
func (hs *history) insert(l *lane, from, next int64, es []*Entry) *chunk {
	c := &chunk{lane: l, from: from, next: next, forms: formAccount{total: &l.key.topic.hub.formBytes}}
	pos := from
	for _, e := range es {
		if e.Next > pos && e.From < next && (e.Kind == Records || e.Kind == Advance) {
			c.entries = append(c.entries, e)
			pos = e.Next
		}
	}
	if pos < next {
		c.entries = append(c.entries, &Entry{Kind: Advance, Partition: l.key.partition, From: pos, Next: next, End: -1})
	}
	for _, e := range c.entries {
		e.forms.home.CompareAndSwap(nil, &c.forms)
		c.bytes += e.size()
	}
	i := len(l.chunks)
	for i > 0 && l.chunks[i-1].from > from {
		i--
	}
	l.chunks = append(l.chunks, nil)
	copy(l.chunks[i+1:], l.chunks[i:])
	l.chunks[i] = c
	hs.link(c)
	hs.bytes.Add(c.bytes)
	return c
}

// truncate forgets what lies above an offset that a log has lost its end from.
func (hs *history) truncate(t *Topic, partition int32, next int64) {
	var waiters []*Subscription
	hs.mu.Lock()
	for key, l := range hs.lanes {
		if key.topic != t || key.partition != partition {
			continue
		}
		l.gen++
		for _, c := range slices.Backward(l.chunks) {
			if c.next > next {
				hs.remove(c)
			}
		}
		l.wants = slices.DeleteFunc(l.wants, func(w *want) bool {
			if w.from > next {
				waiters = append(waiters, w.waiters...)
			}
			return w.from > next
		})
	}
	hs.mu.Unlock()
	for _, s := range waiters {
		s.wake()
	}
}

// leave drops lanes that only one subscription had.
func (hs *history) leave(keys []laneKey) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for _, key := range keys {
		if l := hs.lanes[key]; l != nil {
			for len(l.chunks) > 0 {
				hs.remove(l.chunks[0])
			}
			delete(hs.lanes, key)
		}
	}
}

// forget drops all of a topic.
func (hs *history) forget(t *Topic) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for c := hs.oldest; c != nil; {
		after := c.newer
		if c.lane.key.topic == t {
			hs.remove(c)
		}
		c = after
	}
	for key := range hs.lanes {
		if key.topic == t {
			delete(hs.lanes, key)
		}
	}
}

// expire gives up on owners that did not come for their chunks.
func (hs *history) expire(now int64) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for c := hs.oldest; c != nil && hs.awaited > 0; c = c.newer {
		if c.awaited > 0 && c.awaited <= now {
			c.lane.late++
			hs.arrived(c)
		}
	}
}

// evict drops the chunk that was not used for the longest time and returns the bytes it held. Those that somebody is about to read stay for
// a moment, or a budget that is too small would have them read for ever.
func (hs *history) evict() int64 {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for c := hs.oldest; c != nil; c = c.newer {
		if c.awaited == 0 {
			hs.remove(c)
			return c.bytes
		}
	}
	return 0
}

func (hs *history) remove(c *chunk) {
	l := c.lane
	for i := range l.chunks {
		if l.chunks[i] == c {
			l.chunks = append(l.chunks[:i], l.chunks[i+1:]...)
			break
		}
	}
	hs.unlink(c)
	hs.bytes.Add(-c.bytes)
	c.forms.close()
	hs.arrived(c)
	if len(l.chunks) == 0 && !l.queued {
		hs.release(l)
	}
}

func (hs *history) link(c *chunk) {
	c.older, c.newer = hs.newest, nil
	if hs.newest != nil {
		hs.newest.newer = c
	} else {
		hs.oldest = c
	}
	hs.newest = c
}

func (hs *history) unlink(c *chunk) {
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		hs.newest = c.older
	}
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		hs.oldest = c.newer
	}
	c.newer, c.older = nil, nil
}
