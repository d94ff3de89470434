package stream

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
)

// shadow returns the shadow of a small message, encoded the ordinary way.
func shadow(event proto.Message) (*wirev1.SubscribeResponse, error) {
	body, err := proto.Marshal(event)
	if err != nil {
		return nil, err
	}
	if body == nil {
		body = []byte{} // an empty message is not an absent one
	}
	switch event.(type) {
	case *tailracev1.Started:
		return &wirev1.SubscribeResponse{Event: &wirev1.SubscribeResponse_Started{Started: body}}, nil
	case *tailracev1.Records:
		return &wirev1.SubscribeResponse{Event: &wirev1.SubscribeResponse_Records{Records: body}}, nil
	case *tailracev1.CaughtUp:
		return &wirev1.SubscribeResponse{Event: &wirev1.SubscribeResponse_CaughtUp{CaughtUp: body}}, nil
	case *tailracev1.Gap:
		return &wirev1.SubscribeResponse{Event: &wirev1.SubscribeResponse_Gap{Gap: body}}, nil
	case *tailracev1.Topology:
		return &wirev1.SubscribeResponse{Event: &wirev1.SubscribeResponse_Topology{Topology: body}}, nil
	case *tailracev1.Heartbeat:
		return &wirev1.SubscribeResponse{Event: &wirev1.SubscribeResponse_Heartbeat{Heartbeat: body}}, nil
	default:
		panic("stream: no shadow for this message") // a new case of SubscribeResponse was forgotten here
	}
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
