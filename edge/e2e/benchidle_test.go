package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// collect makes the edge collect its garbage, and returns what is resident then, and what Go's heap and stacks have in use.
func collect(b *testing.B, p *pair) (rss, inUse float64) {
	b.Helper()
	for range 2 {
		if code, _, err := get(b.Context(), "http://"+p.wsOps+"/debug/pprof/heap?gc=1"); err != nil || code != http.StatusOK {
			b.Fatalf("collecting: %d, %v", code, err)
		}
	}
	return float64(p.edge.rss()), metric(b, p.wsOps, "go_memstats_heap_alloc_bytes") + metric(b, p.wsOps, "go_memstats_stack_inuse_bytes")
}

// BenchmarkIdle opens 10,000 sockets with a subscription each and nothing to read, beside a server with a goroutine for each socket.
func BenchmarkIdle(b *testing.B) {
	const n, warm, partitions = 10_000, 500, 4
	watched := time.Duration(size(20, 60)) * time.Second
	kafka := broker(b)
	j := newJudge(b, kafka)
	for b.Loop() {
		p := startPair(b, pairOptions{kafka: kafka, plain: true, edge: []string{"-max-sessions", "20000"}})
		topic := j.topic(partitions)
		o := crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic }}
		first := join(b, warm, o)
		rss0, use0 := collect(b, p)
		goroutines0 := metric(b, p.wsOps, "go_goroutines")
		rest := join(b, n, o)
		rss1, use1 := collect(b, p)
		goroutines1 := metric(b, p.wsOps, "go_goroutines")
		service := p.service.rss()
		before := p.burnt()
		pause(b.Context(), watched)
		idle := p.burnt().since(before)
		rest.leave()
		first.leave()
		p.service.kill()
		p.edge.kill()

		listen := fmt.Sprintf("127.0.0.1:%d", freePort(b))
		plain := startReference(b, "-writes", listen, "-sockets", strconv.Itoa(n+warm))
		plain.says()
		o.address, o.path = listen, func(int) string { return "/" }
		first = join(b, warm, o)
		bare0 := plain.rss()
		rest = join(b, n, o)
		bare := float64(plain.rss()-bare0) / n
		rest.leave()
		first.leave()
		plain.end()

		kib := func(bytes float64) string { return fmt.Sprintf("%.2f KiB", bytes/1024) }
		rss, use := (rss1-rss0)/n, (use1-use0)/n
		table.add(figure{
			name: fmt.Sprintf("memory per idle socket, %s sockets with a subscription each, RSS (beside: a goroutine for each)", count(n)),
			ours: kib(rss), reference: kib(bare), ratio: rss / bare, target: "<= 4 KB", met: rss <= 4096,
		})
		table.add(figure{name: "… Go heap and stacks", ours: kib(use), target: "<= 4 KB", met: use <= 4096})
		table.add(figure{
			name: "… goroutines of the edge (beside: with 500 sockets)", ours: fmt.Sprint(goroutines1), reference: fmt.Sprint(goroutines0),
			ratio: goroutines1 / goroutines0, target: "constant", met: goroutines1-goroutines0 <= 32,
		})
		table.add(figure{name: "… resident: edge, service", ours: fmt.Sprintf("%.0f, %d MiB", rss1/(1<<20), service>>20)})
		percent := func(d time.Duration) string { return fmt.Sprintf("%.2f %%", 100*d.Seconds()/watched.Seconds()) }
		table.add(figure{name: fmt.Sprintf("… CPU of a core over %v: edge, service", watched), ours: percent(idle.edge) + ", " + percent(idle.service)})
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
		table.add(figure{
			name: "edge CPU per keyed delivery at 2,000/s, 10,000 keys (beside: 10)", ours: fmt.Sprintf("%.1f µs", many*1e6), reference: fmt.Sprintf("%.1f µs", few*1e6),
			ratio: many / few, target: "<= 2", met: many <= 2*few,
		})
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
	c := join(b, sockets, crowdOptions{
		address: p.ws, path: func(int) string { return "/ws" }, starts: int64(keys),
		subscribes: func(i int) (subscribes []string) {
			for k := i; k < keys; k += sockets {
				subscribes = append(subscribes, fmt.Sprintf(`{"op":"subscribe","id":"s%d","topic":%q,"keys":["k%d"]}`, k, topic, k))
			}
			return subscribes
		},
	})
	defer c.leave()
	idle := p.edge.cpu()
	pause(b.Context(), seconds*time.Second)
	idle = p.edge.cpu() - idle

	hash := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	before := p.edge.cpu()
	const records = perSecond * seconds
	p.profiled(b, strconv.Itoa(keys), func() {
		j.paced(records, perSecond, func(n int) *kgo.Record {
			r := &kgo.Record{Topic: topic, Key: []byte("k" + strconv.Itoa(rand.IntN(keys))), Value: jsonValue(n)}
			r.Partition = int32(hash.Partition(r, partitions))
			return r
		})
	})
	c.await(b, "keyed records", &c.records, records)
	used := p.edge.cpu() - before - idle
	if got := c.records.Load(); got != records {
		b.Errorf("%d records delivered, want %d", got, records)
	}
	return used.Seconds() / records
}
