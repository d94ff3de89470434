package frame_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/edge/frame/frametest"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

func encoded(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func subscribeFrame(tb testing.TB, q *tailracev1.SubscribeRequest) []byte {
	tb.Helper()
	return encoded(tb, &tailracev1.ClientFrame{Op: &tailracev1.ClientFrame_Subscribe{Subscribe: &tailracev1.SubscribeOp{Id: "a", Request: q}}})
}

func publishFrame(tb testing.TB, r *tailracev1.PublishRecord) []byte {
	tb.Helper()
	return encoded(tb, &tailracev1.ClientFrame{Op: &tailracev1.ClientFrame_Publish{Publish: &tailracev1.PublishOne{Id: "p1", Topic: "orders", Record: r}}})
}

func TestProtoUnderstands(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	epoch := int32(3)
	record := &tailracev1.PublishRecord{Key: []byte{}, Value: []byte("\xffv"), Partition: new(int32(3)), Headers: []*tailracev1.Header{{Name: "h"}, {Name: "h", Value: []byte{}}}}
	for _, c := range []struct {
		msg  []byte
		want frame.Op
	}{
		{encoded(t, &tailracev1.ClientFrame{Op: &tailracev1.ClientFrame_Ping{Ping: &tailracev1.PingOp{Id: strings.Repeat("é", 32)}}}), &frame.Ping{ID: strings.Repeat("é", 32)}},
		{encoded(t, &tailracev1.ClientFrame{Op: &tailracev1.ClientFrame_Unsubscribe{Unsubscribe: &tailracev1.UnsubscribeOp{Id: "a"}}}), &frame.Unsubscribe{ID: "a"}},
		{encoded(t, &tailracev1.ClientFrame{Op: &tailracev1.ClientFrame_Auth{Auth: &tailracev1.AuthOp{Token: "t"}}}), &frame.Unbuilt{Op: "auth"}},
		{encoded(t, &tailracev1.ClientFrame{Op: &tailracev1.ClientFrame_Ack{Ack: &tailracev1.AckOp{Id: "q", Ack: &tailracev1.Ack{UpTo: 3}}}}), settle("ack", nil, &tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{UpTo: 3}}})},
		{publishFrame(t, record), pub(record)},
		{publishFrame(t, &tailracev1.PublishRecord{}), pub(&tailracev1.PublishRecord{})},
		{subscribeFrame(t, &tailracev1.SubscribeRequest{Topic: "orders"}), sub("a", frame.AsBytes, hub.Request{Topic: "orders"})},
		{subscribeFrame(t, &tailracev1.SubscribeRequest{
			Topic: "orders", TopicId: "T", Keys: [][]byte{{0xff}, {}}, Partitions: []int32{0, 1}, KeyScope: tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS,
			Start: &tailracev1.Start{At: &tailracev1.Start_Positions{Positions: &tailracev1.Positions{
				Positions: []*tailracev1.Position{{Offset: 12}, {Partition: 1, Offset: 40, LeaderEpoch: &epoch}}, Missing: tailracev1.MissingPosition_MISSING_POSITION_SKIP,
			}}},
			Stop:           &tailracev1.Stop{Positions: []*tailracev1.Position{{Offset: 20}}, AtEnd: true, Records: 5, Bytes: 6},
			OnOutOfRange:   tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_FAIL,
			SlowPolicy:     tailracev1.SlowPolicy_SLOW_POLICY_CONFLATE,
			MaxRecordBytes: 9,
		}), sub("a", frame.AsBytes, hub.Request{
			Topic: "orders", TopicID: "T", Keys: [][]byte{{0xff}, {}}, Partitions: []int32{0, 1}, KeyScope: hub.KeyScopeAll,
			Start:        hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{at(0, 12, -1), at(1, 40, 3)}, Missing: hub.MissingSkip},
			Stop:         hub.Stop{Positions: []hub.Position{at(0, 20, -1)}, AtEnd: true, Records: 5, Bytes: 6},
			OnOutOfRange: hub.OutOfRangeFail, Slow: hub.SlowConflate, MaxRecordBytes: 9,
		})},
		{
			subscribeFrame(t, &tailracev1.SubscribeRequest{Topic: "o", Start: &tailracev1.Start{At: &tailracev1.Start_Time{Time: timestamppb.New(noon)}}}),
			sub("a", frame.AsBytes, hub.Request{Topic: "o", Start: hub.Start{Kind: hub.AtTime, Time: noon}}),
		},
		{
			subscribeFrame(t, &tailracev1.SubscribeRequest{Topic: "o", Start: &tailracev1.Start{At: &tailracev1.Start_Last{Last: 10}}}),
			sub("a", frame.AsBytes, hub.Request{Topic: "o", Start: hub.Start{Kind: hub.Last, Last: 10}}),
		},
		{
			subscribeFrame(t, &tailracev1.SubscribeRequest{Topic: "o", Start: &tailracev1.Start{At: &tailracev1.Start_Earliest{Earliest: &tailracev1.Earliest{}}}}),
			sub("a", frame.AsBytes, hub.Request{Topic: "o", Start: hub.Start{Kind: hub.Earliest}}),
		},
	} {
		in := bytes.Clone(c.msg)
		op, bad := frame.Proto{}.Parse(in)
		clear(in) // what Parse returns must not lie in the message
		if bad != nil {
			t.Errorf("%x: refused: %+v", c.msg, bad)
			continue
		}
		if !equal(op, c.want) {
			t.Errorf("%x:\n got %+v\nwant %+v", c.msg, op, c.want)
		}
	}
}

// field appends a field to a message.
func field(b []byte, num protowire.Number, v any) []byte {
	switch v := v.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v))
	case []byte:
		return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
	default:
		return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), []byte(v.(string))) //nolint:errcheck // a test's own table
	}
}

func TestProtoRefusesByName(t *testing.T) {
	id := field(nil, 1, "a")
	topic := field(nil, 1, "orders")
	subscribe := func(request []byte) []byte { return field(nil, 1, field(bytes.Clone(id), 2, request)) }
	with := func(b []byte, num protowire.Number, v any) []byte { return field(bytes.Clone(b), num, v) }
	record := func(r []byte) []byte { return field(nil, 6, field(field(field(nil, 1, "p"), 2, "orders"), 3, r)) }
	ping := field(nil, 8, id)
	many := func(num protowire.Number, n int, v any) (b []byte) {
		for range n {
			b = field(b, num, v)
		}
		return b
	}
	for _, c := range []struct {
		name         string
		msg          []byte
		re, id, text string
	}{
		{"empty", nil, "frame", "", "op: is required"},
		{"unknown op", field(nil, 77, "x"), "frame", "", "unknown op 77"},
		{"an op beside an unknown one", field(bytes.Clone(ping), 77, "x"), "frame", "", "unknown op 77"},
		{"two ops", append(bytes.Clone(ping), ping...), "frame", "a", "op: is required, once"},
		{"an op that is a number", field(nil, 8, 5), "frame", "", "ping: is of another type"},
		{"no id", field(nil, 8, ""), "frame", "", "id: must have 1 to 32 characters"},
		{"id too long", field(nil, 8, field(nil, 1, strings.Repeat("é", 33))), "frame", "", "id: must have 1 to 32 characters"},
		{"id not UTF-8", field(nil, 8, field(nil, 1, "\xff")), "frame", "", "id"},
		{"id twice", field(nil, 8, field(bytes.Clone(id), 1, "b")), "frame", "b", "id: is given twice"},
		{"unknown field", field(nil, 8, with(id, 9, 1)), "frame", "a", "9: unknown field"},
		{"unknown field of a request", subscribe(with(topic, 99, 1)), "subscribe", "a", "request.99: unknown field"},
		{"unknown kind of start", subscribe(with(topic, 6, field(nil, 6, 1))), "subscribe", "a", "request.start.6: unknown field"},
		{"two starts", subscribe(with(topic, 6, with(field(nil, 5, 1), 2, ""))), "subscribe", "a", "request.start.earliest: is given twice, or beside another one"},
		{"topic is a number", subscribe(field(nil, 1, 7)), "subscribe", "a", "request.topic: is of another type"},
		{"no request", field(nil, 1, id), "subscribe", "a", "request.topic: is required"},
		{"topic not UTF-8", subscribe(field(nil, 1, "\xff")), "subscribe", "a", "request.topic: is not UTF-8"},
		{"a number of 33 bits", subscribe(with(topic, 12, 1<<32)), "subscribe", "a", "request.max_record_bytes: must be an integer of 32 bits"},
		{"a packed number of 33 bits", subscribe(with(topic, 3, protowire.AppendVarint(nil, 1<<32))), "subscribe", "a", "request.partitions: must be an integer of 32 bits"},
		{"negative partition", subscribe(with(topic, 3, -1)), "subscribe", "a", "request.partitions"},
		{"unknown policy", subscribe(with(topic, 9, 9)), "subscribe", "a", "request.slow_policy: has the unknown value 9"},
		{"negative policy", subscribe(with(topic, 8, -9)), "subscribe", "a", "request.on_out_of_range: has the unknown value -9"},
		{"no positions", subscribe(with(topic, 6, field(nil, 3, ""))), "subscribe", "a", "request.start.positions"},
		{"a position twice", subscribe(with(topic, 6, field(nil, 3, many(1, 2, "")))), "subscribe", "a", "named twice"},
		{"negative offset", subscribe(with(topic, 6, field(nil, 3, field(nil, 1, field(nil, 2, -1))))), "subscribe", "a", "negative"},
		{"last 0", subscribe(with(topic, 6, field(nil, 5, 0))), "subscribe", "a", "request.start.last"},
		{"last too large", subscribe(with(topic, 6, field(nil, 5, 100_001))), "subscribe", "a", "request.start.last"},
		{"a time that is none", subscribe(with(topic, 6, field(nil, 4, field(nil, 2, 1<<30)))), "subscribe", "a", "request.start.time"},
		{"a heartbeat of its own", subscribe(with(topic, 10, "")), "subscribe", "a", "request.heartbeat_interval"},
		{"a batch size of its own", subscribe(with(topic, 11, 5)), "subscribe", "a", "request.max_batch_bytes"},
		{"too many keys", subscribe(append(bytes.Clone(topic), many(4, 1001, "k")...)), "subscribe", "a", "request.keys: must have at most 1000"},
		{"far too many keys", subscribe(append(bytes.Clone(topic), many(4, 500_000, "")...)), "subscribe", "a", "request.keys: must have at most 10000"},
		{"keys too large", subscribe(append(bytes.Clone(topic), many(4, 2, strings.Repeat("k", 40<<10))...)), "subscribe", "a", "request.keys: must have at most 65536 bytes"},
		{"too many packed partitions", subscribe(with(topic, 3, make([]byte, 10_001))), "subscribe", "a", "request.partitions: must have at most 10000"},
		{"publish without a record", field(nil, 6, field(field(nil, 1, "p"), 2, "orders")), "publish", "p", "record: is required"},
		{"publish without a topic", field(nil, 6, field(field(nil, 1, "p"), 3, "")), "publish", "p", "topic: is required"},
		{"publish to a negative partition", record(field(nil, 4, -1)), "publish", "p", "record.partition"},
		{"a header name with NUL", record(field(nil, 3, field(nil, 1, "a\x00"))), "publish", "p", "record.headers.0.name"},
		{"too many headers", record(many(3, 1001, "")), "publish", "p", "record.headers"},
		{"far too many headers", record(many(3, 500_000, "")), "publish", "p", "record.headers"},
		{"a value twice", record(many(2, 2, "v")), "publish", "p", "record.value: is given twice"},
	} {
		op, bad := frame.Proto{}.Parse(c.msg)
		if bad == nil {
			t.Errorf("%s: understood as %+v", c.name, op)
			continue
		}
		if bad.Re != c.re || bad.ID != c.id || bad.Close != 0 || !strings.Contains(bad.Message, c.text) || bad.Final != (c.re == "subscribe") {
			t.Errorf("%s: got %+v, want re %s, id %q, %q", c.name, bad, c.re, c.id, c.text)
		}
	}
	for name, msg := range map[string][]byte{
		"text":                  []byte("hello"),
		"JSON":                  []byte(`{"op":"ping","id":"a"}`),
		"cut off":               ping[:len(ping)-1],
		"an op cut off within":  field(nil, 8, []byte{0x0a, 9, 'a'}),
		"a field cut off":       subscribe([]byte{0x0a}),
		"packed, cut off":       subscribe(with(topic, 3, []byte{0x80})),
		"field number 0":        {0, 0},
		"the end of no group":   {0x0c},
		"a varint of 11 bytes":  append([]byte{0x40}, bytes.Repeat([]byte{0xff}, 11)...),
		"a length of 2^63":      append([]byte{0x42}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1),
		"a subscribe with junk": field(nil, 1, "not a message"),
	} {
		if op, bad := (frame.Proto{}).Parse(msg); bad == nil || bad.Close != 4500 || bad.Message != "the message is not a ClientFrame" {
			t.Errorf("%s: got %+v, %+v, want 4500", name, op, bad)
		}
	}
}

// TestProtoParseAllocatesLittle: a message of two megabytes with a million elements costs what the allowed ones cost.
func TestProtoParseAllocatesLittle(t *testing.T) {
	msg := field(nil, 6, field(field(field(nil, 1, "p"), 2, "orders"), 3, bytes.Repeat([]byte{0x1a, 0}, 1<<19)))
	n := testing.AllocsPerRun(3, func() {
		if op, bad := (frame.Proto{}).Parse(msg); bad == nil {
			t.Errorf("understood as %+v", op)
		}
	})
	if n > 20_000 { // of so many elements as may be, not of all
		t.Errorf("%v allocations", n)
	}
}

// TestProtoFramesSayWhatJSONSays: each frame, in both forms.
func TestProtoFramesSayWhatJSONSays(t *testing.T) {
	now := time.UnixMilli(1764518400123)
	part := func(kind hub.Kind, reason hub.GapReason) *hub.Part {
		return &hub.Part{Entry: &hub.Entry{Kind: kind, Reason: reason, Partition: 2, Count: 12, TopicID: "T2"}, From: 12, Next: 900}
	}
	published := &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{Partition: 3, Offset: 99, Time: timestamppb.New(now)}}}
	failed := &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: &tailracev1.PublishFailure{
		Code: "unknown", Reason: "OUTCOME_UNKNOWN", Message: "m", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN, RetryAfter: durationpb.New(time.Second),
	}}}
	for _, f := range []frame.Frame{
		frame.Welcome{Session: "s", Heartbeat: 15 * time.Second, MaxMessageBytes: 2 << 20},
		frame.Started{ID: "a", Topic: "orders", At: hub.Started{TopicID: "T", Count: 2, Partitions: []hub.StartedPartition{{Partition: 1, Start: 3, End: 9, Incomplete: true}, {}}}},
		frame.CaughtUp{ID: "a"},
		frame.Control{ID: "a", Topic: "orders", Part: part(hub.Gap, hub.GapRetention)},
		frame.Control{ID: "a", Topic: "orders", Part: part(hub.Gap, hub.GapTruncation)},
		frame.Control{ID: "a", Topic: "orders", Part: part(hub.Gap, hub.GapTooLarge)},
		frame.Control{ID: "a", Topic: "orders", Part: part(hub.Recreated, 0)},
		frame.Control{ID: "a", Topic: "orders", Part: part(hub.Topology, 0)},
		&frame.Heartbeat{Time: now},
		&frame.Heartbeat{Time: now, UpstreamUnavailable: true, Subscriptions: []frame.SubscriptionHeartbeat{
			{ID: "a", Positions: []hub.Position{at(0, 41, -1), at(1, 7, 2)}}, {ID: "b", Lag: -1}, {ID: "c", Lag: 7, Unavailable: []int32{3, 0}},
		}},
		frame.Result{ID: "p", Result: published},
		frame.Result{ID: "p", Result: failed},
		frame.Unsubscribed{ID: "a", Reason: "until"},
		frame.Pong{ID: "é\x00"},
		&frame.Error{Re: "ack", ID: "q", Final: true, Code: "c", Reason: "R", Message: "m", Retryable: true, RetryAfterMs: 0, Tags: []int64{1, 2}},
		&frame.Error{Re: "publish", ID: "q", Code: "c", Reason: "R", Message: "m", Outcome: "refused"},
		frame.Goodbye{Code: 4000, Reason: "draining", ComeBackMax: 5 * time.Second},
		frame.Goodbye{Code: 4504, Reason: "unknown topic", ComeBackMax: -1},
	} {
		want := frame.JSON{}.Append([]byte{}, f)
		got, err := frametest.Server(frame.Proto{}.Append(nil, f))
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if !sameJSON(t, got, want) {
			t.Errorf("%T:\n got %s\nwant %s", f, got, want)
		}
	}
	for _, kind := range []hub.Kind{hub.Unavailable, hub.Available, hub.Deleted} {
		f := frame.Control{ID: "a", Part: part(kind, 0)}
		if got := append(frame.Proto{}.Append(nil, f), frame.JSON{}.Append(nil, f)...); len(got) > 0 {
			t.Errorf("kind %d is told: %q", kind, got)
		}
	}
}

// TestProtoRecordsAreThePieces: a records frame is what protobuf makes of the message, with the records byte for byte as they came.
func TestProtoRecordsAreThePieces(t *testing.T) {
	e, f := values(t, 0, 5, 6, 8), values(t, 3, 1)
	holes := whole(e)
	holes.Next = 12
	for name, c := range map[string]struct {
		parts []hub.Part
		want  *tailracev1.Records
	}{
		"records":      {[]hub.Part{whole(e)}, &tailracev1.Records{Batches: []*tailracev1.RecordBatch{{Next: 9, End: -1}}}},
		"holes behind": {[]hub.Part{holes, advance(0, 12, 15)}, &tailracev1.Records{Batches: []*tailracev1.RecordBatch{{Next: 15, End: -1}}}},
		"two partitions": {[]hub.Part{whole(e), whole(f), advance(1, 0, 4)}, &tailracev1.Records{Batches: []*tailracev1.RecordBatch{
			{Next: 9, End: -1}, {Partition: 3, Next: 2, End: -1}, {Partition: 1, Next: 4, End: -1},
		}}},
	} {
		at := 0
		for _, b := range c.want.Batches {
			if b.Partition == 1 {
				continue
			}
			for _, p := range c.parts[at : at+1] {
				for i := range p.Meta {
					piece := &tailracev1.RecordBatch{}
					if err := proto.Unmarshal(p.Piece(i, i+1), piece); err != nil {
						t.Fatal(err)
					}
					b.Records = append(b.Records, piece.Records...)
				}
			}
			at++
		}
		for _, id := range []string{"a", strings.Repeat("é", 32)} {
			body := frame.Proto{}.AppendRecordsBody(nil, c.parts, frame.AsBytes)
			got := append(frame.Proto{}.AppendRecordsPrefix(nil, id, len(body)), body...)
			want := encoded(t, &tailracev1.ServerFrame{Op: &tailracev1.ServerFrame_Records{Records: &tailracev1.RecordsFrame{Id: id, Records: c.want}}})
			if !bytes.Equal(got, want) {
				t.Errorf("%s: got %x\nwant %x", name, got, want)
			}
			// And the same as JSON says.
			inJSON := append(frame.JSON{}.AppendRecordsPrefix(nil, id, 0), frame.JSON{}.AppendRecordsBody(nil, c.parts, frame.AsText)...)
			translated, err := frametest.Server(got)
			if err != nil {
				t.Fatal(err)
			}
			if !sameJSON(t, translated, inJSON) {
				t.Errorf("%s: got %s\nwant %s", name, translated, inJSON)
			}
		}
	}
}

// FuzzProtoParse: no message is understood that protobuf itself would not read, and what is understood says the same when it is encoded anew.
func FuzzProtoParse(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("hello"))
	f.Add(encoded(f, &tailracev1.ClientFrame{Op: &tailracev1.ClientFrame_Ping{Ping: &tailracev1.PingOp{Id: "x"}}}))
	f.Add(publishFrame(f, &tailracev1.PublishRecord{Key: []byte("k"), Value: []byte("v"), Headers: []*tailracev1.Header{{Name: "h"}}}))
	f.Add(subscribeFrame(f, &tailracev1.SubscribeRequest{
		Topic: "t", Keys: [][]byte{{1}}, Partitions: []int32{1, 2}, Stop: &tailracev1.Stop{AtEnd: true},
		Start: &tailracev1.Start{At: &tailracev1.Start_Positions{Positions: &tailracev1.Positions{Positions: []*tailracev1.Position{{Offset: 3}}}}},
	}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		op, bad := frame.Proto{}.Parse(bytes.Clone(msg))
		if (op == nil) == (bad == nil) {
			t.Fatalf("got %+v and %+v", op, bad)
		}
		if bad != nil {
			if out := (frame.JSON{}).Append(nil, bad); !jsonValid(out) {
				t.Fatalf("%q is not JSON", out)
			}
			return
		}
		if _, unbuilt := op.(*frame.Unbuilt); unbuilt {
			return
		}
		m := &tailracev1.ClientFrame{}
		if err := proto.Unmarshal(msg, m); err != nil {
			t.Fatalf("understood as %+v, but: %v", op, err)
		}
		again, bad := frame.Proto{}.Parse(encoded(t, m))
		if bad != nil || !equal(op, again) {
			t.Fatalf("got %+v, then %+v, %+v", op, again, bad)
		}
	})
}

// sameJSON compares two texts as values.
func sameJSON(tb testing.TB, a, b []byte) bool {
	tb.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		tb.Fatalf("%s, %s: %v", a, b, err)
	}
	return reflect.DeepEqual(x, y)
}

func jsonValid(b []byte) bool { return json.Valid(b) && utf8.Valid(b) }
