package edge_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestLife goes through a session's life by a clock of its own: interval 15 s, grace 5 s, stall timeout 2 min.
func TestLife(t *testing.T) {
	t.Parallel()
	cfg := edge.DefaultConfig()
	type look struct {
		at, received time.Duration
		blocked      bool
		written      int64
		unsent       int
		want         string
	}
	s := time.Second
	for _, c := range []struct {
		name  string
		looks []look
	}{
		{"silent", []look{{at: 35 * s}, {at: 36 * s, want: "no_sign_of_life"}}},
		{"answers", []look{{at: 60 * s, received: 30 * s}, {at: 64 * s, received: 30 * s}, {at: 66 * s, received: 30 * s, want: "no_sign_of_life"}}},
		{"blocked for good", []look{{at: 36 * s, blocked: true}, {at: 120 * s, blocked: true}, {at: 121 * s, blocked: true, want: "stalled"}}},
		{"unsent for good", []look{
			{at: 36 * s, written: 9, unsent: 9},
			{at: 120 * s, written: 9, unsent: 9},
			{at: 121 * s, written: 9, unsent: 9, want: "stalled"},
		}},
		{"slow but moving", []look{
			{at: 100 * s, blocked: true, written: 9, unsent: 9},
			{at: 110 * s, blocked: true, written: 20, unsent: 19}, // progress, although more waits
			{at: 229 * s, blocked: true, written: 20, unsent: 19},
			{at: 231 * s, blocked: true, written: 20, unsent: 19, want: "stalled"},
		}},
		{"what waits grows", []look{
			{at: 100 * s, written: 5, unsent: 5},
			{at: 119 * s, written: 500, unsent: 500},
			{at: 121 * s, written: 5000, unsent: 5000, want: "stalled"},
		}},
		{"stuck, then takes everything, never answers", []look{
			{at: 100 * s, written: 5, unsent: 5},
			{at: 101 * s, written: 5},
			{at: 136 * s, written: 500},
			{at: 137 * s, written: 900, want: "no_sign_of_life"},
		}},
	} {
		var l edge.Life
		for _, k := range c.looks {
			stuck := l.Observe(k.at, k.blocked, k.written, k.unsent)
			if got := l.Judge(k.at, k.received, stuck, cfg); got != k.want {
				t.Errorf("%s: at %v got %q, want %q", c.name, k.at, got, k.want)
			}
		}
	}
}

// quick has short intervals.
func quick() edge.Config {
	cfg := config()
	cfg.HeartbeatInterval = 100 * time.Millisecond
	cfg.LifeGrace = time.Second // the client of the test may be slow to answer
	cfg.StallTimeout = 1500 * time.Millisecond
	return cfg
}

// TestHeartbeat: a silent client that answers pings lives on, and is told that we do.
func TestHeartbeat(t *testing.T) {
	r := start(t, quick())
	c := r.dial(t, "/ws")
	if m := c.expect(t, "welcome"); m.HeartbeatMs != 100 {
		t.Errorf("heartbeatMs %d, want 100", m.HeartbeatMs)
	}
	for range 8 {
		c.expect(t, "heartbeat")
	}
	if c.pings == 0 {
		t.Error("no ping within eight intervals of silence")
	}
	c.say(t, `{"op":"ping","id":"x"}`)
	if m := c.until(t, "pong"); m.ID != "x" {
		t.Errorf("pong of %q, want x", m.ID)
	}
}

// TestHeartbeatPositions: a position that moves without a record is told.
func TestHeartbeatPositions(t *testing.T) {
	r := start(t, quick())
	r.src.CreateTopic("orders", 1)
	c := r.dial(t, "/ws/orders?key=mine")
	c.until(t, "started")
	r.src.Append("orders", 0, hubtest.Text("other", "v"), hubtest.Text("other", "v"))
	for {
		m := c.until(t, "heartbeat")
		if strings.Contains(string(m.Positions), `"0":{"0":`) && strings.Contains(string(m.Positions), "2") {
			break
		}
	}
}

// TestHeartbeatPositionsAmidTraffic: records of the subscription's own, all the time, do not put off the telling of what moved without one; what an open
// transaction holds back is no lag.
func TestHeartbeatPositionsAmidTraffic(t *testing.T) {
	r := start(t, quick())
	r.src.CreateTopic("orders", 2)
	c := r.dial(t, "/ws")
	c.say(t, `{"op":"subscribe","id":"a","topic":"orders","keys":["mine"],"partitions":[0,1],"start":"earliest"}`)
	c.until(t, "caughtup")
	r.src.Append("orders", 1, hubtest.Text("other", "v"), hubtest.Text("other", "v"), hubtest.Text("other", "v"))
	r.src.AppendOpen("orders", 1, hubtest.Text("mine", "open"))
	moved := regexp.MustCompile(`"1":(3|\[3,\d+\])`)
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.src.Append("orders", 0, hubtest.Text("mine", "v"))
			case <-stop:
				return
			}
		}
	})
	defer writing.Wait()
	defer close(stop)
	c.deadline(t)
	for records := 0; ; {
		m, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		records += len(m.Records)
		if m.Op != "heartbeat" && m.Op != "records" || !moved.Match(m.Positions) {
			continue
		}
		if records == 0 {
			t.Error("no record came meanwhile, the test shows nothing")
		}
		break
	}
}

// TestNoSignOfLife: a client that takes everything but never answers is given up.
func TestNoSignOfLife(t *testing.T) {
	r := start(t, quick())
	c := r.dial(t, "/ws")
	goodbye := false
	for {
		op, payload, err := c.read() // answers nothing
		if err != nil {
			if want := `closed: 4004 "no sign of life"`; err.Error() != want {
				t.Fatalf("got %v, want %s", err, want)
			}
			break
		}
		goodbye = op == opText && strings.Contains(string(payload), `"goodbye","code":4004`)
	}
	if !goodbye {
		t.Error("no goodbye before the close frame")
	}
	_ = c.write(opClose, binary.BigEndian.AppendUint16(nil, 4004))
	c.conn.Close()
	r.ended(t, "no_sign_of_life")
}

// TestStalled: a client that neither reads nor says anything while data waits is given up, later.
func TestStalled(t *testing.T) {
	cfg := quick()
	cfg.CloseTimeout = 200 * time.Millisecond
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	c, err := dial(r.addr, "/ws/orders", clientOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer c.conn.Close()
	c.until(t, "started")
	from := time.Now()
	fill(r, "orders", 200, 64<<10)
	r.ended(t, "stalled")
	if lasted := time.Since(from); lasted < cfg.StallTimeout {
		t.Errorf("given up after %v, stall timeout is %v", lasted, cfg.StallTimeout)
	}
}

// TestSlowIsNotStalled: a client that reads slowly and never says anything lives on, as long as data waits for it.
func TestSlowIsNotStalled(t *testing.T) {
	cfg := quick()
	cfg.StallTimeout = 2 * time.Second
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	fill(r, "orders", 500, 64<<10) // more than is read below, so that something waits all the time
	c, err := dial(r.addr, "/ws/orders?start=earliest", clientOptions{recvBuffer: 16 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer c.conn.Close()
	c.until(t, "started")
	// Far longer than a silent client may live, and longer than one that takes nothing.
	end := time.Now().Add(2 * cfg.StallTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	buf := make([]byte, 64<<10)
	for time.Now().Before(end) {
		<-tick.C
		if _, err := c.conn.Read(buf); err != nil {
			c.conn.Close()
			await(t, "the session has ended", func() bool { return len(r.endings(t)) > 0 })
			t.Fatalf("%v, ended: %s", err, r.endings(t))
		}
	}
}

// fill appends n records of size bytes.
func fill(r *rig, topic string, n, size int) {
	value := strings.Repeat("x", size)
	for i := range n {
		r.src.Append(topic, 0, hubtest.Text(fmt.Sprint(i), value))
	}
}

// TestLateReading: a client is not given up for what the edge has not read yet.
func TestLateReading(t *testing.T) {
	cfg := quick()
	cfg.Workers = 1
	r := start(t, cfg)
	speaks, silent := r.dial(t, "/ws"), r.dial(t, "/ws") // the first has been quiet for longer
	speaks.expect(t, "welcome")
	silent.expect(t, "welcome")
	release := sync.OnceFunc(r.edge.HoldPollers())
	defer release()
	speaks.say(t, `{"op":"ping","id":"x"}`)
	for {
		_, _, err := silent.read() // it answers no pings
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[*closeFrame](err); !ok || e.code != 4004 {
			t.Fatalf("got %v, want 4004", err)
		}
		break
	}
	release()
	speaks.until(t, "pong")
}
