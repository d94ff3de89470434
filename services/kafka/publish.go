package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// publishInfoAge is for how long what is known of a topic answers a publish without a question.
const publishInfoAge = 30 * time.Second

// States of a pending record.
const (
	recordWaiting int32 = iota // not handed over: certainly not in the log
	recordHanded               // with librdkafka
	recordOver                 // will not be handed over
)

// pending is a record on its way.
type pending struct {
	of     *Publication
	index  int
	record *tailracev1.PublishRecord
	cost   int64
	state  atomic.Int32
	time   time.Time // set by the producer's goroutine before it is handed over
}

// Publication is a call of Publish that is under way.
type Publication struct {
	producer *producer
	topic    string
	settings topicSettings
	records  []pending
	done     chan struct{} // closed when every record has its result

	mu      sync.Mutex
	results []*tailracev1.PublishResult // nil: none yet
	left    int
}

// Publish appends records to a topic and returns one result for each, in order. A failed record does not stop its successors. It waits for
// room and for the acknowledgements until ctx ends, at most for Config.PublishTimeout each; a record that was handed over by then has the outcome UNKNOWN, one that was
// not REFUSED. An error means that certainly no record was appended: hub.ErrUnknownTopic, hub.ErrUnavailable, hub.ErrDraining. Records of one
// partition keep their order within a call, and over calls that follow each other; Begin orders calls that overlap.
func (c *Client) Publish(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	p, err := c.Begin(ctx, topic, records)
	if err != nil {
		return nil, err
	}
	return p.Results(ctx), nil
}

// Begin is the first half of Publish: it returns once the records are handed over, in the order of calls by one goroutine, so that a
// stream of publishes can be pipelined. It waits for room only. The records must not be changed until Results has returned.
func (c *Client) Begin(ctx context.Context, topic string, records []*tailracev1.PublishRecord) (*Publication, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	info, err := c.admin.topic(ctx, topic, publishInfoAge)
	if err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	p := &Publication{
		producer: c.producer, topic: topic, settings: c.admin.settings(ctx, topic),
		records: make([]pending, len(records)), done: make(chan struct{}),
		results: make([]*tailracev1.PublishResult, len(records)), left: len(records),
	}
	if len(records) == 0 {
		close(p.done)
	}
	limit := int64(maxMessageBytes)
	if p.settings.maxBytes > 0 && !c.cfg.compresses() {
		// A record that the broker will not take would take others down with it: librdkafka sends them in one batch.
		limit = min(limit, p.settings.maxBytes)
	}
	valid := make([]*pending, 0, len(records))
	for i, r := range records {
		q := &p.records[i]
		q.of, q.index, q.record, q.cost = p, i, r, cost(r)
		if r.Partition != nil && *r.Partition >= info.count { // it may be new
			if fresh, err := c.admin.topic(ctx, topic, infoAge); err == nil {
				info = fresh
			}
		}
		if a, ok := invalid(r, q.cost-recordOverhead, limit, info.count); ok {
			p.answer(q, a)
			continue
		}
		valid = append(valid, q)
	}
	for len(valid) > 0 {
		n, total := 0, int64(0)
		for n < len(valid) && (n == 0 || total+valid[n].cost <= chunkCost) {
			total += valid[n].cost
			n++
		}
		if a, ok := c.hand(ctx, valid[:n], total); !ok {
			for _, q := range valid {
				q.state.Store(recordOver)
				p.answer(q, a)
			}
			break
		}
		valid = valid[n:]
	}
	return p, nil
}

// hand gives a chunk to the producer's goroutine once there is room; if not, a says why it is refused.
func (c *Client) hand(ctx context.Context, chunk []*pending, total int64) (a answer, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.PublishTimeout)
	defer cancel()
	if err := c.producer.admit(ctx, total); err != nil {
		return c.noRoom(err), false
	}
	select {
	case c.producer.queue <- chunk:
		return answer{}, true
	case <-c.producer.stopped:
		c.producer.release(total)
		return refusal(draining), false
	case <-ctx.Done():
		c.producer.release(total)
		return c.noRoom(ctx.Err()), false
	}
}

// noRoom is why a record was not admitted in time.
func (c *Client) noRoom(err error) answer {
	switch {
	case errors.Is(err, context.Canceled):
		return refusal(canceled)
	case !c.Health().Up:
		return refusal(unavailable)
	}
	return refusal(queueFull)
}

// Results waits for all results until ctx ends, or for Config.PublishTimeout and a little, and returns one for each record, in order.
// It is called once.
func (p *Publication) Results(ctx context.Context) []*tailracev1.PublishResult {
	bound := time.NewTimer(p.producer.client.cfg.PublishTimeout + 5*time.Second)
	defer bound.Stop()
	late := unknownOutcome("deadline_exceeded", "no acknowledgement in time")
	select {
	case <-p.done:
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			late = unknownOutcome("canceled", "the caller left before the acknowledgement")
		}
	case <-p.producer.stopped:
		late = unknownOutcome("unavailable", "the service stopped before the acknowledgement")
	case <-bound.C:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.results {
		if p.results[i] != nil {
			continue
		}
		a := late
		if p.records[i].state.CompareAndSwap(recordWaiting, recordOver) {
			a = refusal(canceled)
		}
		p.set(i, a)
	}
	return p.results
}

// answer sets the result of a record, unless its caller has been told already.
func (p *Publication) answer(r *pending, a answer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.results[r.index] == nil {
		p.set(r.index, a)
	}
}

func (p *Publication) set(i int, a answer) {
	p.results[i] = a.result
	p.producer.m.published.WithLabelValues(a.outcome).Inc()
	if p.left--; p.left == 0 {
		close(p.done)
	}
}

// cost is what a record takes of the room for records under way.
func cost(r *tailracev1.PublishRecord) int64 {
	n := len(r.Key) + len(r.Value) + recordOverhead
	for _, h := range r.Headers {
		n += len(h.Name) + len(h.Value) + 32
	}
	return int64(n)
}

// invalid refuses what would not arrive as it is.
func invalid(r *tailracev1.PublishRecord, size, limit int64, partitions int32) (answer, bool) {
	if r.Partition != nil && *r.Partition < 0 {
		return refusal(cause{"invalid_argument", ReasonInvalidRecord, "negative partition", 0}), true
	}
	if r.Partition != nil && *r.Partition >= partitions {
		m := fmt.Sprintf("no partition %d, the topic has %d", *r.Partition, partitions)
		return refusal(cause{"not_found", ReasonUnknownPartition, m, 0}), true
	}
	if size > limit {
		m := fmt.Sprintf("record of about %d bytes, at most %d", size, limit)
		return refusal(cause{"invalid_argument", ReasonRecordTooLarge, m, 0}), true
	}
	for _, h := range r.Headers {
		if strings.IndexByte(h.Name, 0) >= 0 { // librdkafka takes a C string and would cut it there
			return refusal(cause{"invalid_argument", ReasonInvalidRecord, "header name with NUL", 0}), true
		}
	}
	return answer{}, false
}

func (r *pending) message() *confluent.Message {
	m := &confluent.Message{
		TopicPartition: confluent.TopicPartition{Topic: &r.of.topic, Partition: confluent.PartitionAny},
		Key:            r.record.Key,
		Value:          r.record.Value,
		Timestamp:      r.time,
		Opaque:         r,
	}
	if r.record.Partition != nil {
		m.TopicPartition.Partition = *r.record.Partition
	}
	if n := len(r.record.Headers); n > 0 {
		m.Headers = make([]confluent.Header, n)
		for i, h := range r.record.Headers {
			m.Headers[i] = confluent.Header{Key: h.Name, Value: h.Value}
		}
	}
	return m
}

// published is the answer for an acknowledged record. Its time is the one it was sent with, since delivery reports have none; where the
// broker sets times, it is left out.
func (r *pending) published(at confluent.TopicPartition) answer {
	done := &tailracev1.Published{Partition: at.Partition, Offset: int64(at.Offset)}
	if !r.of.settings.brokerTime {
		done.Time = timestamppb.New(r.time)
	}
	return answer{outcomeAcknowledged, &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: done}}}
}
