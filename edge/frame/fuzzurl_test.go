package frame_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"tailrace.dev/tailrace/edge/frame"
)

// FuzzParsePublishURL: what is understood can be published; what is refused is answered in JSON.
func FuzzParsePublishURL(f *testing.F) {
	for _, s := range []string{"", "key=k&partition=3&header=h=v&header=h=", "keyBase64=%2F%2B8&tombstone=true", "header=h", "partition=-1", "kye=k", "%ff=1", "header=%00=x"} {
		f.Add("orders", s)
	}
	f.Fuzz(func(t *testing.T, topic, query string) {
		op, _, bad := frame.ParsePublishURL(topic, query)
		if (op == nil) == (bad == nil) {
			t.Fatalf("got %+v and %+v", op, bad)
		}
		if bad != nil {
			if b := frame.AppendError(nil, bad); !frame.ValidJSON(b, 9) || bad.Outcome != "refused" || bad.Final {
				t.Fatalf("answered %q", b)
			}
			return
		}
		r := op.Record
		if op.Topic == "" || r.GetPartition() < 0 || r.Value != nil {
			t.Fatalf("understood as %+v", op)
		}
		for _, h := range r.GetHeaders() {
			if !utf8.ValidString(h.GetName()) || strings.ContainsRune(h.GetName(), 0) {
				t.Fatalf("header name %q", h.GetName())
			}
		}
	})
}

// FuzzParseEventsURL: a stream's URL and its last id give a subscription, a word that it is over, or an answer in JSON; an id wins over the URL.
func FuzzParseEventsURL(f *testing.F) {
	for _, id := range []string{"", "AA", "AQAA", "AQNhYmMCAgAA", "17", "%"} {
		f.Add("orders", "start=earliest&key=a", id)
		f.Add("orders", "lastEventId="+id, "")
	}
	f.Fuzz(func(t *testing.T, topic, query, last string) {
		var lasts []string
		if last != "" {
			lasts = []string{last}
		}
		op, id, bad := frame.ParseEventsURL(topic, query, lasts)
		if bad != nil {
			if b := frame.AppendError(nil, bad); op != nil || !frame.ValidJSON(b, 9) || bad.Reason != "INVALID_ARGUMENT" {
				t.Fatalf("answered %q beside %+v", b, op)
			}
			return
		}
		if id.Done {
			return
		}
		if op == nil || op.Request.Topic == "" || op.ID != frame.URLID {
			t.Fatalf("understood as %+v", op)
		}
		seen := map[int32]bool{}
		for _, p := range op.Request.Start.Positions {
			if p.Partition < 0 || p.Offset < 0 || p.Epoch < -1 || seen[p.Partition] {
				t.Fatalf("positions %+v", op.Request.Start.Positions)
			}
			seen[p.Partition] = true
		}
	})
}
