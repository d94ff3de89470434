package e2e_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestOrderedPublish: one socket publishes without waiting for answers, while the broker is killed, and the service killed and drained. What was
// acknowledged is in the log once, at its place and in the socket's order; what was refused is nowhere.
func TestOrderedPublish(t *testing.T) {
	const partitions, window = 3, 200
	cluster := kafkatest.StartOwn(t, 1)
	j := newJudge(t, cluster.Bootstrap)
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: cluster.Bootstrap})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	total := size(4000, 10_000)
	s := dial(ctx, t, p, "/ws", nil)
	answers := func() int { return s.publishedCount() + len(s.errorFrames()) }
	read := make(chan error, 1)
	go func() { read <- s.run(func() bool { return answers() == total }) }()
	quarter, restarted := total/4, make(chan struct{})
	for n := range total {
		switch n {
		case quarter:
			p.service.kill()
			p.startService()
		case 2 * quarter:
			cluster.Kill9(t, 1)
			go func() {
				defer close(restarted)
				cluster.Restart(t, 1)
			}()
		case 3 * quarter:
			<-restarted
			p.service.signal(syscall.SIGTERM)
			p.service.exit(30 * time.Second)
			p.startService()
		}
		await(t, 2*time.Minute, "room for another publish", func() bool { return answers() > n-window || len(read) > 0 })
		text := fmt.Sprintf(`{"op":"publish","id":"p%d","topic":%q,"partition":%d,"value":%d}`, n, topic, n%partitions, n)
		if err := s.write(opText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-read; err != nil {
		t.Fatalf("the socket ended: %v, %d of %d answered", err, answers(), total)
	}
	outcomes := map[string]int{}
	refused := map[int]bool{}
	for _, f := range s.errorFrames() {
		var n int
		if _, err := fmt.Sscanf(f.ID, "p%d", &n); err != nil || f.Re != "publish" {
			t.Fatalf("error frame %+v", f)
		}
		outcomes[f.Outcome+" "+f.Reason]++
		refused[n] = f.Outcome == "refused"
	}
	found := map[int]int{}
	acknowledged := 0
	for _, records := range j.read(topic, true).whole {
		last := -1
		for i := range records {
			r := &records[i]
			var n int
			if _, err := fmt.Sscan(string(r.value), &n); err != nil {
				t.Fatal(err)
			}
			if found[n]++; found[n] > 1 || refused[n] {
				t.Errorf("%d is in the log %d times, refused: %v", n, found[n], refused[n])
			}
			f, ok := s.published[fmt.Sprintf("p%d", n)]
			if !ok {
				continue
			}
			acknowledged++
			if f.Partition != r.partition || f.Offset != r.offset {
				t.Errorf("%d was published as %+v, and is at %d of partition %d", n, f, r.offset, r.partition)
			}
			if n < last {
				t.Errorf("partition %d: %d comes after %d", r.partition, n, last)
			}
			last = n
		}
	}
	if acknowledged != len(s.published) || acknowledged < total/4 {
		t.Errorf("%d were acknowledged, the log has %d of them", len(s.published), acknowledged)
	}
	proof(t, "%d publishes by one socket, %d without an answer at a time, across a SIGKILL and a drain of the service and a SIGKILL of the broker: "+
		"%d acknowledged, each in the log once, in order and at its place; others answered %v", total, window, acknowledged, outcomes)
}
