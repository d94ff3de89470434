package frame

import (
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Proto is the subprotocol tailrace.v1.proto: a message is one ClientFrame or ServerFrame of session.proto.
type Proto struct{}

// Tags of ServerFrame.records, and of RecordsFrame's id and records. They are written by hand, so that the records, which come encoded, are
// not touched.
const (
	tagServerRecords = 3<<3 | byte(protowire.BytesType)
	tagRecordsID     = 1<<3 | byte(protowire.BytesType)
	tagRecords       = 2<<3 | byte(protowire.BytesType)
)

// AppendRecordsPrefix appends ServerFrame and RecordsFrame up to the bytes of Records.
func (Proto) AppendRecordsPrefix(dst []byte, id string, bodyBytes int) []byte {
	size := 1 + protowire.SizeBytes(len(id)) + 1 + protowire.SizeBytes(bodyBytes)
	dst = protowire.AppendVarint(append(dst, tagServerRecords), uint64(size))
	dst = protowire.AppendString(append(dst, tagRecordsID), id)
	return protowire.AppendVarint(append(dst, tagRecords), uint64(bodyBytes))
}

// AppendRecordsBody appends an encoded Records. The records are copied as they came.
func (Proto) AppendRecordsBody(dst []byte, parts []hub.Part, _ As) []byte {
	dst, _ = hub.AppendBatches(dst, parts)
	return dst
}

// Append appends an encoded ServerFrame.
func (Proto) Append(dst []byte, f Frame) []byte {
	m := serverFrame(f)
	if m.GetOp() == nil {
		return dst
	}
	out, err := proto.MarshalOptions{}.MarshalAppend(dst, m)
	if err != nil {
		// Only text that is not UTF-8 can't be encoded, and ids and names were checked when they came.
		out, _ = proto.MarshalOptions{}.MarshalAppend(dst, serverFrame(&Error{Re: "frame", Code: "internal", Reason: "INTERNAL", Message: "internal error"}))
	}
	return out
}

func serverFrame(f Frame) *tailracev1.ServerFrame {
	m := &tailracev1.ServerFrame{}
	switch f := f.(type) {
	case Welcome:
		m.Op = &tailracev1.ServerFrame_Welcome{Welcome: &tailracev1.WelcomeFrame{
			Session: f.Session, Protocol: Protocol, Heartbeat: durationpb.New(f.Heartbeat), MaxMessageBytes: f.MaxMessageBytes,
		}}
	case Started:
		m.Op = &tailracev1.ServerFrame_Started{Started: &tailracev1.StartedFrame{Id: f.ID, Topic: f.Topic, Started: startedMessage(f.At)}}
	case ConsumeStarted:
		m.Op = &tailracev1.ServerFrame_Started{Started: &tailracev1.StartedFrame{Id: f.ID, Consume: f.Settings}}
	case ConsumeGap:
		m.Op = &tailracev1.ServerFrame_Gap{Gap: &tailracev1.GapFrame{Id: f.ID, Topic: f.Topic, Gap: f.Gap}}
	case CaughtUp:
		m.Op = &tailracev1.ServerFrame_CaughtUp{CaughtUp: &tailracev1.CaughtUpFrame{Id: f.ID}}
	case Control:
		setControl(m, f)
	case *Heartbeat:
		m.Op = &tailracev1.ServerFrame_Heartbeat{Heartbeat: heartbeatMessage(f)}
	case Result:
		if p := f.Result.GetPublished(); p != nil {
			m.Op = &tailracev1.ServerFrame_Published{Published: &tailracev1.PublishedFrame{Id: f.ID, Published: p}}
		} else {
			m.Op = &tailracev1.ServerFrame_Error{Error: errorMessage(ErrorOfFailure(f.ID, f.Result.GetFailure()))}
		}
	case Unsubscribed:
		m.Op = &tailracev1.ServerFrame_Unsubscribed{Unsubscribed: &tailracev1.UnsubscribedFrame{Id: f.ID, Reason: f.Reason}}
	case Pong:
		m.Op = &tailracev1.ServerFrame_Pong{Pong: &tailracev1.PongFrame{Id: f.ID}}
	case *Error:
		m.Op = &tailracev1.ServerFrame_Error{Error: errorMessage(f)}
	case Goodbye:
		g := &tailracev1.GoodbyeFrame{Code: int32(f.Code), Reason: f.Reason}
		if f.ComeBackMax >= 0 {
			g.ReconnectAfterMin, g.ReconnectAfterMax = durationpb.New(f.ComeBackMin), durationpb.New(f.ComeBackMax)
		}
		m.Op = &tailracev1.ServerFrame_Goodbye{Goodbye: g}
	}
	return m
}

func startedMessage(s hub.Started) *tailracev1.Started {
	m := &tailracev1.Started{TopicId: s.TopicID, PartitionCount: s.Count, Partitions: make([]*tailracev1.StartedPartition, len(s.Partitions))}
	for i, p := range s.Partitions {
		m.Partitions[i] = &tailracev1.StartedPartition{Partition: p.Partition, Start: p.Start, End: p.End, Incomplete: p.Incomplete}
	}
	return m
}

// setControl sets the same frames as AppendControl.
func setControl(m *tailracev1.ServerFrame, f Control) {
	gap := func(reason hub.GapReason, topicID string) {
		p := f.Part
		m.Op = &tailracev1.ServerFrame_Gap{Gap: &tailracev1.GapFrame{Id: f.ID, Topic: f.Topic, Gap: &tailracev1.Gap{
			Partition: p.Partition, From: p.From, To: p.Next, Reason: tailracev1.GapReason(reason), Records: p.Left, TopicId: topicID,
		}}}
	}
	switch f.Part.Kind {
	case hub.Gap:
		gap(f.Part.Reason, "")
	case hub.Recreated:
		gap(hub.GapRecreated, f.Part.TopicID)
	case hub.Topology:
		m.Op = &tailracev1.ServerFrame_Topology{Topology: &tailracev1.TopologyFrame{
			Id: f.ID, Topology: &tailracev1.Topology{Partitions: f.Part.Count},
		}}
	default:
	}
}

func heartbeatMessage(h *Heartbeat) *tailracev1.HeartbeatFrame {
	m := &tailracev1.HeartbeatFrame{Time: timestamppb.New(h.Time.Truncate(time.Millisecond)), UpstreamUnavailable: h.UpstreamUnavailable}
	for i := range h.Subscriptions {
		s := &h.Subscriptions[i]
		if len(s.Positions) == 0 && len(s.Unavailable) == 0 && s.Lag < 0 {
			continue
		}
		t := &tailracev1.SubscriptionHeartbeat{Id: s.ID, Lag: max(s.Lag, 0), UnavailablePartitions: s.Unavailable}
		for _, p := range s.Positions {
			q := &tailracev1.Position{Partition: p.Partition, Offset: p.Offset}
			if p.Epoch >= 0 {
				q.LeaderEpoch = &p.Epoch
			}
			t.Positions = append(t.Positions, q)
		}
		m.Subscriptions = append(m.Subscriptions, t)
	}
	return m
}

func errorMessage(e *Error) *tailracev1.ErrorFrame {
	m := &tailracev1.ErrorFrame{
		Re: e.Re, Id: e.ID, Final: e.Final, Code: e.Code, Reason: e.Reason,
		Message: strings.ToValidUTF8(e.Message, "\uFFFD"), Retryable: e.Retryable, Tags: e.Tags,
	}
	switch e.Outcome {
	case "refused":
		m.Outcome = tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED
	case "unknown":
		m.Outcome = tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN
	}
	if e.Retryable {
		m.RetryAfter = durationpb.New(time.Duration(e.RetryAfterMs) * time.Millisecond)
	}
	return m
}
