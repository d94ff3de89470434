package edge_test

import (
	"fmt"
	"strings"
	"testing"

	"tailrace.dev/tailrace/services/hub"
)

func TestPublish(t *testing.T) {
	r := start(t, config())
	r.publisher.gate = make(chan struct{}, 100)
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, `{"op":"publish","id":"0","topic":"orders","text":"0"}`)
	for i := 1; i < 5; i++ {
		c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"orders","text":"%d"}`, i, i))
	}
	c.say(t, `{"op":"publish","id":"5","topic":"other","text":"5"}`)
	c.say(t, `{"op":"publish","id":"5","topic":"other","text":"again"}`)
	if m := c.expect(t, "error"); m.Reason != "ID_IN_USE" || m.Outcome != "refused" || m.Re != "publish" {
		t.Errorf("duplicate id: %+v", m)
	}
	for range 3 {
		r.publisher.gate <- struct{}{}
	}
	for i := range 6 {
		if m := c.expect(t, "published"); m.ID != fmt.Sprint(i) || m.Offset != int64(i) {
			t.Errorf("got %+v, want the answer to %d", m, i)
		}
	}
	r.publisher.mu.Lock()
	if got := fmt.Sprint(r.publisher.calls, r.publisher.topic); got != "[[0] [1 2 3 4] [5]] [orders orders other]" {
		t.Errorf("calls %s", got)
	}
	r.publisher.fail = hub.ErrUnavailable
	r.publisher.mu.Unlock()

	c.say(t, `{"op":"publish","id":"5","topic":"orders","text":"6"}`)
	r.publisher.gate <- struct{}{}
	if m := c.expect(t, "error"); m.Code != "unavailable" || m.Outcome != "refused" || !m.Retryable {
		t.Errorf("got %+v", m)
	}

	// Over the bound, the next is refused, and nothing that was taken is lost.
	for i := range 257 {
		c.say(t, fmt.Sprintf(`{"op":"publish","id":"q%d","topic":"orders","text":"x"}`, i))
	}
	if m := c.expect(t, "error"); m.Code != "resource_exhausted" || m.ID != "q256" || m.Outcome != "refused" || !m.Retryable {
		t.Errorf("got %+v", m)
	}
	r.publisher.mu.Lock()
	r.publisher.fail = nil
	r.publisher.mu.Unlock()
	close(r.publisher.gate)
	for i := range 256 {
		if m := c.expect(t, "published"); m.ID != fmt.Sprintf("q%d", i) {
			t.Fatalf("got %+v, want the answer to q%d", m, i)
		}
	}
}

// TestPublishCallsAreBounded: what a session has queued goes to the service in calls that it does not refuse for their size.
func TestPublishCallsAreBounded(t *testing.T) {
	r := start(t, config())
	r.publisher.gate = make(chan struct{}, 100)
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	for i := range 8 {
		c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"orders","text":"%s"}`, i, strings.Repeat("x", 400<<10)))
	}
	c.say(t, `{"op":"ping","id":"all are queued"}`)
	c.expect(t, "pong")
	close(r.publisher.gate)
	for i := range 8 {
		if m := c.expect(t, "published"); m.ID != fmt.Sprint(i) {
			t.Errorf("got %+v, want the answer to %d", m, i)
		}
	}
	r.publisher.mu.Lock()
	defer r.publisher.mu.Unlock()
	for _, call := range r.publisher.calls {
		if len(call) > 2 {
			t.Errorf("a call of %d records of 400 KiB", len(call))
		}
	}
}

// TestFloodWithoutReading: a client that asks on and on and takes no answer is not read from beyond a bound; once it reads it gets all.
func TestFloodWithoutReading(t *testing.T) {
	cfg := config()
	cfg.MaxMessageRate = 1 << 20
	r := start(t, cfg)
	c, err := dial(r.addr, "/ws", clientOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer c.conn.Close()
	c.expect(t, "welcome")
	const n = 60000
	pad := strings.Repeat("x", 20)
	sent := make(chan error, 1)
	go func() {
		var b []byte
		for i := range n {
			b = append(b, maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"ping","id":"%s%d"}`, pad, i))...)
			if len(b) > 64<<10 || i == n-1 {
				if err := c.writeRaw(b); err != nil {
					sent <- err
					return
				}
				b = b[:0]
			}
		}
		sent <- nil
	}()
	await(t, "the edge holds answers back", func() bool { return r.metric(t, "tailrace_edge_held_bytes", "") > 64<<10 })
	checks := 0
	await(t, "it stays within its bound", func() bool {
		if held := r.metric(t, "tailrace_edge_held_bytes", ""); held > 1<<20 {
			t.Fatalf("%v bytes held", held)
		}
		checks++
		return checks == 100
	})
	for i := range n {
		if m := c.expect(t, "pong"); m.ID != pad+fmt.Sprint(i) {
			t.Fatalf("got pong of %q, want %d", m.ID, i)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}
