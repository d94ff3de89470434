package frame_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

func TestParseURL(t *testing.T) {
	for query, want := range map[string]*frame.Subscribe{
		"":                 sub("0", frame.AsAuto, hub.Request{Topic: "orders"}),
		"start=earliest":   sub("0", frame.AsAuto, hub.Request{Topic: "orders", Start: hub.Start{Kind: hub.Earliest}}),
		"start=latest":     sub("0", frame.AsAuto, hub.Request{Topic: "orders"}),
		"last=5&until=end": sub("0", frame.AsAuto, hub.Request{Topic: "orders", Start: hub.Start{Kind: hub.Last, Last: 5}, Stop: hub.Stop{AtEnd: true}}),
		"key=a&key=b%FF&keyBase64=%2F%2B8%3D&keyBase64=/+8&partition=0&partition=7": sub("0", frame.AsAuto, hub.Request{
			Topic: "orders", Keys: [][]byte{[]byte("a"), {'b', 0xff}, {0xff, 0xef}, {0xff, 0xef}}, Partitions: []int32{0, 7},
		}),
		"positions=0:12,1:40&as=text&slow=skip&onOutOfRange=latest": sub("0", frame.AsText, hub.Request{
			Topic: "orders", Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{at(0, 12, -1), at(1, 40, -1)}},
			Slow: hub.SlowSkip, OnOutOfRange: hub.OutOfRangeLatest,
		}),
		"positions=3:9007199254740991:0,0:0&topicId=T%2B&maxRecordBytes=9": sub("0", frame.AsAuto, hub.Request{
			Topic: "orders", TopicID: "T+", MaxRecordBytes: 9, Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{at(3, 1<<53-1, 0), at(0, 0, -1)}},
		}),
		"key=&maxRecordBytes=0&as=json&slow=conflate&onOutOfRange=fail": sub("0", frame.AsJSON, hub.Request{
			Topic: "orders", Keys: [][]byte{{}}, Slow: hub.SlowConflate, OnOutOfRange: hub.OutOfRangeFail,
		}),
		"as=auto&slow=catchup&onOutOfRange=earliest": sub("0", frame.AsAuto, hub.Request{Topic: "orders"}),
		"as=base64&slow=fail":                        sub("0", frame.AsBase64, hub.Request{Topic: "orders", Slow: hub.SlowFail}),
		"last=100000":                                sub("0", frame.AsAuto, hub.Request{Topic: "orders", Start: hub.Start{Kind: hub.Last, Last: 100000}}),
		"time=2026-11-30T13:00:00+01:00": sub("0", frame.AsAuto, hub.Request{
			Topic: "orders", Start: hub.Start{Kind: hub.AtTime, Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)},
		}),
		"time=2026-11-30T12:00:00Z": sub("0", frame.AsAuto, hub.Request{
			Topic: "orders", Start: hub.Start{Kind: hub.AtTime, Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)},
		}),
	} {
		got, bad := frame.ParseURL("orders", query)
		if bad != nil || !equal(got, want) {
			t.Errorf("%s:\n got %+v, %+v\nwant %+v", query, got, bad, want)
		}
	}
	for query, text := range map[string]string{
		"strat=earliest":                    "strat: unknown parameter",
		"Start=earliest":                    "Start: unknown parameter",
		"start=now":                         "start",
		"start=latest&start=":               "start: is given twice",
		"start=latest&last=5":               "at most one of",
		"last=0":                            "last",
		"last=1.5":                          "last",
		"positions=":                        "positions",
		"positions=0":                       "positions",
		"positions=0:1,0:2":                 "positions",
		"positions=0:-1":                    "positions",
		"positions=0:1,":                    "positions",
		"positions=x:1":                     "positions",
		"positions=0:1:":                    "positions",
		"positions=0:1:-1":                  "positions",
		"positions=0:1:2:3":                 "positions",
		"positions=0:1:2147483648":          "positions",
		"positions=0:9007199254740992":      "positions",
		"positions=2147483648:1":            "positions",
		"topicId=":                          "topicId",
		"topicId=%FF":                       "topicId",
		"maxRecordBytes=-1":                 "maxRecordBytes",
		"maxRecordBytes=2147483648":         "maxRecordBytes",
		"maxRecordBytes=1&maxRecordBytes=1": "maxRecordBytes: is given twice",
		"last=100001":                       "last",
		"time=":                             "time",
		"start=latest;last=5":               "the query is malformed",
		"start=%zz":                         "the query is malformed",
		"key=a%":                            "the query is malformed",
		"partition=":                        "partition",
		"partition=-1":                      "partition",
		"time=today":                        "time",
		"until=now":                         "until",
		"as=xml":                            "as",
		"slow=no":                           "slow",
		"onOutOfRange=":                     "onOutOfRange",
		"keyBase64=%3F":                     "keyBase64",
		"%FF=1":                             "unknown parameter",
		"key=" + strings.Repeat("k", 65537): "key",
	} {
		got, bad := frame.ParseURL("orders", query)
		if got != nil || bad == nil || bad.ID != "0" || bad.Re != "subscribe" || !bad.Final || !strings.Contains(bad.Message, text) {
			t.Errorf("%.100s: got %+v, %+v, want %q", query, got, bad, text)
			continue
		}
		if b := frame.AppendError(nil, bad); !frame.ValidJSON(b, 9) {
			t.Errorf("%.100s: answered %q", query, b)
		}
	}
	if _, bad := frame.ParseURL("", ""); bad == nil {
		t.Error("a URL without topic is accepted")
	}
}

// FuzzParseURL: what is understood says the same when it is written anew; what is refused is answered in JSON.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"", "start=earliest&until=end", "key=a&key=b%FF&keyBase64=%2F%2B8%3D", "partition=0&partition=7", "positions=0:12,1:40:3&topicId=T",
		"time=2026-11-30T12:00:00.5Z&as=text", "last=5&slow=skip&onOutOfRange=fail&maxRecordBytes=9", "strat=x", "a;b", "%zz",
	} {
		f.Add("orders", s)
	}
	f.Fuzz(func(t *testing.T, topic, query string) {
		got, bad := frame.ParseURL(topic, query)
		if (got == nil) == (bad == nil) {
			t.Fatalf("got %+v and %+v", got, bad)
		}
		if bad != nil {
			if b := frame.AppendError(nil, bad); !frame.ValidJSON(b, 9) || bad.Reason != "INVALID_ARGUMENT" || !bad.Final {
				t.Fatalf("answered %q", b)
			}
			return
		}
		again, bad := frame.ParseURL(topic, rewritten(got))
		if bad != nil || !equal(got, again) {
			t.Fatalf("got %+v, from %s %+v, %+v", got, rewritten(got), again, bad)
		}
	})
}

// rewritten is the query that says what a subscription of the URL form asks for.
func rewritten(s *frame.Subscribe) string {
	r, q := &s.Request, url.Values{}
	q.Set("as", []string{"auto", "json", "text", "base64"}[s.As])
	q.Set("maxRecordBytes", fmt.Sprint(r.MaxRecordBytes))
	q.Set("slow", map[hub.SlowPolicy]string{hub.SlowCatchUp: "catchup", hub.SlowSkip: "skip", hub.SlowConflate: "conflate", hub.SlowFail: "fail"}[r.Slow])
	q.Set("onOutOfRange", map[hub.OutOfRange]string{hub.OutOfRangeEarliest: "earliest", hub.OutOfRangeLatest: "latest", hub.OutOfRangeFail: "fail"}[r.OnOutOfRange])
	for _, k := range r.Keys {
		q.Add("key", string(k))
	}
	for _, p := range r.Partitions {
		q.Add("partition", fmt.Sprint(p))
	}
	if r.TopicID != "" {
		q.Set("topicId", r.TopicID)
	}
	if r.Stop.AtEnd {
		q.Set("until", "end")
	}
	switch r.Start.Kind {
	case hub.Latest:
		q.Set("start", "latest")
	case hub.Earliest:
		q.Set("start", "earliest")
	case hub.AtTime:
		q.Set("time", r.Start.Time.Format(time.RFC3339Nano))
	case hub.Last:
		q.Set("last", fmt.Sprint(r.Start.Last))
	case hub.AtPositions:
		var ps []string
		for _, p := range r.Start.Positions {
			at := fmt.Sprintf("%d:%d", p.Partition, p.Offset)
			if p.Epoch >= 0 {
				at += fmt.Sprintf(":%d", p.Epoch)
			}
			ps = append(ps, at)
		}
		q.Set("positions", strings.Join(ps, ","))
	}
	return q.Encode()
}
