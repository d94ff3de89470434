package frame

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Bounds of a worker's requests, as in tailrace.v1.ConsumeStart, Ack and Nack.
const (
	maxTopics      = 100
	maxInFlight    = 10_000
	maxTags        = maxInFlight
	minAckTimeout  = time.Second
	maxAckTimeout  = time.Hour
	maxAttempts    = 1000
	maxNackDelay   = time.Hour
	maxNackReason  = 1 << 10
	nothingSettled = "tags or upTo is required"
)

// Consume joins a group as a worker.
type Consume struct {
	ID    string
	Start *tailracev1.ConsumeStart
}

// Settle is an ack or a nack.
type Settle struct {
	Op      string // "ack" or "nack"
	ID      string // of the consume
	Tags    []int64
	Request *tailracev1.ConsumeRequest // the same, ready to be sent
}

func (*Consume) isOp() {}
func (*Settle) isOp()  {}

func parseConsume(o *object) *Consume {
	c := &Consume{ID: o.id(), Start: &tailracev1.ConsumeStart{}}
	m := c.Start
	m.Group = o.required("group")
	if problem := hub.GroupProblem(m.GetGroup()); problem != "" && m.GetGroup() != "" {
		o.wrong("group", problem)
	}
	m.Topics = o.topics()
	m.Initial = choice(o, "initial", map[string]tailracev1.InitialPosition{
		"earliest": tailracev1.InitialPosition_INITIAL_POSITION_EARLIEST, "latest": tailracev1.InitialPosition_INITIAL_POSITION_LATEST,
	})
	m.Ordering = choice(o, "ordering", map[string]tailracev1.Ordering{
		"key": tailracev1.Ordering_ORDERING_KEY, "none": tailracev1.Ordering_ORDERING_NONE,
	})
	if n, ok := o.number("maxInFlight", 1, maxInFlight); ok {
		m.MaxInFlight = int32(n)
	}
	if n, ok := o.number("maxAttempts", 1, maxAttempts); ok {
		m.MaxAttempts = int32(n)
	}
	if n, ok := o.number("ackTimeoutMs", minAckTimeout.Milliseconds(), maxAckTimeout.Milliseconds()); ok {
		m.AckTimeout = durationpb.New(time.Duration(n) * time.Millisecond)
	}
	m.DeadLetterTopic, _ = o.text("deadLetter")
	if problem := hub.DeadLetterProblem(m.GetTopics(), m.GetDeadLetterTopic()); problem != "" {
		o.wrong("deadLetter", problem)
	}
	m.AutoAck, _ = o.truth("autoAck")
	return c
}

func (o *object) topics() (topics []string) {
	elements, ok := o.array("topics")
	if !ok || len(elements) == 0 || len(elements) > maxTopics {
		o.wrong("topics", fmt.Sprintf("must name 1 to %d topics", maxTopics))
		return nil
	}
	for i, raw := range elements {
		at := fmt.Sprintf("topics.%d", i)
		topic, ok := o.textOf(at, raw)
		if ok && topic == "" {
			o.wrong(at, "is required")
		}
		topics = append(topics, topic)
	}
	return topics
}

// truth takes true or false; ok is false where there is neither, or it is wrong.
func (o *object) truth(name string) (is, ok bool) {
	switch string(o.take(name)) {
	case "":
		return false, false
	case "true":
		return true, true
	case "false":
		return false, true
	default:
		o.wrong(name, "must be true or false")
		return false, false
	}
}

func parseAck(o *object) *Settle {
	s := &Settle{Op: "ack", ID: o.id(), Tags: o.tags()}
	upTo, given := o.number("upTo", 0, maxNumber)
	if len(s.Tags) == 0 && !given {
		o.wrong("", nothingSettled)
	}
	s.Request = ackRequest(&tailracev1.Ack{Tags: s.Tags, UpTo: upTo})
	return s
}

func parseNack(o *object) *Settle {
	s := &Settle{Op: "nack", ID: o.id(), Tags: o.tags()}
	m := &tailracev1.Nack{Tags: s.Tags}
	if len(s.Tags) == 0 {
		o.wrong("tags", "is required")
	}
	if n, ok := o.number("delayMs", 0, maxNackDelay.Milliseconds()); ok && n > 0 {
		m.Delay = durationpb.New(time.Duration(n) * time.Millisecond)
	}
	if m.Reason, _ = o.text("reason"); len(m.GetReason()) > maxNackReason {
		o.wrong("reason", fmt.Sprintf("must have at most %d bytes", maxNackReason))
	}
	s.Request = nackRequest(m)
	return s
}

func (o *object) tags() (tags []int64) {
	elements, _ := o.array("tags")
	for _, raw := range elements {
		tag, ok := o.numberOf("tags", raw, 0, maxNumber)
		if !ok {
			return nil
		}
		tags = append(tags, tag)
	}
	return tags
}

func ackRequest(m *tailracev1.Ack) *tailracev1.ConsumeRequest {
	return &tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: m}}
}

func nackRequest(m *tailracev1.Nack) *tailracev1.ConsumeRequest {
	return &tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Nack{Nack: m}}
}

func (c *protoRequest) consume(m *tailracev1.ConsumeOp) *Consume {
	q := m.GetStart()
	name := hub.GroupProblem(q.GetGroup())
	c.require(name == "", "start.group", name)
	c.require(len(q.GetTopics()) > 0 && len(q.GetTopics()) <= maxTopics, "start.topics", fmt.Sprintf("must name 1 to %d topics", maxTopics))
	for i, topic := range q.GetTopics() {
		c.require(topic != "", fmt.Sprintf("start.topics.%d", i), "is required")
	}
	number := func(n int32, field string, most int32) {
		c.require(n >= 0 && n <= most, field, fmt.Sprintf("must be an integer from 1 to %d", most))
	}
	dead := hub.DeadLetterProblem(q.GetTopics(), q.GetDeadLetterTopic())
	c.require(dead == "", "start.dead_letter_topic", dead)
	number(q.GetMaxInFlight(), "start.max_in_flight", maxInFlight)
	number(q.GetMaxAttempts(), "start.max_attempts", maxAttempts)
	if d := q.GetAckTimeout(); d != nil {
		t := d.AsDuration()
		c.require(d.IsValid() && t >= minAckTimeout && t <= maxAckTimeout, "start.ack_timeout", fmt.Sprintf("must be from %v to %v", minAckTimeout, maxAckTimeout))
	}
	_ = enum(c, "start.initial", q.GetInitial(), 0, 1, 2)
	_ = enum(c, "start.ordering", q.GetOrdering(), 0, 1, 2)
	return &Consume{ID: m.GetId(), Start: q}
}

func (c *protoRequest) ack(m *tailracev1.AckOp) *Settle {
	a := m.GetAck()
	c.tags("ack.tags", a.GetTags())
	c.require(len(a.GetTags()) > 0 || a.GetUpTo() != 0, "", nothingSettled)
	c.require(a.GetUpTo() >= 0, "ack.up_to", fmt.Sprintf("must be an integer from 0 to %d", int64(math.MaxInt64)))
	return &Settle{Op: "ack", ID: m.GetId(), Tags: a.GetTags(), Request: ackRequest(a)}
}

func (c *protoRequest) nack(m *tailracev1.NackOp) *Settle {
	n := m.GetNack()
	c.tags("nack.tags", n.GetTags())
	c.require(len(n.GetTags()) > 0, "nack.tags", "is required")
	if d := n.GetDelay(); d != nil {
		t := d.AsDuration()
		c.require(d.IsValid() && t >= 0 && t <= maxNackDelay, "nack.delay", fmt.Sprintf("must be from 0 to %v", maxNackDelay))
	}
	c.require(len(n.GetReason()) <= maxNackReason, "nack.reason", fmt.Sprintf("must have at most %d bytes", maxNackReason))
	return &Settle{Op: "nack", ID: m.GetId(), Tags: n.GetTags(), Request: nackRequest(n)}
}

func (c *protoRequest) tags(field string, tags []int64) {
	c.require(len(tags) <= maxTags, field, fmt.Sprintf("must have at most %d elements", maxTags))
}
