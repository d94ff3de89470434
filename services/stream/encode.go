package stream

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// shadow puts a small message, encoded the ordinary way, into the shadow of full, which is a response that it is an event of.
func shadow(dst, full, event proto.Message) error {
	body, err := proto.MarshalOptions{}.MarshalAppend([]byte{}, event) // an empty message is not an absent one
	if err != nil {
		return err
	}
	fields, kind := full.ProtoReflect().Descriptor().Fields(), event.ProtoReflect().Descriptor()
	for i := range fields.Len() {
		if f := fields.Get(i); f.Message() == kind {
			m := dst.ProtoReflect()
			m.Set(m.Descriptor().Fields().ByNumber(f.Number()), protoreflect.ValueOfBytes(body))
			return nil
		}
	}
	panic("stream: " + string(kind.FullName()) + " is no event of " + string(full.ProtoReflect().Descriptor().FullName()))
}

func startedMessage(s hub.Started) *tailracev1.Started {
	m := &tailracev1.Started{TopicId: s.TopicID, PartitionCount: s.Count, Partitioner: tailracev1.Partitioner(s.Partitioner + 1), Partitions: make([]*tailracev1.StartedPartition, len(s.Partitions))}
	for i, p := range s.Partitions {
		m.Partitions[i] = &tailracev1.StartedPartition{Partition: p.Partition, Start: p.Start, End: p.End, Incomplete: p.Incomplete}
	}
	return m
}

// gapMessage is also how a re-created topic is told.
func gapMessage(p *hub.Part) *tailracev1.Gap {
	m := &tailracev1.Gap{Partition: p.Partition, From: p.From, To: p.Next, Reason: tailracev1.GapReason(p.Reason), Records: p.Left}
	if p.Kind == hub.Recreated {
		m.Reason, m.TopicId = tailracev1.GapReason_GAP_REASON_RECREATED, p.TopicID
	}
	return m
}

func heartbeatMessage(now time.Time, moved []hub.Position, lag int64, unavailable []int32) *tailracev1.Heartbeat {
	m := &tailracev1.Heartbeat{Time: timestamppb.New(now), Lag: lag, UnavailablePartitions: unavailable}
	for _, p := range moved {
		m.Positions = append(m.Positions, positionMessage(p))
	}
	return m
}

func positionMessage(p hub.Position) *tailracev1.Position {
	m := &tailracev1.Position{Partition: p.Partition, Offset: p.Offset}
	if p.Epoch >= 0 {
		m.LeaderEpoch = &p.Epoch
	}
	return m
}
