package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	workerEnds  = flag.Int("e2e.ends", 0, "ends of workers of each group in TestWorkersEndAtRandom, SIGKILLs aside; 0: as its size says")
	workerKills = flag.Int("e2e.kills", 0, "SIGKILLs in TestWorkersEndAtRandom, of edges and services in turn; 0: as its size says")
)

// TestWorkersEndAtRandom: workers of two groups, over gRPC and over both forms of the WebSocket, share a topic under load, while services and edges are
// killed, connections are cut, closed and fall silent, and workers nack, forget records, acknowledge late, and what was never dealt to them. What they did
// is compared with the log, and with what Kafka says of the groups; see ledger.judge for the rules. Sockets beside that follow the topic notice nothing.
func TestWorkersEndAtRandom(t *testing.T) {
	const partitions, rate = 4, 250
	ends, kills := size(20, 200), size(3, 40)
	if *workerEnds > 0 {
		ends = *workerEnds
	}
	if *workerKills > 0 {
		kills = *workerKills
	}
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(partitions)
	f := startFleet(t, kafka)
	beside := newCrowd(t.Context(), t, f.edges[2], topic, 3, map[string]any{"start": "earliest"})
	ledgers := []*ledger{newLedger(topic+"-key", true), newLedger(topic+"-none", false)}
	watch := j.watch(topic, ledgers[0].group, ledgers[1].group)

	ctx, cancel := context.WithCancel(t.Context())
	ended := make([]atomic.Int64, len(ledgers)) // connections, by the test
	var enough atomic.Bool
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	for i, l := range ledgers {
		w := &staff{t: t, f: f, l: l, topic: topic, ends: &ended[i], enough: &enough}
		for _, kind := range []string{"tailrace.v1.json", "tailrace.v1.proto", "grpc", "tailrace.v1.json", "tailrace.v1.proto", "grpc"} {
			working.Go(func() { w.work(ctx, kind) })
		}
	}
	load := j.startLoad(topic, partitions, rate, 60)
	began := time.Now()
	for n := range kills {
		pause(ctx, time.Duration(500+rand.IntN(size(2500, 8000)))*time.Millisecond)
		f.kill((n+1)%2*2+rand.IntN(2), ledgers) // an edge, a service, an edge, …
	}
	await(t, 5*time.Minute, "enough workers of each group have ended", func() bool {
		return !slices.ContainsFunc(ledgers, func(l *ledger) bool { return ended[slices.Index(ledgers, l)].Load() < int64(ends) })
	})
	enough.Store(true)
	logEnds := load.stop()
	lasted := time.Since(began)
	await(t, 3*time.Minute, "the committed offsets are the ends of the log", func() bool { return watch.settled(logEnds) || t.Failed() })
	settled := time.Since(began) - lasted
	beside.awaitEnds(time.Minute, logEnds)
	cancel()
	working.Wait()
	watch.stop()

	log := j.read(topic, true)
	beside.verify(log)
	count := map[string]int{}
	for _, l := range ledgers {
		v := l.judge(log, watch)
		if v.confirmed < v.deliveries/2 {
			t.Errorf("%s: of %d deliveries only %d are confirmed: the rules say little", l.group, v.deliveries, v.confirmed)
		}
		for _, wrong := range l.wrong {
			t.Error(wrong)
		}
		if ends >= 200 && kills >= 40 { // else there need not be some of each
			for _, kind := range slices.Concat(textEnds, rpcEnds, []string{"silence", killedService, killedEdge}) {
				if n := l.countOf(kind); n < 5 {
					t.Errorf("%s: %d ends were %s, want some of each kind", l.group, n, kind)
				}
			}
		}
		l.counts(count)
		proof(t, "%s: %s; partitions moved %d times", strings.TrimPrefix(l.group, topic+"-"), &v, watch.moves(l.group))
		delete(l.waits, endOfTest)
		for _, kind := range slices.Sorted(maps.Keys(l.waits)) {
			proof(t, "%s: from %s to the next delivery of what it held: %s", strings.TrimPrefix(l.group, topic+"-"), kind, spreadOf(l.waits[kind]))
		}
	}
	dead, err := j.admin.ListTopics(t.Context(), topic+".dlq")
	if err != nil || dead[topic+".dlq"].Err == nil {
		t.Errorf("there are dead letters: %v, %v", dead, err)
	}
	delete(count, endOfTest)
	var done []string
	for _, what := range slices.Sorted(maps.Keys(count)) {
		n := count[what]
		if strings.HasPrefix(what, "SIGKILL") {
			n /= len(ledgers) // each ledger has noted it
		}
		done = append(done, fmt.Sprintf("%d %s", n, what))
	}
	proof(t, "in %v, then all was committed within %v: %s", lasted.Round(time.Millisecond), settled.Round(time.Millisecond), strings.Join(done, ", "))
	proof(t, "%d records of the log were acknowledged by each group, committed %v is the end; %d sockets beside saw each once, on the connection they began with",
		log.count(), logEnds, len(beside.sessions))
}
