package stream

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Tags of the fields that are written here by hand: Records.batches, and RecordBatch.partition, next and end (records come ready).
const (
	tagBatches   = 1<<3 | byte(protowire.BytesType)
	tagPartition = 1<<3 | byte(protowire.VarintType)
	tagNext      = 3<<3 | byte(protowire.VarintType)
	tagEnd       = 4<<3 | byte(protowire.VarintType)
)

// run is one RecordBatch to be: parts of one partition that follow each other.
type run struct {
	parts     []hub.Part
	partition int32
	next, end int64
	pieces    int // bytes of the parts' ready records
}

// takeRun cuts the longest run from the front of parts, which begins with one that carries records or an advance.
func takeRun(parts []hub.Part) (r run, rest []hub.Part) {
	r = run{partition: parts[0].Partition, end: -1}
	n := 0
	for ; n < len(parts); n++ {
		p := &parts[n]
		if !carried(p) || p.Partition != r.partition {
			break
		}
		r.next = p.Next
		r.end = max(r.end, p.End)
		r.pieces += pieceBytes(p)
	}
	r.parts = parts[:n]
	return r, parts[n:]
}

// carried says that a part travels within Records; the others have messages of their own.
func carried(p *hub.Part) bool { return p.Kind == hub.Records || p.Kind == hub.Advance }

func pieceBytes(p *hub.Part) int {
	if p.Kind != hub.Records {
		return 0
	}
	return len(p.Piece(p.Lo, p.Hi))
}

// appendRecords appends an encoded tailrace.v1.Records with the carried parts from the front of parts, and returns the rest. The pieces
// are copied once; nothing is encoded again.
func appendRecords(dst []byte, parts []hub.Part) (_ []byte, rest []hub.Part) {
	for len(parts) > 0 && carried(&parts[0]) {
		var r run
		r, parts = takeRun(parts)
		dst = append(dst, tagBatches)
		dst = protowire.AppendVarint(dst, uint64(r.size()))
		dst = appendVarintField(dst, tagPartition, int64(r.partition))
		for i := range r.parts {
			if p := &r.parts[i]; p.Kind == hub.Records {
				dst = append(dst, p.Piece(p.Lo, p.Hi)...)
			}
		}
		dst = appendVarintField(dst, tagNext, r.next)
		dst = appendVarintField(dst, tagEnd, r.end)
	}
	return dst, parts
}

func (r *run) size() int {
	return sizeVarintField(int64(r.partition)) + r.pieces + sizeVarintField(r.next) + sizeVarintField(r.end)
}

// appendVarintField leaves out zero, as proto3 does for fields without presence.
func appendVarintField(dst []byte, tag byte, value int64) []byte {
	if value == 0 {
		return dst
	}
	return protowire.AppendVarint(append(dst, tag), uint64(value))
}

func sizeVarintField(value int64) int {
	if value == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(uint64(value))
}

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
	m := &tailracev1.Started{TopicId: s.TopicID, PartitionCount: s.Count, Partitions: make([]*tailracev1.StartedPartition, len(s.Partitions))}
	for i, p := range s.Partitions {
		m.Partitions[i] = &tailracev1.StartedPartition{Partition: p.Partition, Start: p.Start, End: p.End, Incomplete: p.Incomplete}
	}
	return m
}

// gapMessage is also how a re-created topic is told.
func gapMessage(p *hub.Part) *tailracev1.Gap {
	m := &tailracev1.Gap{Partition: p.Partition, From: p.From, To: p.Next, Reason: tailracev1.GapReason(p.Reason)}
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
