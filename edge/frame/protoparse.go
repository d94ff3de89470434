package frame

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"tailrace.dev/tailrace/edge/wire"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Parse reads one ClientFrame, as strictly as the JSON form is read: unknown fields are refused, by number, and fields that are given twice,
// numbers that do not fit and text that is not UTF-8, by name.
func (Proto) Parse(msg []byte) (Op, *Error) {
	c := &protoRequest{}
	name, id, ok := c.outline(msg)
	if ok && c.fail.problem == "" {
		if name == "auth" {
			return &Unbuilt{Op: name, ID: id}, nil
		}
	}
	if !ok || !c.message(clientFrame(), msg, nil) {
		return nil, &Error{
			Re: "frame", Code: "invalid_argument", Reason: "BAD_FRAME", Message: "the message is not a ClientFrame", Close: CloseBadFrame,
		}
	}
	if c.newer != 0 {
		e := Invalid("frame", "", "", "")
		e.Reason, e.Message = "UNKNOWN_OP", fmt.Sprintf("unknown op %d", c.newer)
		return nil, e
	}
	var op Op
	if c.fail.problem == "" {
		m := &tailracev1.ClientFrame{}
		if err := proto.Unmarshal(msg, m); err != nil {
			c.fail.set("", err.Error())
		} else {
			op = c.op(m)
		}
	}
	if c.fail.problem != "" {
		field := strings.TrimPrefix(c.fail.field, name+".")
		if name == "ping" || name == "" {
			name = "frame"
		}
		return nil, Invalid(name, id, field, c.fail.problem)
	}
	return op, nil
}

// protoRequest is a ClientFrame that is being read.
type protoRequest struct {
	strict
	newer protowire.Number // an op that the protocol does not have
}

func clientFrame() protoreflect.MessageDescriptor {
	return (*tailracev1.ClientFrame)(nil).ProtoReflect().Descriptor()
}

// outline finds the op's name and id, "" where it is none. It is false if msg is no protobuf.
func (c *protoRequest) outline(msg []byte) (name, id string, ok bool) {
	arms := clientFrame().Fields()
	var f wire.Field
	ops := 0
	for b := msg; len(b) > 0; {
		n := f.Next(b)
		if n < 0 {
			return "", "", false
		}
		b = b[n:]
		ops++
		fd := arms.ByNumber(f.Num)
		switch {
		case fd == nil:
			c.newer = f.Num
		case f.Type == protowire.BytesType:
			name = string(fd.Name())
			if field := fd.Message().Fields().ByName("id"); field != nil {
				if id, ok = c.id(f.Data, field.Number()); !ok {
					return "", "", false
				}
			}
		}
	}
	if ops != 1 {
		c.fail.set("op", "is required, once")
	}
	return name, id, true
}

// id finds the id of an op. It is "" for one that is wrong.
func (c *protoRequest) id(b []byte, number protowire.Number) (id string, ok bool) {
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			return "", false
		}
		b = b[n:]
		if f.Num == number && f.Type == protowire.BytesType && len(f.Data) <= utf8.UTFMax*MaxID {
			id = string(f.Data)
		}
	}
	if n := utf8.RuneCountInString(id); n < 1 || n > MaxID || !utf8.ValidString(id) {
		c.fail.set("id", fmt.Sprintf("must have 1 to %d characters", MaxID))
		return "", true
	}
	return id, true
}

func (c *protoRequest) op(m *tailracev1.ClientFrame) Op {
	switch op := m.GetOp().(type) {
	case *tailracev1.ClientFrame_Subscribe:
		return c.subscribe(op.Subscribe)
	case *tailracev1.ClientFrame_Unsubscribe:
		return &Unsubscribe{ID: op.Unsubscribe.GetId()}
	case *tailracev1.ClientFrame_Consume:
		return c.consume(op.Consume)
	case *tailracev1.ClientFrame_Ack:
		return c.ack(op.Ack)
	case *tailracev1.ClientFrame_Nack:
		return c.nack(op.Nack)
	case *tailracev1.ClientFrame_Publish:
		return c.publish(op.Publish)
	case *tailracev1.ClientFrame_Ping:
		return &Ping{ID: op.Ping.GetId()}
	default:
		c.fail.set("op", "is required")
		return nil
	}
}

func (c *protoRequest) publish(m *tailracev1.PublishOne) *Publish {
	r := m.GetRecord()
	c.require(m.GetTopic() != "", "topic", "is required")
	c.require(r != nil, "record", "is required")
	c.require(len(r.GetHeaders()) <= maxHeaders, "record.headers", fmt.Sprintf("must have at most %d elements", maxHeaders))
	for i, h := range r.GetHeaders() {
		c.require(!strings.ContainsRune(h.GetName(), 0), fmt.Sprintf("record.headers.%d.name", i), "must not contain NUL")
	}
	c.require(r.GetPartition() >= 0, "record.partition", fmt.Sprintf("must be an integer from 0 to %d", math.MaxInt32))
	return &Publish{ID: m.GetId(), Topic: m.GetTopic(), Record: r}
}

func (c *protoRequest) subscribe(m *tailracev1.SubscribeOp) *Subscribe {
	q := m.GetRequest()
	c.require(q.GetTopic() != "", "request.topic", "is required")
	c.require(q.GetHeartbeatInterval() == nil, "request.heartbeat_interval", "is the session's own; leave it out")
	c.require(q.GetMaxBatchBytes() == 0, "request.max_batch_bytes", "is the session's own; leave it out")
	c.require(q.GetMaxRecordBytes() >= 0, "request.max_record_bytes", fmt.Sprintf("must be an integer from 0 to %d", math.MaxInt32))
	c.require(len(q.GetKeys()) <= maxKeys, "request.keys", fmt.Sprintf("must have at most %d elements", maxKeys))
	total := 0
	for _, k := range q.GetKeys() {
		total += len(k)
	}
	c.require(total <= maxKeyBytes, "request.keys", fmt.Sprintf("must have at most %d bytes in all", maxKeyBytes))
	for _, p := range q.GetPartitions() {
		c.require(p >= 0, "request.partitions", fmt.Sprintf("must be an integer from 0 to %d", math.MaxInt32))
	}
	stop := q.GetStop()
	c.require(stop.GetRecords() >= 0, "request.stop.records", "must not be negative")
	c.require(stop.GetBytes() >= 0, "request.stop.bytes", "must not be negative")
	return &Subscribe{ID: m.GetId(), As: AsBytes, Request: hub.Request{
		Topic: q.GetTopic(), TopicID: q.GetTopicId(), Keys: q.GetKeys(), Partitions: q.GetPartitions(),
		KeyScope: enum(c, "request.key_scope", q.GetKeyScope(), hub.KeyScopeDefault, hub.KeyScopeHashed, hub.KeyScopeAll),
		Start:    c.start(q.GetStart()),
		Stop: hub.Stop{
			Positions: c.positions("request.stop.positions", stop.GetPositions()),
			AtEnd:     stop.GetAtEnd(), Records: stop.GetRecords(), Bytes: stop.GetBytes(),
		},
		OnOutOfRange: enum(c, "request.on_out_of_range", q.GetOnOutOfRange(),
			hub.OutOfRangeEarliest, hub.OutOfRangeEarliest, hub.OutOfRangeLatest, hub.OutOfRangeFail),
		Slow: enum(c, "request.slow_policy", q.GetSlowPolicy(),
			hub.SlowCatchUp, hub.SlowCatchUp, hub.SlowSkip, hub.SlowConflate, hub.SlowFail),
		MaxRecordBytes: int(q.GetMaxRecordBytes()),
	}}
}

func (c *protoRequest) start(m *tailracev1.Start) hub.Start {
	switch at := m.GetAt().(type) {
	case *tailracev1.Start_Earliest:
		return hub.Start{Kind: hub.Earliest}
	case *tailracev1.Start_Positions:
		ps := at.Positions.GetPositions()
		c.require(len(ps) > 0, "request.start.positions", fmt.Sprintf("must name 1 to %d partitions", maxPartitions))
		return hub.Start{
			Kind: hub.AtPositions, Positions: c.positions("request.start.positions", ps),
			Missing: enum(c, "request.start.positions.missing", at.Positions.GetMissing(),
				hub.MissingEarliest, hub.MissingEarliest, hub.MissingLatest, hub.MissingSkip),
		}
	case *tailracev1.Start_Time:
		c.require(at.Time.IsValid(), "request.start.time", "is not a time")
		return hub.Start{Kind: hub.AtTime, Time: at.Time.AsTime()}
	case *tailracev1.Start_Last:
		c.require(at.Last >= 1 && at.Last <= maxLast, "request.start.last", fmt.Sprintf("must be an integer from 1 to %d", maxLast))
		return hub.Start{Kind: hub.Last, Last: int(at.Last)}
	default:
		return hub.Start{Kind: hub.Latest}
	}
}

func (c *protoRequest) positions(field string, ms []*tailracev1.Position) []hub.Position {
	if len(ms) == 0 {
		return nil
	}
	ps := make([]hub.Position, len(ms))
	seen := make(map[int32]struct{}, len(ms))
	for i, m := range ms {
		_, twice := seen[m.GetPartition()]
		seen[m.GetPartition()] = struct{}{}
		c.require(m.GetPartition() >= 0 && !twice, field, fmt.Sprintf("partition %d is negative or named twice", m.GetPartition()))
		c.require(m.GetOffset() >= 0 && m.GetLeaderEpoch() >= 0, field, "an offset or epoch is negative")
		ps[i] = hub.Position{Partition: m.GetPartition(), Offset: m.GetOffset(), Epoch: -1}
		if m.LeaderEpoch != nil {
			ps[i].Epoch = m.GetLeaderEpoch()
		}
	}
	return ps
}

func (c *protoRequest) require(ok bool, field, problem string) {
	if !ok {
		c.fail.set(field, problem)
	}
}

// enum translates a choice by its number.
func enum[E ~int32, T any](c *protoRequest, field string, e E, values ...T) (v T) {
	if e < 0 || int(e) >= len(values) {
		c.fail.set(field, fmt.Sprintf("has the unknown value %d", e))
		return v
	}
	return values[e]
}
