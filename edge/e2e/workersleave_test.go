package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestRestartsAreNoFailures: what workers hold when an edge or a service is ended kindly, or when they leave, is not what nobody can process: with one
// attempt only, nothing becomes a dead letter. What they hold when an edge is killed may be.
func TestRestartsAreNoFailures(t *testing.T) {
	const total = 20
	j := newJudge(t, broker(t))
	topic, dead := j.topic(1), j.topic(1)
	p := startPair(t, pairOptions{kafka: j.bootstrap})
	records := make([]*kgo.Record, total)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%d", i)}
	}
	j.write(records...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	name := fmt.Sprintf("e2e-restarts-%d", time.Now().UnixNano())
	// hold has a socket that holds all records.
	hold := func() *session {
		t.Helper()
		s := dial(ctx, t, p, "/ws", nil)
		consume := map[string]any{"op": "consume", "id": "q", "group": name, "topics": []string{topic}, "maxAttempts": 1, "deadLetter": dead}
		join := func() {
			t.Helper()
			if err := s.sendJSON(consume); err != nil {
				t.Fatal(err)
			}
		}
		join()
		for held := 0; held < total; {
			text, err := s.hear()
			if err != nil {
				t.Fatal(err)
			}
			var m struct {
				Op        string
				Retryable bool
				Records   []json.RawMessage
			}
			if err := json.Unmarshal(text, &m); err != nil {
				t.Fatal(err)
			}
			switch {
			case m.Op == "error" && m.Retryable && held == 0: // the service is back, and not heard of yet
				pause(ctx, 20*time.Millisecond)
				join()
			case m.Op == "error":
				t.Fatalf("got %s", text)
			}
			held += len(m.Records)
		}
		return s
	}
	away := func(s *session) {
		for {
			if _, err := s.hear(); err != nil {
				s.abort(false)
				return
			}
		}
	}
	letters := func() int64 { return j.ends(dead)[0] }

	s := hold()
	p.edge.signal(syscall.SIGTERM)
	away(s)
	if code := p.edge.exit(30 * time.Second); code != 0 {
		t.Errorf("the edge exited with %d", code)
	}
	p.startEdge()
	s = hold() // they come again
	if err := s.hangUp(); err != nil {
		t.Fatal(err)
	}
	away(s)
	s = hold()
	p.service.signal(syscall.SIGTERM)
	if code := p.service.exit(30 * time.Second); code != 0 {
		t.Errorf("the service exited with %d", code)
	}
	s.abort(false)
	p.startService()
	s = hold()
	if n := letters(); n != 0 {
		t.Errorf("%d dead letters after restarts, want none", n)
	}
	p.edge.kill()
	s.abort(true)
	await(t, time.Minute, "what was held by a worker that was lost is dead", func() bool { return letters() == total })
	p.startEdge()
	proof(t, "%d records held through SIGTERM of edge and service and a close frame: no dead letter; through SIGKILL of the edge: %d", total, letters())
}
