package edge_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// drip is a peer behind a thin line: a relay that takes little of what the edge sends, now and then. What the client says passes at once.
type drip struct {
	addr    string
	stopped atomic.Bool // it takes nothing more
}

func newDrip(t *testing.T, target string, size int, every time.Duration) *drip {
	t.Helper()
	ln := listen(t)
	d := &drip{addr: ln.Addr().String()}
	var wg sync.WaitGroup
	done := make(chan struct{})
	t.Cleanup(func() {
		close(done)
		ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			up, err := (&net.Dialer{Control: recvBuffer(4096)}).Dial("tcp", target)
			if err != nil {
				conn.Close()
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(up, conn)
				up.Close()
			})
			wg.Go(func() {
				defer conn.Close()
				defer up.Close()
				tick := time.NewTicker(every)
				defer tick.Stop()
				buf := make([]byte, size)
				for {
					select {
					case <-tick.C:
					case <-done:
						return
					}
					if d.stopped.Load() {
						continue
					}
					n, err := up.Read(buf)
					if _, failed := conn.Write(buf[:n]); err != nil || failed != nil {
						return
					}
				}
			})
		}
	})
	return d
}

// TestDrippingPeer: a reader on a thin line that never says anything lives for as long as the line moves, and is given up once it does not.
func TestDrippingPeer(t *testing.T) {
	cfg := quick()
	cfg.StallTimeout = 1500 * time.Millisecond
	cfg.CloseTimeout = 200 * time.Millisecond
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	fill(r, "orders", 200, 64<<10)
	line := newDrip(t, r.addr, 1024, 10*time.Millisecond)
	c, err := dial(line.addr, "/ws/orders?start=earliest", clientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.conn.Close()
	buf := make([]byte, 64<<10)
	for end := time.Now().Add(3 * cfg.StallTimeout); time.Now().Before(end); {
		_ = c.conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.conn.Read(buf); err != nil {
			await(t, "the session has ended", func() bool { return len(r.endings(t)) > 0 })
			t.Fatalf("%v, ended: %s", err, r.endings(t))
		}
	}
	line.stopped.Store(true)
	r.ended(t, "stalled")
}

// TestDrippingPeerThatAnswers: one whose pongs come lives on although the line does not move: it says that it is there.
func TestDrippingPeerThatAnswers(t *testing.T) {
	cfg := quick()
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	fill(r, "orders", 50, 64<<10)
	line := newDrip(t, r.addr, 1024, 10*time.Millisecond)
	c, err := dial(line.addr, "/ws/orders?start=earliest", clientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.until(t, "started")
	line.stopped.Store(true)
	pong := time.NewTicker(cfg.StallTimeout / 10)
	defer pong.Stop()
	for range 25 { // two and a half stall timeouts
		<-pong.C
		if err := c.write(opPong, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.endings(t); len(got) > 0 {
		t.Errorf("ended: %q", got)
	}
	c.conn.Close()
	await(t, "the session has ended", func() bool { return len(r.endings(t)) > 0 })
}

// TestHeartbeatBetweenPings: a page does not see pings, so they are no reason to leave a heartbeat out.
func TestHeartbeatBetweenPings(t *testing.T) {
	r := start(t, quick())
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	beats := 0
	for c.pings < 10 {
		c.expect(t, "heartbeat")
		beats++
	}
	if beats < c.pings-1 {
		t.Errorf("%d heartbeats and %d pings: an interval has one of each", beats, c.pings)
	}
}

// TestPingAmidTraffic: what is sent is no reason to leave a ping out.
func TestPingAmidTraffic(t *testing.T) {
	r := start(t, quick())
	r.src.CreateTopic("orders", 1)
	c := r.dial(t, "/ws/orders")
	c.until(t, "caughtup")
	done := make(chan struct{})
	defer func() { <-done }()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fill(r, "orders", 1, 10)
			case <-stop:
				return
			}
		}
	}()
	c.pings = 0
	for c.pings < 5 {
		c.until(t, "records")
	}
}

// TestCloseIsEchoed: every code that a client may close with comes back, once, without its reason; what comes behind it is ignored, and nothing
// follows, also where records are on their way.
func TestCloseIsEchoed(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	fill(r, "orders", 20, 1000)
	codes := []int{1000, 1001, 1008, 1012, 1013, 1014, 3000, 3999, 4000, 4500, 4999}
	for i, code := range codes {
		c := r.dial(t, "/ws/orders?start=earliest")
		c.expect(t, "welcome")
		payload := fmt.Appendf([]byte{byte(code >> 8), byte(code)}, "see you")
		err := c.writeRaw(maskedFrame(fin|opClose, payload), maskedFrame(fin|opText, []byte(`{"op":"ping","id":"x"}`)), []byte{0xff, 0xff}, maskedFrame(fin|opClose, payload))
		if err != nil {
			t.Fatal(err)
		}
		var closed *closeFrame
		for {
			m, err := c.next()
			if errors.As(err, &closed) {
				break
			}
			if err != nil {
				t.Fatalf("%d: %v", code, err)
			}
			if m.Op == "pong" || m.Op == "goodbye" {
				t.Errorf("%d: got %s", code, m.raw)
			}
		}
		if closed.code != code || closed.reason != "" {
			t.Errorf("got %v, want the echo of %d", closed, code)
		}
		_ = c.conn.CloseWrite()
		if _, _, err := c.read(); !errors.Is(err, io.EOF) {
			t.Errorf("%d: behind the close frame: %v", code, err)
		}
		await(t, "it is counted", func() bool { return r.metric(t, "tailrace_edge_sessions_ended_total", "client_close") == float64(i+1) })
	}
}

// TestFINWhileRecordsWait: a peer that has closed its side is gone, whatever waits for it: no close frame, and the socket is closed soon.
func TestFINWhileRecordsWait(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	fill(r, "orders", 200, 64<<10)
	c, err := dial(r.addr, "/ws/orders?start=earliest", clientOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer c.conn.Close()
	c.until(t, "started")
	await(t, "it is blocked", func() bool { return r.metric(t, "tailrace_edge_blocked_sessions", "") == 1 })
	if err := c.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.ended(t, "client_eof")
	for {
		if _, _, err := c.read(); err != nil {
			if closed, ok := errors.AsType[*closeFrame](err); ok {
				t.Errorf("got %v, want the end of the stream", closed)
			}
			break
		}
	}
}
