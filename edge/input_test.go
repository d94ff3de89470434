package edge_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
)

// TestInputBound: what all clients together have sent is bounded. Who asks for more is sent away to come back; small messages are taken on.
func TestInputBound(t *testing.T) {
	for _, c := range []struct {
		name string
		fill func(t *testing.T, c *client, i int) // sends 100 KiB and more that stay
	}{
		{"unfinished messages", func(t *testing.T, c *client, _ int) {
			t.Helper()
			whole := maskedFrame(fin|opText, bytes.Repeat([]byte("x"), 200<<10))
			if err := c.writeRaw(whole[:120<<10]); err != nil {
				t.Fatal(err)
			}
		}},
		{"publishes", func(t *testing.T, c *client, i int) {
			t.Helper()
			c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"away","text":"%s"}`, i, strings.Repeat("x", 120<<10)))
		}},
		{"keys", func(t *testing.T, c *client, i int) {
			t.Helper()
			key := strings.Repeat("k", 60<<10)
			c.say(t, fmt.Sprintf(`{"op":"subscribe","id":"a","topic":"orders","keys":["%s%d"]}`, key, i))
			c.say(t, fmt.Sprintf(`{"op":"subscribe","id":"b","topic":"orders","keys":["%s%d"]}`, key, i))
			c.until(t, "started")
			c.until(t, "started")
		}},
		{"acks", func(t *testing.T, c *client, _ int) {
			t.Helper()
			c.say(t, consumeOp)
			for range 2 {
				c.say(t, ackOf(7000))
			}
			c.say(t, `{"op":"ping","id":"p"}`)
			c.until(t, "pong")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := config()
			cfg.MaxInputBytes = 1 << 20
			cfg.Consumer = &consumer{} // at which all waits
			r := start(t, cfg)
			r.src.CreateTopic("orders", 1)
			r.publisher.gate = make(chan struct{})
			held := func() float64 { return r.metric(t, "tailrace_edge_input_bytes", "") }
			small := r.dial(t, "/ws")
			small.expect(t, "welcome")
			var full []*client
			for i := 0; held() < 800<<10; i++ {
				before := held()
				x := r.dial(t, "/ws")
				x.expect(t, "welcome")
				c.fill(t, x, i)
				await(t, "its input is counted", func() bool { return held() >= before+100<<10 })
				full = append(full, x)
			}
			greedy := r.dial(t, "/ws")
			greedy.expect(t, "welcome")
			big := maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"publish","id":"g","topic":"away","text":"%s"}`, strings.Repeat("x", 1<<20)))
			_ = greedy.writeRaw(big) // the edge may have closed it before the end
			m := greedy.until(t, "goodbye")
			if fmt.Sprintf("%v %v", m.Code, m.ReconnectAfterMs) != "4029 [0 5000]" || !strings.Contains(m.Reason, "memory") {
				t.Errorf("got %+v", m)
			}
			greedy.expectClose(t, 4029)
			small.say(t, `{"op":"publish","id":"s","topic":"away","text":"small"}`)
			small.say(t, `{"op":"ping","id":"p"}`)
			small.until(t, "pong")
			if got := held(); got > 1<<20+300<<10 {
				t.Errorf("%v bytes are held", got)
			}
			for _, x := range full {
				x.conn.Close()
			}
			close(r.publisher.gate)
			await(t, "nothing is held", func() bool { return held() == 0 })
			small.until(t, "published")
			if got := fmt.Sprint(r.endings(t)); !strings.Contains(got, "1 over_limit") {
				t.Errorf("got %v, want one over the limit", got)
			}
		})
	}
}

// TestInputIsGivenBack: a publish for which there was no memory holds none.
func TestInputIsGivenBack(t *testing.T) {
	cfg := config()
	cfg.MaxInputBytes = 6000
	r := start(t, cfg)
	r.publisher.gate = make(chan struct{})
	held := func() float64 { return r.metric(t, "tailrace_edge_input_bytes", "") }
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	for i, n := range []int{3500, 5000} { // each is taken alone
		c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"away","text":"%s"}`, i, strings.Repeat("x", n)))
	}
	c.expectClose(t, 4029)
	close(r.publisher.gate)
	await(t, "nothing is held", func() bool { return held() == 0 })
	again := r.dial(t, "/ws")
	again.expect(t, "welcome")
	again.say(t, fmt.Sprintf(`{"op":"publish","id":"p","topic":"away","text":"%s"}`, strings.Repeat("x", 5000)))
	again.expect(t, "published")
}

// TestAcksAreGivenBack: what a service has taken of the acks is not charged for any more.
func TestAcksAreGivenBack(t *testing.T) {
	r, consumer := startConsuming(t, config())
	held := func() float64 { return r.metric(t, "tailrace_edge_input_bytes", "") }
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, consumeOp)
	o := consumer.nth(t, 0)
	o.says(saysStarted(t))
	c.expect(t, "started")
	acknowledge := func() {
		t.Helper()
		c.say(t, ackOf(10_000))
		c.say(t, `{"op":"ping","id":"p"}`)
		c.until(t, "pong")
		if got := held(); got < 40_000 || got > 120_000 {
			t.Errorf("%v bytes are charged for 10,000 tags", got)
		}
	}
	for range 2 {
		acknowledge()
		o.takes()
		o.says(&wirev1.ConsumeResponse{Event: &wirev1.ConsumeResponse_Heartbeat{}})
		await(t, "nothing is held", func() bool { return held() == 0 })
	}
	acknowledge()
	c.say(t, `{"op":"unsubscribe","id":"q"}`)
	c.expect(t, "unsubscribed")
	await(t, "nothing is held", func() bool { return held() == 0 })
}

// ackOf acknowledges so many large tags.
func ackOf(tags int) string {
	return `{"op":"ack","id":"q","tags":[` + strings.TrimSuffix(strings.Repeat("9007199254740991,", tags), ",") + `]}`
}
