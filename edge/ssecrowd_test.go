package edge_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestEventsCrowd: a thousand streams of one topic cost no goroutine, and the topic is read once; beside sockets and a stream that does not read,
// each gets each record, and what it resumes by.
func TestEventsCrowd(t *testing.T) {
	r := start(t, config())
	const partitions = 4
	r.src.CreateTopic("orders", partitions)
	first := r.stream(t, "/sse/orders")
	first.until(t, "caughtup")
	goroutines := runtime.NumGoroutine()
	n, records := size(1000, 5000), 100
	var streams []*stream
	var mu sync.Mutex
	var opening sync.WaitGroup
	for range 20 {
		opening.Go(func() {
			for range n / 20 {
				s, err := openStream(r.addr, "/sse/orders")
				if err != nil {
					t.Error(err)
					return
				}
				if e, err := s.next(); err != nil || e.name != "started" {
					t.Errorf("got %+v, %v", e, err)
				}
				mu.Lock()
				streams = append(streams, s)
				mu.Unlock()
			}
		})
	}
	opening.Wait()
	for _, s := range streams {
		defer s.conn.Close()
	}
	if t.Failed() {
		return
	}
	socket := r.dial(t, "/ws/orders")
	socket.until(t, "caughtup")
	await(t, "handshakes are over", func() bool { return runtime.NumGoroutine() <= goroutines })
	if got := len(r.src.Following("orders")); got != partitions {
		t.Errorf("%d partitions are followed, want %d", got, partitions)
	}
	if counts := r.src.Counts(); counts.Follows > partitions {
		t.Errorf("%+v: a partition was followed more than once", counts)
	}

	stalled := streams[0]
	last := map[string]bool{}
	read := func(s *stream) error {
		var next [partitions]int64
		for got := 0; got < records; {
			e, err := s.next()
			if err != nil {
				return err
			}
			if e.name != "message" {
				continue
			}
			m, err := e.parse()
			if err != nil {
				return err
			}
			for _, rec := range m.Records {
				if rec.Offset != next[rec.Partition] {
					return fmt.Errorf("offset %d of partition %d, want %d", rec.Offset, rec.Partition, next[rec.Partition])
				}
				next[rec.Partition]++
				got++
			}
		}
		mu.Lock()
		defer mu.Unlock()
		last[s.lastID] = true
		return nil
	}
	value := strings.Repeat("x", 300)
	var reading sync.WaitGroup
	for _, s := range streams[1:] {
		_ = s.conn.SetReadDeadline(time.Now().Add(4 * patience))
		reading.Go(func() {
			if err := read(s); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range records {
		r.src.Append("orders", int32(i%partitions), hubtest.Text("k", value))
	}
	reading.Wait()
	for got := 0; got < records; {
		got += len(socket.until(t, "records").Records)
	}
	_ = stalled.conn.SetReadDeadline(time.Now().Add(4 * patience))
	if err := read(stalled); err != nil {
		t.Errorf("the one that did not read: %v", err)
	}
	if len(last) != 1 {
		t.Errorf("all stand at the same place, by %d ids", len(last))
	}
	proof(t, "%d streams of %d partitions: %d goroutines before and with them, %d partitions followed, %d records each", n, partitions, goroutines, partitions, records)
}

// TestEventsHeartbeats: a stream with nothing to tell has comments; a reader whose records don't come is moved on; what is wrong is told.
func TestEventsHeartbeats(t *testing.T) {
	cfg := config()
	cfg.HeartbeatInterval, cfg.LifeGrace = 50*time.Millisecond, 0
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	s := r.stream(t, "/sse/orders?key=mine")
	before, _ := s.expect(t, "started")
	s.expect(t, "caughtup")
	r.src.Append("orders", 0, hubtest.Text("other", "x"), hubtest.Text("other", "y"))
	moved, m := s.expect(t, "heartbeat")
	if string(m.Positions) != `{"0":{"0":[2,0]}}` && string(m.Positions) != `{"0":{"0":2}}` || moved.id == before.id || s.comments == 0 && len(s.retry) != 1 {
		t.Errorf("positions %s, id %q after %q", m.Positions, moved.id, before.id)
	}
	r.src.Append("orders", 0, hubtest.Text("mine", "z"))
	if got := s.values(t, 1); got[0] != "z" {
		t.Errorf("got %q", got)
	}
	r.src.SetUnavailable("orders", 0, true)
	if _, m := s.until(t, "heartbeat"); string(m.Unavailable) != `{"0":[0]}` {
		t.Errorf("unavailable %s", m.Unavailable)
	}
	r.src.SetUnavailable("orders", 0, false)
	for {
		if _, m := s.until(t, "heartbeat"); m.Unavailable == nil {
			break
		}
	}
	comments := s.comments
	r.src.Append("orders", 0, hubtest.Text("mine", "last"))
	await(t, "comments", func() bool { // they come by themselves, but this client takes note of them only as it reads
		r.src.Append("orders", 0, hubtest.Text("mine", "more"))
		s.values(t, 1)
		return s.comments >= comments
	})
	resumed := r.stream(t, "/sse/orders?key=mine", "Last-Event-ID: "+moved.id)
	if got := resumed.values(t, 1); got[0] != "z" {
		t.Errorf("resumed with %q", got)
	}
	await(t, "it is alive beyond every limit of a silent socket", func() bool {
		return time.Duration(r.metric(t, "tailrace_edge_writes_total", "")) > 12
	})
	if got := r.endings(t); got != nil {
		t.Errorf("ended: %v", got)
	}
}

// TestEventsComments: an idle stream has a comment each interval, and is not given up although its client never says anything.
func TestEventsComments(t *testing.T) {
	cfg := config()
	cfg.HeartbeatInterval, cfg.LifeGrace, cfg.StallTimeout = 30*time.Millisecond, 0, 100*time.Millisecond
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	s := r.stream(t, "/sse/orders")
	s.until(t, "caughtup")
	for range 20 { // six times the stall timeout
		line, err := s.lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line != ":\n" && line != "\n" {
			t.Fatalf("got %q, want a comment", line)
		}
	}
	if got := r.endings(t); got != nil {
		t.Errorf("ended: %v", got)
	}
}

// TestEventsStalled: one that takes nothing for the stall timeout is given up.
func TestEventsStalled(t *testing.T) {
	cfg := config()
	cfg.HeartbeatInterval, cfg.LifeGrace, cfg.StallTimeout, cfg.CloseTimeout = 30*time.Millisecond, 0, 300*time.Millisecond, 100*time.Millisecond
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	r.stream(t, "/sse/orders")
	value := strings.Repeat("x", 64<<10)
	await(t, "it is given up", func() bool {
		r.src.Append("orders", 0, hubtest.Text("k", value))
		return r.metric(t, "tailrace_edge_sessions_ended_total", "stalled") == 1
	})
}

// TestEventsDrain: a stream is told to come back, and its client does so where it was.
func TestEventsDrain(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	s := r.stream(t, "/sse/orders")
	s.until(t, "caughtup")
	r.src.Append("orders", 0, hubtest.Text("k", "a"))
	s.values(t, 1)
	id := s.lastID
	drained := make(chan error, 1)
	go func() { drained <- r.edge.Drain(t.Context()) }()
	e, m := s.expect(t, "goodbye")
	if fmt.Sprintf("%v %s %v", m.Code, m.Reason, m.ReconnectAfterMs) != "4000 draining [0 5000]" || e.id != id || len(s.retry) != 2 || s.retry[1] > 5000 {
		t.Errorf("%+v, retry %v", m, s.retry)
	}
	s.expectEnd(t)
	s.conn.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
	r.ended(t, "draining")
}

// TestEventsFull: where there is no room a client is told to come back, in a way that EventSource understands.
func TestEventsFull(t *testing.T) {
	cfg := config()
	cfg.MaxSessions = 1
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	first := r.stream(t, "/sse/orders")
	first.expect(t, "started")
	s := r.stream(t, "/sse/orders")
	if _, m := s.expect(t, "error"); m.Reason != "LIMIT" || !m.Retryable || len(s.retry) != 1 || s.retry[0] < 5000 {
		t.Errorf("%+v, retry %v", m, s.retry)
	}
	s.expectEnd(t)
	first.conn.Close()
	await(t, "there is room again", func() bool { return r.edge.Sessions() == 0 })
	if got := r.metric(t, "tailrace_edge_upgrades_refused_total", "sse"); got != 1 {
		t.Errorf("%v are counted as refused, want 1", got)
	}
}

// TestEventsUnavailable: what passes is told in the stream, so that EventSource comes back.
func TestEventsUnavailable(t *testing.T) {
	cfg := config()
	cfg.SubscribeTimeout = 100 * time.Millisecond
	cfg.UpstreamProblem = func() string { return "Kafka is away" }
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	r.src.SetUnavailable("orders", 0, true)
	s := r.stream(t, "/sse/orders")
	if s.resp.StatusCode != http.StatusOK {
		t.Fatal(s.resp.Status)
	}
	if _, m := s.expect(t, "error"); m.Reason != "UNAVAILABLE" || !m.Retryable || !m.Final || m.Message != "Kafka is away" {
		t.Errorf("%+v", m)
	}
	if _, m := s.expect(t, "goodbye"); fmt.Sprint(m.Code) != "4003" || len(m.ReconnectAfterMs) != 2 {
		t.Errorf("%+v", m)
	}
	s.expectEnd(t)
	r.ended(t, "upstream_gone")
}

// TestEventsControls: gaps, new partitions and a topic that was deleted are told, and what follows is resumed by.
func TestEventsControls(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	for i := range 10 {
		r.src.Append("orders", 0, hubtest.Text("k", fmt.Sprintf("v%d", i)))
	}
	early := r.stream(t, "/sse/orders?start=earliest&until=end")
	early.values(t, 3)
	r.src.Retain("orders", 0, 6)
	s := r.stream(t, "/sse/orders?positions=0:2")
	started, _ := s.expect(t, "started")
	if started.id != "" {
		t.Errorf("started has the id %q before the gap was told", started.id)
	}
	gap, m := s.expect(t, "gap")
	if m.From != 2 || m.To != 6 || gap.id != "" {
		t.Errorf("gap %+v, id %q", m, gap.id)
	}
	if got := s.values(t, 4); got[0] != "v6" {
		t.Errorf("got %q", got)
	}
	r.src.Grow("orders", 2)
	s.until(t, "topology")
	r.src.Append("orders", 1, hubtest.Text("k", "new"))
	if got := s.values(t, 1); got[0] != "new" {
		t.Errorf("got %q", got)
	}
	r.src.CreateTopic("orders", 2)
	if e, m := s.until(t, "gap"); m.Reason != "recreated" || !strings.Contains(e.data, r.src.TopicID("orders")) {
		t.Errorf("%s", e.data)
	}
	foreign := r.stream(t, "/sse/orders", "Last-Event-ID: "+s.lastID) // of the old log
	foreign.expect(t, "started")
	if _, m := foreign.expect(t, "gap"); m.Reason != "recreated" || m.To != 0 {
		t.Errorf("%+v", m)
	}
	r.src.DeleteTopic("orders")
	if _, m := s.until(t, "error"); m.Reason != "TOPIC_DELETED" || !m.Final {
		t.Errorf("%+v", m)
	}
	s.until(t, "goodbye")
	s.expectEnd(t)
	if resp := ask(t, r.addr, "GET /sse/orders HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: "+s.lastID+"\r\n\r\n"); resp.StatusCode != http.StatusNoContent {
		t.Errorf("whoever comes back gets %s, want 204", resp.Status)
	}
}
