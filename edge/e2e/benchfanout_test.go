package e2e_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// writesResult is what pollbench -writes prints for each order.
type writesResult struct {
	Frames     int64   `json:"frames"`
	Records    int64   `json:"records"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
}

// delivered is what a stretch of fan-out has brought.
type delivered struct {
	deliveries int64
	perFrame   float64
	seconds    float64
	p50, p99   float64
	used       burnt
}

// BenchmarkFanOut brings one topic to very many sockets, beside a bare write loop: a process that writes ready frames to as many sockets,
// one after the other, and does nothing else. A record that is stamped when it is produced shows the delay.
func BenchmarkFanOut(b *testing.B) {
	const partitions, sockets = 4, 1000
	seconds := size(5, 20)
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		topic := j.topic(partitions)
		ours := join(b, sockets, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic + "?as=text" }, stamped: true})
		spread := func(records, perSecond int) delivered {
			ours.forget()
			before, began := p.burnt(), time.Now()
			p.profiled(b, strconv.Itoa(perSecond), func() {
				j.pace(topic, partitions, records, perSecond, stampedValue)
				ours.await(b, "deliveries", &ours.records, int64(records)*sockets)
			})
			d := delivered{deliveries: int64(records) * sockets, seconds: time.Since(began).Seconds(), used: p.burnt().since(before)}
			d.perFrame = float64(d.deliveries) / float64(ours.frames.Load())
			delays := ours.sortedDelays()
			d.p50, d.p99 = quantile(delays, 0.5), quantile(delays, 0.99)
			return d
		}
		spread(100, 100) // all paths are warm
		slow := spread(100*seconds, 100)
		fast := spread(1000*seconds, 1000)
		ours.leave()
		// At the full rate the client counts only, and reads as fast as it can.
		plain := join(b, sockets, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic + "?as=text" }})
		ours = plain
		full := spread(size(50_000, 300_000), 0)
		plain.leave()

		listen := fmt.Sprintf("127.0.0.1:%d", freePort(b))
		loop := startReference(b, "-writes", listen, "-sockets", strconv.Itoa(sockets))
		loop.says() // that it listens
		theirs := join(b, sockets, crowdOptions{address: listen, path: func(int) string { return "/" }, stamped: true})
		order := func(records, perSecond, perFrame int) (writesResult, delivered) {
			theirs.forget()
			loop.asks("%d %d %d", records, perSecond, perFrame)
			var r writesResult
			loop.tells(&r)
			theirs.await(b, "frames of the bare loop", &theirs.records, r.Records)
			delays := theirs.sortedDelays()
			return r, delivered{p50: quantile(delays, 0.5), p99: quantile(delays, 0.99)}
		}
		for _, c := range []struct {
			name      string
			perSecond int
			ours      delivered
		}{{"100/s", 100, slow}, {"1,000/s", 1000, fast}} {
			r, d := order(c.perSecond*seconds, c.perSecond, 1)
			perCPU(fmt.Sprintf("fan-out to %d sockets at %s for %d s, deliveries per CPU second", sockets, c.name, seconds), c.ours, r)
			table.add(figure{name: "… delay p50", ours: ms(c.ours.p50), reference: ms(d.p50), ratio: c.ours.p50 / d.p50})
			table.add(figure{name: "… delay p99", ours: ms(c.ours.p99), reference: ms(d.p99), ratio: c.ours.p99 / d.p99})
		}
		theirs.leave()
		loop.end()

		listen = fmt.Sprintf("127.0.0.1:%d", freePort(b))
		loop = startReference(b, "-writes", listen, "-sockets", strconv.Itoa(sockets))
		loop.says()
		theirs = join(b, sockets, crowdOptions{address: listen, path: func(int) string { return "/" }})
		one, _ := order(size(500, 2000), 0, 1)
		same, _ := order(int(full.deliveries/sockets), 0, max(1, int(full.perFrame)))
		theirs.leave()
		what := fmt.Sprintf("fan-out to %d sockets at full rate, %s records, deliveries per CPU second", sockets, count(int(full.deliveries/sockets)))
		perCPU(what+" (beside: one record a frame)", full, one)
		perCPU("… (beside: as many records a frame)", full, same)
		rate, bare := float64(full.deliveries)/full.seconds, float64(same.Records)/same.Seconds
		table.add(figure{name: "… deliveries per second by the clock", ours: kilo(rate), reference: kilo(bare), ratio: rate / bare})
	}
}

func perCPU(name string, d delivered, r writesResult) {
	ours, bare := float64(d.deliveries)/d.used.both().Seconds(), float64(r.Records)/r.CPUSeconds
	table.add(figure{
		name: fmt.Sprintf("%s, %.0f records a frame", name, d.perFrame), ours: kilo(ours), reference: kilo(bare), ratio: ours / bare,
		cpu: per(d.deliveries, "delivery", d.used.costs()...) + "; " + per(r.Records, "delivery", cost{"bare", time.Duration(r.CPUSeconds * float64(time.Second))}),
	})
}
