package edge_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func descriptors(t testing.TB) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestInterleaving: records, pings both ways, publishes, subscribes and at last a close, all at once: a strict client sees no protocol
// error, every answer, and every record in order.
func TestInterleaving(t *testing.T) {
	cfg := config()
	cfg.HeartbeatInterval = 20 * time.Millisecond
	cfg.LifeGrace = patience
	cfg.StallTimeout = 2 * patience
	cfg.SubscribeTimeout = 2 * patience // they come faster than they are answered
	cfg.MaxMessageRate = 1 << 20
	r := start(t, cfg)
	r.src.CreateTopic("orders", 4)
	clients, rounds := 8, size(5000, 60000)
	stop := make(chan struct{})
	var writer, readers sync.WaitGroup
	writer.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			if i%2 == 0 {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
			}
			r.src.Append("orders", int32(i%4), hubtest.Text("k", strings.Repeat("x", i%3000)), hubtest.Text("k", "y"))
		}
	})
	var total atomic.Int64
	for n := range clients {
		readers.Go(func() {
			c, err := dial(r.addr, "/ws/orders", clientOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.conn.Close()
			_ = c.conn.SetDeadline(time.Now().Add(4 * patience))
			asked := make(chan error, 1)
			go func() {
				asked <- func() error {
					for i := range rounds {
						var b []byte
						b = append(b, maskedFrame(fin|opPing, fmt.Appendf(nil, "%d", i))...)
						b = append(b, maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"ping","id":"%d"}`, i))...)
						if i%10 == 0 {
							b = append(b, maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"publish","id":"%d","topic":"other","text":"x"}`, i))...)
							b = append(b, maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"subscribe","id":"s%d","topic":"orders"}`, i))...)
							b = append(b, maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"unsubscribe","id":"s%d"}`, i))...)
						}
						k := rand.IntN(len(b))
						if err := c.writeRaw(b[:k], b[k:]); err != nil {
							return err
						}
					}
					return nil
				}()
			}()
			pongs, answers, begun, left, refused := 0, 0, 0, 0, 0
			want := rounds / 10
			next := map[string]map[int32]int64{}
			count := int64(0)
			for pongs < rounds || answers < want || left < want {
				m, err := c.next()
				if err != nil {
					t.Errorf("client %d: %v (%d pongs, %d answers, %d unsubscribed)", n, err, pongs, answers, left)
					break
				}
				switch m.Op {
				case "pong":
					if m.ID != fmt.Sprint(pongs) {
						t.Errorf("pong %s, want %d", m.ID, pongs)
					}
					pongs++
				case "published":
					answers++
				case "error": // over a limit: it asks faster than it is answered
					switch {
					case m.Re == "publish" && m.Code == "resource_exhausted":
						answers++
					case m.Re == "subscribe" && m.Code == "resource_exhausted":
						refused++
					case m.Re == "unsubscribe":
						left++
					default:
						t.Errorf("%+v", m)
					}
				case "started":
					begun++
				case "unsubscribed":
					left++
				case "records":
					for _, rec := range m.Records {
						at := next[m.ID]
						if at == nil {
							at = map[int32]int64{}
							next[m.ID] = at
						}
						if w, ok := at[rec.Partition]; ok && rec.Offset != w {
							t.Errorf("client %d id %s: offset %d of partition %d, want %d", n, m.ID, rec.Offset, rec.Partition, w)
						}
						at[rec.Partition] = rec.Offset + 1
						count++
					}
				}
			}
			if err := <-asked; err != nil {
				t.Errorf("client %d: %v", n, err)
			}
			if begun != left+1-refused {
				t.Errorf("client %d: %d started, %d unsubscribed, %d refused", n, begun, left, refused)
			}
			total.Add(count)
			_ = c.write(opClose, []byte{3, 232})
			for {
				if _, err = c.next(); err != nil {
					break
				}
			}
			var e *closeFrame
			if !errors.As(err, &e) || e.code != 1000 {
				t.Errorf("client %d: %v, want close 1000", n, err)
			}
			if _, _, err := c.read(); !errors.Is(err, io.EOF) {
				t.Errorf("client %d: %v behind the close frame", n, err)
			}
		})
	}
	readers.Wait()
	close(stop)
	writer.Wait()
	proof(t, "%d clients, %d pings, %d records, no protocol error", clients, 2*clients*rounds, total.Load())
}

// TestCrossTalk: many simultaneous upgrades, each with a key of its own, amid connects and aborts that make descriptors be used again at
// once: each client gets the records of its key and nobody else's.
func TestCrossTalk(t *testing.T) {
	cfg := config()
	r := start(t, cfg)
	r.src.CreateTopic("keyed", 1) // keys are read where they hash to
	n := size(500, 2000)
	const each = 5
	stop := make(chan struct{})
	var noise, readers, ready sync.WaitGroup
	var aborts atomic.Int64
	for g := range 8 {
		noise.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				aborts.Add(1)
				conn, err := net.Dial("tcp", r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				switch (g + i) % 4 {
				case 0: // nothing at all
				case 1: // half a head
					fmt.Fprintf(conn, "GET /ws/keyed?key=noise%d HTTP/1.1\r\nHost:", g)
				case 2: // an upgrade whose answer nobody waits for
					fmt.Fprintf(conn, "GET /ws/keyed?key=noise%d HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
						"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", g)
				case 3: // a whole session
					conn.Close()
					c, err := dial(r.addr, fmt.Sprintf("/ws/keyed?key=noise%d", g), clientOptions{})
					if err != nil {
						t.Error(err)
						return
					}
					conn = c.conn
				}
				if i%2 == 0 {
					_ = clientOn(conn, nil).conn.SetLinger(0)
				}
				conn.Close()
			}
		})
	}
	ready.Add(n)
	begin := make(chan struct{})
	for i := range n {
		readers.Go(func() {
			<-begin
			key := fmt.Sprintf("user-%d", i)
			c, err := dial(r.addr, "/ws/keyed?key="+key, clientOptions{})
			if err != nil {
				ready.Done()
				t.Error(err)
				return
			}
			defer c.conn.Close()
			_ = c.conn.SetReadDeadline(time.Now().Add(4 * patience))
			got, started := 0, false
			defer func() {
				if !started {
					ready.Done()
				}
			}()
			for got < each {
				m, err := c.next()
				if err != nil {
					t.Errorf("%s after %d: %v", key, got, err)
					return
				}
				if m.Op == "started" {
					started = true
					ready.Done()
				}
				for _, rec := range m.Records {
					if rec.Key != key || rec.Text != fmt.Sprintf("%s/%d", key, got) {
						t.Errorf("%s got %+v, want its record %d", key, rec, got)
						return
					}
					got++
				}
			}
		})
	}
	close(begin)
	ready.Wait()
	for round := range each {
		for i := range n {
			key := fmt.Sprintf("user-%d", i)
			r.src.Append("keyed", 0, hubtest.Text(key, fmt.Sprintf("%s/%d", key, round)), hubtest.Text("noise1", "noise"))
		}
	}
	readers.Wait()
	close(stop)
	noise.Wait()
	proof(t, "%d sockets with a key each, %d connects and aborts around them, every record at its own", n, aborts.Load())
}

// TestChurn: connects of all kinds leave no goroutine, no descriptor and no subscription.
func TestChurn(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 4)
	c := r.dial(t, "/ws/orders")
	c.until(t, "caughtup")
	settle := func() (int, int) { runtime.GC(); return runtime.NumGoroutine(), descriptors(t) }
	goroutines, fds := settle()
	n := size(1000, 10000)
	var wg sync.WaitGroup
	for g := range 10 {
		wg.Go(func() {
			for i := range n / 10 {
				c, err := dial(r.addr, "/ws/orders?start=earliest", clientOptions{})
				if err != nil {
					t.Error(err)
					return
				}
				switch (g + i) % 4 {
				case 0:
					_ = c.conn.SetLinger(0)
				case 1:
					_ = c.write(opClose, []byte{3, 232})
				case 2:
					_ = c.write(opText, []byte("x"))
				}
				c.conn.Close()
				if i%50 == 0 {
					r.src.Append("orders", int32(i%4), hubtest.Text("k", "v"))
				}
			}
		})
	}
	wg.Wait()
	await(t, "only one session is left", func() bool { return r.edge.Sessions() == 1 })
	await(t, "only its subscription is left", func() bool { return r.hub.Stats().Subscriptions == 1 })
	await(t, "no goroutine and descriptor is left", func() bool {
		g, f := settle()
		return g <= goroutines && f <= fds
	})
	if got := r.metric(t, "tailrace_edge_sessions_ended_total", ""); got != float64(n) {
		t.Errorf("%v sessions ended, want %d", got, n)
	}
	if got := r.metric(t, "tailrace_edge_sessions", ""); got != 1 {
		t.Errorf("%v sessions, want 1", got)
	}
	proof(t, "%d connects, %d goroutines and %d descriptors before and after", n, goroutines, fds)
}

// TestStalledReader: one that does not read changes nobody's delivery, costs a bounded piece of memory, and catches up exactly.
func TestStalledReader(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 2)
	stalled, err := dial(r.addr, "/ws/orders", clientOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.conn.Close()
	stalled.until(t, "caughtup")
	n, records := size(50, 1000), 1000
	var cs []*client
	for range n {
		c := r.dial(t, "/ws/orders")
		c.until(t, "caughtup")
		cs = append(cs, c)
	}
	want := [2]int64{int64(records / 2), int64(records / 2)}
	check := func(c *client) error {
		var next [2]int64
		for next != want {
			m, err := c.next()
			if err != nil {
				return fmt.Errorf("at %v: %w", next, err)
			}
			for _, rec := range m.Records {
				if rec.Offset != next[rec.Partition] {
					return fmt.Errorf("offset %d of partition %d, want %d", rec.Offset, rec.Partition, next[rec.Partition])
				}
				next[rec.Partition]++
			}
		}
		return nil
	}
	var readers sync.WaitGroup
	for _, c := range cs {
		_ = c.conn.SetReadDeadline(time.Now().Add(4 * patience))
		readers.Go(func() {
			if err := check(c); err != nil {
				t.Error(err)
			}
		})
	}
	value := strings.Repeat("x", 500)
	for i := range records {
		r.src.Append("orders", int32(i%2), hubtest.Text("k", value))
	}
	readers.Wait()
	await(t, "little is held for the one that stalled", func() bool { return r.metric(t, "tailrace_edge_held_bytes", "") < 128<<10 })
	_ = stalled.conn.SetReadDeadline(time.Now().Add(4 * patience))
	if err := check(stalled); err != nil {
		t.Errorf("stalled: %v", err)
	}
	proof(t, "%d readers and one stalled, %d records each, all exact", n, records)
}
