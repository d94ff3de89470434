package edge_test

import (
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// talk is one dialogue: what happens and what the client says, and of what it is told the parts that must be there. A step that begins with a
// brace is said; "wait <op>" reads up to a message of that op; the others are named in doings.
type talk struct {
	name  string
	path  string
	steps []string
	want  []string // parts of messages in JSON, in this order; several in one message are joined by " & "
	code  int      // of the close frame that ends it; 0: it does not end
}

func doings() map[string]func(r *rig) {
	return map[string]func(r *rig){
		"append":     func(r *rig) { r.src.Append("orders", 0, hubtest.Text("k", `{"n":1}`), hubtest.Text("m", "live")) },
		"truncate":   func(r *rig) { r.src.Truncate("orders", 0, 1) },
		"grow":       func(r *rig) { r.src.Grow("orders", 3) },
		"delete":     func(r *rig) { r.src.DeleteTopic("orders") },
		"recreate":   func(r *rig) { r.src.CreateTopic("orders", 2) },
		"away":       func(r *rig) { r.src.SetUnavailable("orders", 0, true) },
		"fail":       func(r *rig) { r.publisher.setFail(hub.ErrUnknownTopic) },
		"fail limit": func(r *rig) { r.publisher.setFail(&hub.LimitError{Limit: "records", Value: 3, Retry: time.Second}) },
		"fail bug":   func(r *rig) { r.publisher.setFail(errors.New("secret")) },
	}
}

// talks has every op and every error of the protocol.
func talks() []talk {
	const subscribe = `{"op":"subscribe","id":"a","topic":"orders","start":"earliest","as":"text"}`
	return []talk{
		{name: "subscribe", steps: []string{subscribe, "wait caughtup", "append", "wait records", `{"op":"unsubscribe","id":"a"}`, "wait unsubscribed"}, want: []string{
			`"op":"welcome" & "heartbeatMs":50000 & "features":[] & "protocol":1`,
			`"op":"started" & "id":"a" & "topic":"orders" & {"end":2,"partition":0,"start":0}`,
			`"op":"records" & "key":"k","offset":0,"partition":0,"text":"a" & "topic":"orders" & "epoch":`,
			`"op":"caughtup","id":"a"|"id":"a","op":"caughtup"`,
			`"op":"records" & "text":"{\"n\":1}" & "text":"live"`,
			`"op":"unsubscribed" & "reason":"client"`,
		}},
		{name: "until", steps: []string{`{"op":"subscribe","id":"a","topic":"orders","start":{"positions":{"0":1,"1":[0,0]},"missing":"latest"},"until":{"records":1},"as":"text"}`, "wait unsubscribed"}, want: []string{
			`"op":"started" & {"end":2,"partition":0,"start":1}`, `"op":"records" & "offset":1`, `"reason":"until"`,
		}},
		{name: "until the end, one key", steps: []string{`{"op":"subscribe","id":"a","topic":"orders","keys":["k2"],"start":"earliest","until":"end","as":"text"}`, "wait unsubscribed"}, want: []string{
			`"op":"records" & "key":"k2"`, `"reason":"until"`,
		}},
		{name: "gap and topology", steps: []string{subscribe, "wait caughtup", "truncate", "wait gap", "grow", "wait topology"}, want: []string{
			`"op":"gap" & "from":2 & "to":1 & "reason":"truncation"`, `"op":"topology" & "partitions":3`,
		}},
		{name: "recreated", steps: []string{`{"op":"subscribe","id":"a","topic":"orders","partitions":[0]}`, "wait caughtup", "recreate", "wait gap"}, want: []string{`"op":"gap" & "reason":"recreated" & "topicId":"`}},
		{name: "heartbeat", steps: []string{subscribe, "wait caughtup", "away", "wait heartbeat"}, want: []string{`"op":"heartbeat" & "unavailable":{"a":[0]} & "lag":{"a":0}`}},
		{name: "ping", steps: []string{`{"op":"ping","id":"é"}`, "wait pong"}, want: []string{`"op":"pong" & "id":"é"`}},
		{name: "publish", steps: []string{
			`{"op":"publish","id":"p1","topic":"orders","key":"k","text":"v","headers":[["h","v"],["h",null],["b",{"base64":"gA=="}]],"partition":1}`, "wait published",
			`{"op":"publish","id":"p1","topic":"orders","tombstone":true}`, "wait published",
		}, want: []string{`"op":"published" & "id":"p1" & "offset":0`, `"op":"published" & "id":"p1" & "offset":1`}},
		{name: "refused publishes", steps: []string{
			"fail", `{"op":"publish","id":"p1","topic":"x","text":"v"}`, "wait error",
			"fail limit", `{"op":"publish","id":"p2","topic":"x","text":"v"}`, "wait error",
			"fail bug", `{"op":"publish","id":"p3","topic":"x","text":"v"}`, "wait error",
		}, want: []string{
			`"re":"publish" & "id":"p1" & "reason":"UNKNOWN_TOPIC" & "outcome":"refused" & "final":false`,
			`"id":"p2" & "reason":"LIMIT" & "retryable":true & "retryAfterMs":1000 & "code":"resource_exhausted"`,
			`"id":"p3" & "reason":"INTERNAL" & "message":"internal error"`,
		}},
		{name: "ids", steps: []string{
			subscribe, "wait caughtup", subscribe, "wait error", `{"op":"consume","id":"a","topics":["orders"],"group":"g"}`, "wait error",
			`{"op":"ack","id":"a","tags":[1]}`, "wait error", `{"op":"unsubscribe","id":"b"}`, "wait error",
			`{"op":"ping","id":"a"}`, "wait pong", `{"op":"publish","id":"a","topic":"orders","text":"v"}`, "wait published",
			`{"op":"unsubscribe","id":"a"}`, "wait unsubscribed", subscribe, "wait started",
		}, want: []string{
			`"op":"started"`, `"op":"error" & "id":"a" & "reason":"ID_IN_USE" & "final":false & "re":"subscribe" & "code":"already_exists"`,
			`"reason":"ID_IN_USE" & "re":"consume" & "final":false`, `"reason":"UNIMPLEMENTED" & "re":"ack" & "final":false`,
			`"re":"unsubscribe" & "id":"b" & "final":false & "reason":"INVALID_ARGUMENT"`, `"op":"pong"`, `"op":"published"`, `"op":"unsubscribed"`, `"op":"started"`,
		}},
		{name: "an id too long, and none", steps: []string{
			`{"op":"ping","id":"` + strings.Repeat("x", 33) + `"}`, "wait error", `{"op":"subscribe","topic":"orders"}`, "wait error",
		}, want: []string{`"re":"frame" & "reason":"INVALID_ARGUMENT"`, `"re":"subscribe" & "reason":"INVALID_ARGUMENT" & "final":true`}},
		{name: "not built", steps: []string{
			`{"op":"consume","id":"q","topics":["orders"],"group":"g"}`, "wait error", `{"op":"ack","id":"q","tags":[1],"upTo":3}`, "wait error",
			`{"op":"nack","id":"q","tags":[1]}`, "wait error", `{"op":"auth","token":"t"}`, "wait error",
		}, want: []string{
			`"re":"consume" & "id":"q" & "code":"unimplemented" & "reason":"UNIMPLEMENTED" & "final":true`, `"re":"ack" & "code":"unimplemented" & "final":true`,
			`"re":"nack" & "code":"unimplemented" & "final":true`, `"re":"auth" & "code":"unimplemented" & "final":true`,
		}},
		{name: "unknown", steps: []string{
			`{"op":"fly"}`, "wait error", `{"op":"subscribe","id":"a","topic":"orders","strat":"latest"}`, "wait error",
			`{"op":"ping","id":"x","more":1}`, "wait error", `{"op":"publish","id":"p","topic":"orders","text":"v","more":1}`, "wait error",
		}, want: []string{
			`"re":"frame" & "reason":"UNKNOWN_OP" & "code":"invalid_argument"`, `"re":"subscribe" & "id":"a" & "reason":"INVALID_ARGUMENT" & unknown field & "final":true`,
			`"re":"frame" & "id":"x" & unknown field & "final":false`, `"re":"publish" & "id":"p" & unknown field & "outcome":"refused"`,
		}},
		{name: "refused subscribes", steps: []string{
			`{"op":"subscribe","id":"a","topic":"nosuch"}`, "wait error", `{"op":"subscribe","id":"a","topic":"orders","partitions":[7]}`, "wait error",
			`{"op":"subscribe","id":"a","topic":"orders","start":{"last":0}}`, "wait error", `{"op":"subscribe","id":"a","topic":""}`, "wait error",
			`{"op":"subscribe","id":"a","topic":"orders","start":{"positions":{}}}`, "wait error",
			`{"op":"subscribe","id":"a","topic":"orders","onOutOfRange":"sometimes"}`, "wait error",
			`{"op":"subscribe","id":"a","topic":"orders","start":{"positions":{"0":99}},"onOutOfRange":"fail"}`, "wait error",
		}, want: []string{
			`"reason":"UNKNOWN_TOPIC" & "final":true & "code":"not_found"`, `"reason":"UNKNOWN_PARTITION" & "final":true`,
			`"reason":"INVALID_ARGUMENT" & start.last`, `"reason":"INVALID_ARGUMENT" & topic`, `"reason":"INVALID_ARGUMENT" & start.positions`,
			`"reason":"INVALID_ARGUMENT"`, `"reason":"OFFSET_OUT_OF_RANGE" & "final":true`,
		}},
		{name: "topic deleted", steps: []string{subscribe, "wait caughtup", "delete", "wait error"}, want: []string{`"reason":"TOPIC_DELETED" & "final":true & "re":"subscribe"`}},
		{name: "URL form", path: "/ws/orders?start=earliest&as=text&until=end", steps: []string{"wait unsubscribed"}, want: []string{
			`"op":"started" & "id":"0"`, `"op":"records" & "id":"0"`, `"reason":"until"`,
		}},
		{name: "URL of an unknown topic", path: "/ws/nosuch", steps: []string{"wait goodbye"}, want: []string{
			`"reason":"UNKNOWN_TOPIC" & "id":"0"`, `"op":"goodbye" & "code":4504`,
		}, code: 4504},
		{name: "URL that is wrong", path: "/ws/orders?strat=latest", steps: []string{"wait error"}, want: []string{`"reason":"INVALID_ARGUMENT" & strat & "id":"0"`}},
	}
}

// TestBothForms holds every dialogue in JSON and in protobuf. Both say what the protocol asks for, and both say the same.
func TestBothForms(t *testing.T) {
	for _, k := range talks() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			inJSON, inProto := k.hold(t, false), k.hold(t, true)
			if !slices.EqualFunc(inJSON, inProto, func(a, b string) bool { return named.ReplaceAllString(a, "$1") == named.ReplaceAllString(b, "$1") }) {
				t.Errorf("in JSON:  %s\nin proto: %s", strings.Join(inJSON, "\n          "), strings.Join(inProto, "\n          "))
			}
			for _, said := range [][]string{inJSON, inProto} {
				at := 0
				for _, want := range k.want {
					for at < len(said) && !says(said[at], want) {
						at++
					}
					if at == len(said) {
						t.Fatalf("nothing says %s in\n%s", want, strings.Join(said, "\n"))
					}
					at++
				}
			}
		})
	}
}

// says whether a message has all parts.
func says(message, parts string) bool {
	for part := range strings.SplitSeq(parts, " & ") {
		found := false
		for choice := range strings.SplitSeq(part, "|") {
			found = found || strings.Contains(message, choice)
		}
		if !found {
			return false
		}
	}
	return true
}

// hold holds a dialogue with an edge of its own and returns what was said, without what is by chance.
func (k talk) hold(t *testing.T, proto bool) (said []string) {
	t.Helper()
	cfg := config()
	cfg.HeartbeatInterval = 50 * time.Second // no heartbeat without a reason
	cfg.StallTimeout = 5 * time.Minute
	r := start(t, cfg)
	r.src.CreateTopic("orders", 2)
	r.src.Append("orders", 0, hubtest.Text("k", "a"), hubtest.Text("k2", "b"))
	path := k.path
	if path == "" {
		path = "/ws"
	}
	c, err := dial(r.addr, path, clientOptions{proto: proto})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	for _, step := range k.steps {
		op, waits := strings.CutPrefix(step, "wait ")
		switch {
		case strings.HasPrefix(step, "{"):
			c.say(t, step)
		case waits:
			c.deadline(t)
			for {
				m, err := c.next()
				if err != nil {
					t.Fatalf("waiting for %s: %v, after\n%s", op, err, strings.Join(said, "\n"))
				}
				said = append(said, ordered(t, m.raw))
				if m.Op == op {
					break
				}
			}
		default:
			doings()[step](r)
		}
	}
	if k.code != 0 {
		c.expectClose(t, k.code)
		return said
	}
	c.say(t, `{"op":"ping","id":"the end"}`)
	for {
		c.deadline(t)
		m, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.Op == "pong" {
			return merged(said)
		}
		said = append(said, ordered(t, m.raw))
	}
}

// ordered is a message with its members in order, without what no two sessions have in common.
func ordered(t *testing.T, text string) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if v["op"] == "welcome" {
		v["session"] = "s"
	}
	if v["op"] == "heartbeat" {
		v["time"] = 0
	}
	out, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// named matches the text of an error that names a field or op: each form in its own way.
var named = regexp.MustCompile(`("code":"invalid_argument".*"message":)"(?:[^"\\]|\\.)*"`)

// merged joins records that came one by one or together, as it happened.
func merged(said []string) (out []string) {
	for _, m := range said {
		last := len(out) - 1
		if strings.Contains(m, `"op":"records"`) && last >= 0 && strings.Contains(out[last], `"op":"records"`) && !strings.Contains(out[last], `"positions"`) {
			_, more, _ := strings.Cut(m, `"records":[`)
			out[last] = strings.TrimSuffix(out[last], "]}") + "," + more
			continue
		}
		out = append(out, m)
	}
	return out
}
