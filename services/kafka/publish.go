package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

const (
	// publishInfoAge is for how long what is known of a topic answers a publish without a question, while its partition's leader answers; else
	// it must be fresh.
	publishInfoAge = 30 * time.Second
	// partitionAge is the same for a partition that does not exist.
	partitionAge = 100 * time.Millisecond
	// publishInfoWait bounds that question.
	publishInfoWait = 2 * time.Second
	// resultGrace is for how long after PublishTimeout an outcome is waited for.
	resultGrace = 5 * time.Second
	// defaultMaxBytes is a topic's max.message.bytes unless it is set (Kafka's message.max.bytes).
	defaultMaxBytes = 1_048_588
)

// Publish appends records to a topic and returns one result for each, in order. A failed record does not stop its successors. It waits for
// room and for the acknowledgements until ctx ends, at most for Config.PublishTimeout; a record that was handed over by then has the outcome
// UNKNOWN, one that was not REFUSED. An error means that certainly no record was appended: hub.ErrUnknownTopic, hub.ErrUnavailable, hub.ErrDraining.
// Records of one partition keep their order within a call, and over calls that follow each other; Begin orders what overlaps.
func (c *Client) Publish(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	return c.PublishAs(ctx, "call "+strconv.FormatUint(c.calls.Add(1), 36), topic, records)
}

// PublishAs is Publish for a caller that makes several calls at once: they share its turns, so that it gets no more than others do.
func (c *Client) PublishAs(ctx context.Context, caller, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	began := time.Now()
	to, err := c.prepare(ctx, topic)
	if err != nil {
		for range records {
			c.metrics.told(outcomeRefused, began)
		}
		return nil, fmt.Errorf("publish: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.PublishTimeout+resultGrace)
	defer cancel()
	under := &call{results: make([]*tailracev1.PublishResult, len(records)), left: len(records), done: make(chan struct{})}
	if len(records) == 0 {
		return under.results, nil
	}
	ps := make([]*pending, len(records))
	for i, r := range records {
		ps[i] = c.begin(ctx, caller, to, r, func(result *tailracev1.PublishResult) { under.set(i, result) })
	}
	late := unknownOutcome("deadline_exceeded", "no acknowledgement in time")
	select {
	case <-under.done:
		return under.results, nil
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			late = unknownOutcome("canceled", "the caller left before the acknowledgement")
		}
	case <-c.producer.stopped:
		late = unknownOutcome("unavailable", "the service stopped before the acknowledgement")
	}
	for _, p := range ps {
		if p != nil {
			c.producer.refuse(p, c.producer.late(p))
			c.producer.tell(p, late)
		}
	}
	<-under.done // what was being told
	return under.results, nil
}

// Begin appends one record and returns once it is in the queue, which it waits for until ctx ends, or once it is refused. done is called once,
// perhaps before Begin returns, with the outcome, at most about Config.PublishTimeout later; it must not block. When ctx ends, a record that was not handed over is refused.
// Records of one caller and partition are appended in the order of calls that follow each other. A caller's records have turns with those of
// others: one that hands over more than Kafka takes waits, here, and the others do not. The record must not be changed any more.
func (c *Client) Begin(ctx context.Context, caller, topic string, record *tailracev1.PublishRecord, done func(*tailracev1.PublishResult)) {
	began := time.Now()
	to, err := c.prepare(ctx, topic)
	if err != nil {
		a := refusal(causeOf(ctx, err))
		c.metrics.told(a.outcome, began)
		done(a.result)
		return
	}
	c.begin(ctx, caller, to, record, done)
}

// call gathers the results of a Publish.
type call struct {
	mu      sync.Mutex
	results []*tailracev1.PublishResult
	left    int
	done    chan struct{} // closed when all are there
}

func (c *call) set(i int, r *tailracev1.PublishResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.results[i] = r
	if c.left--; c.left == 0 {
		close(c.done)
	}
}

// destination is a topic that records are published to.
type destination struct {
	topic    string
	info     topicInfo
	settings topicSettings
}

func (c *Client) prepare(ctx context.Context, topic string) (*destination, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	info, err := c.fresh(ctx, topic, publishInfoAge)
	if err != nil {
		return nil, err
	}
	return &destination{topic: topic, info: info, settings: c.admin.settings(ctx, topic)}, nil
}

// fresh tells what is known of a topic, of at most that age where Kafka can be asked: while it does not answer others do that all the time, and
// each record that waited for it would not be refused at once.
func (c *Client) fresh(ctx context.Context, topic string, age time.Duration) (topicInfo, error) {
	if known, ok := c.admin.known(topic); ok && !c.health.get().Up {
		return known, nil // its leader may be there all the same
	}
	bounded, cancel := context.WithTimeout(ctx, publishInfoWait)
	defer cancel()
	info, err := c.admin.topic(bounded, topic, age)
	if errors.Is(err, hub.ErrUnavailable) {
		if known, ok := c.admin.known(topic); ok {
			return known, nil
		}
	}
	return info, err
}

// begin returns nil for a record that was refused.
func (c *Client) begin(ctx context.Context, caller string, to *destination, r *tailracev1.PublishRecord, done func(*tailracev1.PublishResult)) *pending {
	now := time.Now()
	p := &pending{ctx: ctx, topic: to.topic, record: r, began: now, by: now.Add(c.cfg.PublishTimeout), done: done}
	p.cost, p.wire = weigh(r)
	if d, ok := ctx.Deadline(); ok && d.Before(p.by) {
		p.by = d
	}
	if r.Partition != nil && *r.Partition >= to.info.count { // it may be new
		to.renew(c.fresh(ctx, to.topic, partitionAge))
	}
	if limit := to.settings.maxBytes; limit > 0 && payload(r) > limit && !c.cfg.compresses() { // it may have been raised
		to.settings = c.admin.settingsOf(ctx, to.topic, infoAge)
	}
	p.settings = to.settings
	if why := c.invalid(r, to); why != nil {
		c.producer.tell(p, refusal(*why))
		return nil
	}
	if c.cfg.TraceHeaders {
		p.carryTrace()
	}
	at := func() int32 {
		if r.Partition != nil {
			return *r.Partition
		}
		if r.Key != nil {
			if at := c.cfg.partitioner(to.topic).Partition(r.Key, to.info.count); at >= 0 {
				return at
			}
		}
		return c.producer.admission.choose(to.topic, &to.info, p.cost, now)
	}
	p.partition = at()
	if !c.producer.admission.lively(to.topic, p.partition, now) && now.Sub(to.info.at) > infoAge {
		to.renew(c.fresh(ctx, to.topic, infoAge))
		p.partition = at()
		if p.partition >= to.info.count {
			c.producer.tell(p, refusal(unknownPartition(p.partition, to.info.count)))
			return nil
		}
	}
	c.producer.meet(ctx, to.topic, &to.info)
	if why := c.producer.admission.enter(p, caller, &to.info, time.Now()); why != nil {
		c.producer.tell(p, refusal(*why))
		return nil
	}
	if p.entered != nil {
		select {
		case <-p.entered:
		case <-ctx.Done():
			c.producer.refuse(p, c.producer.late(p))
		case <-c.producer.stopped:
		}
	}
	return p
}

// carryTrace adds the context of the call's span to the record's headers, where that cannot be why the record is refused.
func (p *pending) carryTrace() {
	limit := p.settings.maxBytes
	if limit <= 0 {
		limit = defaultMaxBytes
	}
	p.record = trace.Carry(p.ctx, p.record, limit-batchFrame-p.wire, headerFrame)
	p.cost, p.wire = weigh(p.record)
}

func (d *destination) renew(info topicInfo, err error) {
	if err == nil {
		d.info = info
	}
}

// causeOf is why a record is refused whose topic could not be looked up.
func causeOf(ctx context.Context, err error) cause {
	switch {
	case errors.Is(err, hub.ErrUnknownTopic):
		return unknownTopic
	case errors.Is(err, hub.ErrDraining):
		return draining
	case errors.Is(ctx.Err(), context.Canceled):
		return canceled
	}
	return unavailable
}

// payload is the size of what the caller gave.
func payload(r *tailracev1.PublishRecord) int64 {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return int64(n)
}

// weigh tells what a record takes of the room for records under way, and about the most that it takes in a batch.
func weigh(r *tailracev1.PublishRecord) (cost, wire int64) {
	n, headers := payload(r), int64(len(r.Headers))
	return n + recordOverhead + 32*headers, n + recordFrame + headerFrame*headers
}

// invalid refuses what would not arrive as it is, and what the broker is known to refuse: it would refuse the records with it in one batch.
func (c *Client) invalid(r *tailracev1.PublishRecord, to *destination) *cause {
	bad := func(reason, format string, args ...any) *cause {
		return &cause{"invalid_argument", reason, fmt.Sprintf(format, args...), 0}
	}
	switch {
	case r.Partition != nil && *r.Partition < 0:
		return bad(ReasonInvalidRecord, "negative partition")
	case r.Partition != nil && *r.Partition >= to.info.count:
		why := unknownPartition(*r.Partition, to.info.count)
		return &why
	case r.Key == nil && to.settings.compacted:
		return bad(ReasonInvalidRecord, "the topic is compacted: a record needs a key")
	}
	if size, limit := payload(r), to.settings.maxBytes; limit > 0 && size > limit && !c.cfg.compresses() {
		return bad(ReasonRecordTooLarge, "record of %d bytes, the topic's max.message.bytes is %d", size, limit)
	}
	for _, h := range r.Headers {
		if strings.IndexByte(h.Name, 0) >= 0 { // librdkafka takes a C string and would cut it there
			return bad(ReasonInvalidRecord, "header name with NUL")
		}
	}
	return nil
}

func unknownPartition(partition, count int32) cause {
	return cause{"not_found", ReasonUnknownPartition, fmt.Sprintf("no partition %d, the topic has %d", partition, count), 0}
}

func (p *pending) message() *confluent.Message {
	m := &confluent.Message{
		TopicPartition: confluent.TopicPartition{Topic: &p.topic, Partition: p.partition},
		Key:            p.record.Key,
		Value:          p.record.Value,
		Timestamp:      millis(p.time),
		Opaque:         p,
	}
	if n := len(p.record.Headers); n > 0 {
		m.Headers = make([]confluent.Header, n)
		for i, h := range p.record.Headers {
			m.Headers[i] = confluent.Header{Key: h.Name, Value: h.Value}
		}
	}
	return m
}

// published is the answer for an acknowledged record. Its time is the one it was sent with, since delivery reports have none; where the
// broker sets times, it is left out.
func (p *pending) published(at confluent.TopicPartition) answer {
	done := &tailracev1.Published{Partition: at.Partition, Offset: int64(at.Offset)}
	if !p.settings.brokerTime {
		done.Time = timestamppb.New(millis(p.time))
	}
	return answer{outcomeAcknowledged, &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: done}}}
}
