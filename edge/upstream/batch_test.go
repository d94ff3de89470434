package upstream_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"tailrace.dev/tailrace/edge/upstream"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func sampleBatches() []*tailracev1.RecordBatch {
	epoch := int32(4)
	return []*tailracev1.RecordBatch{
		{Partition: 3, Next: 9, End: -1},
		{Partition: 3, Next: 12, End: 20, Records: []*tailracev1.Record{
			{Topic: "t", Partition: 3, Offset: 9, Key: []byte("k"), Value: []byte("v"), LeaderEpoch: &epoch, Time: timestamppb.New(time.UnixMilli(1764518400123))},
			{Topic: "t", Partition: 3, Offset: 11, Key: []byte{}, Headers: []*tailracev1.Header{{Name: "h", Value: bytes.Repeat([]byte("x"), 300)}}},
		}},
		{Records: []*tailracev1.Record{{}}, Next: 1},
	}
}

// checkEntry compares an entry with the batch that it was cut from.
func checkEntry(t *testing.T, e *hub.Entry, m *tailracev1.RecordBatch) {
	t.Helper()
	if e.Partition != m.GetPartition() || e.Next != m.GetNext() || e.End != m.GetEnd() || len(e.Meta) != len(m.GetRecords()) {
		t.Fatalf("got %+v, want %v", e, m)
	}
	if want := map[bool]hub.Kind{true: hub.Records, false: hub.Advance}[len(m.GetRecords()) > 0]; e.Kind != want {
		t.Fatalf("got kind %d, want %d", e.Kind, want)
	}
	for i, r := range m.GetRecords() {
		wantTime, wantEpoch := int64(-1), int32(-1)
		if r.Time != nil {
			wantTime = r.GetTime().GetSeconds()*1000 + int64(r.GetTime().GetNanos())/1_000_000
		}
		if r.LeaderEpoch != nil {
			wantEpoch = r.GetLeaderEpoch()
		}
		meta := e.Meta[i]
		if meta.Offset != r.GetOffset() || meta.Time != wantTime || meta.Epoch != wantEpoch {
			t.Fatalf("record %d: got %+v, want %v", i, meta, r)
		}
		if key := e.KeyOf(i); !bytes.Equal(key, r.GetKey()) || (key == nil) != (r.Key == nil) {
			t.Fatalf("record %d: got key %q, want %q", i, key, r.Key)
		}
		piece := e.Piece(i, i+1)
		num, typ, n := protowire.ConsumeTag(piece)
		body, m := protowire.ConsumeBytes(piece[max(n, 0):])
		if num != 2 || typ != protowire.BytesType || n+m != len(piece) {
			t.Fatalf("record %d: not a piece: %x", i, piece)
		}
		got := &tailracev1.Record{}
		if err := proto.Unmarshal(body, got); err != nil || !proto.Equal(got, r) {
			t.Fatalf("record %d: got %v, %v, want %v", i, got, err, r)
		}
	}
}

func TestBatchesBecomeEntriesWithoutCopying(t *testing.T) {
	b := marshal(t, &tailracev1.Records{Batches: sampleBatches()})
	es, err := upstream.ReadRecords(b)
	if err != nil || len(es) != len(sampleBatches()) {
		t.Fatalf("got %d entries, %v", len(es), err)
	}
	for i, m := range sampleBatches() {
		checkEntry(t, es[i], m)
		if len(es[i].Body) > 0 && !within(b, es[i].Body) {
			t.Errorf("batch %d was copied", i)
		}
	}
}

// within says whether part lies in the memory of whole.
func within(whole, part []byte) bool {
	for i := range whole {
		if &whole[i] == &part[0] {
			return true
		}
	}
	return false
}

func TestABatchMayHaveItsFieldsInAnyOrder(t *testing.T) {
	m := sampleBatches()[1]
	var b []byte
	for i, r := range m.GetRecords() {
		b = protowire.AppendVarint(append(b, 3<<3), uint64(7+i)) // the last one counts
		b = protowire.AppendBytes(append(b, 2<<3|2), marshal(t, r))
	}
	b = append(b, marshal(t, &tailracev1.RecordBatch{Partition: m.Partition, Next: m.Next, End: m.End})...)
	es, err := upstream.ReadRecords(protowire.AppendBytes([]byte{1<<3 | 2}, b))
	if err != nil || len(es) != 1 {
		t.Fatalf("got %v, %v", es, err)
	}
	checkEntry(t, es[0], m)
}

func TestMalformedBatchesAreRefused(t *testing.T) {
	record := func(offsets ...int64) (rs []*tailracev1.Record) {
		for _, o := range offsets {
			rs = append(rs, &tailracev1.Record{Offset: o})
		}
		return rs
	}
	for name, m := range map[string]*tailracev1.RecordBatch{
		"offsets fall":      {Records: record(5, 4), Next: 6},
		"an offset twice":   {Records: record(5, 5), Next: 6},
		"next below record": {Records: record(5, 6), Next: 6},
	} {
		if es, err := upstream.ReadRecords(marshal(t, &tailracev1.Records{Batches: []*tailracev1.RecordBatch{m}})); err == nil {
			t.Errorf("%s: got %+v", name, es)
		}
	}
	whole := marshal(t, &tailracev1.Records{Batches: sampleBatches()[1:2]})
	for n := 1; n < len(whole); n++ {
		if es, err := upstream.ReadRecords(whole[:n]); err == nil {
			t.Errorf("cut at %d: got %+v", n, es)
		}
	}
}

// FuzzReadRecords: whatever protobuf takes for Records, is cut into what it holds, or refused for its offsets; nothing panics.
func FuzzReadRecords(f *testing.F) {
	f.Add(marshal(f, &tailracev1.Records{Batches: sampleBatches()}))
	f.Add([]byte{0x0a, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		es, err := upstream.ReadRecords(b)
		if err != nil {
			return
		}
		var m tailracev1.Records
		if proto.Unmarshal(b, &m) != nil {
			return // a string that is not UTF-8, say: nothing that we look at
		}
		if len(es) != len(m.GetBatches()) {
			t.Fatalf("got %d entries, want %d", len(es), len(m.GetBatches()))
		}
		for i, batch := range m.GetBatches() {
			checkEntry(t, es[i], batch)
		}
	})
}

func BenchmarkReadRecords(b *testing.B) {
	for _, size := range []int{128, 1024} {
		m := &tailracev1.RecordBatch{Next: 1 << 40, End: 1 << 40}
		for i := range 100 {
			m.Records = append(m.Records, &tailracev1.Record{
				Topic: "orders", Partition: 3, Offset: int64(1_000_000 + i), Time: timestamppb.Now(), Key: []byte("customer-1234"), Value: make([]byte, size),
			})
		}
		message := marshal(b, &tailracev1.Records{Batches: []*tailracev1.RecordBatch{m}})
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := upstream.ReadRecords(message); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/record")
		})
	}
}
