package edge_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// slowly is how far behind a reader may be in these tests.
const slowly = 400 * time.Millisecond

// slowReader is a socket that took nothing while the topic went on.
type slowReader struct {
	*client
	at   map[string]int64    // position, by id
	got  map[string][]string // offset and key of records, and gaps
	left map[string]int64    // records that gaps count
	end  int64
}

// stallFor dials, says what it says, and stalls the socket while records come that are more than the bound.
func stallFor(t *testing.T, r *rig, path string, proto bool, says ...string) *slowReader {
	t.Helper()
	c, err := dial(r.addr, path, clientOptions{recvBuffer: 4096, proto: proto})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	s := &slowReader{client: c, at: map[string]int64{}, got: map[string][]string{}, left: map[string]int64{}}
	for _, text := range says {
		c.say(t, text)
	}
	for range max(1, len(says)) {
		s.until(t, "caughtup")
	}
	bystander := r.dial(t, "/ws/orders")
	bystander.until(t, "caughtup")
	var seen atomic.Int64
	var reading sync.WaitGroup
	reading.Go(func() { whole(t, bystander, &seen) })
	t.Cleanup(func() { bystander.conn.Close(); reading.Wait() })
	big := hubtest.Text("big", strings.Repeat("b", 100_000))
	for range 60 { // more than the kernel takes for a socket whose peer does not read
		r.src.Append("orders", 0, big)
		s.end++
	}
	await(t, "one socket takes nothing, the other has everything", func() bool {
		return seen.Load() == s.end && r.metric(t, "tailrace_edge_blocked_sessions", "") == 1
	})
	trickle := time.NewTicker(10 * time.Millisecond)
	defer trickle.Stop()
	for i, began := 0, time.Now(); time.Since(began) < 3*slowly; i++ {
		<-trickle.C
		r.src.Append("orders", 0, hubtest.Text(fmt.Sprintf("k%d", i%3), "v"))
		s.end++
	}
	await(t, "a bystander has everything", func() bool { return seen.Load() == s.end })
	return s
}

// whole reads a bystander's records until its connection is closed: it notices nothing.
func whole(t *testing.T, c *client, seen *atomic.Int64) {
	t.Helper()
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(patience))
		m, err := c.next()
		if err != nil {
			return
		}
		if m.Op == "gap" {
			t.Errorf("a bystander gets %s", m.raw)
		}
		for _, rec := range m.Records {
			if rec.Offset != seen.Load() {
				t.Errorf("a bystander gets offset %d, want %d", rec.Offset, seen.Load())
			}
			seen.Store(rec.Offset + 1)
		}
	}
}

// read reads until done, and checks that every position is exact.
func (s *slowReader) read(done func(*message) bool) error {
	_ = s.conn.SetReadDeadline(time.Now().Add(patience))
	for {
		m, err := s.next()
		if err != nil {
			return err
		}
		for _, rec := range m.Records {
			if rec.Offset != s.at[m.ID] {
				return fmt.Errorf("%s: offset %d at %d", m.ID, rec.Offset, s.at[m.ID])
			}
			s.at[m.ID]++
			s.got[m.ID] = append(s.got[m.ID], fmt.Sprint(rec.Offset, " ", rec.Key))
		}
		if m.Op == "gap" {
			if m.From != s.at[m.ID] || m.To <= m.From {
				return fmt.Errorf("%s: gap %s at %d", m.ID, m.raw, s.at[m.ID])
			}
			var counted struct{ Records int64 }
			if err := json.Unmarshal([]byte(m.raw), &counted); err != nil {
				return err
			}
			s.at[m.ID] = m.To
			s.left[m.ID] += counted.Records
			s.got[m.ID] = append(s.got[m.ID], "gap "+m.Reason)
		}
		if done(m) {
			return nil
		}
	}
}

func (s *slowReader) atEnd(id string) func(*message) bool {
	return func(*message) bool { return s.at[id] >= s.end }
}

// gaps counts the gaps of a reason.
func (s *slowReader) gaps(id, reason string) (n int) {
	for _, line := range s.got[id] {
		if line == "gap "+reason {
			n++
		}
	}
	return n
}

// inBothForms runs a test on JSON and on binary sockets.
func inBothForms(t *testing.T, do func(t *testing.T, proto bool)) {
	t.Helper()
	for _, form := range []string{"json", "proto"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel() // mostly they wait
			do(t, form == "proto")
		})
	}
}

func slowRig(t *testing.T) *rig {
	t.Helper()
	r := startOn(t, config(), hub.Config{SlowAfter: slowly})
	r.src.CreateTopic("orders", 1)
	return r
}

// TestSlowSkip: a stalled socket goes on at the head, behind one gap; what comes then is live. A subscription beside it that catches up gets all.
func TestSlowSkip(t *testing.T) {
	inBothForms(t, func(t *testing.T, proto bool) {
		r := slowRig(t)
		s := stallFor(t, r, "/ws", proto, `{"op":"subscribe","id":"s","topic":"orders","slow":"skip"}`, `{"op":"subscribe","id":"all","topic":"orders"}`)
		if err := s.read(func(*message) bool { return s.at["s"] >= s.end && s.at["all"] >= s.end }); err != nil {
			t.Fatal(err)
		}
		skips := s.gaps("s", "slow")
		if skips == 0 || s.gaps("all", "slow") != 0 || len(s.got["all"]) != int(s.end) {
			t.Errorf("%d gaps, the other %d records and %d gaps; want some, %d, 0", skips, len(s.got["all"]), s.gaps("all", "slow"), s.end)
		}
		r.src.Append("orders", 0, hubtest.Text("later", "v"))
		s.end++
		if err := s.read(s.atEnd("s")); err != nil {
			t.Error(err)
		}
		if got := r.metric(t, "tailrace_hub_slow_readers_total", "skip"); got != float64(skips) {
			t.Errorf("the metric says %v, want %d", got, skips)
		}
	})
}

// TestSlowConflate: a stalled socket gets the latest record of each key, and gaps that count the others.
func TestSlowConflate(t *testing.T) {
	inBothForms(t, func(t *testing.T, proto bool) {
		r := slowRig(t)
		s := stallFor(t, r, "/ws/orders?slow=conflate", proto)
		if err := s.read(s.atEnd("0")); err != nil {
			t.Fatal(err)
		}
		got := s.got["0"]
		records := int64(len(got) - s.gaps("0", "conflated"))
		if s.gaps("0", "conflated") == 0 || records+s.left["0"] != s.end {
			t.Errorf("%d records and %d left out by %d gaps, want %d in all", records, s.left["0"], s.gaps("0", "conflated"), s.end)
		}
		var last []string
		for _, line := range got[len(got)-3:] {
			_, key, _ := strings.Cut(line, " ")
			last = append(last, key)
		}
		if slices.Sort(last); !slices.Equal(last, []string{"k0", "k1", "k2"}) {
			t.Errorf("the last records are of %q, want one of each key", last)
		}
	})
}

// TestSlowFail: in a socket of many the subscription ends, and nothing else; one of a URL ends with its socket.
func TestSlowFail(t *testing.T) {
	inBothForms(t, func(t *testing.T, proto bool) {
		r := slowRig(t)
		s := stallFor(t, r, "/ws", proto, `{"op":"subscribe","id":"s","topic":"orders","slow":"fail"}`, `{"op":"subscribe","id":"all","topic":"orders"}`)
		failed := false
		err := s.read(func(m *message) bool {
			if m.Op == "error" {
				if failed = m.ID == "s" && m.Re == "subscribe" && m.Final && m.Code == "resource_exhausted" && m.Reason == "LAGGED"; !failed {
					t.Errorf("got %s", m.raw)
				}
			}
			return failed && s.at["all"] >= s.end
		})
		if err != nil {
			t.Fatal(err)
		}
		s.say(t, `{"op":"subscribe","id":"s","topic":"orders","slow":"fail"}`)
		s.until(t, "started")
		if got := r.metric(t, "tailrace_hub_slow_readers_total", "fail"); got != 1 {
			t.Errorf("the metric says %v, want 1", got)
		}
	})
	inBothForms(t, func(t *testing.T, proto bool) {
		r := slowRig(t)
		s := stallFor(t, r, "/ws/orders?slow=fail", proto)
		var last []string
		err := s.read(func(m *message) bool {
			if m.Op != "records" {
				last = append(last, m.Op+" "+m.Reason)
			}
			return false
		})
		var end *closeFrame
		if !errors.As(err, &end) || end.code != 4001 {
			t.Errorf("got %v, want close 4001", err)
		}
		if want := []string{"error LAGGED", "goodbye too slow for the policy fail"}; !slices.Equal(last, want) {
			t.Errorf("before the close came %q, want %q", last, want)
		}
		await(t, "the end is counted", func() bool { return r.metric(t, "tailrace_edge_sessions_ended_total", "lagged") == 1 })
	})
}
