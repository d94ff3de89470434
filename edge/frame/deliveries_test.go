package frame_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/edge/frame/frametest"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

func deliveriesOf(tb testing.TB) (*tailracev1.Deliveries, []byte) {
	tb.Helper()
	epoch := int32(4)
	m := &tailracev1.Deliveries{Deliveries: []*tailracev1.Delivery{
		{Tag: 1, Attempt: 1, Record: &tailracev1.Record{Topic: "orders", Offset: 7, Key: []byte("k"), Value: []byte("plain text")}},
		{Tag: 2, Attempt: 1 << 30, Record: &tailracev1.Record{Topic: "bills", Partition: 3, Offset: 1 << 50, LeaderEpoch: &epoch}},
		{Tag: 1 << 52, Attempt: 3, Record: &tailracev1.Record{
			Topic: "orders", Offset: 8, Key: []byte{0xff}, Value: []byte{0x80}, Headers: []*tailracev1.Header{{Name: "h", Value: []byte("v")}},
		}},
	}}
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return m, b
}

// Both forms say the same of deliveries, also of those that a newer service has more in.
func TestDeliveriesInBothForms(t *testing.T) {
	m, b := deliveriesOf(t)
	b = protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), 1)
	out := frame.Proto{}.AppendDeliveries([]byte("before"), "q", b)
	got := &tailracev1.ServerFrame{}
	if err := proto.Unmarshal(bytes.TrimPrefix(out, []byte("before")), got); err != nil {
		t.Fatal(err)
	}
	want := &tailracev1.ServerFrame{Op: &tailracev1.ServerFrame_Deliveries{
		Deliveries: &tailracev1.DeliveriesFrame{Id: "q", Deliveries: m.GetDeliveries()},
	}}
	if !proto.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	translated, err := frametest.Server(bytes.TrimPrefix(out, []byte("before")))
	if err != nil {
		t.Fatal(err)
	}
	text := frame.JSON{}.AppendDeliveries(nil, "q", b)
	if !jsonValid(text) || !sameJSON(t, text, translated) {
		t.Errorf("got %s\nwant %s", text, translated)
	}
}

func TestCut(t *testing.T) {
	_, b := deliveriesOf(t)
	for about := range len(b) + 2 {
		rest, total := b, 0
		var joined []byte
		for len(rest) > 0 {
			head, tail, n, ok := frame.Cut(rest, about)
			if !ok || n == 0 || n > 1 && len(head) > about {
				t.Fatalf("about %d: %d deliveries of %d bytes, %v", about, n, len(head), ok)
			}
			joined, rest, total = append(joined, head...), tail, total+n
		}
		if total != 3 || !bytes.Equal(joined, b) {
			t.Errorf("about %d: %d deliveries", about, total)
		}
	}
	for _, bad := range [][]byte{b[:len(b)-1], {0x0a}, {0x08, 0x01}, {0xff}} {
		if _, _, _, ok := frame.Cut(bad, 1<<20); ok {
			t.Errorf("%x was taken", bad)
		}
	}
}

func TestConsumeFrames(t *testing.T) {
	gap := &tailracev1.Gap{Partition: 1, From: 3, To: 9, Reason: tailracev1.GapReason_GAP_REASON_RETENTION}
	for want, f := range map[string]frame.Frame{
		`{"op":"gap","id":"q","topic":"orders","partition":1,"from":3,"to":9,"reason":"retention"}`: frame.ConsumeGap{ID: "q", Topic: "orders", Gap: gap},
		`{"op":"error","re":"ack","id":"q","final":false,"code":"failed_precondition","reason":"NOT_HELD",
		  "message":"these deliveries are not held here (any more)","retryable":false,"tags":[3,1]}`: frame.NotHeld("q", []int64{3, 1}),
	} {
		if got := (frame.JSON{}).Append(nil, f); !json.Valid(got) || !sameJSON(t, got, []byte(want)) {
			t.Errorf("got %s\nwant %s", got, want)
		}
		encodedFrame := &tailracev1.ServerFrame{}
		if err := proto.Unmarshal((frame.Proto{}).Append(nil, f), encodedFrame); err != nil {
			t.Fatal(err)
		}
		if g := encodedFrame.GetGap(); g != nil && (g.GetTopic() != "orders" || !proto.Equal(g.GetGap(), gap)) {
			t.Errorf("got %v", g)
		}
	}
}
