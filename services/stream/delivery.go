package stream

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// Field numbers of tailrace.v1.Deliveries and Delivery.
const (
	fieldDeliveries = 1
	fieldRecord     = 1
	fieldTag        = 2
	fieldAttempt    = 3
)

// appendDeliveries appends an encoded tailrace.v1.Deliveries: the records are ready bytes, which are not encoded again.
func appendDeliveries(b []byte, ds []group.Delivery) []byte {
	for i := range ds {
		d := &ds[i]
		body := d.Record.Body
		size := protowire.SizeTag(fieldRecord) + protowire.SizeBytes(len(body)) +
			protowire.SizeTag(fieldTag) + protowire.SizeVarint(uint64(d.Tag)) +
			protowire.SizeTag(fieldAttempt) + protowire.SizeVarint(uint64(d.Attempt))
		b = protowire.AppendTag(b, fieldDeliveries, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(size))
		b = protowire.AppendTag(b, fieldRecord, protowire.BytesType)
		b = protowire.AppendBytes(b, body)
		b = protowire.AppendTag(b, fieldTag, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(d.Tag))
		b = protowire.AppendTag(b, fieldAttempt, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(d.Attempt))
	}
	return b
}

// parseConsume validates a start; defaults are filled in by the group. The error is all that is wrong with it.
func parseConsume(m *tailracev1.ConsumeStart) (group.Start, error) {
	c := &checker{}
	c.name("start.group", m.GetGroup())
	c.require(len(m.GetTopics()) > 0, "start.topics", "is required")
	c.require(m.GetMaxInFlight() >= 0 && m.GetMaxInFlight() <= group.MaxMaxInFlight, "start.max_in_flight", "must be from 1 to %d", group.MaxMaxInFlight)
	c.require(m.GetMaxAttempts() >= 0 && m.GetMaxAttempts() <= group.MaxMaxAttempts, "start.max_attempts", "must be from 1 to %d", group.MaxMaxAttempts)
	dead := hub.DeadLetterProblem(m.GetTopics(), m.GetDeadLetterTopic())
	c.require(dead == "", "start.dead_letter_topic", "%s", dead)
	s := group.Start{
		Settings: group.Settings{
			Group: m.GetGroup(), Topics: m.GetTopics(), MaxAttempts: int(m.GetMaxAttempts()), DeadLetter: m.GetDeadLetterTopic(),
		},
		MaxInFlight: int(m.GetMaxInFlight()), AutoAck: m.GetAutoAck(),
	}
	switch m.GetInitial() {
	case tailracev1.InitialPosition_INITIAL_POSITION_UNSPECIFIED, tailracev1.InitialPosition_INITIAL_POSITION_EARLIEST:
	case tailracev1.InitialPosition_INITIAL_POSITION_LATEST:
		s.Initial = group.Latest
	default:
		c.require(false, "start.initial", "has the unknown value %d", m.GetInitial())
	}
	switch m.GetOrdering() {
	case tailracev1.Ordering_ORDERING_UNSPECIFIED, tailracev1.Ordering_ORDERING_KEY:
	case tailracev1.Ordering_ORDERING_NONE:
		s.Ordering = group.OrderNone
	default:
		c.require(false, "start.ordering", "has the unknown value %d", m.GetOrdering())
	}
	if d := m.GetAckTimeout(); d != nil {
		s.AckTimeout = d.AsDuration()
		c.require(d.IsValid() && s.AckTimeout >= group.MinAckTimeout && s.AckTimeout <= group.MaxAckTimeout,
			"start.ack_timeout", "must be from %v to %v", group.MinAckTimeout, group.MaxAckTimeout)
	}
	return s, c.found.or(nil)
}

// startMessage tells settings, defaults filled in.
func startMessage(s group.Start) *tailracev1.ConsumeStart {
	m := settingsMessage(s.Settings)
	m.MaxInFlight, m.AckTimeout, m.AutoAck = int32(s.MaxInFlight), durationpb.New(s.AckTimeout), s.AutoAck
	return m
}

func settingsMessage(s group.Settings) *tailracev1.ConsumeStart {
	m := &tailracev1.ConsumeStart{
		Group: s.Group, Topics: s.Topics, MaxAttempts: int32(s.MaxAttempts), DeadLetterTopic: s.DeadLetter,
		Initial: tailracev1.InitialPosition_INITIAL_POSITION_EARLIEST, Ordering: tailracev1.Ordering_ORDERING_KEY,
	}
	if s.Initial == group.Latest {
		m.Initial = tailracev1.InitialPosition_INITIAL_POSITION_LATEST
	}
	if s.Ordering == group.OrderNone {
		m.Ordering = tailracev1.Ordering_ORDERING_NONE
	}
	return m
}
