package edge_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestDrain: everybody gets the farewell, spread over the time, and nothing is lost before it.
func TestDrain(t *testing.T) {
	cfg := config()
	cfg.DrainSpread = 500 * time.Millisecond
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	n := size(200, 2000)
	var readers, caught sync.WaitGroup
	caught.Add(n)
	var mu sync.Mutex
	var first, last time.Time
	for range n {
		c := r.dial(t, "/ws/orders")
		readers.Go(func() {
			goodbye := false
			for {
				m, err := c.next()
				var e *closeFrame
				switch {
				case errors.As(err, &e):
					if e.code != 4000 || e.reason != "draining" || !goodbye {
						t.Errorf("%v, goodbye %v", e, goodbye)
					}
					_ = c.write(opClose, []byte{0x0f, 0xa0})
					mu.Lock()
					last = time.Now()
					if first.IsZero() {
						first = last
					}
					mu.Unlock()
					return
				case err != nil:
					t.Error(err)
					return
				case m.Op == "caughtup":
					caught.Done()
				case m.Op == "goodbye":
					goodbye = fmt.Sprintf("%v %s %v", m.Code, m.Reason, m.ReconnectAfterMs) == "4000 draining [0 5000]"
				}
			}
		})
	}
	caught.Wait()
	if !r.edge.Ready() {
		t.Error("not ready")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	from := time.Now()
	if err := r.edge.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	readers.Wait()
	if r.edge.Ready() {
		t.Error("still ready")
	}
	if got := last.Sub(first); got < cfg.DrainSpread/2 {
		t.Errorf("closed within %v, want them spread over %v", got, cfg.DrainSpread)
	}
	if got := r.metric(t, "tailrace_edge_sessions_ended_total", "draining"); got != float64(n) {
		t.Errorf("%v ended by the drain, want %d", got, n)
	}
	if _, err := dial(r.addr, "/ws", clientOptions{}); err == nil {
		t.Error("a new socket was taken")
	}
	proof(t, "%d sockets, each with goodbye and 4000, in %v", n, time.Since(from).Round(time.Millisecond))
}

// TestDrainAnswersPublishes: what is under way gets its answer before the farewell.
func TestDrainAnswersPublishes(t *testing.T) {
	r := start(t, config())
	r.publisher.gate = make(chan struct{})
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, `{"op":"publish","id":"a","topic":"orders","text":"x"}`)
	c.say(t, `{"op":"ping","id":"p"}`)
	c.expect(t, "pong")
	done := make(chan error, 1)
	go func() { done <- r.edge.Drain(t.Context()) }()
	for refused := false; !refused; { // until the worker knows of the drain
		c.say(t, fmt.Sprintf(`{"op":"publish","id":"b%d","topic":"orders","text":"x"}`, time.Now().UnixNano()))
		c.say(t, `{"op":"ping","id":"p"}`)
		c.deadline(t)
		m, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.Op == "error" {
			if refused = m.Reason == "DRAINING" && m.Outcome == "refused"; !refused && m.Code != "resource_exhausted" {
				t.Fatalf("got %+v", m)
			}
			c.expect(t, "pong")
		}
	}
	close(r.publisher.gate)
	c.until(t, "published")
	c.expectClose(t, 4000)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStop: the end of Serve's context ends everything at once, also what is under way.
func TestStop(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	r.src.SetDelays(hubtest.Delays{BeforeResolve: time.Hour})
	r.publisher.gate = make(chan struct{})
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, `{"op":"subscribe","id":"a","topic":"orders"}`)
	c.say(t, `{"op":"publish","id":"a","topic":"orders","text":"x"}`)
	c.say(t, `{"op":"ping","id":"p"}`)
	c.expect(t, "pong")
	r.stop()
	c.expectClose(t, 1001)
}
