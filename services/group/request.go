package group

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Ordering says what is kept in order.
type Ordering uint8

// The orderings. Zero is OrderByKey.
const (
	// OrderByKey: records of one key of a partition are never held by two workers at once, and are delivered in order.
	OrderByKey Ordering = iota
	// OrderNone: records are dealt freely.
	OrderNone
)

// Initial says where a group begins in a partition without a committed offset.
type Initial uint8

// The beginnings. Zero is Earliest.
const (
	Earliest Initial = iota
	Latest
)

// Settings are what all workers of a group have in common. The first worker of a group in this process fixes them until it has none here.
type Settings struct {
	Group    string
	Topics   []string // in order, each once
	Initial  Initial
	Ordering Ordering
	// MaxAttempts is how many deliveries of a record may fail before it becomes a dead letter. Default 5.
	MaxAttempts int
	// DeadLetter is the topic of dead letters, none of Topics; empty: that of the record with ".dlq" behind it.
	DeadLetter string
}

// Start is the request of one worker.
type Start struct {
	Settings
	// MaxInFlight bounds what the worker holds. Default 100, at most 10,000.
	MaxInFlight int
	// AckTimeout is how long it may hold a delivery. Default 30 s, from 1 s to 1 h.
	AckTimeout time.Duration
	// AutoAck: what was pulled counts as acknowledged with the next Pull.
	AutoAck bool
	// Name says who the worker is, for people: such as the address that it comes from.
	Name string
}

// Defaults and limits of a Start.
const (
	DefaultMaxInFlight = 100
	MaxMaxInFlight     = 10_000
	DefaultAckTimeout  = 30 * time.Second
	MinAckTimeout      = time.Second
	MaxAckTimeout      = time.Hour
	DefaultMaxAttempts = 5
	MaxMaxAttempts     = 1000
	// EndedRest is how long a record waits after its second failure, if that was the loss of its worker; twice as long after each further one, at most
	// EndedRestMost. After the first it is dealt again at once.
	EndedRest     = 500 * time.Millisecond
	EndedRestMost = 5 * time.Second
	// LeastShare is what each partition may hold in bytes, and then what is read at once, where the budget is used up.
	LeastShare = 64 << 10
	// MostTaken is the most that is read at once, in bytes.
	MostTaken = 1 << 20
	// MaxTopics of a group.
	MaxTopics = 100
	// MaxReason is how much of a nack's reason is kept, in bytes.
	MaxReason = 1 << 10
	// MaxDelay is the longest delay of a nack; a longer one is that.
	MaxDelay = time.Hour
)

// ErrNotAllowed says that groups of this name are not for this service, by its configuration.
var ErrNotAllowed = errors.New("group name is not allowed here")

// SettingsError says that a worker asks for other settings than those in force.
type SettingsError struct{ Current Settings }

func (e *SettingsError) Error() string {
	s := e.Current
	return fmt.Sprintf("group %q has other settings here while it has workers: topics %s, initial %s, ordering %s, max_attempts %d, dead_letter_topic %q",
		s.Group, strings.Join(s.Topics, ","), s.Initial, s.Ordering, s.MaxAttempts, s.DeadLetter)
}

func (o Ordering) String() string { return [...]string{OrderByKey: "key", OrderNone: "none"}[o] }

func (i Initial) String() string { return [...]string{Earliest: "earliest", Latest: "latest"}[i] }

// normal fills in the defaults; the error, a *hub.InvalidError, is the first thing that is wrong.
func (s Start) normal() (Start, error) {
	fill := func(n *int, otherwise int) {
		if *n == 0 {
			*n = otherwise
		}
	}
	fill(&s.MaxInFlight, DefaultMaxInFlight)
	fill(&s.MaxAttempts, DefaultMaxAttempts)
	if s.AckTimeout == 0 {
		s.AckTimeout = DefaultAckTimeout
	}
	s.Topics = slices.Clone(s.Topics)
	slices.Sort(s.Topics)
	s.Topics = slices.Compact(s.Topics)
	name, dead := hub.GroupProblem(s.Group), hub.DeadLetterProblem(s.Topics, s.DeadLetter)
	for _, c := range []struct {
		ok             bool
		field, problem string
	}{
		{name == "", "group", name},
		{len(s.Topics) > 0, "topics", "is required"},
		{len(s.Topics) <= MaxTopics, "topics", fmt.Sprintf("has more than %d entries", MaxTopics)},
		{!slices.Contains(s.Topics, ""), "topics", "has an empty name"},
		{s.MaxInFlight >= 1 && s.MaxInFlight <= MaxMaxInFlight, "max_in_flight", fmt.Sprintf("must be from 1 to %d", MaxMaxInFlight)},
		{s.MaxAttempts >= 1 && s.MaxAttempts <= MaxMaxAttempts, "max_attempts", fmt.Sprintf("must be from 1 to %d", MaxMaxAttempts)},
		{s.AckTimeout >= MinAckTimeout && s.AckTimeout <= MaxAckTimeout, "ack_timeout", fmt.Sprintf("must be from %v to %v", MinAckTimeout, MaxAckTimeout)},
		{dead == "", "dead_letter_topic", dead},
	} {
		if !c.ok {
			return s, &hub.InvalidError{Field: c.field, Problem: c.problem}
		}
	}
	return s, nil
}

func (s *Settings) equal(o *Settings) bool {
	return s.Group == o.Group && slices.Equal(s.Topics, o.Topics) && s.Initial == o.Initial && s.Ordering == o.Ordering &&
		s.MaxAttempts == o.MaxAttempts && s.DeadLetter == o.DeadLetter
}
