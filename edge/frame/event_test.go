package frame_test

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

func TestEventIDs(t *testing.T) {
	t.Parallel()
	const topicID = "3Kf0lqQ2T1uVb6n0y4dXzA"
	many := make([]hub.Position, frame.MaxEventPartitions)
	for i := range many {
		many[i] = hub.Position{Partition: int32(i), Offset: 1<<53 - 1 - int64(i%2)<<52, Epoch: math.MaxInt32 * int32(i%2)}
	}
	for name, id := range map[string]frame.EventID{
		"done":         {Done: true},
		"nothing":      {TopicID: topicID},
		"no topic id":  {Positions: []hub.Position{{Partition: 3, Offset: 7, Epoch: -1}}},
		"one":          {TopicID: topicID, Positions: []hub.Position{{Partition: 0, Offset: 0, Epoch: 0}}},
		"the extremes": {TopicID: topicID, Positions: []hub.Position{{Partition: math.MaxInt32, Offset: 1<<53 - 1, Epoch: math.MaxInt32}}},
		"with holes":   {TopicID: topicID, Positions: []hub.Position{{Partition: 1, Offset: 10, Epoch: 3}, {Partition: 4, Offset: 5, Epoch: -1}, {Partition: 5, Offset: 5, Epoch: 9}}},
		"the most":     {TopicID: topicID, Positions: many},
	} {
		text := string(frame.AppendEventID(nil, &id))
		if len(text) > 5000 || strings.ContainsAny(text, " \t\r\n\x00+/=") {
			t.Errorf("%s: %d characters: %q", name, len(text), text)
		}
		got, err := frame.ParseEventID(text)
		if err != nil || !reflect.DeepEqual(got, &id) {
			t.Errorf("%s: got %.200s, %v, want %.200s", name, fmt.Sprintf("%+v", got), err, fmt.Sprintf("%+v", id))
		}
		for i := range len(text) {
			if cut, err := frame.ParseEventID(text[:i]); err == nil && !reflect.DeepEqual(cut, &frame.EventID{Done: true}) {
				t.Errorf("%s: cut to %q it is taken for %+v", name, text[:i], cut)
			}
		}
	}
	usual := make([]hub.Position, 12)
	for i := range usual {
		usual[i] = hub.Position{Partition: int32(i), Offset: 1_000_000 + int64(i)*999, Epoch: 4}
	}
	if n := len(frame.AppendEventID(nil, &frame.EventID{TopicID: topicID, Positions: usual})); n > 110 {
		t.Errorf("twelve partitions take %d characters", n)
	}
}

func TestBadEventIDs(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "!", "A", "AA=", "AAA", "Ag", "AQ", "AQAB", "AQAAAA", "AQD", "AQX_", "AQFhAQAAAAA", "AQP__38BAAAA", strings.Repeat("A", 9000),
		"AQAB" + strings.Repeat("_", 16), "AQACAAAAAAAA-_",
	} {
		if id, err := frame.ParseEventID(s); err == nil {
			t.Errorf("%q was taken for %+v", s, id)
		}
	}
}

func FuzzEventID(f *testing.F) {
	for _, s := range []string{"", "AA", "AQA", "AQAA", "AQABAAAA"} {
		f.Add(s)
	}
	f.Add(string(frame.AppendEventID(nil, &frame.EventID{TopicID: "abc", Positions: []hub.Position{{Partition: 2, Offset: 99, Epoch: 1}, {Partition: 9, Offset: 1, Epoch: -1}}})))
	f.Fuzz(func(t *testing.T, s string) {
		id, err := frame.ParseEventID(s)
		if err != nil {
			return
		}
		last := int32(-1)
		for _, p := range id.Positions {
			if p.Partition <= last || p.Offset < 0 || p.Epoch < -1 {
				t.Fatalf("%q has %+v behind partition %d", s, p, last)
			}
			last = p.Partition
		}
		again, err := frame.ParseEventID(string(frame.AppendEventID(nil, id)))
		if err != nil || !reflect.DeepEqual(again, id) {
			t.Fatalf("%q: %+v became %+v, %v", s, id, again, err)
		}
	})
}

// parseEvent reads one event as the HTML standard says, section 9.2.6.
func parseEvent(t *testing.T, text []byte) (name, id, data string) {
	t.Helper()
	var lines []string
	in := bufio.NewScanner(bytes.NewReader(bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))))
	in.Buffer(nil, 1<<20)
	ended := false
	for in.Scan() {
		field, value, _ := strings.Cut(in.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case ended:
			t.Fatalf("more than one event: %q", text)
		case field == "":
			ended = true
		case field == "event":
			name = value
		case field == "id":
			id = value
		case field == "data":
			lines = append(lines, value)
		default:
			t.Fatalf("field %q in %q", field, text)
		}
	}
	if !ended {
		t.Fatalf("unfinished: %q", text)
	}
	return name, id, strings.Join(lines, "\n")
}

// TestEventsCarryTheirData: what a client reads is the data, each line break an LF.
func TestEventsCarryTheirData(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	datas := []string{"", " ", "x", "[]", "\n", "\r", "\r\n", "\n\r", " a\n b\r\n\r\nc\r", "{\"a\":\r\n  1}", "data: x\nid: y\n\nz", ":\n"}
	for range 300 {
		var b strings.Builder
		for range rng.IntN(30) {
			b.WriteString([]string{"\r", "\n", "\r\n", " ", "a", "é", ":"}[rng.IntN(7)])
		}
		datas = append(datas, b.String())
	}
	for _, data := range datas {
		want := strings.ReplaceAll(strings.ReplaceAll(data, "\r\n", "\n"), "\r", "\n")
		name, id, got := parseEvent(t, frame.AppendEvent(nil, "gap", []byte("AA"), []byte(data)))
		if name != "gap" || id != "AA" || got != want {
			t.Errorf("%q: got %q, %q, %q", data, name, id, got)
		}
		if name, id, got := parseEvent(t, frame.AppendEvent(nil, "", nil, []byte(data))); name != "" || id != "" || got != want {
			t.Errorf("%q, bare: got %q, %q, %q", data, name, id, got)
		}
	}
	if name, id, data := parseEvent(t, frame.AppendEventPlace(nil, []byte("AA"))); name != "" || id != "AA" || data != "" {
		t.Errorf("a place: got %q, %q, %q", name, id, data)
	}
}

func TestEventsURL(t *testing.T) {
	t.Parallel()
	at := func(offset int64) string {
		return string(frame.AppendEventID(nil, &frame.EventID{TopicID: "T", Positions: []hub.Position{{Partition: 1, Offset: offset, Epoch: 2}}}))
	}
	for _, c := range []struct {
		name, query string
		header      []string
		want        string
	}{
		{"first", "start=earliest&key=k", nil, "earliest"},
		{"header", "start=earliest&key=k", []string{at(7)}, "T 7"},
		{"empty header", "start=earliest", []string{""}, "earliest"},
		{"parameter", "key=k&lastEventId=" + at(8), nil, "T 8"},
		{"both", "lastEventId=" + at(8), []string{at(7)}, "T 7"},
		{"empty parameter", "start=earliest&lastEventId=", nil, "earliest"},
		{"done", "start=earliest", []string{"AA"}, "done"},
		{"bad header", "", []string{"x y"}, "lastEventId: is not an id of this edge's events"},
		{"bad parameter", "lastEventId=zzz", nil, "lastEventId: is not an id of this edge's events"},
		{"twice", "lastEventId=AA&lastEventId=AA", nil, "lastEventId: is given twice"},
		{"bad query", "strat=earliest", []string{at(7)}, "strat: unknown parameter"},
		{"bad query, done", "strat=earliest", []string{"AA"}, "strat: unknown parameter"},
	} {
		s, id, bad := frame.ParseEventsURL("orders", c.query, c.header)
		got := ""
		switch {
		case bad != nil:
			if got = bad.Message; bad.Code != "invalid_argument" || bad.Reason != "INVALID_ARGUMENT" {
				t.Errorf("%s: %+v", c.name, bad)
			}
		case id.Done:
			got = "done"
		case s.Request.Start.Kind == hub.AtPositions:
			got = fmt.Sprint(s.Request.TopicID, " ", s.Request.Start.Positions[0].Offset)
		case s.Request.Start.Kind == hub.Earliest:
			got = "earliest"
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
