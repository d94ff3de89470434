package edge_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"tailrace.dev/tailrace/services/access"
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
	for range 6 {
		r.publisher.gate <- struct{}{}
	}
	for i := range 6 {
		if m := c.expect(t, "published"); m.ID != fmt.Sprint(i) || m.Offset != int64(i) {
			t.Errorf("got %+v, want the answer to %d", m, i)
		}
	}
	r.publisher.mu.Lock()
	if got := fmt.Sprint(r.publisher.calls, r.publisher.topic); got != "[[0] [1] [2] [3] [4] [5]] [orders orders orders orders orders other]" {
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

// TestPublishesHaveALimit: of bytes without an answer, and of publishes in a second. What is over it is refused, with a time that helps.
func TestPublishesHaveALimit(t *testing.T) {
	t.Run("bytes", func(t *testing.T) {
		r := start(t, config())
		r.publisher.gate = make(chan struct{}, 100)
		c := r.dial(t, "/ws")
		c.expect(t, "welcome")
		for i := range 11 {
			c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"orders","text":"%s"}`, i, strings.Repeat("x", 400<<10)))
		}
		if m := c.expect(t, "error"); m.ID != "10" || m.Reason != "LIMIT" || m.RetryAfterMs <= 0 || m.Outcome != "refused" {
			t.Errorf("got %+v", m)
		}
		close(r.publisher.gate)
		for i := range 10 {
			if m := c.expect(t, "published"); m.ID != fmt.Sprint(i) {
				t.Errorf("got %+v, want the answer to %d", m, i)
			}
		}
	})
	t.Run("rate", func(t *testing.T) {
		cfg := config()
		cfg.PublishRate = 5
		r := start(t, cfg)
		c := r.dial(t, "/ws")
		c.expect(t, "welcome")
		const n = 100
		for i := range n {
			c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"orders","text":"x"}`, i))
		}
		published, refused := 0, 0
		for range n {
			c.deadline(t)
			m, err := c.next()
			switch {
			case err != nil:
				t.Fatal(err)
			case m.Op == "published":
				published++
			case m.Reason == "LIMIT" && m.Retryable && m.RetryAfterMs > 0 && m.RetryAfterMs <= 201 && m.Outcome == "refused" && m.Re == "publish":
				refused++
			default:
				t.Fatalf("got %+v", m)
			}
		}
		if published < 10 || refused == 0 {
			t.Errorf("%d published, %d refused; want a burst of 10", published, refused)
		}
		c.say(t, `{"op":"ping","id":"x"}`) // the socket goes on
		c.expect(t, "pong")
		await(t, "it may publish again", func() bool {
			c.say(t, `{"op":"publish","id":"again","topic":"orders","text":"x"}`)
			c.deadline(t)
			m, err := c.next()
			return err == nil && m.Op == "published"
		})
	})
	t.Run("rate, one after the other", func(t *testing.T) {
		cfg := config()
		cfg.PublishRate = 1
		r := start(t, cfg)
		r.publisher.idle = true // so that what a session has for publishes goes after each
		c := r.dial(t, "/ws")
		c.expect(t, "welcome")
		for i := range 60 {
			c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"orders","text":"x"}`, i))
			c.deadline(t)
			m, err := c.next()
			if err != nil {
				t.Fatal(err)
			}
			if m.Reason == "LIMIT" {
				return
			}
		}
		t.Error("60 publishes, one after the other, were all taken; want one a second, after two")
	})
}

// TestPublishDenied: who may not publish is told so, by both ways.
func TestPublishDenied(t *testing.T) {
	r := start(t, config())
	r.edge.SetAllow(func(_ context.Context, ask access.Request) error { return fmt.Errorf("not %s", ask.Topic) })
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, `{"op":"publish","id":"p","topic":"orders","text":"x"}`)
	if m := c.expect(t, "error"); m.Reason != "FORBIDDEN" || m.Outcome != "refused" || m.ID != "p" || m.Message != "not orders" {
		t.Errorf("got %+v", m)
	}
	resp := ask(t, r.addr, "POST /publish/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusForbidden || !strings.Contains(string(body), `"outcome":"refused"`) {
		t.Errorf("got %s %s", resp.Status, body)
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
