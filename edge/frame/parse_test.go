package frame_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"tailrace.dev/tailrace/edge/frame"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

func at(partition int32, offset int64, epoch int32) hub.Position {
	return hub.Position{Partition: partition, Offset: offset, Epoch: epoch}
}

func sub(id string, as frame.As, r hub.Request) *frame.Subscribe {
	return &frame.Subscribe{ID: id, As: as, Request: r}
}

func settle(op string, tags []int64, m *tailracev1.ConsumeRequest) *frame.Settle {
	return &frame.Settle{Op: op, ID: "q", Tags: tags, Request: m}
}

func pub(r *tailracev1.PublishRecord) *frame.Publish {
	return &frame.Publish{ID: "p1", Topic: "orders", Record: r}
}

func TestParseUnderstands(t *testing.T) {
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for msg, want := range map[string]frame.Op{
		`{"op":"ping","id":"x"}`:                                          &frame.Ping{ID: "x"},
		"\n { \"id\" : \"x\" ,\t\"op\" : \"ping\" } \r\n":                 &frame.Ping{ID: "x"},
		`{"\u006fp":"p\u0069ng","id":"é\ud83d\ude00\u0041"}`:              &frame.Ping{ID: "é😀A"},
		`{"op":"ping","id":"` + strings.Repeat("é", 32) + `"}`:            &frame.Ping{ID: strings.Repeat("é", 32)},
		`{"op":"unsubscribe","id":"a"}`:                                   &frame.Unsubscribe{ID: "a"},
		`{"op":"auth","token":"t"}`:                                       &frame.Unbuilt{Op: "auth"},
		`{"op":"consume","id":"q","topics":["orders"],"group":"billing"}`: &frame.Consume{ID: "q", Start: &tailracev1.ConsumeStart{Group: "billing", Topics: []string{"orders"}}},
		`{"op":"consume","id":"q","topics":["orders","bills"],"group":"billing","initial":"latest","maxInFlight":10000,"ackTimeoutMs":1500,"maxAttempts":1000,
		  "deadLetter":"orders.dlq","ordering":"none","autoAck":true}`: &frame.Consume{ID: "q", Start: &tailracev1.ConsumeStart{
			Group: "billing", Topics: []string{"orders", "bills"}, Initial: tailracev1.InitialPosition_INITIAL_POSITION_LATEST, MaxInFlight: 10_000,
			AckTimeout: durationpb.New(1500 * time.Millisecond), MaxAttempts: 1000, DeadLetterTopic: "orders.dlq",
			Ordering: tailracev1.Ordering_ORDERING_NONE, AutoAck: true,
		}},
		`{"op":"ack","id":"q","tags":[17,19],"upTo":16}`: settle("ack", []int64{17, 19}, &tailracev1.ConsumeRequest{
			Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: []int64{17, 19}, UpTo: 16}},
		}),
		`{"op":"ack","id":"q","upTo":9007199254740991}`: settle("ack", nil, &tailracev1.ConsumeRequest{
			Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{UpTo: 1<<53 - 1}},
		}),
		`{"op":"nack","id":"q","tags":[18],"delayMs":250,"reason":"no such customer"}`: settle("nack", []int64{18}, &tailracev1.ConsumeRequest{
			Event: &tailracev1.ConsumeRequest_Nack{Nack: &tailracev1.Nack{Tags: []int64{18}, Delay: durationpb.New(250 * time.Millisecond), Reason: "no such customer"}},
		}),

		`{"op":"subscribe","id":"a","topic":"orders"}`: sub("a", frame.AsAuto, hub.Request{Topic: "orders"}),
		`{"op":"subscribe","id":"a","topic":"orders","topicId":"T","keys":["k1",{"base64":"/+8="},{"base64":"_-8"},""],"partitions":[0,1],
		  "start":"latest","until":"end","onOutOfRange":"earliest","slow":"catchup","as":"auto","maxRecordBytes":0}`: sub("a", frame.AsAuto, hub.Request{
			Topic: "orders", TopicID: "T", Keys: [][]byte{[]byte("k1"), {0xff, 0xef}, {0xff, 0xef}, {}}, Partitions: []int32{0, 1}, Stop: hub.Stop{AtEnd: true},
		}),
		`{"op":"subscribe","id":"a","topic":"o","start":"earliest","onOutOfRange":"fail","slow":"conflate","as":"base64","maxRecordBytes":9}`: sub("a", frame.AsBase64, hub.Request{
			Topic: "o", Start: hub.Start{Kind: hub.Earliest}, OnOutOfRange: hub.OutOfRangeFail, Slow: hub.SlowConflate, MaxRecordBytes: 9,
		}),
		`{"op":"subscribe","id":"a","topic":"o","start":{"positions":{"0":12,"1":[40,3]},"missing":"skip"},"until":{"positions":{"0":20}}}`: sub("a", frame.AsAuto, hub.Request{
			Topic: "o", Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{at(0, 12, -1), at(1, 40, 3)}, Missing: hub.MissingSkip},
			Stop: hub.Stop{Positions: []hub.Position{at(0, 20, -1)}},
		}),
		`{"op":"subscribe","id":"a","topic":"o","start":{"time":"2026-11-30T13:00:00+01:00"},"until":{"records":100}}`: sub("a", frame.AsAuto, hub.Request{
			Topic: "o", Start: hub.Start{Kind: hub.AtTime, Time: noon}, Stop: hub.Stop{Records: 100},
		}),
		`{"op":"subscribe","id":"a","topic":"o","start":{"last":10}}`: sub("a", frame.AsAuto, hub.Request{Topic: "o", Start: hub.Start{Kind: hub.Last, Last: 10}}),
		`{"op":"subscribe","id":"a","topic":"o","start":{"positions":{"0":9007199254740991}}}`: sub("a", frame.AsAuto, hub.Request{
			Topic: "o", Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{at(0, 1<<53-1, -1)}},
		}),

		`{"op":"publish","id":"p1","topic":"orders","key":"k1","value": { "any" : "json" } ,"headers":[["h","v"],["h",null],["b",{"base64":"gA=="}]],"partition":3}`: pub(&tailracev1.PublishRecord{
			Key: []byte("k1"), Value: []byte(`{ "any" : "json" }`), Partition: new(int32(3)),
			Headers: []*tailracev1.Header{{Name: "h", Value: []byte("v")}, {Name: "h"}, {Name: "b", Value: []byte{0x80}}},
		}),
		`{"op":"publish","id":"p1","topic":"orders","value":null}`:                       pub(&tailracev1.PublishRecord{Value: []byte("null")}),
		`{"op":"publish","id":"p1","topic":"orders","value":"\ud800\u00e9"}`:             pub(&tailracev1.PublishRecord{Value: []byte(`"\ud800\u00e9"`)}),
		`{"op":"publish","id":"p1","topic":"orders","value":1.0e+2}`:                     pub(&tailracev1.PublishRecord{Value: []byte("1.0e+2")}),
		`{"op":"publish","id":"p1","topic":"orders","value":{"a":1,"a":2}}`:              pub(&tailracev1.PublishRecord{Value: []byte(`{"a":1,"a":2}`)}),
		`{"op":"publish","id":"p1","topic":"orders","text":"a\u0000\n","key":""}`:        pub(&tailracev1.PublishRecord{Value: []byte("a\x00\n"), Key: []byte{}}),
		`{"op":"publish","id":"p1","topic":"orders","text":""}`:                          pub(&tailracev1.PublishRecord{Value: []byte{}}),
		`{"op":"publish","id":"p1","topic":"orders","base64":"AP8=","keyBase64":"/w=="}`: pub(&tailracev1.PublishRecord{Value: []byte{0, 0xff}, Key: []byte{0xff}}),
		`{"op":"publish","id":"p1","topic":"orders","base64":""}`:                        pub(&tailracev1.PublishRecord{Value: []byte{}}),
		`{"op":"publish","id":"p1","topic":"orders","tombstone":true}`:                   pub(&tailracev1.PublishRecord{}),
	} {
		in := []byte(msg)
		op, bad := frame.Parse(in)
		clear(in) // what Parse returns must not lie in the message
		if bad != nil {
			t.Errorf("%s: refused: %+v", msg, bad)
			continue
		}
		if !equal(op, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", msg, op, want)
		}
	}
}

// equal compares ops; absent and empty bytes differ, times are compared as times.
func equal(a, b frame.Op) bool {
	switch a := a.(type) {
	case *frame.Publish:
		b, ok := b.(*frame.Publish)
		return ok && a.ID == b.ID && a.Topic == b.Topic && proto.Equal(a.Record, b.Record) && (a.Record.Value == nil) == (b.Record.Value == nil)
	case *frame.Consume:
		b, ok := b.(*frame.Consume)
		return ok && a.ID == b.ID && proto.Equal(a.Start, b.Start)
	case *frame.Settle:
		b, ok := b.(*frame.Settle)
		return ok && a.ID == b.ID && a.Op == b.Op && slices.Equal(a.Tags, b.Tags) && proto.Equal(a.Request, b.Request)
	case *frame.Subscribe:
		b, ok := b.(*frame.Subscribe)
		if !ok || !a.Request.Start.Time.Equal(b.Request.Start.Time) {
			return false
		}
		x, y := *a, *b
		x.Request.Start.Time, y.Request.Start.Time = time.Time{}, time.Time{}
		return reflect.DeepEqual(x, y)
	default:
		return reflect.DeepEqual(a, b)
	}
}

func TestParseRefusesByName(t *testing.T) {
	subscribe := func(more string) string { return `{"op":"subscribe","id":"a","topic":"orders",` + more + `}` }
	publish := func(more string) string { return `{"op":"publish","id":"p1","topic":"orders",` + more + `}` }
	for _, c := range []struct{ msg, re, id, reason, text string }{
		{`{}`, "frame", "", "INVALID_ARGUMENT", "op"},
		{`{"op":7,"id":"a"}`, "frame", "a", "INVALID_ARGUMENT", "op"},
		{`{"op":"subscirbe","id":"a"}`, "frame", "a", "UNKNOWN_OP", `"subscirbe"`},
		{`{"op":"Subscribe","id":"a"}`, "frame", "a", "UNKNOWN_OP", `"Subscribe"`},
		{`{"OP":"ping","id":"a"}`, "frame", "a", "INVALID_ARGUMENT", "op"},
		{`{"op":"` + strings.Repeat("é", 500) + `"}`, "frame", "", "UNKNOWN_OP", "…"},
		{`{"op":"ping"}`, "frame", "", "INVALID_ARGUMENT", "id"},
		{`{"op":"ping","id":""}`, "frame", "", "INVALID_ARGUMENT", "id"},
		{`{"op":"ping","id":7}`, "frame", "", "INVALID_ARGUMENT", "id"},
		{`{"op":"ping","id":"` + strings.Repeat("é", 33) + `"}`, "frame", "", "INVALID_ARGUMENT", "id"},
		{`{"op":"ping","id":"\ud800"}`, "frame", "", "INVALID_ARGUMENT", "id"},
		{`{"op":"ping","id":"\udc00\ud800"}`, "frame", "", "INVALID_ARGUMENT", "id"},
		{`{"op":"ping","id":"a","id":"b"}`, "frame", "a", "INVALID_ARGUMENT", "id: is given twice"},
		{`{"op":"ping","id":"a","\u0069d":"b"}`, "frame", "a", "INVALID_ARGUMENT", "id: is given twice"},
		{`{"op":"ping","id":"a","more":1}`, "frame", "a", "INVALID_ARGUMENT", "more: unknown field"},
		{`{"op":"unsubscribe","id":"a","topic":"t"}`, "unsubscribe", "a", "INVALID_ARGUMENT", "topic: unknown field"},
		{`{"op":"subscribe","id":"a"}`, "subscribe", "a", "INVALID_ARGUMENT", "topic"},
		{`{"op":"subscribe","id":"a","topic":""}`, "subscribe", "a", "INVALID_ARGUMENT", "topic"},
		{`{"op":"subscribe","id":"a","topic":null}`, "subscribe", "a", "INVALID_ARGUMENT", "topic"},
		{subscribe(`"Start":"earliest"`), "subscribe", "a", "INVALID_ARGUMENT", "Start: unknown field"},
		{subscribe(`"strat":"earliest"`), "subscribe", "a", "INVALID_ARGUMENT", "strat: unknown field"},
		{subscribe(`"start":"latest","start":"earliest"`), "subscribe", "a", "INVALID_ARGUMENT", "start: is given twice"},
		{subscribe(`"start":"newest"`), "subscribe", "a", "INVALID_ARGUMENT", "start"},
		{subscribe(`"start":5`), "subscribe", "a", "INVALID_ARGUMENT", "start"},
		{subscribe(`"start":[]`), "subscribe", "a", "INVALID_ARGUMENT", "start"},
		{subscribe(`"start":null`), "subscribe", "a", "INVALID_ARGUMENT", "start"},
		{subscribe(`"start":{}`), "subscribe", "a", "INVALID_ARGUMENT", "start"},
		{subscribe(`"start":{"last":10,"time":"2026-11-30T12:00:00Z"}`), "subscribe", "a", "INVALID_ARGUMENT", "start"},
		{subscribe(`"start":{"last":0}`), "subscribe", "a", "INVALID_ARGUMENT", "start.last"},
		{subscribe(`"start":{"last":100001}`), "subscribe", "a", "INVALID_ARGUMENT", "start.last"},
		{subscribe(`"start":{"last":10.0}`), "subscribe", "a", "INVALID_ARGUMENT", "start.last"},
		{subscribe(`"start":{"last":1e1}`), "subscribe", "a", "INVALID_ARGUMENT", "start.last"},
		{subscribe(`"start":{"last":"10"}`), "subscribe", "a", "INVALID_ARGUMENT", "start.last"},
		{subscribe(`"start":{"last":10,"missing":"skip"}`), "subscribe", "a", "INVALID_ARGUMENT", "start.missing: unknown field"},
		{subscribe(`"start":{"time":"yesterday"}`), "subscribe", "a", "INVALID_ARGUMENT", "start.time"},
		{subscribe(`"start":{"positions":{}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions"},
		{subscribe(`"start":{"positions":{"0":-1}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.0"},
		{subscribe(`"start":{"positions":{"0":9007199254740992}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.0"},
		{subscribe(`"start":{"positions":{"0":[1]}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.0"},
		{subscribe(`"start":{"positions":{"0":[1,2,3]}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.0"},
		{subscribe(`"start":{"positions":{"00":1}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.00"},
		{subscribe(`"start":{"positions":{"-1":1}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.-1"},
		{subscribe(`"start":{"positions":{"2147483648":1}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.2147483648"},
		{subscribe(`"start":{"positions":{"0":1,"0":2}}`), "subscribe", "a", "INVALID_ARGUMENT", "start.positions.0: is given twice"},
		{subscribe(`"start":{"positions":{"0":1},"missing":"no"}`), "subscribe", "a", "INVALID_ARGUMENT", "start.missing"},
		{subscribe(`"until":"never"`), "subscribe", "a", "INVALID_ARGUMENT", "until"},
		{subscribe(`"until":{"records":0}`), "subscribe", "a", "INVALID_ARGUMENT", "until.records"},
		{subscribe(`"until":{"bytes":10}`), "subscribe", "a", "INVALID_ARGUMENT", "until.bytes: unknown field"},
		{subscribe(`"until":{"records":1,"positions":{"0":1}}`), "subscribe", "a", "INVALID_ARGUMENT", "until"},
		{subscribe(`"keys":"k"`), "subscribe", "a", "INVALID_ARGUMENT", "keys"},
		{subscribe(`"keys":[]`), "subscribe", "a", "INVALID_ARGUMENT", "keys: must not be empty"},
		{subscribe(`"keys":[1]`), "subscribe", "a", "INVALID_ARGUMENT", "keys.0"},
		{subscribe(`"keys":["a",{"base64":"?"}]`), "subscribe", "a", "INVALID_ARGUMENT", "keys.1.base64"},
		{subscribe(`"keys":[{"base64":"YQ==\n"}]`), "subscribe", "a", "INVALID_ARGUMENT", "keys.0.base64"},
		{subscribe(`"keys":[{"base64":"YR=="}]`), "subscribe", "a", "INVALID_ARGUMENT", "keys.0.base64"},
		{subscribe(`"keys":[{"Base64":"YQ=="}]`), "subscribe", "a", "INVALID_ARGUMENT", "keys.0.base64: is required"},
		{subscribe(`"keys":["` + strings.Repeat("k", 64<<10) + `","k"]`), "subscribe", "a", "INVALID_ARGUMENT", "keys"},
		{subscribe(`"keys":[` + strings.Repeat(`"k",`, 1000) + `"k"]`), "subscribe", "a", "INVALID_ARGUMENT", "keys"},
		{subscribe(`"partitions":[]`), "subscribe", "a", "INVALID_ARGUMENT", "partitions: must not be empty"},
		{subscribe(`"partitions":[-1]`), "subscribe", "a", "INVALID_ARGUMENT", "partitions"},
		{subscribe(`"partitions":[1.5]`), "subscribe", "a", "INVALID_ARGUMENT", "partitions"},
		{subscribe(`"partitions":{"0":1}`), "subscribe", "a", "INVALID_ARGUMENT", "partitions"},
		{subscribe(`"onOutOfRange":"skip"`), "subscribe", "a", "INVALID_ARGUMENT", "onOutOfRange: must be one of earliest, fail, latest"},
		{subscribe(`"slow":"catch_up"`), "subscribe", "a", "INVALID_ARGUMENT", "slow"},
		{subscribe(`"as":"JSON"`), "subscribe", "a", "INVALID_ARGUMENT", "as"},
		{subscribe(`"maxRecordBytes":-1`), "subscribe", "a", "INVALID_ARGUMENT", "maxRecordBytes"},
		{subscribe(`"` + strings.Repeat("x", 100_000) + `":1`), "subscribe", "a", "INVALID_ARGUMENT", "xxx…: unknown field"},
		{publish(`"key":"k"`), "publish", "p1", "INVALID_ARGUMENT", "exactly one of value, text, base64 and tombstone"},
		{publish(`"value":1,"text":"a"`), "publish", "p1", "INVALID_ARGUMENT", "exactly one"},
		{publish(`"value":null,"tombstone":true`), "publish", "p1", "INVALID_ARGUMENT", "exactly one"},
		{publish(`"text":null`), "publish", "p1", "INVALID_ARGUMENT", "text"},
		{publish(`"text":"\ud800"`), "publish", "p1", "INVALID_ARGUMENT", "text"},
		{publish(`"base64":"a"`), "publish", "p1", "INVALID_ARGUMENT", "base64"},
		{publish(`"tombstone":false`), "publish", "p1", "INVALID_ARGUMENT", "tombstone"},
		{publish(`"value":1,"key":null`), "publish", "p1", "INVALID_ARGUMENT", "key"},
		{publish(`"value":1,"key":"a","keyBase64":"YQ=="`), "publish", "p1", "INVALID_ARGUMENT", "keyBase64"},
		{publish(`"value":1,"headers":{"h":"v"}`), "publish", "p1", "INVALID_ARGUMENT", "headers"},
		{publish(`"value":1,"headers":[["h"]]`), "publish", "p1", "INVALID_ARGUMENT", "headers.0"},
		{publish(`"value":1,"headers":[["h","v","w"]]`), "publish", "p1", "INVALID_ARGUMENT", "headers.0"},
		{publish(`"value":1,"headers":[["h",1]]`), "publish", "p1", "INVALID_ARGUMENT", "headers.0"},
		{publish(`"value":1,"headers":[[null,"v"]]`), "publish", "p1", "INVALID_ARGUMENT", "headers.0"},
		{publish(`"value":1,"headers":[["a\u0000b","v"]]`), "publish", "p1", "INVALID_ARGUMENT", "headers.0"},
		{publish(`"value":1,"partition":-1`), "publish", "p1", "INVALID_ARGUMENT", "partition"},
		{publish(`"value":1,"Key":"k"`), "publish", "p1", "INVALID_ARGUMENT", "Key: unknown field"},
	} {
		op, e := frame.Parse([]byte(c.msg))
		if op != nil || e == nil {
			t.Errorf("%.200s: accepted as %+v", c.msg, op)
			continue
		}
		if e.Re != c.re || e.ID != c.id || e.Reason != c.reason || e.Code != "invalid_argument" || e.Close != 0 || !strings.Contains(e.Message, c.text) || len(e.Message) > 300 {
			t.Errorf("%.200s: got %+v, want re %s, id %s, reason %s, naming %s", c.msg, e, c.re, c.id, c.reason, c.text)
		}
		if want := c.re == "subscribe"; e.Final != want {
			t.Errorf("%.200s: final is %v", c.msg, e.Final)
		}
		if got, want := e.Outcome == "refused", c.re == "publish"; got != want {
			t.Errorf("%.200s: outcome %q", c.msg, e.Outcome)
		}
	}
}

func TestParseClosesWhatIsNotAnObject(t *testing.T) {
	for _, msg := range append(jsonSeeds(),
		`{"op":"ping","id":"x"}}`, `[{"op":"ping","id":"x"}]`, `"{}"`, `{"op":"ping","id":"x",}`, `{'op':'ping'}`, "{\"op\":\"ping\",\"id\":\"\xff\"}",
		`{"op":"publish","id":"p","topic":"t","value":`+strings.Repeat("[", 10_001)+strings.Repeat("]", 10_001)+`}`,
	) {
		if frame.ValidJSON([]byte(strings.TrimSpace(msg)), frame.MaxDepth) && strings.HasPrefix(strings.TrimSpace(msg), "{") {
			continue
		}
		op, e := frame.Parse([]byte(msg))
		if op != nil || e == nil || e.Close != frame.CloseBadFrame || e.Re != "frame" {
			t.Errorf("%.100q: got %+v, %+v", msg, op, e)
		}
	}
}

// TestParseStopsAtItsLimits: a list that is too long is refused as such, without a look at what is in it.
func TestParseStopsAtItsLimits(t *testing.T) {
	many := strings.Repeat(`"",`, 500_000) + `""`
	for op, field := range map[string]string{
		`{"op":"subscribe","id":"a","topic":"t","keys":[` + many + `]}`:                   "keys",
		`{"op":"subscribe","id":"a","topic":"t","partitions":[` + many + `]}`:             "partitions",
		`{"op":"publish","id":"a","topic":"t","tombstone":true,"headers":[` + many + `]}`: "headers",
	} {
		_, e := frame.Parse([]byte(op))
		if e == nil || !strings.Contains(e.Message, field) || !strings.Contains(e.Message, "at most") {
			t.Errorf("got %+v", e)
		}
		if allocs := testing.AllocsPerRun(1, func() { _, _ = frame.Parse([]byte(op)) }); allocs > 1000 {
			t.Errorf("%s: %v allocations", field, allocs)
		}
	}
}

func TestParseIsQuickWithManyNames(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"op":"subscribe","id":"a","topic":"t","start":{"positions":{"0":1`)
	for i := range 150_000 {
		fmt.Fprintf(&b, `,"x%d":1`, i)
	}
	b.WriteString(`}}}`)
	_, e := frame.Parse([]byte(b.String()))
	if e == nil || !strings.Contains(e.Message, "start.positions") {
		t.Errorf("got %+v", e)
	}
}

// FuzzParse: nothing panics, exactly one result, ids are in bounds, publish values stay JSON, answers are legal frames.
func FuzzParse(f *testing.F) {
	for _, s := range jsonSeeds() {
		f.Add([]byte(s))
	}
	for _, s := range []string{
		`{"op":"subscribe","id":"a","topic":"orders","topicId":"T","keys":["k1",{"base64":"/+8="}],"partitions":[0,1],"start":{"positions":{"0":12,"1":[40,3]},"missing":"skip"},"until":{"positions":{"0":20}}}`,
		`{"op":"publish","id":"p1","topic":"orders","key":"k1","value":{"any":"json"},"headers":[["h","v"],["h",null],["b",{"base64":"gA=="}]],"partition":3}`,
		`{"op":"publish","id":"p1","topic":"orders","keyBase64":"/w==","text":"\ud83d\ude00"}`, `{"op":"ack","id":"q","tags":[1]}`, `{"op":"ping","id":"x"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		op, e := frame.Parse(msg)
		if (op == nil) == (e == nil) {
			t.Fatalf("%q: %v, %v", msg, op, e)
		}
		if e != nil {
			if b := frame.AppendError(nil, e); !json.Valid(b) || !frame.ValidJSON(b, 9) {
				t.Fatalf("%q: answered %q", msg, b)
			}
			return
		}
		if p, ok := op.(*frame.Publish); ok && p.Record.Value != nil {
			var m map[string]json.RawMessage
			if err := json.Unmarshal(msg, &m); err != nil {
				t.Fatal(err)
			}
			if v, ok := m["value"]; ok && string(v) != string(p.Record.Value) {
				t.Fatalf("%q: value %q, want %q", msg, p.Record.Value, v)
			}
		}
	})
}
