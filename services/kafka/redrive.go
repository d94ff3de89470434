package kafka

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
// partition, for a request that was found valid: chunk by chunk (1 MiB), until it has looked at max_records, for about ten seconds, or until one
// may work later. allow judges the topics. An error (hub.ErrUnknownTopic, *hub.UnknownPartitionError, *hub.OffsetOutOfRangeError, hub.ErrUnavailable,
// hub.ErrDraining) means that nothing was published.
func (c *Client) RedriveDeadLetters(ctx context.Context, m *tailracev1.RedriveDeadLettersRequest, allow func(topic string) error) (*tailracev1.RedriveDeadLettersResponse, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	info, err := c.admin.topic(ctx, m.GetDeadLetterTopic(), 0)
	if err != nil {
		return nil, err
	}
	r := &redrive{client: c, request: m, allow: allow, info: info, origins: map[string]*origin{}, answer: &tailracev1.RedriveDeadLettersResponse{}}
	if err := r.begin(ctx); err != nil {
		return nil, err
	}
	if r.left = int(min(m.GetMaxRecords(), redriveMaxRecords)); r.left == 0 {
		r.left = redriveRecords
	}
	until := time.Now().Add(redriveTime)
	for p := range r.next {
		for r.next[p] < r.ends[p] && r.left > 0 && !r.stopped && time.Now().Before(until) && ctx.Err() == nil {
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
	left       int     // to be looked at
	worked     bool    // something was looked at, so that an answer is owed
	stopped    bool
}

// origin is a topic that dead letters came from.
type origin struct {
	count   int32                      // of its partitions
	refused *tailracev1.PublishFailure // nothing is published there
	records int64
}

// returning is a dead letter of the group on its way back.
type returning struct {
	at     *tailracev1.Record
	topic  string
	record *tailracev1.PublishRecord
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
	var letters []returning
	for _, e := range entries {
		batch := &tailracev1.RecordBatch{}
		if err := proto.Unmarshal(e.Body, batch); err != nil {
			return fmt.Errorf("dead letters: %w", err)
		}
		for _, at := range batch.GetRecords() {
			if at.GetOffset() < id.From || at.GetOffset() >= r.ends[p] {
				continue
			}
			if r.left == 0 {
				next = min(next, at.GetOffset())
				break
			}
			r.left--
			r.worked = true
			if l, ok := r.open(at); ok {
				letters = append(letters, l)
			}
		}
	}
	if next <= id.From {
		return fmt.Errorf("read %q partition %d at %d: %w", r.info.name, p, id.From, hub.ErrUnavailable)
	}
	r.next[p] = min(next, r.ends[p])
	r.publish(ctx, letters)
	return nil
}

// open reads the headers of a dead letter. ok: it is to be redriven.
func (r *redrive) open(at *tailracev1.Record) (l returning, ok bool) {
	told := map[string]string{headerTopic: "", headerPartition: "", headerOffset: "", headerGroup: "", headerAttempts: "", headerReason: "", headerDead: "", headerHops: "", headerCut: "", headerStripped: ""}
	found := map[string]bool{}
	var own []*tailracev1.Header
	for _, h := range slices.Backward(at.GetHeaders()) { // ours are the last ones of these names
		if _, ours := told[h.GetName()]; ours && !found[h.GetName()] {
			told[h.GetName()], found[h.GetName()] = string(h.GetValue()), true
			continue
		}
		own = append(own, h)
	}
	slices.Reverse(own)
	partition, err := strconv.ParseInt(told[headerPartition], 10, 32)
	switch {
	case told[headerTopic] == "" || told[headerGroup] == "" || err != nil || partition < 0:
		r.fail(at, &tailracev1.PublishFailure{Reason: reasonNoLetter, Message: "the headers do not tell topic, partition and group"})
		return l, false
	case told[headerGroup] != r.request.GetGroup():
		r.answer.Skipped++
		return l, false
	case found[headerCut]:
		r.fail(at, &tailracev1.PublishFailure{Reason: reasonTruncated, Message: "the value had " + told[headerCut] + " bytes, and was cut"})
		return l, false
	case found[headerStripped]:
		r.fail(at, &tailracev1.PublishFailure{Reason: reasonTruncated, Message: "left out are: " + told[headerStripped]})
		return l, false
	}
	to := int32(partition)
	return returning{at, told[headerTopic], &tailracev1.PublishRecord{Key: at.Key, Value: at.Value, Headers: own, Partition: &to}}, true
}

// publish publishes letters of one chunk, topic by topic; those of one topic keep their order.
func (r *redrive) publish(ctx context.Context, letters []returning) {
	byTopic := map[string][]returning{}
	for _, l := range letters {
		byTopic[l.topic] = append(byTopic[l.topic], l)
	}
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		o := r.origin(ctx, topic)
		letters := byTopic[topic]
		records := make([]*tailracev1.PublishRecord, len(letters))
		for i, l := range letters {
			records[i] = l.record
			if l.record.GetPartition() >= o.count {
				l.record.Partition = nil
			}
		}
		var results []*tailracev1.PublishResult
		switch {
		case o.refused != nil:
		case r.request.GetDryRun():
			o.records += int64(len(letters))
			continue
		default:
			var err error
			if results, err = r.client.PublishAs(ctx, "redrive", topic, records); err != nil {
				o.refused = failureOf(ctx, err)
			}
		}
		for i, l := range letters {
			failure := o.refused
			if failure == nil {
				failure = results[i].GetFailure()
			}
			if failure == nil {
				o.records++
			} else {
				r.fail(l.at, failure)
			}
		}
	}
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

// fail tells of a letter that was not redriven. One that may work later holds the position.
func (r *redrive) fail(at *tailracev1.Record, why *tailracev1.PublishFailure) {
	f := &tailracev1.RedriveFailure{Partition: at.GetPartition(), Offset: at.GetOffset(), Reason: why.GetReason(), Message: why.GetMessage()}
	switch why.GetCode() {
	case "unavailable", "resource_exhausted", "canceled", "deadline_exceeded":
		f.Retryable, r.stopped = true, true
		r.next[at.GetPartition()] = min(r.next[at.GetPartition()], at.GetOffset())
	}
	r.answer.Failures = append(r.answer.Failures, f)
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
