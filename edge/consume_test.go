package edge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"tailrace.dev/tailrace/edge"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// consumer is an edge.Consumer that does what a test tells it.
type consumer struct {
	mu   sync.Mutex
	open []*opened
	tell sync.WaitGroup
}

type opened struct {
	of   *consumer
	tell func(*wirev1.ConsumeResponse, error)

	mu    sync.Mutex
	sent  []*tailracev1.ConsumeRequest
	taken int
	gone  bool
	lost  bool
	full  bool
}

func (c *consumer) OpenConsume(_ context.Context, _ *tailracev1.ConsumeStart, _ time.Time, tell func(*wirev1.ConsumeResponse, error)) (
	send func(*tailracev1.ConsumeRequest) bool, waiting func() int, hangUp func(lost bool),
) {
	o := &opened{of: c, tell: tell}
	c.mu.Lock()
	c.open = append(c.open, o)
	c.mu.Unlock()
	return func(m *tailracev1.ConsumeRequest) bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			if !o.full {
				o.sent = append(o.sent, m)
			}
			return !o.full
		}, func() (n int) {
			o.mu.Lock()
			defer o.mu.Unlock()
			for _, m := range o.sent {
				n += proto.Size(m)
			}
			return n
		}, func(lost bool) {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.gone, o.lost = true, lost
		}
}

// nth waits for the nth consume to be opened.
func (c *consumer) nth(t *testing.T, n int) (o *opened) {
	t.Helper()
	await(t, "a consume is opened", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.open) <= n {
			return false
		}
		o = c.open[n]
		return true
	})
	return o
}

// says tells messages one after the other, as a service would.
func (o *opened) says(ms ...*wirev1.ConsumeResponse) {
	o.of.tell.Go(func() {
		for _, m := range ms {
			o.tell(m, nil)
			o.mu.Lock()
			o.taken++
			o.mu.Unlock()
		}
	})
}

func (o *opened) tookAll(n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.taken == n
}

// takes is when the service has taken all acks.
func (o *opened) takes() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = nil
}

func (o *opened) left() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone
}

func encodedMessage(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func saysStarted(t *testing.T) *wirev1.ConsumeResponse {
	t.Helper()
	return &wirev1.ConsumeResponse{Event: &wirev1.ConsumeResponse_Started{Started: encodedMessage(t, &tailracev1.ConsumeStarted{
		Settings: &tailracev1.ConsumeStart{Group: "g", Topics: []string{"orders"}},
	})}}
}

func saysDeliveries(t *testing.T, n, size int) *wirev1.ConsumeResponse {
	t.Helper()
	m := &tailracev1.Deliveries{}
	for i := range n {
		m.Deliveries = append(m.Deliveries, &tailracev1.Delivery{
			Tag: int64(i + 1), Attempt: 1, Record: &tailracev1.Record{Topic: "orders", Offset: int64(i), Value: bytes.Repeat([]byte("x"), size)},
		})
	}
	return &wirev1.ConsumeResponse{Event: &wirev1.ConsumeResponse_Deliveries{Deliveries: encodedMessage(t, m)}}
}

const consumeOp = `{"op":"consume","id":"q","topics":["orders"],"group":"g"}`

// dialSlow opens a socket whose kernel takes little.
func (r *rig) dialSlow(t *testing.T) *client {
	t.Helper()
	c, err := dial(r.addr, "/ws", clientOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	c.deadline(t)
	return c
}

func startConsuming(t *testing.T, cfg edge.Config) (*rig, *consumer) {
	t.Helper()
	c := &consumer{}
	cfg.Consumer = c
	r := start(t, cfg)
	t.Cleanup(func() {
		r.stop()
		c.tell.Wait() // whoever tells is never left waiting
	})
	return r, c
}

// Whatever ends a session lets go of what its workers hold, also one whose socket takes nothing. Only a client that was lost may have failed.
func TestEverySessionEndLetsGo(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, r *rig, c *client){
		"close": func(t *testing.T, _ *rig, c *client) {
			t.Helper()
			if err := c.writeRaw(maskedFrame(fin|opClose, []byte{0x03, 0xe8})); err != nil {
				t.Fatal(err)
			}
		},
		"fin": func(t *testing.T, _ *rig, c *client) {
			t.Helper()
			if err := c.conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		},
		"reset": func(_ *testing.T, _ *rig, c *client) {
			_ = c.conn.SetLinger(0)
			c.conn.Close()
		},
		"stall": func(*testing.T, *rig, *client) {}, // it reads nothing, and answers no pings
		"drain": func(_ *testing.T, r *rig, _ *client) { go func() { _ = r.edge.Drain(context.Background()) }() },
		"stop":  func(_ *testing.T, r *rig, _ *client) { r.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			if name == "stall" {
				cfg = quick()
				cfg.CloseTimeout = 200 * time.Millisecond
			}
			r, consumer := startConsuming(t, cfg)
			c := r.dialSlow(t)
			c.say(t, consumeOp)
			o := consumer.nth(t, 0)
			flood := []*wirev1.ConsumeResponse{saysStarted(t)}
			for range 60 {
				flood = append(flood, saysDeliveries(t, 8, 32<<10))
			}
			o.says(flood...)
			end(t, r, c)
			await(t, "what it held is free", o.left)
			o.mu.Lock()
			defer o.mu.Unlock()
			if want := name == "fin" || name == "reset" || name == "stall"; o.lost != want {
				t.Errorf("lost: got %v, want %v", o.lost, want)
			}
		})
	}
}

// A socket that takes nothing keeps its service waiting: what it does not take stays there.
func TestConsumeWaitsForTheSocket(t *testing.T) {
	r, consumer := startConsuming(t, config())
	c := r.dialSlow(t)
	c.expect(t, "welcome")
	c.say(t, consumeOp)
	o := consumer.nth(t, 0)
	const messages = 100 // of 256 KiB: far more than kernels hold
	flood := []*wirev1.ConsumeResponse{saysStarted(t)}
	for range messages {
		flood = append(flood, saysDeliveries(t, 8, 32<<10))
	}
	o.says(flood...)
	await(t, "the socket is blocked", func() bool { return r.metric(t, "tailrace_edge_blocked_sessions", "") == 1 })
	if o.tookAll(len(flood)) {
		t.Error("all was taken for a client that reads nothing")
	}
	c.expect(t, "started")
	for got := 0; got < 8*messages; {
		got += len(c.expect(t, "records").Records)
	}
	await(t, "all was taken", func() bool { return o.tookAll(len(flood)) })
}

func TestConsumeIsAskedFor(t *testing.T) {
	r, consumer := startConsuming(t, config())
	r.edge.SetAllow(func(_ context.Context, ask access.Request) error {
		if ask.Action == access.ActionConsume && ask.Group == "secret" || ask.Action == access.ActionPublish && ask.Topic == "bills.dlq" {
			return fmt.Errorf("not %s of %s", ask.Group, ask.Topic)
		}
		return nil
	})
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, `{"op":"consume","id":"q","topics":["orders"],"group":"secret"}`)
	if m := c.expect(t, "error"); m.Reason != "FORBIDDEN" || !m.Final || m.Re != "consume" {
		t.Errorf("got %s", m.raw)
	}
	for _, where := range []string{`"topics":["orders"],"deadLetter":"bills.dlq"`, `"topics":["orders","bills"]`} { // where it may not publish
		c.say(t, `{"op":"consume","id":"q","group":"g",`+where+`}`)
		if m := c.expect(t, "error"); m.Reason != "FORBIDDEN" || !m.Final || m.Re != "consume" {
			t.Errorf("%s: got %s", where, m.raw)
		}
	}
	for i, err := range []error{
		hub.ErrUnavailable, hub.ErrDraining, hub.ErrUnimplemented, &hub.ForbiddenError{Problem: "not here"}, &hub.GroupSettingsError{Problem: "others"},
		errors.New("a secret"),
	} {
		c.say(t, consumeOp) // the id is free again each time
		consumer.nth(t, i).tell(nil, err)
		m := c.expect(t, "error")
		want := []string{"UNAVAILABLE", "DRAINING", "UNIMPLEMENTED", "FORBIDDEN", "GROUP_SETTINGS", "INTERNAL"}[i]
		if m.Reason != want || !m.Final || m.Re != "consume" || m.ID != "q" || m.Retryable != (i < 2) {
			t.Errorf("%v: got %s", err, m.raw)
		}
	}
	c.say(t, consumeOp)
	o := consumer.nth(t, 6)
	o.says(saysStarted(t), &wirev1.ConsumeResponse{Event: &wirev1.ConsumeResponse_Deliveries{Deliveries: []byte{0xff}}})
	c.expect(t, "started")
	if m := c.expect(t, "error"); m.Reason != "INTERNAL" || !m.Final {
		t.Errorf("got %s", m.raw)
	}
	await(t, "it hangs up", o.left)
}

// An ack that is one too many is refused, and says which.
func TestTooManyAcks(t *testing.T) {
	cfg := config()
	cfg.PublishRate = 1
	r, consumer := startConsuming(t, cfg)
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	c.say(t, consumeOp)
	o := consumer.nth(t, 0)
	o.says(saysStarted(t))
	c.expect(t, "started")
	o.mu.Lock()
	o.full = true
	o.mu.Unlock()
	for range 4 { // the service does not take them; then there are too many
		c.say(t, `{"op":"ack","id":"q","tags":[7]}`)
		if m := c.expect(t, "error"); m.Reason != "LIMIT" || m.Re != "ack" || m.Final || !m.Retryable {
			t.Errorf("got %s", m.raw)
		}
	}
	const idle = 20
	for range idle {
		c.say(t, `{"op":"ack","id":"nobody","tags":[7]}`)
	}
	limited := 0
	for range idle {
		if c.expect(t, "error").Reason == "LIMIT" {
			limited++
		}
	}
	if limited == 0 {
		t.Error("acks that have nothing to settle are not counted")
	}
}

// Subscriptions that have always something and consumes do not keep each other waiting.
func TestConsumeBesideASubscription(t *testing.T) {
	r, consumer := startConsuming(t, config())
	r.src.CreateTopic("orders", 1)
	fill(r, "orders", 2000, 8<<10)
	c := r.dial(t, "/ws/orders?start=earliest")
	c.expect(t, "welcome")
	c.say(t, consumeOp)
	consumer.nth(t, 0).says(saysStarted(t), saysDeliveries(t, 100, 1<<10))
	subscribed, worked := 0, 0
	for subscribed < 2000 || worked < 100 {
		m, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case m.Op == "records" && m.ID == "q":
			worked += len(m.Records)
		case m.Op == "records":
			subscribed += len(m.Records)
		}
	}
}
