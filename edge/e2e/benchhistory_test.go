package e2e_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"testing"
	"time"
)

// BenchmarkFetchBytes compares what the broker sends for the same records, at the same rate, with one subscriber and with very many.
func BenchmarkFetchBytes(b *testing.B) {
	const partitions, perSecond, seconds, warm = 4, 10, 15, 20 // so slowly that each record is a fetch of its own, however busy the machine is
	kafka := startCounted(b)
	j := newJudge(b, kafka.direct)
	for b.Loop() {
		var one float64
		for _, n := range []int{1, 100, 10_000} {
			p := startPair(b, pairOptions{kafka: kafka.through, plain: true, edge: []string{"-max-sessions", "20000"}})
			topic := j.topic(partitions)
			c := join(b, n, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic }})
			j.pace(topic, partitions, warm, perSecond, kilobyte)
			c.await(b, "warm records", &c.records, int64(warm*n))
			before, sent := c.records.Load(), kafka.sent.Load()
			j.pace(topic, partitions, perSecond*seconds, perSecond, kilobyte)
			c.await(b, "records", &c.records, before+int64(perSecond*seconds*n))
			mb := kafka.since(sent)
			c.leave()
			p.service.kill()
			p.edge.kill()
			f := figure{
				name: fmt.Sprintf("broker fetch bytes for %d records of 1 KiB, %d subscriber(s)", perSecond*seconds, n), ours: fmt.Sprintf("%.3f MB", mb),
			}
			if n == 1 {
				one = mb
			} else {
				f.reference, f.ratio, f.target, f.met = fmt.Sprintf("%.3f MB", one), mb/one, "within 5 % of one subscriber", mb/one > 0.95 && mb/one < 1.05
			}
			table.add(f)
		}
	}
}

// kilobyte is a value that does not compress: how many batches a writer makes must not change what is fetched.
func kilobyte(int) []byte { return noise(1024) }

// noise is JSON that does not compress well, as records of one producer do not.
func noise(bytes int) []byte {
	raw := make([]byte, (bytes-10)*3/4)
	rand.Read(raw)
	value := make([]byte, 0, bytes)
	value = base64.RawURLEncoding.AppendEncode(append(value, `{"noise":"`...), raw)
	return append(value[:bytes-2], `"}`...)
}

// BenchmarkReplay reads a topic from its start by one subscriber, and by 100 at once, beside a bare consumer.
func BenchmarkReplay(b *testing.B) {
	const partitions = 8
	records := size(200_000, 1_000_000)
	kafka := startCounted(b)
	j := newJudge(b, kafka.direct)
	topic := j.topic(partitions)
	fill(j, topic, partitions, records, func(int) []byte { return noise(valueBytes) })
	p := startPair(b, pairOptions{kafka: kafka.through, plain: true})
	for b.Loop() {
		sent := kafka.sent.Load()
		bare := readBare(b, kafka.through, topic, records)
		bareMB := kafka.since(sent)
		for _, n := range []int{1, 100} {
			p.again()
			sent, used, began := kafka.sent.Load(), p.burnt(), time.Now()
			c := join(b, n, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic + "?start=earliest" }})
			c.await(b, "records", &c.records, int64(records*n))
			took := time.Since(began).Seconds()
			costs, mb := p.burnt().since(used), kafka.since(sent)
			if got := c.records.Load(); got != int64(records*n) {
				b.Errorf("%d records to %d subscribers, want %d", got, n, records*n)
			}
			rss := p.edge.rss()
			c.leave()
			table.add(figure{
				name: fmt.Sprintf("replay of %s records to %d subscriber(s), records each per second", count(records), n),
				ours: kilo(float64(records) / took), reference: kilo(float64(records) / bare.Seconds), ratio: bare.Seconds / took,
				cpu: per(int64(records), "record", cost{"service", costs.service}, cost{"bare", bare.cpu()}) + "; " + per(int64(records*n), "delivery", cost{"edge", costs.edge}),
			})
			table.add(figure{
				name: fmt.Sprintf("… broker bytes (the edge has %d MiB resident)", rss>>20), ours: fmt.Sprintf("%.1f MB", mb), reference: fmt.Sprintf("%.1f MB", bareMB), ratio: mb / bareMB,
				target: "<= 1.5", met: mb/bareMB <= 1.5,
			})
		}
	}
}
