package edge_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

func TestSubscribe(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 2)
	r.src.Append("orders", 0, hubtest.Text("k", "before"))
	c := r.dial(t, "/ws")
	if m := c.expect(t, "welcome"); m.Session == "" || m.MaxMessageBytes != 2<<20 {
		t.Errorf("welcome %+v", m)
	}
	c.say(t, `{"op":"subscribe","id":"a","topic":"orders"}`)
	if m := c.expect(t, "started"); m.ID != "a" || m.Topic != "orders" {
		t.Errorf("started %+v", m)
	}
	c.expect(t, "caughtup")
	r.src.Append("orders", 1, hubtest.Text("k", "live"))
	if m := c.expect(t, "records"); m.ID != "a" || len(m.Records) != 1 || m.Records[0].Text != "live" || m.Records[0].Partition != 1 {
		t.Errorf("records %+v", m)
	}

	c.say(t, `{"op":"subscribe","id":"a","topic":"orders","start":"earliest"}`)
	if m := c.expect(t, "error"); m.Re != "subscribe" || m.Reason != "ID_IN_USE" || m.Final {
		t.Errorf("duplicate id: %+v", m)
	}
	c.say(t, `{"op":"subscribe","id":"b","topic":"orders","start":"earliest"}`)
	c.expect(t, "started")
	var got []string
	for len(got) < 2 {
		for _, rec := range c.until(t, "records").Records {
			got = append(got, rec.Text)
		}
	}
	if slices.Sort(got); !slices.Equal(got, []string{"before", "live"}) {
		t.Errorf("from earliest: %q", got)
	}
	c.expect(t, "caughtup")

	c.say(t, `{"op":"unsubscribe","id":"a"}`)
	if m := c.expect(t, "unsubscribed"); m.ID != "a" || m.Reason != "client" {
		t.Errorf("unsubscribed %+v", m)
	}
	c.say(t, `{"op":"unsubscribe","id":"a"}`)
	if m := c.expect(t, "error"); m.Re != "unsubscribe" || m.ID != "a" || m.Final {
		t.Errorf("unsubscribe of nothing: %+v", m)
	}
	r.src.Append("orders", 0, hubtest.Text("k", "later"))
	if m := c.expect(t, "records"); m.ID != "b" {
		t.Errorf("records of %q after its end", m.ID)
	}
	c.say(t, `{"op":"subscribe","id":"a","topic":"orders"}`)
	c.expect(t, "started")
	await(t, "two subscriptions are counted", func() bool { return r.metric(t, "tailrace_edge_subscriptions", "") == 2 })
	_ = c.write(opClose, []byte{0x0f, 0xa0, 'x'}) // 4000
	c.expectClose(t, 4000)
	r.ended(t, "client_close")
	await(t, "subscriptions are closed", func() bool { return r.hub.Stats().Subscriptions == 0 })
}

// TestSubscribeUntil: a subscription with a stop says so, and its id is free.
func TestSubscribeUntil(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	r.src.Append("orders", 0, hubtest.Text("k", "a"), hubtest.Text("k", "b"), hubtest.Text("k", "c"))
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	for range 2 {
		c.say(t, `{"op":"subscribe","id":"a","topic":"orders","start":"earliest","until":{"records":2}}`)
		c.expect(t, "started")
		n := 0
		for n < 2 {
			n += len(c.expect(t, "records").Records)
		}
		if m := c.expect(t, "unsubscribed"); m.Reason != "until" || n != 2 {
			t.Errorf("%+v after %d records", m, n)
		}
	}
}

// TestUnsubscribeBeforeStarted: the answers still come in order, and exactly once.
func TestUnsubscribeBeforeStarted(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	r.src.SetDelays(hubtest.Delays{BeforeResolve: 100 * time.Millisecond})
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, `{"op":"subscribe","id":"a","topic":"orders"}`)
	c.say(t, `{"op":"unsubscribe","id":"a"}`)
	c.expect(t, "started")
	c.expect(t, "unsubscribed")
	c.say(t, `{"op":"subscribe","id":"a","topic":"nosuch"}`)
	c.say(t, `{"op":"unsubscribe","id":"a"}`)
	if m := c.expect(t, "error"); !m.Final || m.Reason != "UNKNOWN_TOPIC" {
		t.Errorf("got %+v", m)
	}
	c.say(t, `{"op":"ping","id":"p"}`)
	c.expect(t, "pong")
}

// TestManySubscriptions: more at once than are under way at once, up to the limit.
func TestManySubscriptions(t *testing.T) {
	cfg := config()
	cfg.MaxSubscriptions = 100
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	for i := range 101 {
		c.say(t, fmt.Sprintf(`{"op":"subscribe","id":"%d","topic":"orders"}`, i))
	}
	started, refused, caught := 0, 0, 0
	for started < 100 || refused < 1 || caught < 100 {
		c.deadline(t)
		m, err := c.next()
		switch {
		case err != nil:
			t.Fatalf("after %d started: %v", started, err)
		case m.Op == "started":
			started++
		case m.Op == "caughtup":
			caught++
		case m.Op == "error" && m.Code == "resource_exhausted" && m.Final && m.ID == "100":
			refused++
		default:
			t.Fatalf("got %+v", m)
		}
	}
	r.src.Append("orders", 0, hubtest.Text("k", "v"))
	ids := map[string]bool{}
	for len(ids) < 100 {
		m := c.expect(t, "records")
		if ids[m.ID] || len(m.Records) != 1 {
			t.Fatalf("%+v, twice", m)
		}
		ids[m.ID] = true
	}
}

func TestRefusals(t *testing.T) {
	r := start(t, config())
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	for _, k := range []struct{ send, re, code string }{
		{`{"op":"subscribe","id":"a","topic":"nosuch"}`, "subscribe", "not_found"},
		{`{"op":"subscribe","id":"a","topic":"x","strat":"latest"}`, "subscribe", "invalid_argument"},
		{`{"op":"fly"}`, "frame", "invalid_argument"},
		{`{"op":"consume","id":"q","topics":["x"],"group":"g"}`, "consume", "unimplemented"},
		{`{"op":"auth","token":"x"}`, "auth", "unimplemented"},
	} {
		c.say(t, k.send)
		if m := c.expect(t, "error"); m.Re != k.re || m.Code != k.code {
			t.Errorf("%s: got %+v, want %s, %s", k.send, m, k.re, k.code)
		}
	}
	r.src.CreateTopic("orders", 1)
	c.say(t, `{"op":"subscribe","id":"a","topic":"orders"}`)
	c.until(t, "caughtup")
	for _, send := range []string{`{"op":"subscribe","id":"a","tpoic":"x"}`, `{"op":"consume","id":"a","topics":["x"],"group":"g"}`} {
		c.say(t, send)
		if m := c.expect(t, "error"); m.Reason != "ID_IN_USE" || m.Final {
			t.Errorf("%s: got %+v, want ID_IN_USE, not final", send, m)
		}
	}
	c.say(t, `{"op":"ping","id":"still here"}`)
	c.expect(t, "pong")
}

func TestURLForm(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	r.src.Append("orders", 0, hubtest.Text("a", "1"), hubtest.Text("b", "2"), hubtest.Text("a", "3"))
	c := r.dial(t, "/ws/orders?start=earliest&key=a")
	c.expect(t, "welcome")
	if m := c.expect(t, "started"); m.ID != "0" {
		t.Errorf("started %+v", m)
	}
	var got []string
	for len(got) < 2 {
		for _, rec := range c.expect(t, "records").Records {
			got = append(got, rec.Text+fmt.Sprint(rec.Value))
		}
	}
	if len(got) != 2 {
		t.Errorf("got %q, want 1 and 3", got)
	}
	c.until(t, "caughtup")

	c = r.dial(t, "/ws/nosuch")
	c.expect(t, "welcome")
	if m := c.expect(t, "error"); m.Reason != "UNKNOWN_TOPIC" || !m.Final || m.ID != "0" {
		t.Errorf("got %+v", m)
	}
	c.expectClose(t, 4504)
	r.ended(t, "unknown_topic")

	c = r.dial(t, "/ws/orders?strat=earliest")
	c.expect(t, "welcome")
	if m := c.expect(t, "error"); m.Code != "invalid_argument" {
		t.Errorf("got %+v", m)
	}
}

// TestUnavailable: sockets stay open while the service is away and are told; new subscribes wait, then are refused.
func TestUnavailable(t *testing.T) {
	cfg := quick()
	up := make(chan bool, 1)
	up <- true
	cfg.UpstreamAvailable = func() bool { v := <-up; up <- v; return v }
	cfg.SubscribeTimeout = 300 * time.Millisecond
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	r.src.CreateTopic("other", 1)
	c := r.dial(t, "/ws/orders")
	c.until(t, "started")
	r.src.SetUnavailable("orders", 0, true)
	for string(c.until(t, "heartbeat").Unavailable) != `{"0":[0]}` {
	}
	<-up
	up <- false
	for c.until(t, "heartbeat").Upstream != "unavailable" {
	}
	r.src.SetUnavailable("other", 0, true)
	c.say(t, `{"op":"subscribe","id":"x","topic":"other"}`)
	if m := c.until(t, "error"); m.Code != "unavailable" || !m.Final || !m.Retryable {
		t.Errorf("got %+v", m)
	}
	<-up
	up <- true
	r.src.SetUnavailable("orders", 0, false)
	r.src.Append("orders", 0, hubtest.Text("k", "back"))
	c.until(t, "records")
	for {
		if m := c.until(t, "heartbeat"); m.Upstream == "" && len(m.Unavailable) == 0 {
			break
		}
	}
}

// TestPartitionsComeBack: that partitions can be read again is told without waiting for silence, which a busy topic never has.
func TestPartitionsComeBack(t *testing.T) {
	cfg := config()
	cfg.HeartbeatInterval = 50 * time.Second
	r := start(t, cfg)
	r.src.CreateTopic("orders", 2)
	c := r.dial(t, "/ws/orders")
	c.until(t, "started")
	r.src.SetUnavailable("orders", 0, true)
	for string(c.until(t, "heartbeat").Unavailable) != `{"0":[0]}` {
		r.src.Append("orders", 1, hubtest.Text("k", "meanwhile"))
	}
	r.src.SetUnavailable("orders", 0, false)
	r.src.Append("orders", 1, hubtest.Text("k", "busy"))
	for len(c.until(t, "heartbeat").Unavailable) > 0 {
		r.src.Append("orders", 1, hubtest.Text("k", "busy"))
	}
}

// TestTopicDeleted: a subscription ends, the session lives on.
func TestTopicDeleted(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	c := r.dial(t, "/ws/orders")
	c.until(t, "caughtup")
	r.src.DeleteTopic("orders")
	if m := c.until(t, "error"); m.Reason != "TOPIC_DELETED" || !m.Final || m.ID != "0" {
		t.Errorf("got %+v", m)
	}
	c.say(t, `{"op":"ping","id":"p"}`)
	c.expect(t, "pong")
}

// TestGapAndTopology: what is more than records comes in order with them, to every subscriber.
func TestGapAndTopology(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	var cs []*client
	for range 3 {
		c := r.dial(t, "/ws/orders")
		c.until(t, "caughtup")
		cs = append(cs, c)
	}
	r.src.Append("orders", 0, hubtest.Text("k", "a"), hubtest.Text("k", "b"))
	for _, c := range cs {
		for n := 0; n < 2; {
			n += len(c.expect(t, "records").Records)
		}
	}
	r.src.Truncate("orders", 0, 1)
	r.src.Append("orders", 0, hubtest.Text("k", "c"))
	r.src.Grow("orders", 2)
	r.src.Append("orders", 1, hubtest.Text("k", "d"))
	for _, c := range cs {
		if m := c.expect(t, "gap"); m.Reason != "truncation" || m.From != 2 || m.To != 1 {
			t.Errorf("got %+v", m)
		}
		grown := false
		c.deadline(t)
		for n := 0; n < 2 || !grown; {
			m, err := c.next()
			switch {
			case err != nil:
				t.Fatal(err)
			case m.Op == "topology":
				grown = true
			default:
				n += len(m.Records)
			}
		}
	}
}

// TestServeTwice and with what it can't serve.
func TestServeTwice(t *testing.T) {
	r := start(t, config())
	ln := listen(t)
	if err := r.edge.Serve(t.Context(), ln); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("got %v", err)
	}
	if _, err := ln.Accept(); err == nil || errors.Is(err, nil) {
		t.Error("the listener is still open")
	}
}
