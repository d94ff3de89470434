package e2e_test

import (
	"fmt"
	"strconv"
	"testing"
)

// BenchmarkDelay writes 100 records a second and compares their delay at sockets with that at a bare consumer, at the same time. The
// delay is from just before a record is produced to the client that has read it, over all deliveries.
func BenchmarkDelay(b *testing.B) {
	const partitions, perSecond, warm = 4, 100, 50
	records := size(1000, 6000)
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		for _, c := range []struct {
			sockets int
			target  float64 // of what is added to p50, in ms; 0: none
		}{{1, 0.5}, {10, 0}, {100, 1.5}, {1000, 0}} {
			topic := j.topic(partitions)
			bare := startReference(b, "-brokers", kafka, "-topic", topic, "-records", strconv.Itoa(records+warm), "-skip", strconv.Itoa(warm), "-latency")
			bare.says() // that it is assigned
			sockets := join(b, c.sockets, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic + "?as=text" }, stamped: true})
			j.pace(topic, partitions, warm, perSecond, stampedValue)
			sockets.await(b, "warm records", &sockets.records, int64(warm*c.sockets))
			sockets.forget()
			before := p.burnt()
			p.profiled(b, strconv.Itoa(c.sockets), func() { j.pace(topic, partitions, records, perSecond, stampedValue) })
			deliveries := int64(records * c.sockets)
			sockets.await(b, "deliveries", &sockets.records, deliveries)
			used := p.burnt().since(before)
			var ref pollResult
			bare.tells(&ref)
			bare.end()
			delays := sockets.sortedDelays()
			sockets.leave()

			p50, p99 := quantile(delays, 0.5), quantile(delays, 0.99)
			f := figure{
				name: fmt.Sprintf("delay at 100/s, %d socket(s), p50 of %s records", c.sockets, count(records)),
				ours: fmt.Sprintf("%.2f ms (%+.2f)", p50, p50-ref.P50), reference: ms(ref.P50), ratio: p50 / ref.P50,
				cpu: per(deliveries, "delivery", used.costs()...) + "; " + per(int64(records), "record", cost{"bare", ref.cpu()}),
			}
			if c.target > 0 {
				f.target, f.met = fmt.Sprintf("<= %.1f ms added", c.target), p50-ref.P50 <= c.target
			}
			table.add(f)
			table.add(figure{name: "… p99", ours: ms(p99), reference: ms(ref.P99), ratio: p99 / ref.P99})
		}
	}
}
