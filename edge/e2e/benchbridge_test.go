package e2e_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"
)

// bridged is what a bridge from Kafka to sockets costs.
type bridged struct {
	dials      []float64 // ms until a subscription is there
	perSocket  float64   // resident bytes
	cpu        time.Duration
	p50, p99   float64
	brokerMB   float64
	idle       time.Duration
	deliveries int64
}

// BenchmarkNaiveBridge compares with what people build first: a Kafka consumer and two goroutines for each socket (pollbench -bridge).
func BenchmarkNaiveBridge(b *testing.B) {
	const partitions, perSecond, seconds = 4, 100, 10
	n := size(50, 200)
	kafka := startCounted(b)
	j := newJudge(b, kafka.direct)
	for b.Loop() {
		topic := j.topic(partitions)
		measure := func(address string, cpu func() time.Duration, rss func() int64) (r bridged) {
			o := crowdOptions{address: address, path: func(int) string { return "/ws/" + topic + "?as=text" }, stamped: true}
			first := join(b, 1, o)
			before := rss()
			for range 20 {
				r.dials = append(r.dials, untilStarted(b, address, o.path(0)))
			}
			slices.Sort(r.dials)
			c := join(b, n, o)
			r.perSocket = float64(rss()-before) / float64(n)
			at := cpu()
			pause(b.Context(), seconds*time.Second)
			r.idle = cpu() - at
			j.pace(topic, partitions, 50, perSecond, stampedValue)
			c.await(b, "warm records", &c.records, int64(50*n))
			c.forget()
			at, sent := cpu(), kafka.sent.Load()
			j.pace(topic, partitions, perSecond*seconds, perSecond, stampedValue)
			r.deliveries = int64(perSecond * seconds * n)
			c.await(b, "records", &c.records, r.deliveries)
			r.cpu, r.brokerMB = cpu()-at, kafka.since(sent)
			delays := c.sortedDelays()
			r.p50, r.p99 = quantile(delays, 0.5), quantile(delays, 0.99)
			c.leave()
			first.leave()
			return r
		}
		p := startPair(b, pairOptions{kafka: kafka.through, plain: true})
		ours := measure(p.ws, func() time.Duration { return p.burnt().both() }, func() int64 { return p.service.rss() + p.edge.rss() })
		p.edge.kill()
		p.service.kill()
		listen := fmt.Sprintf("127.0.0.1:%d", freePort(b))
		bridge := startReference(b, "-brokers", kafka.through, "-bridge", listen)
		bridge.says()
		theirs := measure(listen, bridge.cpu, bridge.rss)
		bridge.end()

		add := func(name, format string, a, b float64) {
			table.add(figure{name: name, ours: fmt.Sprintf(format, a), reference: fmt.Sprintf(format, b), ratio: a / b})
		}
		sockets := strconv.Itoa(n) + " sockets"
		add("naive bridge, "+sockets+" at 100/s: CPU per delivery (ours: service and edge)", "%.1f µs",
			ours.cpu.Seconds()*1e6/float64(ours.deliveries), theirs.cpu.Seconds()*1e6/float64(theirs.deliveries))
		add("… delay p50", "%.2f ms", ours.p50, theirs.p50)
		add("… delay p99", "%.2f ms", ours.p99, theirs.p99)
		add("… dial → subscribed, p50 of 20", "%.1f ms", quantile(ours.dials, 0.5), quantile(theirs.dials, 0.5))
		add("… resident bytes per socket", "%.0f", ours.perSocket, theirs.perSocket)
		add("… broker bytes", "%.2f MB", ours.brokerMB, theirs.brokerMB)
		add("… idle, CPU of a core", "%.2f %%", ours.idle.Seconds()*100/seconds, theirs.idle.Seconds()*100/seconds)
	}
}

// untilStarted is the milliseconds from dialling until a subscription is there.
func untilStarted(b *testing.B, address, path string) float64 {
	b.Helper()
	began := time.Now()
	s, err := dialSocket(b.Context(), address, path, dialOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.abort(true)
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		_, message, err := s.next()
		if err != nil {
			b.Fatal(err)
		}
		if bytes.HasPrefix(message, []byte(`{"op":"started"`)) {
			return float64(time.Since(began)) / float64(time.Millisecond)
		}
	}
}
