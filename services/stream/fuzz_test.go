package stream_test

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

// judgeRequest demands that a request is either refused by the names of its fields, or something that the hub takes.
func judgeRequest(t *testing.T, m *tailracev1.SubscribeRequest) {
	t.Helper()
	r, heartbeat, batch, err := stream.ParseSubscribe(m)
	if err != nil {
		if len(invalid(t, err)) == 0 {
			t.Fatalf("%v: refused without a field: %v", m, err)
		}
		return
	}
	if r.Topic == "" || heartbeat < 1000 || heartbeat > 300_000 || batch < 1 || batch > 2<<20 || r.MaxRecordBytes < 0 {
		t.Fatalf("%v: understood as %+v, %d ms, %d bytes", m, r, heartbeat, batch)
	}
	for _, ps := range [][]hub.Position{r.Start.Positions, r.Stop.Positions} {
		seen := map[int32]bool{}
		for _, p := range ps {
			if p.Partition < 0 || p.Offset < 0 || p.Epoch < -1 || seen[p.Partition] {
				t.Fatalf("%v: positions %+v", m, ps)
			}
			seen[p.Partition] = true
		}
	}
	for _, p := range r.Partitions {
		if p < 0 {
			t.Fatalf("%v: partition %d", m, p)
		}
	}
	if r.Start.Kind == hub.Last && r.Start.Last < 1 || r.Stop.Records < 0 || r.Stop.Bytes < 0 {
		t.Fatalf("%v: understood as %+v", m, r)
	}
}

// FuzzSubscribeProto: no bytes that are a SubscribeRequest become something that the hub does not expect.
func FuzzSubscribeProto(f *testing.F) {
	for _, text := range subscribeSeeds() {
		m := &tailracev1.SubscribeRequest{}
		if protojson.Unmarshal([]byte(text), m) == nil {
			b, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &tailracev1.SubscribeRequest{}
		if proto.Unmarshal(b, m) == nil {
			judgeRequest(t, m)
		}
	})
}

// FuzzSubscribeJSON: the strict codec reads what protojson reads, and writes it again the same.
func FuzzSubscribeJSON(f *testing.F) {
	for _, text := range subscribeSeeds() {
		f.Add([]byte(text))
	}
	codec := stream.JSONCodec()
	f.Fuzz(func(t *testing.T, text []byte) {
		m := &tailracev1.SubscribeRequest{}
		if codec.Unmarshal(text, m) != nil {
			return
		}
		if len(m.ProtoReflect().GetUnknown()) > 0 {
			t.Fatalf("%q has unknown fields", text)
		}
		again := &tailracev1.SubscribeRequest{}
		written, err := codec.Marshal(m)
		if err != nil {
			return // a time or duration that JSON does not have; the request is judged all the same
		}
		if err := codec.Unmarshal(written, again); err != nil || !proto.Equal(m, again) {
			t.Fatalf("%q was written as %q, which is %v, %v", text, written, again, err)
		}
		judgeRequest(t, m)
	})
}

// FuzzPublish: what is not refused has records, and partitions that can be.
func FuzzPublish(f *testing.F) {
	for _, m := range []*tailracev1.PublishRequest{
		{Topic: "orders", Records: []*tailracev1.PublishRecord{{Key: []byte("k"), Value: []byte("v"), Headers: []*tailracev1.Header{{Name: "h"}}, Partition: new(int32(3))}}},
		{Topic: "orders"}, {},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &tailracev1.PublishRequest{}
		if proto.Unmarshal(b, m) != nil {
			return
		}
		if err := stream.ParsePublish(m, len(b)); err != nil {
			if len(invalid(t, err)) == 0 {
				t.Fatalf("refused without a field: %v", err)
			}
			return
		}
		if m.GetTopic() == "" || len(m.GetRecords()) == 0 {
			t.Fatalf("let through: %v", m)
		}
	})
}

func subscribeSeeds() []string {
	return []string{
		`{}`, `{"topic":"orders"}`,
		`{"topic":"orders","topicId":"T","partitions":[0,1],"keys":["azE="],"keyScope":"KEY_SCOPE_HASHED","start":{"positions":{"positions":[{"partition":1,"offset":"40","leaderEpoch":3}],"missing":"MISSING_POSITION_SKIP"}}}`,
		`{"topic":"o","start":{"time":"2026-11-30T12:00:00Z"},"stop":{"positions":[{"offset":"20"}],"atEnd":true,"records":"5","bytes":"6"},"heartbeatInterval":"1s","maxBatchBytes":1,"maxRecordBytes":2}`,
		`{"topic":"o","start":{"last":10},"onOutOfRange":"OUT_OF_RANGE_POLICY_FAIL","slowPolicy":"SLOW_POLICY_CONFLATE"}`,
		`{"topic":"o","start":{"positions":{"positions":[{},{}]}},"partitions":[-1,-1]}`,
	}
}
