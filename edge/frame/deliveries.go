package frame

import (
	"google.golang.org/protobuf/encoding/protowire"

	"tailrace.dev/tailrace/edge/wire"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Field numbers of tailrace.v1.Deliveries, Delivery and DeliveriesFrame, and the tag of ServerFrame.deliveries.
const (
	deliveriesDelivery = 1

	deliveryRecord  = 1
	deliveryTag     = 2
	deliveryAttempt = 3

	tagServerDeliveries = 14<<3 | byte(protowire.BytesType)
	tagDeliveriesID     = 1<<3 | byte(protowire.BytesType)
	tagDelivery         = 2<<3 | byte(protowire.BytesType)
)

// ConsumeStarted tells the settings of a consume, defaults filled in.
type ConsumeStarted struct {
	ID       string
	Settings *tailracev1.ConsumeStart
}

// ConsumeGap is a gap in one of the topics of a consume.
type ConsumeGap struct {
	ID    string
	Topic string
	Gap   *tailracev1.Gap
}

func (ConsumeStarted) isFrame() {}
func (ConsumeGap) isFrame()     {}

// Cut cuts an encoded tailrace.v1.Deliveries behind the deliveries that make about so many bytes, at least one; n is their number. ok is false if it
// is malformed.
func Cut(deliveries []byte, about int) (head, tail []byte, n int, ok bool) {
	var f wire.Field
	at := 0
	for at < len(deliveries) {
		size := f.Next(deliveries[at:])
		if size < 0 || f.Num == deliveriesDelivery && f.Type != protowire.BytesType {
			return nil, nil, 0, false
		}
		if n > 0 && at+size > about {
			break
		}
		at += size
		if f.Num == deliveriesDelivery {
			n++
		}
	}
	return deliveries[:at], deliveries[at:], n, true
}

// AppendDeliveries implements Codec.
func (JSON) AppendDeliveries(dst []byte, id string, deliveries []byte) []byte {
	dst = AppendRecordsPrefix(dst, id)
	from := len(dst)
	var f wire.Field
	for b := deliveries; len(b) > 0; {
		n := f.Next(b)
		if n < 0 {
			break
		}
		if b = b[n:]; f.Num != deliveriesDelivery || f.Type != protowire.BytesType {
			continue
		}
		if len(dst) > from {
			dst = append(dst, ',')
		}
		dst = appendDelivery(dst, f.Data)
	}
	return append(dst, `]}`...)
}

// appendDelivery appends one delivery: its record with tag and attempt.
func appendDelivery(dst, b []byte) []byte {
	var (
		f            wire.Field
		r            record
		tag, attempt int64
	)
	r.read(nil)
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			break
		}
		b = b[n:]
		switch {
		case f.Num == deliveryRecord && f.Type == protowire.BytesType:
			r.read(f.Data)
		case f.Num == deliveryTag && f.Type == protowire.VarintType:
			tag = int64(f.N)
		case f.Num == deliveryAttempt && f.Type == protowire.VarintType:
			attempt = int64(f.N)
		}
	}
	dst = r.appendTail(r.appendHead(dst), AsAuto)
	dst = appendInt(append(dst[:len(dst)-1], `,"tag":`...), tag)
	dst = appendInt(append(dst, `,"attempt":`...), attempt)
	return append(dst, '}')
}

// AppendDeliveries implements Codec: the records are copied as they came.
func (Proto) AppendDeliveries(dst []byte, id string, deliveries []byte) []byte {
	size := 1 + protowire.SizeBytes(len(id))
	var f wire.Field
	for b := deliveries; len(b) > 0; {
		n := f.Next(b)
		if n < 0 {
			break
		}
		if b = b[n:]; f.Num == deliveriesDelivery {
			size += 1 + protowire.SizeBytes(len(f.Data))
		}
	}
	dst = protowire.AppendVarint(append(dst, tagServerDeliveries), uint64(size))
	dst = protowire.AppendString(append(dst, tagDeliveriesID), id)
	for len(deliveries) > 0 {
		n := f.Next(deliveries)
		if n < 0 {
			break
		}
		if deliveries = deliveries[n:]; f.Num == deliveriesDelivery {
			dst = protowire.AppendBytes(append(dst, tagDelivery), f.Data)
		}
	}
	return dst
}

// appendConsumeStarted appends {"op":"started",…} of a consume.
func appendConsumeStarted(dst []byte, id string, m *tailracev1.ConsumeStart) []byte {
	dst = appendString(append(dst, `{"op":"started","id":`...), id)
	dst = appendString(append(dst, `,"group":`...), m.GetGroup())
	dst = append(dst, `,"topics":`...)
	for i, topic := range m.GetTopics() {
		dst = appendString(append(dst, separator('[', i)), topic)
	}
	initial, ordering := "earliest", "key"
	if m.GetInitial() == tailracev1.InitialPosition_INITIAL_POSITION_LATEST {
		initial = "latest"
	}
	if m.GetOrdering() == tailracev1.Ordering_ORDERING_NONE {
		ordering = "none"
	}
	dst = appendString(append(dst, `],"initial":`...), initial)
	dst = appendInt(append(dst, `,"maxInFlight":`...), int64(m.GetMaxInFlight()))
	dst = appendInt(append(dst, `,"ackTimeoutMs":`...), m.GetAckTimeout().AsDuration().Milliseconds())
	dst = appendInt(append(dst, `,"maxAttempts":`...), int64(m.GetMaxAttempts()))
	if m.GetDeadLetterTopic() != "" {
		dst = appendString(append(dst, `,"deadLetter":`...), m.GetDeadLetterTopic())
	}
	dst = appendString(append(dst, `,"ordering":`...), ordering)
	if m.GetAutoAck() {
		dst = append(dst, `,"autoAck":true`...)
	} else {
		dst = append(dst, `,"autoAck":false`...)
	}
	return append(dst, '}')
}

// appendConsumeGap appends a gap of a consume, which has a topic.
func appendConsumeGap(dst []byte, f ConsumeGap) []byte {
	g := f.Gap
	dst = appendGap(dst, f.ID, g.GetPartition(), g.GetFrom(), g.GetTo(), hub.GapReason(g.GetReason()), g.GetRecords(), g.GetTopicId())
	dst = appendString(append(dst[:len(dst)-1], `,"topic":`...), f.Topic)
	return append(dst, '}')
}
