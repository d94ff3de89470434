package e2e_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestFanOut follows one topic with very many sockets. Upstream there is one stream for each partition; the edge has no goroutine for
// each socket; and one that stops reading changes nobody's delivery.
func TestFanOut(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	n := size(1000, 5000)

	before := metric(t, p.wsOps, "go_goroutines")
	few := newCrowd(t.Context(), t, p, topic, 10, map[string]any{"start": "latest"})
	withFew := metric(t, p.wsOps, "go_goroutines")
	c := newCrowd(t.Context(), t, p, topic, n, map[string]any{"start": "latest"})

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	// One that stops reading: another topic, which it alone follows, fills its socket.
	bulk := j.topic(1)
	stalled, filler := newReader(topic, false), newReader(bulk, false)
	s, err := dialSession(ctx, p.ws, "/ws/"+topic, stalled, dialOptions{recvBuffer: 4096})
	if err == nil {
		err = s.subscribe("bulk", filler, map[string]any{"start": "latest"})
	}
	if err == nil {
		err = s.run(func() bool { return stalled.isStarted() && filler.isStarted() })
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.abort(true)
	for n := range 40 {
		j.write(mixed(bulk, 0, int64(n), strings.Repeat("z", 200_000)))
	}

	withAll := metric(t, p.wsOps, "go_goroutines")
	if grown := withAll - withFew; grown > 32 {
		t.Errorf("%d sockets more brought %v goroutines more (%v before any, %v with 10), want at most 32", n, grown, before, withFew)
	}
	if got := upstreams(t, p); got != partitions+1 {
		t.Errorf("%d upstream streams for %d sockets, want one for each of %d partitions and one for the other topic", got, n, partitions)
	}

	l := j.startLoad(topic, partitions, rateFor(n), 100)
	for range 10 {
		pause(ctx, time.Second)
		c.check()
	}
	ends := l.stop()
	began := time.Now()
	few.awaitEnds(time.Minute, ends)
	c.awaitEnds(time.Minute, ends)
	behind := time.Since(began)
	awaitStall(t, p)
	bulkEnds := j.ends(bulk)
	if err := s.run(func() bool { return stalled.reached(ends) && filler.reached(bulkEnds) }); err != nil {
		t.Fatalf("the stalled reader, reading again: %v", err)
	}
	log := j.read(topic, false)
	few.verify(log)
	c.verify(log)
	if err := errors.Join(stalled.verify(log), filler.verify(j.read(bulk, false))); err != nil {
		t.Errorf("the stalled reader: %v", err)
	}
	if got := upstreams(t, p); got != partitions+1 {
		t.Errorf("%d upstream streams at the end, want %d", got, partitions+1)
	}
	proof(t, "%d sockets on one topic: %d upstream streams for %d partitions, goroutines of the edge %v without, %v with 10, %v with all; "+
		"with one reader stalled all had the %d records %v after the last was written; it caught up exactly",
		n, upstreams(t, p)-1, partitions, before, withFew, withAll, log.count(), behind.Round(time.Millisecond))
}

// awaitStall waits until the edge says that a socket takes nothing.
func awaitStall(t testing.TB, p *pair) {
	t.Helper()
	await(t, time.Minute, "a socket that takes nothing", func() bool { return metric(t, p.wsOps, "tailrace_edge_blocked_sessions") >= 1 })
}

// upstreams is the number of Subscribe streams that the service serves at the moment.
func upstreams(t testing.TB, p *pair) int {
	t.Helper()
	return int(metric(t, p.rpcOps, "tailrace_stream_open"))
}

// TestStalledReaderCatchesUpFromTheLog stalls a reader for far longer than the edge's memory reaches back.
func TestStalledReaderCatchesUpFromTheLog(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 2
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka, edge: []string{"-memory-budget", "16MiB"}, service: []string{"-memory-budget", "16MiB"}})
	others := newCrowd(t.Context(), t, p, topic, 5, map[string]any{"start": "latest"})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	stalled := newReader(topic, false)
	s, err := dialSession(ctx, p.ws, "/ws/"+topic, stalled, dialOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer s.abort(true)
	if err := s.run(stalled.isStarted); err != nil {
		t.Fatal(err)
	}
	const recordBytes = 20_000
	records := size(40, 600) << 20 / recordBytes
	pad := strings.Repeat("y", recordBytes)
	for n := 0; n < records; n += 100 {
		batch := make([]*kgo.Record, 100)
		for i := range batch {
			batch[i] = mixed(topic, int32((n+i)%partitions), int64(n+i), pad)
		}
		j.write(batch...)
	}
	ends := j.ends(topic)
	others.awaitEnds(time.Duration(size(1, 5))*time.Minute, ends)
	awaitStall(t, p)
	edgeRSS := p.edge.rss()
	if most := int64(400 << 20); edgeRSS > most { // a build with the race detector takes a few times its budget; the log at full size is 600 MiB
		t.Errorf("the edge takes %d MiB with a stalled reader, want at most %d", edgeRSS>>20, most>>20)
	}
	if err := s.run(func() bool { return stalled.reached(ends) }); err != nil {
		t.Fatalf("the stalled reader, reading again: %v", err)
	}
	log := j.read(topic, false)
	others.verify(log)
	if err := stalled.verify(log); err != nil {
		t.Error(err)
	}
	proof(t, "a reader stalled for %d MiB with 16 MiB of memory in each process: others undisturbed, edge RSS %d MiB; it caught up exactly (%d records)",
		records*recordBytes>>20, edgeRSS>>20, log.count())
}
