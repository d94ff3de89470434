package hubtest_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestReadAtEncodesRecords shows that entries are what package hub says: any run of pieces is a valid part of a RecordBatch, and Meta
// tells where pieces and keys lie.
func TestReadAtEncodesRecords(t *testing.T) {
	records := []hubtest.Record{
		hubtest.Text("k1", "v1"),
		{Value: []byte{}},
		{Key: []byte{}},
		{Key: []byte("k2"), Headers: []*tailracev1.Header{{Name: "h", Value: []byte("1")}, {Name: "h"}}, Time: hubtest.NoTime},
		{Key: bytes.Repeat([]byte("k"), 300), Value: bytes.Repeat([]byte("v"), 70_000), Time: 1},
	}
	src := hubtest.NewStepped()
	src.CreateTopic("orders", 2)
	src.Append("orders", 1, records[:2]...)
	src.AppendHoles("orders", 1, 1)
	src.AppendOpen("orders", 1, records[2:]...)
	src.Commit("orders", 1)
	chunk := hub.ChunkID{Topic: "orders", TopicID: src.TopicID("orders"), Partition: 1}
	es, next, err := src.ReadAt(t.Context(), chunk, 7, hub.MaxChunkRecords, nil)
	if err != nil || next != 7 || len(es) != 1 {
		t.Fatalf("ReadAt = %d entries, next %d, %v; want 1 entry, next 7", len(es), next, err)
	}
	e := es[0]
	if e.From != 0 || e.Next != 7 || e.End != 7 || len(e.Meta) != len(records) {
		t.Fatalf("entry covers [%d, %d) of %d with %d records; want [0, 7) of 7 with %d", e.From, e.Next, e.End, len(e.Meta), len(records))
	}
	var batch tailracev1.RecordBatch
	if err := proto.Unmarshal(e.Piece(1, len(records)), &batch); err != nil {
		t.Fatal(err)
	}
	for i, want := range records {
		if got := e.KeyOf(i); !bytes.Equal(got, want.Key) || (got == nil) != (want.Key == nil) {
			t.Errorf("KeyOf(%d) = %q, want %q", i, got, want.Key)
		}
		if got := hubtest.Piece("orders", 1, e.Meta[i].Offset, 0, want); !bytes.Equal(got, e.Piece(i, i+1)) {
			t.Errorf("Piece(%d) differs from the record's own", i)
		}
		if i == 0 {
			continue
		}
		got := batch.GetRecords()[i-1]
		if got.GetOffset() != e.Meta[i].Offset || !bytes.Equal(got.GetValue(), want.Value) || len(got.GetHeaders()) != len(want.Headers) {
			t.Errorf("record %d = %v, want %v", i, got, want)
		}
		if (got.Value == nil) != (want.Value == nil) || (got.Key == nil) != (want.Key == nil) {
			t.Errorf("record %d confuses absent and empty: %v", i, got)
		}
	}
}

// TestReadAtBounds shows the edges of a chunk.
func TestReadAtBounds(t *testing.T) {
	src := hubtest.NewStepped()
	src.CreateTopic("orders", 1)
	for range 5 {
		src.Append("orders", 0, hubtest.Text("a", "1"), hubtest.Text("b", "2"))
		src.AppendHoles("orders", 0, 2)
	}
	src.AppendOpen("orders", 0, hubtest.Text("a", "3"))
	src.Retain("orders", 0, 4)
	only := &hub.Terms{Keys: map[string]struct{}{"b": {}}}
	for _, c := range []struct {
		from, to int64
		limit    int
		only     *hub.Terms
		records  int
		next     int64
	}{
		{4, 20, 1000, nil, 8, 20},
		{4, 40, 1000, nil, 8, 20}, // the end is the open transaction
		{4, 20, 3, nil, 3, 9},
		{4, 20, 2, nil, 2, 8}, // holes are passed
		{4, 7, 1000, nil, 2, 7},
		{6, 8, 1000, nil, 0, 8},
		{4, 20, 2, only, 2, 13},
		{20, 21, 1000, nil, 0, 20},
	} {
		id := hub.ChunkID{Topic: "orders", TopicID: src.TopicID("orders"), From: c.from}
		es, next, err := src.ReadAt(t.Context(), id, c.to, c.limit, c.only)
		records := 0
		for _, e := range es {
			records += len(e.Meta)
		}
		if err != nil || records != c.records || next != c.next {
			t.Errorf("ReadAt(%d, %d, limit %d) = %d records, next %d, %v; want %d, next %d", c.from, c.to, c.limit, records, next, err, c.records, c.next)
		}
	}
	for _, from := range []int64{3, 22} {
		id := hub.ChunkID{Topic: "orders", TopicID: src.TopicID("orders"), From: from}
		if _, _, err := src.ReadAt(t.Context(), id, 30, 10, nil); err == nil {
			t.Errorf("ReadAt from %d is in range, want out of range of [4, 20)", from)
		}
	}
}
