package kafka

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

const (
	redriveRecords    = 100 // dead letters that a call looks at, by default
	redriveMaxRecords = 1000
	redriveTime       = 10 * time.Second // after which a call begins no further chunk
)

// Reasons of dead letters that are not redriven, beside those of records that are not published.
const (
	reasonNoLetter  = "NOT_A_DEAD_LETTER"
	reasonTruncated = "TRUNCATED"
	reasonForbidden = "FORBIDDEN"
)

// RedriveDeadLetters publishes dead letters of a group to the topics and partitions that they came from, in the order in which they lie in each
// partition, for a request that was found valid: chunk by chunk (1 MiB), until it has looked at max_records, or for about ten seconds. Behind one that
// may work later it publishes nothing of that partition. allow judges the topics. An error (hub.ErrUnknownTopic, *hub.UnknownPartitionError, *hub.OffsetOutOfRangeError, hub.ErrUnavailable,
// hub.ErrDraining) means that nothing was published.
func (c *Client) RedriveDeadLetters(ctx context.Context, m *tailracev1.RedriveDeadLettersRequest, allow func(topic string) error) (*tailracev1.RedriveDeadLettersResponse, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	info, err := c.admin.topic(ctx, m.GetDeadLetterTopic(), 0)
	if err != nil {
		return nil, err
	}
	r := &redrive{client: c, request: m, stopped: make([]bool, info.count), allow: allow, info: info, origins: map[string]*origin{}, answer: &tailracev1.RedriveDeadLettersResponse{}}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	if r.left = int(min(m.GetMaxRecords(), redriveMaxRecords)); r.left == 0 {
		r.left = redriveRecords
	}
	until := time.Now().Add(redriveTime)
	for p := range r.next {
		for r.next[p] < r.ends[p] && r.left > 0 && !r.stopped[p] && time.Now().Before(until) && ctx.Err() == nil {
			if err := r.chunk(ctx, int32(p)); err != nil {
				if r.worked {
					return r.tell(), nil
				}
				return nil, err
			}
		}
	}
	return r.tell(), nil
}

// redrive is one call.
type redrive struct {
	client  *Client
	request *tailracev1.RedriveDeadLettersRequest
	allow   func(topic string) error
	info    topicInfo
	origins map[string]*origin
	answer  *tailracev1.RedriveDeadLettersResponse

	next, ends []int64 // by partition
	stopped    []bool  // by partition: a letter may work later
	left       int     // to be looked at
	worked     bool    // something was looked at, so that an answer is owed
}

// origin is a topic that dead letters came from.
type origin struct {
	count   int32                      // of its partitions
	refused *tailracev1.PublishFailure // nothing is published there
	records int64
}

// begin finds where to begin and to end.
func (r *redrive) begin(ctx context.Context) error {
	partitions := make([]int32, r.info.count)
	for p := range partitions {
		partitions[p] = int32(p)
	}
	bounds, err := r.client.admin.bounds(ctx, r.info.name, partitions, r.client.cfg.Isolation)
	if err != nil {
		return err
	}
	given := map[int32]int64{}
	for _, p := range r.request.GetPositions() {
		if p.GetPartition() >= r.info.count {
			return &hub.UnknownPartitionError{Topic: r.info.name, Partition: p.GetPartition(), Count: r.info.count, TopicID: r.info.id}
		}
		given[p.GetPartition()] = p.GetOffset()
	}
	for _, p := range partitions {
		b := bounds[p]
		if b.err != nil {
			return fmt.Errorf("bounds of %q partition %d: %w: %w", r.info.name, p, hub.ErrUnavailable, b.err)
		}
		from, ok := given[p]
		if !ok {
			from = b.oldest
		}
		if end := max(b.end, b.oldest); from < b.oldest || from > end {
			return &hub.OffsetOutOfRangeError{Topic: r.info.name, Partition: p, Offset: from, Oldest: b.oldest, End: end}
		}
		r.next, r.ends = append(r.next, from), append(r.ends, b.end)
	}
	return nil
}

// chunk redrives what one read of a partition gives.
func (r *redrive) chunk(ctx context.Context, p int32) error {
	id := hub.ChunkID{Topic: r.info.name, TopicID: r.info.id, Partition: p, From: r.next[p]}
	entries, next, err := r.client.ReadAt(ctx, id, r.ends[p], r.left, nil)
	if err != nil {
		return err
	}
	var letters []*returning
	for _, e := range entries {
		batch := &tailracev1.RecordBatch{}
		if err := proto.Unmarshal(e.Body, batch); err != nil {
			return fmt.Errorf("dead letters: %w", err)
		}
		for _, at := range batch.GetRecords() {
			switch {
			case at.GetOffset() < id.From || at.GetOffset() >= r.ends[p]:
			case len(letters) == r.left:
				next = min(next, at.GetOffset())
			default:
				letters = append(letters, r.open(at))
			}
		}
	}
	if next <= id.From {
		return fmt.Errorf("read %q partition %d at %d: %w", r.info.name, p, id.From, hub.ErrUnavailable)
	}
	r.worked = r.worked || len(letters) > 0
	if at := r.bringBack(ctx, letters); at >= 0 {
		next, r.stopped[p] = at, true
	}
	r.next[p] = min(next, r.ends[p])
	return nil
}

// failureOf is why nothing was published.
func failureOf(ctx context.Context, err error) *tailracev1.PublishFailure {
	return refusal(causeOf(ctx, err)).result.GetFailure()
}

// origin looks at a topic that dead letters came from, once in a call.
func (r *redrive) origin(ctx context.Context, topic string) *origin {
	o := r.origins[topic]
	if o != nil {
		return o
	}
	o = &origin{}
	r.origins[topic] = o
	if err := r.allow(topic); err != nil {
		o.refused = &tailracev1.PublishFailure{Reason: reasonForbidden, Message: err.Error()}
		return o
	}
	info, err := r.client.admin.topic(ctx, topic, infoAge)
	if err != nil {
		o.refused = failureOf(ctx, err)
	}
	o.count = info.count
	return o
}

// tell completes the answer.
func (r *redrive) tell() *tailracev1.RedriveDeadLettersResponse {
	r.answer.Done = true
	for p, next := range r.next {
		r.answer.Positions = append(r.answer.Positions, &tailracev1.Position{Partition: int32(p), Offset: next})
		r.answer.Done = r.answer.Done && next >= r.ends[p]
	}
	for _, topic := range slices.Sorted(maps.Keys(r.origins)) {
		if n := r.origins[topic].records; n > 0 {
			r.answer.Redriven = append(r.answer.Redriven, &tailracev1.RedrivenTopic{Topic: topic, Records: n})
		}
	}
	slices.SortFunc(r.answer.Failures, func(a, b *tailracev1.RedriveFailure) int {
		return cmp.Or(cmp.Compare(a.GetPartition(), b.GetPartition()), cmp.Compare(a.GetOffset(), b.GetOffset()))
	})
	return r.answer
}
