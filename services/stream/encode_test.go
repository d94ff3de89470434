package stream_test

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/stream"
)

// responses has a message for each case of SubscribeResponse, with zeros and with extremes.
func responses() []*tailracev1.SubscribeResponse {
	epoch := int32(0)
	record := &tailracev1.Record{
		Topic: "orders", Offset: 7, Time: timestamppb.New(time.UnixMilli(1764518400123)), TimeType: tailracev1.TimestampType_TIMESTAMP_TYPE_CREATE,
		LeaderEpoch: &epoch, Key: []byte{}, Value: bytes.Repeat([]byte{0xff}, 300),
		Headers: []*tailracev1.Header{{Name: "h"}, {Name: "h", Value: []byte{}}},
	}
	return []*tailracev1.SubscribeResponse{
		{Event: &tailracev1.SubscribeResponse_Started{Started: &tailracev1.Started{
			TopicId: "id", PartitionCount: 2, Partitions: []*tailracev1.StartedPartition{{}, {Partition: 1, Start: 3, End: math.MaxInt64, Incomplete: true}},
		}}},
		{Event: &tailracev1.SubscribeResponse_Started{Started: &tailracev1.Started{}}},
		{Event: &tailracev1.SubscribeResponse_Records{Records: &tailracev1.Records{Batches: []*tailracev1.RecordBatch{
			{Records: []*tailracev1.Record{record, {}}, Next: 9, End: -1}, {Partition: 3, Next: 12}, {},
		}}}},
		{Event: &tailracev1.SubscribeResponse_CaughtUp{CaughtUp: &tailracev1.CaughtUp{}}},
		{Event: &tailracev1.SubscribeResponse_Gap{Gap: &tailracev1.Gap{Partition: 1, From: 5, To: 2, Reason: tailracev1.GapReason_GAP_REASON_TRUNCATION}}},
		{Event: &tailracev1.SubscribeResponse_Topology{Topology: &tailracev1.Topology{Partitions: 5}}},
		{Event: &tailracev1.SubscribeResponse_Heartbeat{Heartbeat: &tailracev1.Heartbeat{
			Time: timestamppb.New(time.UnixMilli(1)), Positions: []*tailracev1.Position{{Offset: 1}}, Lag: 4, UnavailablePartitions: []int32{0, 3},
		}}},
	}
}

func event(m *tailracev1.SubscribeResponse) proto.Message {
	r := m.ProtoReflect()
	field := r.WhichOneof(r.Descriptor().Oneofs().ByName("event"))
	return r.Get(field).Message().Interface()
}

func TestShadowHasTheFieldsOfTheMessage(t *testing.T) {
	real := (&tailracev1.SubscribeResponse{}).ProtoReflect().Descriptor().Fields()
	shadow := (&wirev1.SubscribeResponse{}).ProtoReflect().Descriptor().Fields()
	if got, want := shadow.Len(), real.Len(); got != want {
		t.Fatalf("got %d fields, want %d", got, want)
	}
	for i := range real.Len() {
		want := real.Get(i)
		got := shadow.ByNumber(want.Number())
		switch {
		case got == nil:
			t.Errorf("no field %d", want.Number())
		case got.Name() != want.Name(), got.Kind() != protoreflect.BytesKind, got.ContainingOneof() == nil, want.Kind() != protoreflect.MessageKind:
			t.Errorf("field %d: got %v %v, want %v as bytes in a oneof", want.Number(), got.Kind(), got.Name(), want.Name())
		}
	}
}

func TestShadowHasTheBytesOfTheMessage(t *testing.T) {
	seen := map[protoreflect.FullName]bool{}
	for _, m := range responses() {
		inner := event(m)
		seen[inner.ProtoReflect().Descriptor().FullName()] = true
		shadow, err := stream.Shadow(inner)
		if err != nil {
			t.Fatal(err)
		}
		got, err := proto.Marshal(shadow)
		if err != nil {
			t.Fatal(err)
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%v:\n got %x\nwant %x", m, got, want)
		}
	}
	if got, want := len(seen), (&tailracev1.SubscribeResponse{}).ProtoReflect().Descriptor().Fields().Len(); got != want {
		t.Errorf("the test has %d cases of the oneof, there are %d", got, want)
	}
}

func TestJSONCodecWritesShadowsAsTheMessage(t *testing.T) {
	codec := stream.JSONCodec()
	for _, m := range responses() {
		shadow, err := stream.Shadow(event(m))
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec.Marshal(shadow)
		if err != nil {
			t.Fatal(err)
		}
		want, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if compact(t, got) != compact(t, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// compact takes out the blanks that protojson puts in by chance.
func compact(t *testing.T, text []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return b.String()
}

func TestJSONCodecRefusesUnknownFields(t *testing.T) {
	codec := stream.JSONCodec()
	for text, ok := range map[string]bool{
		`{"topic":"a","start":{"earliest":{}}}`: true,
		`{"topic":"a","strat":{"earliest":{}}}`: false,
		`{"topic":"a","start":{"erliest":{}}}`:  false,
		``:                                      false,
		`[]`:                                    false,
	} {
		err := codec.Unmarshal([]byte(text), &tailracev1.SubscribeRequest{})
		if (err == nil) != ok {
			t.Errorf("%s: got %v", text, err)
		}
	}
	if err := codec.Unmarshal([]byte("{}"), "no message"); err == nil {
		t.Error("a string was taken for a message")
	}
	if _, err := codec.Marshal(7); err == nil {
		t.Error("a number was taken for a message")
	}
}

// recordsEntry is an entry with records at the offsets.
func recordsEntry(partition int32, end int64, offsets ...int64) *hub.Entry {
	e := &hub.Entry{Kind: hub.Records, Partition: partition, From: offsets[0], Next: offsets[len(offsets)-1] + 1, End: end}
	for _, o := range offsets {
		e.Body = append(e.Body, hubtest.Piece("orders", partition, o, -1, hubtest.Text("k", "v"))...)
		e.Meta = append(e.Meta, hub.Meta{Offset: o, Time: -1, End: int32(len(e.Body)), Key: -1, Epoch: -1})
	}
	return e
}

func whole(e *hub.Entry) hub.Part {
	return hub.Part{Entry: e, Lo: 0, Hi: len(e.Meta), From: e.From, Next: e.Next}
}

func TestAppendRecordsMergesNeighboursOfAPartition(t *testing.T) {
	first := recordsEntry(0, 20, 1, 2, 5)
	clipped := hub.Part{Entry: recordsEntry(0, 22, 6, 7, 9), Lo: 1, Hi: 2, From: 7, Next: 8}
	hole := &hub.Entry{Kind: hub.Advance, Partition: 0, From: 8, Next: 11, End: -1}
	other := recordsEntry(7, -1, 100)
	again := recordsEntry(0, 30, 11)
	onlyEnd := &hub.Entry{Kind: hub.Advance, Partition: 7, From: 101, Next: 101, End: 140}
	gap := &hub.Entry{Kind: hub.Gap, Partition: 0, From: 12, Next: 15, End: 30}
	parts := []hub.Part{whole(first), clipped, whole(hole), whole(other), whole(again), whole(onlyEnd), whole(gap), whole(again)}

	body, rest := hub.AppendBatches([]byte("before"), parts)
	if len(rest) != 2 || rest[0].Kind != hub.Gap {
		t.Fatalf("got %d parts left, want the gap and what is after it", len(rest))
	}
	body, ok := bytes.CutPrefix(body, []byte("before"))
	if !ok {
		t.Fatal("what was there before is gone")
	}
	got := &tailracev1.Records{}
	if err := proto.Unmarshal(body, got); err != nil {
		t.Fatal(err)
	}
	type batch struct {
		partition int32
		offsets   []int64
		next, end int64
	}
	want := []batch{{0, []int64{1, 2, 5, 7}, 11, 22}, {7, []int64{100}, 101, -1}, {0, []int64{11}, 12, 30}, {7, nil, 101, 140}}
	if len(got.GetBatches()) != len(want) {
		t.Fatalf("got %d batches, want %d: %v", len(got.GetBatches()), len(want), got)
	}
	for i, b := range got.GetBatches() {
		w := want[i]
		if b.GetPartition() != w.partition || b.GetNext() != w.next || b.GetEnd() != w.end || len(b.GetRecords()) != len(w.offsets) {
			t.Errorf("batch %d: got %v, want %+v", i, b, w)
			continue
		}
		for j, r := range b.GetRecords() {
			if r.GetOffset() != w.offsets[j] || string(r.GetValue()) != "v" {
				t.Errorf("batch %d record %d: got %v, want offset %d", i, j, r, w.offsets[j])
			}
		}
	}
	// Hand-written bytes are those that the library writes: partition, records, next, end; zeros left out.
	canonical, err := proto.MarshalOptions{Deterministic: true}.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(body, canonical) {
		t.Errorf("got %x, want %x", body, canonical)
	}
}
