package group

import (
	"context"
	"errors"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Partition names a partition of a topic.
type Partition struct {
	Topic     string
	Partition int32
}

// Record is one record as it is dealt; immutable.
type Record struct {
	Offset int64
	Epoch  int32  // leader epoch, -1 unknown
	Key    []byte // nil: none
	Body   []byte // the encoded tailrace.v1.Record
}

// Batch is a run of a partition: Records in offset order, and no others below Next.
type Batch struct {
	Partition
	Records []Record
	Next    int64
}

// Place is a position in a partition: as an assignment, where it begins; as a commit, the front.
type Place struct {
	Partition
	Offset int64
	Epoch  int32 // of the record before it, -1 unknown
	Fresh  bool  // of an assignment: the place is not what the group has committed, and is to be
}

// Turn is what a membership does before it polls again.
type Turn struct {
	Commit        []Place     // to be answered with Committed, whether it worked or not
	Pause, Resume []Partition // fetching
	Busy          bool        // something is paused: poll shortly, so that it goes on soon
	Take          int         // bytes after which to ask again: what comes at once, and can't be given back, must not be beyond the budget of all groups
}

// Cluster is Kafka's side of queue mode.
type Cluster interface {
	// Check returns nil if the topics can be consumed: else hub.ErrUnknownTopic, hub.ErrUnavailable, or ctx's error.
	Check(ctx context.Context, topics []string) error
	// Join is a member of Kafka's group until ctx ends: it calls the methods of g from one goroutine (Assign, then Append …), gives back what is
	// assigned (Revoke) and commits the answer, leaves, and returns. It heals itself: an error is final and ends the group's workers.
	Join(ctx context.Context, s Settings, g *Group) error
}

// Letter is a record that could not be processed.
type Letter struct {
	To string // topic of dead letters
	Partition
	Record   Record
	Group    string
	Attempts int    // how often it was delivered
	Reason   string // of the last failure
	Time     time.Time
}

// ErrGoesRound says that a record has been a dead letter too often.
var ErrGoesRound = errors.New("the record goes round as a dead letter")

// DeadLetters stores dead letters.
type DeadLetters interface {
	// Bury stores a letter. It returns soon, within ctx; done is then called once, from any goroutine, with nil when the broker has the letter. The
	// caller tries again after an error, but for ErrGoesRound: such a letter is not stored.
	Bury(ctx context.Context, l Letter, done func(error))
}

// Gap names offsets of a partition that will not be delivered.
type Gap struct {
	Partition
	From, To int64
	Reason   hub.GapReason
}
