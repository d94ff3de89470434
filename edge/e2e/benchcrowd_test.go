package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// thinCrowd is many sockets of which only the records are counted, so that the client leaves the machine to the edge.
type thinCrowd struct {
	sockets []*socket
	started atomic.Int64
	records atomic.Int64
	failed  atomic.Pointer[string] // the first error frame
	wg      sync.WaitGroup
}

// newThinCrowd opens n sockets and sends each its subscribes.
func newThinCrowd(b *testing.B, p *pair, n int, subscribes func(i int) []string) *thinCrowd {
	b.Helper()
	c := &thinCrowd{sockets: make([]*socket, n)}
	gate := make(chan struct{}, 32)
	var dials sync.WaitGroup
	var want atomic.Int64
	for i := range n {
		gate <- struct{}{}
		dials.Go(func() {
			defer func() { <-gate }()
			s, err := dialSocket(b.Context(), p.ws, "/ws", dialOptions{})
			if err != nil {
				b.Error(err)
				return
			}
			c.sockets[i] = s
			for _, text := range subscribes(i) {
				want.Add(1)
				if err := s.write(opText, []byte(text)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	dials.Wait()
	if b.Failed() {
		b.FailNow()
	}
	for _, s := range c.sockets {
		c.wg.Go(func() {
			for {
				_, message, err := s.next()
				if err != nil {
					return
				}
				switch {
				case bytes.HasPrefix(message, []byte(`{"op":"started"`)):
					c.started.Add(1)
				case bytes.HasPrefix(message, []byte(`{"op":"error"`)):
					failed := string(message)
					c.failed.CompareAndSwap(nil, &failed)
				case bytes.HasPrefix(message, []byte(`{"op":"records"`)):
					c.records.Add(int64(bytes.Count(message, []byte(`"offset":`))))
				}
			}
		})
	}
	ok := eventually(b.Context(), time.Minute, func() bool { return c.started.Load() == want.Load() || c.failed.Load() != nil })
	if failed := c.failed.Load(); failed != nil || !ok {
		b.Fatalf("%d of %d subscriptions started; the first error: %s", c.started.Load(), want.Load(), text(failed))
	}
	return c
}

func (c *thinCrowd) leave() {
	for _, s := range c.sockets {
		s.abort(true)
	}
	c.wg.Wait()
}

// memory of the edge after a collection: resident, and heap and stacks of Go in use.
func edgeMemory(b *testing.B, p *pair) (rss, inUse float64) {
	b.Helper()
	for range 2 {
		if code, _, err := get(b.Context(), "http://"+p.wsOps+"/debug/pprof/heap?gc=1"); err != nil || code != http.StatusOK {
			b.Fatalf("collecting: %d, %v", code, err)
		}
	}
	return float64(p.edge.rss()), metric(b, p.wsOps, "go_memstats_heap_alloc_bytes") + metric(b, p.wsOps, "go_memstats_stack_inuse_bytes")
}

// BenchmarkIdleSockets opens 5,000 sockets with a subscription each and nothing to read.
func BenchmarkIdleSockets(b *testing.B) {
	const n, warm = 5000, 500
	kafka := broker(b)
	j := newJudge(b, kafka)
	for b.Loop() {
		p := startPair(b, pairOptions{kafka: kafka, plain: true})
		topic := j.topic(4)
		subscribe := func(int) []string { return []string{`{"op":"subscribe","id":"a","topic":"` + topic + `"}`} }
		first := newThinCrowd(b, p, warm, subscribe)
		rss0, use0 := edgeMemory(b, p)
		goroutines0 := metric(b, p.wsOps, "go_goroutines")
		rest := newThinCrowd(b, p, n, subscribe)
		rss1, use1 := edgeMemory(b, p)
		goroutines1 := metric(b, p.wsOps, "go_goroutines")
		idle := p.edge.cpu()
		const watched = 20 * time.Second
		pause(b.Context(), watched)
		idle = p.edge.cpu() - idle
		first.leave()
		rest.leave()
		kib := func(bytes float64) string { return fmt.Sprintf("%.2f KiB", bytes/1024) }
		const target = 4096.0
		rss, use := (rss1-rss0)/n, (use1-use0)/n
		table.row(b, "memory per idle socket, 5,000 sockets, RSS", kib(rss), kib(target), rss/target, "<= 4 KB", rss <= target)
		table.row(b, "memory per idle socket, 5,000 sockets, Go heap and stacks", kib(use), kib(target), use/target, "<= 4 KB", use <= target)
		table.row(b, "goroutines of the edge with 5,000 sockets more", fmt.Sprint(goroutines1), fmt.Sprint(goroutines0), goroutines1/goroutines0, "constant", goroutines1-goroutines0 <= 32)
		table.row(b, "CPU of the edge with 5,500 idle sockets (heartbeats)", fmt.Sprintf("%.1f %%", 100*idle.Seconds()/watched.Seconds()), "-", 0, "-", true)
	}
}

// BenchmarkKeyedReaders compares what a delivery costs the edge with 10 keys and with 10,000, each read by a subscription of its own,
// at the same rate of records.
func BenchmarkKeyedReaders(b *testing.B) {
	kafka := broker(b)
	j := newJudge(b, kafka)
	for b.Loop() {
		few := keyedCost(b, j, kafka, 10, 10)
		many := keyedCost(b, j, kafka, 10_000, 5_000)
		table.row(b, "edge CPU per keyed delivery, 10,000 keys against 10", fmt.Sprintf("%.1f µs", many*1e6), fmt.Sprintf("%.1f µs", few*1e6), many/few, "<= 2", many <= 2*few)
	}
}

// keyedCost is the edge's CPU seconds for one delivery, without what it uses when no record comes.
func keyedCost(b *testing.B, j *judge, kafka string, keys, sockets int) float64 {
	b.Helper()
	const partitions, perSecond, seconds = 4, 2000, 10
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	defer p.edge.kill()
	defer p.service.kill()
	topic := j.topic(partitions)
	c := newThinCrowd(b, p, sockets, func(i int) (subscribes []string) {
		for k := i; k < keys; k += sockets {
			subscribes = append(subscribes, fmt.Sprintf(`{"op":"subscribe","id":"s%d","topic":%q,"keys":["k%d"]}`, k, topic, k))
		}
		return subscribes
	})
	defer c.leave()
	idle := p.edge.cpu()
	pause(b.Context(), seconds*time.Second)
	idle = p.edge.cpu() - idle

	hash := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	before := p.edge.cpu()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	const records = perSecond * seconds
	began := time.Now()
	for n := 0; n < records; <-tick.C {
		for due := min(records, int(time.Since(began).Seconds()*perSecond)); n < due; n++ {
			r := &kgo.Record{Topic: topic, Key: []byte("k" + strconv.Itoa(rand.IntN(keys))), Value: jsonValue(n)}
			r.Partition = int32(hash.Partition(r, partitions))
			j.client.Produce(ctx, r, nil)
		}
	}
	await(b, time.Minute, "all keyed records", func() bool { return c.records.Load() >= records })
	used := p.edge.cpu() - before - idle
	if got := c.records.Load(); got != records {
		b.Errorf("%d records delivered, want %d", got, records)
	}
	return used.Seconds() / records
}

func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}
