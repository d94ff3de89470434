package hubtest

import "tailrace.dev/tailrace/services/hub"

// Holes says how a Source tells offsets without a record.
type Holes uint8

// The ways to tell holes.
const (
	HolesCovered Holes = iota // an entry of records covers them
	HolesApart                // an Advance for each run of them
	HolesSkipped              // the next entry begins after them; only those at the end of a delivery are an Advance
)

// Shape says how a Source cuts records into entries.
type Shape struct {
	EntryRecords int // most records in an entry; 0: no limit
	Holes        Holes
	HideEnd      bool // entries do not know the end (-1)
	ChunkRecords int  // most records that ReadAt returns; 0: what it was asked for
}

// SetShape sets how later entries are cut, live and in history. The default is one entry as large as possible, that covers holes.
func (s *Source) SetShape(shape Shape) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shape = shape
}

// live returns the entries that tell [from, to) of a partition.
func live(p *partitionLog, shape Shape, partition int32, from, to int64) []*hub.Entry {
	end := p.end()
	if shape.HideEnd {
		end = -1
	}
	c := cutter{shape: shape, partition: partition, end: end, advances: true, next: from}
	c.cut(p, from, to, nil)
	return c.es
}

// history returns the entries of a chunk [from, to): only records.
func history(p *partitionLog, shape Shape, partition int32, from, to int64, only *hub.Terms) []*hub.Entry {
	c := cutter{shape: shape, partition: partition, end: p.end(), next: from}
	c.cut(p, from, to, only)
	return c.es
}

// cutter cuts a stretch of a partition into entries.
type cutter struct {
	shape     Shape
	partition int32
	end       int64
	advances  bool // holes may be told by Advance
	next      int64
	es        []*hub.Entry
	at        *hub.Entry // being filled
}

func (c *cutter) cut(p *partitionLog, from, to int64, only *hub.Terms) {
	for offset := from; offset < to; offset++ {
		sl := &p.slots[offset]
		if sl.kind != record || only != nil && !only.Has(keyOf(sl)) {
			if c.shape.Holes != HolesCovered {
				c.close(offset)
			}
			continue
		}
		if c.at != nil && c.shape.EntryRecords > 0 && len(c.at.Meta) >= c.shape.EntryRecords {
			c.close(offset)
		}
		if c.at == nil {
			c.open(offset)
		}
		c.add(sl)
	}
	c.close(to)
	if c.next < to && c.advances {
		c.advance(to)
	}
}

func (c *cutter) open(offset int64) {
	if c.next < offset && c.shape.Holes == HolesApart && c.advances {
		c.advance(offset)
	}
	from := c.next
	if c.shape.Holes != HolesCovered {
		from = offset
	}
	c.at = &hub.Entry{Kind: hub.Records, Partition: c.partition, From: from, End: c.end}
}

func (c *cutter) close(offset int64) {
	if c.at == nil {
		return
	}
	c.at.Next = offset
	c.es = append(c.es, c.at)
	c.at, c.next = nil, offset
}

func (c *cutter) advance(to int64) {
	c.es = append(c.es, &hub.Entry{Kind: hub.Advance, Partition: c.partition, From: c.next, Next: to, End: c.end})
	c.next = to
}

func (c *cutter) add(sl *slot) {
	meta, base := sl.meta, int32(len(c.at.Body))
	meta.End += base
	if meta.Key >= 0 {
		meta.Key += base
	}
	c.at.Meta = append(c.at.Meta, meta)
	c.at.Body = append(c.at.Body, sl.piece...)
}

// keyOf returns the key of a record, nil if it has none.
func keyOf(sl *slot) []byte {
	if sl.meta.Key < 0 {
		return nil
	}
	return sl.piece[sl.meta.Key : sl.meta.Key+sl.meta.KeyLen : sl.meta.Key+sl.meta.KeyLen]
}
