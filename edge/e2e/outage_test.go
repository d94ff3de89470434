package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// TestPublishAcrossAnOutage publishes without pause by sockets while the service is killed. Each publish has exactly one answer, and the
// answer is true: what was published is in the log at its place, what was refused is nowhere, and nothing is there twice.
func TestPublishAcrossAnOutage(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(3)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	const perKill = 400
	kills := size(2, 8)
	s := dial(ctx, t, p, "/ws", nil)
	read := make(chan error, 1)
	total := perKill * kills
	answers := func() int { return s.publishedCount() + len(s.errorFrames()) }
	go func() { read <- s.run(func() bool { return answers() == total }) }()
	n := 0
	for range kills {
		for i := range perKill {
			if i == perKill/3 {
				p.service.kill()
			}
			if i == 2*perKill/3 {
				p.startService()
			}
			text := fmt.Sprintf(`{"op":"publish","id":"p%d","topic":%q,"key":"k%d","value":{"n":%d}}`, n, topic, n%7, n)
			if err := s.write(opText, []byte(text)); err != nil {
				t.Fatal(err)
			}
			n++
			pause(ctx, time.Millisecond)
		}
		await(t, time.Minute, "answers to all that was published", func() bool { return answers() >= n || len(read) > 0 })
	}
	if err := <-read; err != nil {
		t.Fatalf("the socket ended: %v, %d of %d answered", err, answers(), n)
	}
	log := j.read(topic, true)
	places := map[string][]*record{}
	for _, records := range log.whole {
		for i := range records {
			places[string(records[i].value)] = append(places[string(records[i].value)], &records[i])
		}
	}
	outcomes := map[string]int{}
	answered := map[string]bool{}
	for _, f := range s.errorFrames() {
		var n int
		if _, err := fmt.Sscanf(f.ID, "p%d", &n); err != nil || f.Re != "publish" || answered[f.ID] {
			t.Fatalf("error frame %+v", f)
		}
		answered[f.ID] = true
		outcomes[f.Outcome+" "+f.Reason]++
		found := len(places[fmt.Sprintf(`{"n":%d}`, n)])
		if f.Outcome == "refused" && found > 0 || found > 1 || f.Outcome != "refused" && f.Outcome != "unknown" {
			t.Errorf("answer %+v, but the log has it %d times", f, found)
		}
	}
	for id, f := range s.published {
		var n int
		if _, err := fmt.Sscanf(id, "p%d", &n); err != nil || answered[id] {
			t.Fatalf("published %+v, answered before %v", f, answered[id])
		}
		found := places[fmt.Sprintf(`{"n":%d}`, n)]
		if len(found) != 1 || found[0].partition != f.Partition || found[0].offset != f.Offset {
			t.Errorf("published %+v, but the log has it at %v", f, found)
		}
	}
	// Order for one key: that of publishing, as far as it got into the log.
	for p, records := range log.whole {
		last := map[string]int{}
		for i := range records {
			var n int
			if _, err := fmt.Sscanf(string(records[i].value), `{"n":%d}`, &n); err != nil {
				t.Fatal(err)
			}
			if before, ok := last[string(records[i].key)]; ok && n < before {
				t.Errorf("partition %d: %d comes after %d", p, n, before)
			}
			last[string(records[i].key)] = n
		}
	}
	if len(s.published) < n/2 {
		t.Errorf("%d of %d publishes were acknowledged: the service was up most of the time", len(s.published), n)
	}
	proof(t, "%d publishes by one socket across %d SIGKILLs of the service: %d published, each in the log once at its place; others answered %v", n, kills, len(s.published), outcomes)
}
