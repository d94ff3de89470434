package hub

import (
	"errors"
	"fmt"
	"time"
)

// Errors that callers of the hub, and of the sources behind it, meet. The stream and the edge translate them, each in one table.
var (
	// ErrUnknownTopic: the topic does not exist (or its name is not a legal one).
	ErrUnknownTopic = errors.New("unknown topic")
	// ErrUnavailable: the source cannot be reached at the moment.
	ErrUnavailable = errors.New("source unavailable")
	// ErrTopicDeleted: the topic was deleted under the subscription and did not come back.
	ErrTopicDeleted = errors.New("topic deleted")
	// ErrDraining: this process is shutting down; come back, to another replica or later.
	ErrDraining = errors.New("draining")
	// ErrUnimplemented: this build does not have what the request asks for.
	ErrUnimplemented = errors.New("unimplemented")
	// ErrClosed: the subscription was closed by its owner.
	ErrClosed = errors.New("subscription closed")
)

// InvalidError says which field of a request is wrong, and why.
type InvalidError struct {
	Field   string // as in SubscribeRequest, such as "start.positions"
	Problem string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Problem }

// UnknownTopicError is ErrUnknownTopic where several topics were named.
type UnknownTopicError struct {
	Topic string
}

func (e *UnknownTopicError) Error() string {
	return fmt.Sprintf("topic %q: %v", e.Topic, ErrUnknownTopic)
}

// Unwrap makes it ErrUnknownTopic.
func (e *UnknownTopicError) Unwrap() error { return ErrUnknownTopic }

// UnknownPartitionError says that the topic has no such partition.
type UnknownPartitionError struct {
	Topic     string
	Partition int32
	Count     int32
	TopicID   string // of the log that has Count partitions; empty: not told
}

func (e *UnknownPartitionError) Error() string {
	return fmt.Sprintf("topic %q has no partition %d (it has %d)", e.Topic, e.Partition, e.Count)
}

// OffsetOutOfRangeError says that a position is not in the log, which holds [Oldest, End).
type OffsetOutOfRangeError struct {
	Topic       string
	Partition   int32
	Offset      int64
	Oldest, End int64
}

func (e *OffsetOutOfRangeError) Error() string {
	return fmt.Sprintf("offset %d of %q partition %d is out of range: the log holds [%d, %d)", e.Offset, e.Topic, e.Partition, e.Oldest, e.End)
}

// LaggedError says that the reader fell behind under the slow policy fail.
type LaggedError struct {
	Records int64
}

func (e *LaggedError) Error() string { return fmt.Sprintf("reader is %d records behind", e.Records) }

// LimitError says that a limit of this process is reached.
type LimitError struct {
	Limit string // what is limited
	Value int64
	Retry time.Duration // when a retry may help; 0: it does not
}

func (e *LimitError) Error() string { return fmt.Sprintf("at the limit of %d %s", e.Value, e.Limit) }

// ForbiddenError says that somebody behind the hub does not allow what was asked for.
type ForbiddenError struct {
	Problem string // for the caller
}

func (e *ForbiddenError) Error() string { return e.Problem }

// GroupSettingsError says that a worker asks for other settings than those that its consumer group has in force.
type GroupSettingsError struct {
	Problem string // for the caller; it tells the settings in force
}

func (e *GroupSettingsError) Error() string { return e.Problem }
