package hub

import (
	"context"
	"time"
)

// Source is where records come from: Kafka in the service, the service's RPC in the edge. It owns its goroutines, heals itself and
// pushes; what it cannot heal it appends as an entry. Its methods may be called concurrently.
type Source interface {
	// Resolve turns a start into numbers, in one round trip. It blocks. Errors: ErrUnknownTopic, ErrUnavailable, *UnknownPartitionError,
	// *OffsetOutOfRangeError, ErrUnimplemented (a kind of start that this build does not have).
	Resolve(ctx context.Context, topic string, q Query) (Resolved, error)
	// Follow begins to append the partition to t, live, at exactly from: a number that the hub got by Resolve, or an earlier Next of
	// t. It is valid before any record has come. Follow returns at once. A lost upstream is resumed at the last Next, the topic id
	// checked; while it is away the source appends Unavailable, afterwards Available. unfollow returns after the last Append of
	// this partition; it may block for as long as one round trip; it is called once. Where the topic was created again without this partition, the
	// source appends a Recreated with the Count, and is to unfollow.
	Follow(t *Topic, partition int32, from int64) (unfollow func())
	// ReadAt reads one chunk of a partition's history: records in [c.From, to), at most max records or MaxChunkBytes, at least one
	// where there is one. next is the position after it: it passes holes, and is `to` when nothing is left below it. It blocks.
	// With only, other records may be left out (the entries still cover their offsets) and the chunk is not cached.
	// Errors: *OffsetOutOfRangeError (with the oldest offset and the end), ErrUnavailable (the hub asks again), ErrTopicDeleted.
	ReadAt(ctx context.Context, c ChunkID, to int64, max int, only *Terms) (es []*Entry, next int64, err error)
	// FiltersHistory says that ReadAt makes use of only.
	FiltersHistory() bool
}

// ChunkID names a chunk of history by the log it is read from and the offset asked for.
type ChunkID struct {
	Topic     string
	TopicID   string
	Partition int32
	From      int64
}

// Bounds of one chunk of history.
const (
	MaxChunkRecords = 1000
	MaxChunkBytes   = 1 << 20
)

// Terms filters records: by key where Keys is not nil.
type Terms struct {
	Keys map[string]struct{}
}

// Has says whether a record with this key passes; nil is no key.
func (f *Terms) Has(key []byte) bool {
	if f == nil || f.Keys == nil {
		return true
	}
	if key == nil {
		return false
	}
	_, ok := f.Keys[string(key)]
	return ok
}

// Query is what a Source resolves.
type Query struct {
	TopicID    string  // of the log that Start.Positions belong to; empty: not checked
	Partitions []int32 // nil: all
	Keys       [][]byte
	KeyScope   KeyScope
	Start      Start
}

// Resolved is the answer to a Query.
type Resolved struct {
	TopicID string
	Count   int32 // partitions of the topic
	// Partitioner is how the topic's producers place keys. It is configured, and always the same for a topic.
	Partitioner Partitioner
	Partitions  []ResolvedPartition
}

// ResolvedPartition is where a partition stands: Oldest <= Start <= End where Start was resolved. For positions, Start is the position
// asked for, in range or not.
type ResolvedPartition struct {
	Partition   int32
	Start       int64
	Oldest, End int64
	Incomplete  bool
	// Lost is how many offsets below a position asked for are of a branch that the log has lost, as the position's epoch tells: what the log has in
	// their place begins at Start - Lost. 0: none, or not known.
	Lost int64
}

// StartKind says where a subscription begins.
type StartKind uint8

// The kinds of starts.
const (
	Latest StartKind = iota
	Earliest
	AtPositions
	AtTime
	Last
)

// Start says where a subscription begins. The zero value is latest.
type Start struct {
	Kind      StartKind
	Positions []Position // AtPositions
	Missing   Missing    // AtPositions: partitions that are not named
	Time      time.Time  // AtTime
	Last      int        // Last
}

// Missing says where a partition starts that positions do not name.
type Missing uint8

// Where unnamed partitions start.
const (
	MissingEarliest Missing = iota
	MissingLatest
	MissingSkip
)

// Position is the next offset of a partition; Epoch is the leader epoch of the record before it, -1 unknown.
type Position struct {
	Partition int32
	Epoch     int32
	Offset    int64
}

// Stop says where a subscription ends by itself with io.EOF: at the limit that is reached first. The zero value is never.
type Stop struct {
	Positions []Position
	AtEnd     bool
	Records   int64
	Bytes     int64
}

// KeyScope says in which partitions keys are looked for.
type KeyScope uint8

// The scopes of keys.
const (
	KeyScopeDefault KeyScope = iota // hashed for latest and last, all partitions for earliest and time
	KeyScopeHashed
	KeyScopeAll
)

// OutOfRange says what happens to a position that is not in the log.
type OutOfRange uint8

// The policies for positions out of range.
const (
	OutOfRangeEarliest OutOfRange = iota
	OutOfRangeLatest
	OutOfRangeFail
)

// SlowPolicy says what happens to a slow reader.
type SlowPolicy uint8

// The policies for slow readers.
const (
	SlowCatchUp SlowPolicy = iota
	SlowSkip
	SlowConflate
	SlowFail
)

// String is the policy's name in logs.
func (p SlowPolicy) String() string {
	switch p {
	case SlowSkip:
		return "skip"
	case SlowConflate:
		return "conflate"
	case SlowFail:
		return "fail"
	default:
		return "catch_up"
	}
}
