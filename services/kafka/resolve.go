package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/hub"
)

// Pauses between attempts to resolve, and for how long it is tried while some partitions answer and others do not: the caller may want only
// the former.
const (
	resolvePause    = 50 * time.Millisecond
	resolvePauseMax = 500 * time.Millisecond
	resolvePartly   = time.Second
)

// partlyError: of the partitions asked for, some have no leader at the moment.
type partlyError struct{ err error }

func (e *partlyError) Error() string { return e.err.Error() }
func (e *partlyError) Unwrap() error { return e.err }

// Resolve is hub.Source's: the ends of the partitions and where a subscription starts in them. A partition without a leader is waited for,
// for a second if others answer, else until ctx ends or for ten seconds; an unknown topic or partition is an error at once. The start hub.Last is searched
// for at most 100,000 offsets and three seconds back, and answered for the partitions that its keys hash to, unless all are asked for.
func (c *Client) Resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	if !hub.LegalTopic(topic) {
		return hub.Resolved{}, fmt.Errorf("topic %q: %w", topic, hub.ErrUnknownTopic)
	}
	if err := c.started(ctx); err != nil {
		return hub.Resolved{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	began := time.Now()
	for pause := resolvePause; ; pause = min(2*pause, resolvePauseMax) {
		r, err := c.resolve(ctx, topic, q)
		if !errors.Is(err, hub.ErrUnavailable) {
			return r, err
		}
		if _, partly := errors.AsType[*partlyError](err); partly && time.Since(began) > resolvePartly {
			return hub.Resolved{}, err
		}
		select {
		case <-ctx.Done():
			return hub.Resolved{}, err
		case <-time.After(pause):
		}
	}
}

func (c *Client) resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	info, err := c.admin.topic(ctx, topic, infoAge)
	if err != nil {
		return hub.Resolved{}, err
	}
	partitions := q.Partitions
	named := slices.Clone(partitions)
	for _, p := range q.Start.Positions {
		named = append(named, p.Partition)
	}
	if len(named) > 0 && slices.Max(named) >= info.count { // it may be new
		if info, err = c.admin.topic(ctx, topic, 0); err != nil {
			return hub.Resolved{}, err
		}
	}
	if q.TopicID != "" && q.TopicID != info.id {
		named = partitions // positions in a log that is gone may name partitions that the new one does not have
	}
	for _, p := range named {
		if p < 0 || p >= info.count {
			return hub.Resolved{}, &hub.UnknownPartitionError{Topic: topic, Partition: p, Count: info.count, TopicID: info.id}
		}
	}
	if partitions == nil {
		partitions = make([]int32, info.count)
		for i := range partitions {
			partitions[i] = int32(i)
		}
	}
	partitioner := c.cfg.partitioner(topic)
	if q.Start.Kind == hub.Last && q.Keys != nil && q.KeyScope != hub.KeyScopeAll {
		partitions = partitioner.Among(partitions, q.Keys, info.count)
	}
	var starts map[int32]offset
	if q.Start.Kind == hub.AtTime {
		// The broker's rule: the first offset with a time at or after this one; none is the end.
		at := confluent.NewOffsetSpecForTimestamp(max(q.Start.Time.UnixMilli(), 0))
		if starts, err = c.admin.offsets(ctx, topic, partitions, at, c.cfg.Isolation); err != nil {
			return hub.Resolved{}, err
		}
	}
	positions := map[int32]hub.Position{}
	for _, p := range q.Start.Positions {
		positions[p.Partition] = p
	}
	bounds, recent := c.recent.get(info.id, partitions, positions)
	if !recent {
		if bounds, err = c.admin.bounds(ctx, topic, partitions, c.cfg.Isolation); err != nil {
			return hub.Resolved{}, err
		}
		c.recent.put(info.id, bounds)
	}
	var failed []error
	r := hub.Resolved{TopicID: info.id, Count: info.count, Partitioner: partitioner, Partitions: make([]hub.ResolvedPartition, 0, len(partitions))}
	for _, p := range partitions {
		b := bounds[p]
		if b.err == nil && starts != nil {
			b.err = starts[p].err
		}
		if b.err != nil {
			failed = append(failed, fmt.Errorf("bounds of %q partition %d: %w: %w", topic, p, hub.ErrUnavailable, b.err))
			continue
		}
		rp := hub.ResolvedPartition{Partition: p, Oldest: b.oldest, End: max(b.end, b.oldest)}
		at, placed := positions[p]
		switch {
		case q.Start.Kind == hub.Latest, q.Start.Kind == hub.Last: // the latter is looked for below
			rp.Start = rp.End
		case q.Start.Kind == hub.Earliest:
			rp.Start = rp.Oldest
		case q.Start.Kind == hub.AtTime:
			if rp.Start = starts[p].offset; rp.Start < 0 {
				rp.Start = rp.End
			}
			rp.Start = min(max(rp.Start, rp.Oldest), rp.End)
		case placed:
			rp.Start = at.Offset
		case q.Start.Missing == hub.MissingSkip:
			continue
		case q.Start.Missing == hub.MissingLatest:
			rp.Start = rp.End
		default:
			rp.Start = rp.Oldest
		}
		r.Partitions = append(r.Partitions, rp)
	}
	switch len(failed) {
	case 0:
		switch {
		case q.Start.Kind == hub.AtPositions && (q.TopicID == "" || q.TopicID == info.id):
			err = c.checkBranches(ctx, topic, info.id, positions, bounds, r.Partitions)
		case q.Start.Kind == hub.Last:
			err = c.last(ctx, topic, info.id, &q, bounds, r.Partitions)
		}
		return r, err
	case len(partitions):
		return hub.Resolved{}, failed[0]
	}
	return hub.Resolved{}, &partlyError{failed[0]}
}
