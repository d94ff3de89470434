// Package hubtest is a topic store in memory that fills hub.Source, for tests of the hub and of what is built on it.
//
// A Source from New delivers by itself, each followed partition by a goroutine that ends with its unfollow:
//
//	src := hubtest.New()
//	src.CreateTopic("orders", 3)
//	h := hub.New(src, hub.Config{})
//	…
//	src.Append("orders", 0, hubtest.Text("k1", "v1"))
//
// A Source from NewStepped delivers only when the test calls Deliver, so that every interleaving of writer and reader can be written down.
// All methods may be called concurrently. Those that change a topic or partition which does not exist panic.
package hubtest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Source is the store. It keeps every record for ever, unless Retain or Compact remove it.
type Source struct {
	stepped bool

	mu         sync.Mutex
	topics     map[string]*topicLog
	created    int
	followers  map[*follower]struct{}
	cuts       map[place]int64
	shape      Shape
	filters    bool
	reach      int64
	delay      Delays
	counts     Counts
	reading    map[hub.ChunkID]int
	violations []string

	partitioner hub.Partitioner
}

// Delays are waits of a Source: before and after it looks at the log, so that an answer may be late, or old when it comes. They end early
// with the caller's context. In a synctest bubble they are the way to have a call under way while the test goes on.
type Delays struct {
	BeforeResolve, AfterResolve time.Duration
	BeforeRead, AfterRead       time.Duration
}

// Counts says how often the methods of hub.Source were called, and what is followed now.
type Counts struct {
	Resolves, Follows, Reads int
	Following                int
}

// New returns an empty store that delivers by itself. It filters history (see SetFiltersHistory).
func New() *Source {
	return &Source{
		topics:    map[string]*topicLog{},
		followers: map[*follower]struct{}{},
		cuts:      map[place]int64{},
		reading:   map[hub.ChunkID]int{},
		filters:   true,
		reach:     100_000,
	}
}

// NewStepped returns an empty store that delivers to followers only when Deliver is called.
func NewStepped() *Source {
	s := New()
	s.stepped = true
	return s
}

// SetFiltersHistory says whether ReadAt makes use of only. Call it before the hub is made.
func (s *Source) SetFiltersHistory(filters bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filters = filters
}

// SetReach sets how many offsets the start Last looks back over. The default is 100,000.
func (s *Source) SetReach(offsets int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reach = offsets
}

// SetPartitioner says how the topics' producers place keys: it is told by Resolve; records lie where they are appended.
func (s *Source) SetPartitioner(p hub.Partitioner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.partitioner = p
}

// SetDelays sets the waits of later calls.
func (s *Source) SetDelays(d Delays) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay = d
}

// Counts returns a snapshot.
func (s *Source) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.counts
	counts.Following = len(s.followers)
	return counts
}

// Violations returns what the hub did against the contract of hub.Source, such as following a partition twice.
func (s *Source) Violations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.violations...)
}

// violated notes a breach. s.mu is held.
func (s *Source) violated(format string, args ...any) {
	if len(s.violations) < 100 {
		s.violations = append(s.violations, fmt.Sprintf(format, args...))
	}
}

// FiltersHistory implements hub.Source.
func (s *Source) FiltersHistory() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.filters
}

// Resolve implements hub.Source. It leaves it to the hub where keys hash to: all partitions of the query are in the answer. An unavailable
// partition among them is ErrUnavailable.
func (s *Source) Resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	s.mu.Lock()
	s.counts.Resolves++
	delay := s.delay
	s.mu.Unlock()
	if err := wait(ctx, delay.BeforeResolve); err != nil {
		return hub.Resolved{}, err
	}
	s.mu.Lock()
	resolved, err := s.resolve(topic, q)
	s.mu.Unlock()
	if err := wait(ctx, delay.AfterResolve); err != nil {
		return hub.Resolved{}, err
	}
	return resolved, err
}

func (s *Source) resolve(topic string, q hub.Query) (hub.Resolved, error) {
	t := s.topics[topic]
	if t == nil {
		return hub.Resolved{}, hub.ErrUnknownTopic
	}
	count := int32(len(t.partitions))
	asked := q.Partitions
	if asked == nil {
		for i := range count {
			asked = append(asked, i)
		}
	}
	positions := map[int32]int64{}
	for _, p := range q.Start.Positions {
		if p.Partition < 0 || p.Partition >= count {
			return hub.Resolved{}, &hub.UnknownPartitionError{Topic: topic, Partition: p.Partition, Count: count, TopicID: t.id}
		}
		positions[p.Partition] = p.Offset
	}
	resolved := hub.Resolved{TopicID: t.id, Count: count, Partitioner: s.partitioner}
	for _, i := range asked {
		if i < 0 || i >= count {
			return hub.Resolved{}, &hub.UnknownPartitionError{Topic: topic, Partition: i, Count: count, TopicID: t.id}
		}
		p := t.partitions[i]
		if p.unavailable {
			return hub.Resolved{}, hub.ErrUnavailable
		}
		r := hub.ResolvedPartition{Partition: i, Oldest: p.oldest, End: p.end()}
		position, named := positions[i]
		switch {
		case q.Start.Kind == hub.Latest:
			r.Start = r.End
		case q.Start.Kind == hub.Earliest:
			r.Start = r.Oldest
		case q.Start.Kind == hub.AtTime:
			r.Start = p.since(q.Start.Time.UnixMilli())
		case q.Start.Kind == hub.Last:
			r.Start, r.Incomplete = p.last(q.Start.Last, q.Keys, s.reach)
		case named:
			r.Start = position
		case q.Start.Missing == hub.MissingSkip:
			continue
		case q.Start.Missing == hub.MissingLatest:
			r.Start = r.End
		default:
			r.Start = r.Oldest
		}
		resolved.Partitions = append(resolved.Partitions, r)
	}
	return resolved, nil
}

// ReadAt implements hub.Source. A chunk of a topic id that is no more is ErrTopicDeleted. With FiltersHistory it leaves out all records that
// only does not have.
func (s *Source) ReadAt(ctx context.Context, c hub.ChunkID, to int64, limit int, only *hub.Terms) ([]*hub.Entry, int64, error) {
	s.mu.Lock()
	s.counts.Reads++
	delay := s.delay
	if only == nil {
		if s.reading[c]++; s.reading[c] > 1 {
			s.violated("chunk %v is read twice at once", c)
		}
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.reading[c]--; s.reading[c] == 0 {
				delete(s.reading, c)
			}
		}()
	}
	if c.From >= to || limit < 1 || limit > hub.MaxChunkRecords {
		s.violated("chunk %v is read up to %d, at most %d records", c, to, limit)
	}
	s.mu.Unlock()
	if err := wait(ctx, delay.BeforeRead); err != nil {
		return nil, 0, err
	}
	s.mu.Lock()
	es, next, err := s.read(c, to, limit, only)
	s.mu.Unlock()
	if err := wait(ctx, delay.AfterRead); err != nil {
		return nil, 0, err
	}
	return es, next, err
}

func (s *Source) read(c hub.ChunkID, to int64, limit int, only *hub.Terms) ([]*hub.Entry, int64, error) {
	t := s.topics[c.Topic]
	if t == nil || t.id != c.TopicID || int(c.Partition) >= len(t.partitions) {
		return nil, 0, hub.ErrTopicDeleted
	}
	p := t.partitions[c.Partition]
	if p.unavailable {
		return nil, 0, hub.ErrUnavailable
	}
	if c.From < p.oldest || c.From > p.high() {
		return nil, 0, &hub.OffsetOutOfRangeError{
			Topic: c.Topic, Partition: c.Partition, Offset: c.From, Oldest: p.oldest, End: p.end(),
		}
	}
	if !s.filters {
		only = nil
	}
	if s.shape.ChunkRecords > 0 {
		limit = min(limit, s.shape.ChunkRecords)
	}
	end := max(c.From, min(to, p.end()))
	records, bytes, next := 0, 0, c.From
	for ; next < end; next++ {
		sl := &p.slots[next]
		if sl.kind != record || only != nil && !only.Has(keyOf(sl)) {
			continue
		}
		if records > 0 && (records == limit || bytes+len(sl.piece) > hub.MaxChunkBytes) {
			break
		}
		records++
		bytes += len(sl.piece)
	}
	return history(p, s.shape, c.Partition, c.From, next, only), next, nil
}

// wait waits for d, or for the end of ctx.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
