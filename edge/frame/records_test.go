package frame_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"tailrace.dev/tailrace/edge/frame"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// entry is an entry of one partition with these records.
func entry(tb testing.TB, records ...*tailracev1.Record) *hub.Entry {
	tb.Helper()
	e := &hub.Entry{Kind: hub.Records, End: -1}
	for i, r := range records {
		b, err := proto.Marshal(r)
		if err != nil {
			tb.Fatal(err)
		}
		e.Body = protowire.AppendBytes(protowire.AppendTag(e.Body, 2, protowire.BytesType), b)
		e.Meta = append(e.Meta, hub.Meta{Offset: r.GetOffset(), Time: -1, End: int32(len(e.Body)), Key: -1, Epoch: -1})
		e.Partition = r.GetPartition()
		if i == 0 {
			e.From = r.GetOffset()
		}
		e.Next = r.GetOffset() + 1
	}
	return e
}

func whole(e *hub.Entry) hub.Part {
	return hub.Part{Entry: e, Hi: len(e.Meta), From: e.From, Next: e.Next}
}

// reference is the JSON of a record as design and README describe it, by encoding/json.
func reference(r *tailracev1.Record, as frame.As) map[string]any {
	m := map[string]any{"topic": r.GetTopic(), "partition": json.Number(itoa(int64(r.GetPartition()))), "offset": json.Number(itoa(r.GetOffset()))}
	if r.Time != nil {
		m["time"] = json.Number(itoa(r.Time.AsTime().UnixMilli()))
		if r.TimeType == tailracev1.TimestampType_TIMESTAMP_TYPE_APPEND {
			m["timeType"] = "append"
		}
	}
	if r.LeaderEpoch != nil && *r.LeaderEpoch >= 0 {
		m["epoch"] = json.Number(itoa(int64(*r.LeaderEpoch)))
	}
	switch {
	case r.Key == nil:
	case utf8.Valid(r.Key):
		m["key"] = string(r.Key)
	default:
		m["keyBase64"] = base64.StdEncoding.EncodeToString(r.Key)
	}
	if len(r.Headers) > 0 {
		var hs []any
		for _, h := range r.Headers {
			var v any
			switch {
			case h.Value == nil:
			case utf8.Valid(h.Value):
				v = string(h.Value)
			default:
				v = map[string]any{"base64": base64.StdEncoding.EncodeToString(h.Value)}
			}
			hs = append(hs, []any{h.GetName(), v})
		}
		m["headers"] = hs
	}
	isJSON := oracle(r.Value) && frame.ValidJSON(r.Value, frame.MaxValueDepth)
	switch {
	case r.Value == nil:
		m["tombstone"] = true
	case isJSON && (as == frame.AsAuto || as == frame.AsJSON):
		m["value"] = decode(r.Value)
	case utf8.Valid(r.Value) && (as == frame.AsAuto || as == frame.AsText):
		m["text"] = string(r.Value)
	default:
		m["base64"] = base64.StdEncoding.EncodeToString(r.Value)
	}
	return m
}

func itoa(n int64) string { return string(mustMarshal(n)) }

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// decode is a JSON text as maps, slices and exact numbers.
func decode(b []byte) any {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

func forms() []frame.As {
	return []frame.As{frame.AsAuto, frame.AsJSON, frame.AsText, frame.AsBase64}
}

// checkRecord compares the JSON of an encoded record with the reference, for each form.
func checkRecord(t *testing.T, b []byte) {
	t.Helper()
	piece := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), b)
	e := &hub.Entry{Kind: hub.Records, Body: piece, Meta: []hub.Meta{{End: int32(len(piece)), Key: -1}}}
	var r tailracev1.Record
	// A time that no int64 of milliseconds can hold never came from Kafka.
	legal := proto.Unmarshal(b, &r) == nil && (r.Time == nil || r.Time.CheckValid() == nil)
	for _, as := range forms() {
		f := frame.Encode(e, as)
		if !utf8.Valid(f.Body) {
			t.Fatalf("%x: invalid UTF-8: %q", b, f.Body)
		}
		if len(f.Ends) != 1 || int(f.Ends[0]) != len(f.Body) || f.Body[len(f.Body)-1] != ',' {
			t.Fatalf("%x: the piece does not end with its comma: %q", b, f.Body)
		}
		object := f.Body[:len(f.Body)-1]
		if !json.Valid(object) {
			t.Fatalf("%x: invalid JSON: %q", b, object)
		}
		if !legal {
			continue
		}
		if got, want := decode(object), reference(&r, as); !reflect.DeepEqual(got, any(want)) {
			t.Fatalf("%x as %d:\n got %v\nwant %v", b, as, got, want)
		}
		members, _ := decode(object).(map[string]any)
		if members["value"] != nil && !bytes.Contains(object, r.Value) {
			t.Fatalf("%x: value is not verbatim: %q", b, object)
		}
	}
}

func sampleRecords() []*tailracev1.Record {
	epoch := int32(7)
	at := timestamppb.New(time.UnixMilli(1764518400123))
	return []*tailracev1.Record{
		{},
		{Topic: "orders", Partition: 3, Offset: 12, Time: at, Key: []byte("k1"), Value: []byte(`{"any":"json"}`)},
		{Topic: "orders", Offset: math.MaxInt64, LeaderEpoch: &epoch, Time: at, TimeType: tailracev1.TimestampType_TIMESTAMP_TYPE_APPEND, Value: []byte("plain \"text\"\n")},
		{Topic: "orders", Key: []byte{}, Value: []byte{}},
		{Topic: "orders", Key: []byte{0xff, 0}, Value: []byte{0xff}},
		{Topic: "orders", Value: []byte(" {}")},
		{Topic: "orders", Value: []byte("null")},
		{Topic: "orders", Value: []byte(`"\ud800"`)},
		{Topic: "orders", Value: []byte("12345678901234567890")},
		{Topic: "orders", Value: []byte("\u2028 \u00e9 \U0001f600")},
		{Topic: "orders", Value: []byte(strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999))},
		{Topic: "orders", Value: []byte(`"text with a control character ` + "\x01" + `"`)},
		{Topic: "t", Time: timestamppb.New(time.UnixMilli(0))},
		{Topic: "t", Time: timestamppb.New(time.Unix(-2, 999_999_999))},
		{Topic: "t", Headers: []*tailracev1.Header{{Name: "h", Value: []byte("v")}, {Name: "h"}, {Name: "", Value: []byte{}}, {Name: "b", Value: []byte{0x80}}}},
		{Topic: "t", Headers: []*tailracev1.Header{{}}, Value: bytes.Repeat([]byte("long"), 300)},
	}
}

func TestRecordsAreWhatTheReferenceSays(t *testing.T) {
	for _, r := range sampleRecords() {
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		checkRecord(t, b)
	}
}

func TestRandomRecordsAreWhatTheReferenceSays(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	payload := func() []byte {
		alphabet := []string{"a", "{", "}", "\"", "\\", "é", "\xff", "\n", "1", ":", "[", "]", ",", "\u2028", "null", " "}
		switch rng.IntN(5) {
		case 0:
			return nil
		case 1:
			return mustMarshal(map[string]any{"n": rng.IntN(1000), "s": strings.Repeat("é\"x", rng.IntN(9)), "a": []any{nil, true, 1.5e-9}})
		default:
			var b []byte
			for range rng.IntN(40) {
				b = append(b, alphabet[rng.IntN(len(alphabet))]...)
			}
			return append([]byte{}, b...)
		}
	}
	for range 1000 {
		r := &tailracev1.Record{Topic: "t", Partition: rng.Int32N(1000), Offset: rng.Int64N(1 << 50), Key: payload(), Value: payload()}
		if rng.IntN(2) == 0 {
			r.Time = &timestamppb.Timestamp{Seconds: rng.Int64N(1 << 32), Nanos: rng.Int32N(1e9)}
			r.TimeType = tailracev1.TimestampType(rng.Int32N(3))
		}
		for range rng.IntN(3) {
			r.Headers = append(r.Headers, &tailracev1.Header{Name: strings.ToValidUTF8(string(payload()), "?"), Value: payload()})
		}
		b, err := proto.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		checkRecord(t, b)
	}
}

func FuzzRecord(f *testing.F) {
	for _, r := range sampleRecords() {
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 1000 {
			f.Add(b)
			f.Add(append(b, 0x22, 0x02, 0x08, 0x05, 0x5b, 0x08, 0x01, 0x5c)) // a second time, an unknown group
		}
	}
	f.Fuzz(checkRecord)
}

func TestEntriesAreRenderedRecordByRecord(t *testing.T) {
	e := entry(t, sampleRecords()...)
	for _, as := range forms() {
		f := frame.Encode(e, as)
		var from int32
		for i := range e.Meta {
			one := frame.Encode(entry(t, sampleRecords()[i]), as)
			if got, want := string(f.Body[from:f.Ends[i]]), string(one.Body); got != want {
				t.Errorf("record %d: got %s, want %s", i, got, want)
			}
			from = f.Ends[i]
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	for name, size := range map[string]int{"128B": 128, "1KB": 1024} {
		text := `{"kind":"order","id":123456,"customer":"Zoë","items":[{"sku":"A-1","n":2},{"sku":"B-7","n":1}],"note":"`
		value := []byte(text + strings.Repeat("x", size-len(text)-2) + `"}`)
		var records []*tailracev1.Record
		for i := range 100 {
			records = append(records, &tailracev1.Record{
				Topic: "orders", Partition: 3, Offset: int64(1_000_000 + i), Time: timestamppb.Now(), TimeType: 1, Key: []byte("customer-1234"), Value: value,
			})
		}
		e := entry(b, records...)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				frame.Encode(e, frame.AsAuto)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/record")
		})
		b.Run(name+"/encoding-json-valid-only", func(b *testing.B) {
			for b.Loop() {
				for range 100 {
					_ = json.Valid(value)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/record")
		})
	}
}
