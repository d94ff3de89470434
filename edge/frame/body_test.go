package frame_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"tailrace.dev/tailrace/edge/frame"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// values are records of a partition with the values v<offset>.
func values(t *testing.T, partition int32, offsets ...int64) *hub.Entry {
	t.Helper()
	var rs []*tailracev1.Record
	for _, o := range offsets {
		rs = append(rs, &tailracev1.Record{Topic: "t", Partition: partition, Offset: o, Value: fmt.Appendf(nil, "v%d", o)})
	}
	return entry(t, rs...)
}

func advance(partition int32, from, next int64) hub.Part {
	return hub.Part{Entry: &hub.Entry{Kind: hub.Advance, Partition: partition, From: from, Next: next, End: -1}, From: from, Next: next}
}

func record(partition int32, offset int64) string {
	return fmt.Sprintf(`{"topic":"t","partition":%d,"offset":%d,"text":"v%d"}`, partition, offset, offset)
}

func TestABodyHoldsRecordsAndWhatMovedWithoutOne(t *testing.T) {
	e := values(t, 0, 5, 6, 8)
	e.Meta[2].Epoch = 7
	holes := whole(e)
	holes.Next = 12
	clipped := hub.Part{Entry: e, Lo: 1, Hi: 2, From: 6, Next: 7}
	none := hub.Part{Entry: e, Lo: 1, Hi: 1, From: 7, Next: 8}
	for name, c := range map[string]struct {
		parts []hub.Part
		want  string
		tells bool
	}{
		"nothing":             {nil, `]}`, false},
		"records":             {[]hub.Part{whole(e)}, record(0, 5) + "," + record(0, 6) + "," + record(0, 8) + `]}`, true},
		"some records":        {[]hub.Part{clipped}, record(0, 6) + `]}`, true},
		"holes behind":        {[]hub.Part{holes}, record(0, 5) + "," + record(0, 6) + "," + record(0, 8) + `],"positions":{"0":[12,7]}}`, true},
		"holes alone":         {[]hub.Part{advance(1, 3, 9)}, `],"positions":{"1":9}}`, true},
		"none of the records": {[]hub.Part{none}, `],"positions":{"0":8}}`, true},
		"an end alone":        {[]hub.Part{advance(1, 3, 3)}, `]}`, false},
		"two partitions":      {[]hub.Part{clipped, whole(values(t, 1, 4)), advance(2, 0, 2)}, record(0, 6) + "," + record(1, 4) + `],"positions":{"2":2}}`, true},
		"a record behind":     {[]hub.Part{advance(0, 3, 5), whole(e), advance(1, 3, 4), advance(1, 4, 6)}, record(0, 5) + "," + record(0, 6) + "," + record(0, 8) + `],"positions":{"1":6}}`, true},
		"holes around":        {[]hub.Part{advance(0, 3, 5), clipped, advance(0, 7, 9)}, record(0, 6) + `],"positions":{"0":9}}`, true},
	} {
		got := frame.AppendRecordsBody([]byte("x"), c.parts, frame.AsAuto)
		if string(got) != "x"+c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, "x"+c.want)
		}
		if frame.Tells(c.parts) != c.tells {
			t.Errorf("%s: tells is %v", name, !c.tells)
		}
		message := frame.AppendRecordsBody(frame.AppendRecordsPrefix(nil, "a"), c.parts, frame.AsAuto)
		if !json.Valid(message) {
			t.Errorf("%s: not JSON: %s", name, message)
		}
	}
}

func TestAnEntryIsRenderedOnceForEachForm(t *testing.T) {
	e := values(t, 0, 5, 6)
	first := frame.AppendRecordsBody(nil, []hub.Part{whole(e)}, frame.AsAuto)
	kept := string(first)
	for i := range e.Body {
		e.Body[i] = 0xff // nobody reads it again
	}
	if got := string(frame.AppendRecordsBody(nil, []hub.Part{whole(e)}, frame.AsAuto)); got != kept {
		t.Errorf("got %s, want %s", got, kept)
	}
}

func TestRunsEndAtControlParts(t *testing.T) {
	e := values(t, 0, 5)
	gap := hub.Part{Entry: &hub.Entry{Kind: hub.Gap}, From: 6, Next: 9}
	for _, c := range []struct {
		parts []hub.Part
		want  int
	}{{nil, 0}, {[]hub.Part{gap}, 0}, {[]hub.Part{whole(e), advance(0, 6, 7)}, 2}, {[]hub.Part{whole(e), gap, whole(e)}, 1}} {
		if got := frame.Run(c.parts); got != c.want {
			t.Errorf("got %d, want %d", got, c.want)
		}
	}
}

// BenchmarkBodyOfReadyRecords puts the body of a frame together, of records whose JSON was made before; the binary form needs none.
func BenchmarkBodyOfReadyRecords(b *testing.B) {
	var rs []*tailracev1.Record
	for i := range 100 {
		rs = append(rs, &tailracev1.Record{Topic: "orders", Offset: int64(i), Key: []byte("customer-1234"), Value: []byte(`{"kind":"order","id":123456,"customer":"Zoë","items":[{"sku":"A-1","n":2}]}`)})
	}
	parts := []hub.Part{whole(entry(b, rs...))}
	for name, c := range map[string]struct {
		frame.Codec
		as frame.As
	}{"json": {frame.JSON{}, frame.AsAuto}, "proto": {frame.Proto{}, frame.AsBytes}} {
		b.Run(name, func(b *testing.B) {
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				dst = c.AppendRecordsBody(dst[:0], parts, c.as)
				dst = c.AppendRecordsPrefix(dst, "a", len(dst))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/record")
			b.ReportMetric(float64(len(dst))/100, "B/record")
		})
	}
}
