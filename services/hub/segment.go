package hub

import "sync/atomic"

// Bounds of a segment. Capacity grows with traffic.
const (
	minSegmentEntries = 64
	maxSegmentEntries = 1024
	maxSegmentBytes   = 1 << 20
)

// mark is a place in a partition: the next offset, and the leader epoch of the last record before it (-1 unknown).
type mark struct {
	next  int64 // -1: the partition is not followed
	epoch int32
}

var unmarked = mark{next: -1, epoch: -1}

// step is what one entry does to the position of its partition. Steps outlive the entries.
type step struct {
	from, next int64
	partition  int32 // -1: the entry moves no position
	epoch      int32
}

// segment is a run of a topic's arrival order. Entries are added until it is closed by a successor; published entries never change. When it
// is evicted its entries go, and its index stays for as long as a cursor holds it. It does not keep its successors alive then.
type segment struct {
	base  Seq
	start []mark // of all partitions at base
	steps []step // as many as it can hold; below n they are published

	n     atomic.Int32
	data  atomic.Pointer[[]*Entry] // as long as steps; nil: evicted
	after atomic.Pointer[segment]  // nil: open, or evicted; data is cleared before it
	forms formAccount

	// Owned by Topic.mu.
	bytes  int64
	opened int64 // the keeper's clock

	// Owned by Topic.feedMu.
	terms    []*term // those that have refs into this segment
	refBytes int64
}

func (g *segment) end() Seq { return g.base + Seq(g.n.Load()) }

// markAt returns the place of a partition at seq, which lies in the segment or at its end.
func (g *segment) markAt(partition int32, seq Seq) mark {
	for i := int(seq-g.base) - 1; i >= 0; i-- {
		if s := &g.steps[i]; s.partition == partition {
			return mark{s.next, s.epoch}
		}
	}
	if int(partition) < len(g.start) {
		return g.start[partition]
	}
	return unmarked
}

// marks returns the places of count partitions at seq.
func (g *segment) marks(seq Seq, count int32) []mark {
	ms := make([]mark, count)
	for i := copy(ms, g.start); i < len(ms); i++ {
		ms[i] = unmarked
	}
	for i := range g.steps[:seq-g.base] {
		if s := &g.steps[i]; s.partition >= 0 && s.partition < count {
			ms[s.partition] = mark{s.next, s.epoch}
		}
	}
	return ms
}
