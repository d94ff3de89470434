package hub

import "sort"

// Seq is a place in the arrival order of a topic: the number of entries that came before it. One Seq stands for a position in every
// partition of the topic.
type Seq int64

// Kind says what an Entry is.
type Kind uint8

// The kinds of entries.
const (
	// Records carries records of one partition in offset order.
	Records Kind = iota + 1
	// Gap says that [From, Next) will not come. Next < From only for truncation.
	Gap
	// Advance moves the position from From to Next without a record (a hole), or only tells a new End (From == Next).
	Advance
	// Topology says that the topic has Count partitions now. The hub follows the new ones from their oldest record. With a TopicID it is told of
	// that log: it says nothing where the hub has another, and may tell fewer partitions than the log before had. Those that are not there any
	// more the hub unfollows.
	Topology
	// Recreated says that the topic was deleted and created again: this partition goes on at Next in the log of TopicID.
	// A source appends one for each partition that it follows; where it knows it, with the Count of partitions in that log, which may be fewer.
	Recreated
	// Deleted says that the topic is gone for good; subscriptions end with ErrTopicDeleted.
	Deleted
	// Unavailable says that the partition cannot be read at the moment; positions are unchanged.
	Unavailable
	// Available ends Unavailable.
	Available
)

// GapReason says why records are missing. The numbers are those of tailrace.v1.GapReason.
type GapReason uint8

// The reasons for gaps.
const (
	GapRetention  GapReason = 1
	GapTruncation GapReason = 2
	GapRecreated  GapReason = 3
	GapSlow       GapReason = 4
	GapConflated  GapReason = 5
	GapTooLarge   GapReason = 6
	GapStart      GapReason = 7
)

// Meta is what the hub knows of one record of an entry.
type Meta struct {
	Offset int64
	Time   int64 // Unix milliseconds, -1 without a time
	End    int32 // the record's piece is Body[end of the one before : End]
	Key    int32 // its key is Body[Key : Key+KeyLen]; -1 without a key
	KeyLen int32
	Epoch  int32 // leader epoch, -1 unknown
}

// Entry is one step of a topic's arrival order. It is immutable once it was given to Append or returned by a Source; Body and Meta are
// never moved or reused, so that readers may send slices of them.
type Entry struct {
	Kind      Kind
	Reason    GapReason // for Gap
	Partition int32
	Count     int32  // for Topology, Recreated (0: not known): number of partitions
	TopicID   string // for Recreated: the new log; as readers get it, empty: one without this partition. For Topology: see there
	Left      int64  // for a Gap of GapConflated: records left out
	// The entry covers [From, Next) of its partition; readers get it clipped to their position. End is the end (last stable offset)
	// of the partition as known when the entry was made, -1 unknown.
	From, Next, End int64
	Meta            []Meta
	// Body holds the records, each a ready piece of a tailrace.v1.RecordBatch: the tag of field `records` (0x12), the length, the
	// encoded tailrace.v1.Record. So any run of pieces is a valid part of a RecordBatch.
	Body []byte

	forms   formSet
	shrinks bool // of a Topology: a lower Count than before
}

// Piece returns the encoded pieces of the records [lo, hi).
func (e *Entry) Piece(lo, hi int) []byte {
	return e.Body[e.bodyAt(lo):e.bodyAt(hi)]
}

// KeyOf returns the key of record i, nil if it has none.
func (e *Entry) KeyOf(i int) []byte {
	m := &e.Meta[i]
	if m.Key < 0 {
		return nil
	}
	return e.Body[m.Key : m.Key+m.KeyLen : m.Key+m.KeyLen]
}

func (e *Entry) bodyAt(i int) int32 {
	if i == 0 {
		return 0
	}
	return e.Meta[i-1].End
}

// Part is a piece of one entry as a reader gets it: the records [Lo, Hi) of a Records entry, or a control entry, clipped to the reader's
// position. After it the reader's position in the partition is Next.
type Part struct {
	*Entry
	Lo, Hi     int
	From, Next int64
}

// Batch is what a reader gets at once: parts in order. The zero Batch is empty. Its slices belong to the reader until its next Pull.
type Batch struct {
	Parts    []Part
	Records  int        // in all parts
	Bytes    int        // of their pieces
	Slow     SlowPolicy // the slow policy that acted, or began to, as this was pulled; else SlowCatchUp
	CaughtUp bool       // with this batch every position has reached the end that Started told; once per subscription
	History  bool       // its first record was read from history, not from the ring

	// For Skip.
	next Seq
	seg  *segment

	// While it is filled.
	stuffed bool // what comes next did not fit
	size    int  // bytes of pieces
	most    int  // records; 0: no limit
	scan    int  // records that may yet be looked at for a keyed subscription
}

// Next is the place after a batch that Topic.Read gave.
func (b *Batch) Next() Seq { return b.next }

// entryBytes is what an entry costs beside its records and their Meta.
const (
	entryBytes = 192
	metaBytes  = 40
)

func (e *Entry) size() int64 { return int64(len(e.Body) + metaBytes*len(e.Meta) + entryBytes) }

// bytes returns the size of the pieces [lo, hi).
func (e *Entry) bytes(lo, hi int) int { return int(e.bodyAt(hi) - e.bodyAt(lo)) }

// search returns the first record at or above an offset.
func (e *Entry) search(offset int64) int {
	return sort.Search(len(e.Meta), func(i int) bool { return e.Meta[i].Offset >= offset })
}

// recordBytes returns the size of record i: its piece without tag and length.
func (e *Entry) recordBytes(i int) int {
	at := int(e.bodyAt(i)) + 1
	for e.Body[at]&0x80 != 0 {
		at++
	}
	return int(e.Meta[i].End) - at - 1
}

// above returns a copy of a Records entry without what lies below from.
func (e *Entry) above(from int64) *Entry {
	lo := e.search(from)
	base := e.bodyAt(lo)
	c := &Entry{Kind: e.Kind, Partition: e.Partition, From: from, Next: e.Next, End: e.End, Body: e.Body[base:]}
	c.Meta = make([]Meta, len(e.Meta)-lo)
	for i := range c.Meta {
		m := e.Meta[lo+i]
		m.End -= base
		if m.Key >= 0 {
			m.Key -= base
		}
		c.Meta[i] = m
	}
	return c
}

// add adds a part.
func (b *Batch) add(e *Entry, lo, hi int, from, next int64) {
	b.Parts = append(b.Parts, Part{Entry: e, Lo: lo, Hi: hi, From: from, Next: next})
	if lo < hi {
		b.Records += hi - lo
		b.Bytes += e.bytes(lo, hi)
	}
}

// maxParts bounds a batch of small entries.
const maxParts = 1024

// fit returns how far the records [lo, hi) of e fit into the batch; at least one does if it has none.
func (b *Batch) fit(e *Entry, lo, hi int) int {
	cut := hi
	if b.most > 0 {
		cut = min(hi, lo+b.most-b.Records)
	}
	if room := b.size - b.Bytes; e.bytes(lo, cut) > room {
		most := int64(e.bodyAt(lo)) + int64(room)
		cut = lo + sort.Search(cut-lo, func(i int) bool { return int64(e.Meta[lo+i].End) > most })
	}
	if cut == lo && lo < hi && b.Records == 0 {
		cut = lo + 1
	}
	b.stuffed = b.stuffed || cut < hi
	return cut
}

func (b *Batch) full() bool {
	return b.stuffed || b.Bytes >= b.size || len(b.Parts) >= maxParts || b.most > 0 && b.Records >= b.most
}
