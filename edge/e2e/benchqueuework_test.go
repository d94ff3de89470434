package e2e_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// distinctKeys are records of one partition, each with a key of its own.
func distinctKeys(topic string, from, n int) []*kgo.Record {
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Key: []byte("key-" + strconv.Itoa(from+i)), Value: stampedValue(i)}
	}
	return records
}

// BenchmarkConsumeHandOver ends a worker that holds records, and measures how long after that each of them is at the other worker.
func BenchmarkConsumeHandOver(b *testing.B) {
	const each = 20
	rounds := size(50, 300)
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true, withoutEdge: true})
	for b.Loop() {
		for _, connection := range []bool{false, true} {
			topic := j.topic(1)
			c := startTeam(b, p, teamOptions{workers: 2, group: topic, topic: topic, inFlight: 100})
			written := 0
			var waits []float64
			for range rounds {
				waits = append(waits, handOver(b, j, c, distinctKeys(topic, written, each), connection)...)
				written += each
			}
			c.leave()
			slices.Sort(waits)
			how := "cancelled stream"
			if connection {
				how = "closed connection"
			}
			p50, p99, most := quantile(waits, 0.5), quantile(waits, 0.99), quantile(waits, 1)
			table.add(figure{
				name: fmt.Sprintf("%s → its %d records at another worker, %d times: p50, p99, max", how, len(waits), rounds),
				ours: fmt.Sprintf("%s, %s, %s", ms(p50), ms(p99), ms(most)), target: "<= 50 ms", met: most <= 50,
			})
		}
	}
}

// handOver writes records to a team of two, ends the first when it holds some, and replaces it. It returns the milliseconds until each is at the other.
func handOver(b *testing.B, j *judge, c *team, records []*kgo.Record, connection bool) (waits []float64) {
	b.Helper()
	c.forget()
	first := c.workers[0]
	first.holds.Store(true)
	j.write(records...)
	c.await("records", len(records))
	held := c.count(func(j *job) bool { return j.worker == first })
	if held == 0 {
		b.Fatal("the worker that ends holds nothing")
	}
	began := time.Now()
	first.end(connection)
	c.await("records, with those that were held,", len(records)+held)
	c.mu.Lock()
	for i := range c.jobs[len(records):] {
		waits = append(waits, float64(c.jobs[len(records)+i].arrived.Sub(began))/float64(time.Millisecond))
	}
	c.mu.Unlock()
	first.cancel()
	first.roles.Wait()
	first.client.CloseIdleConnections()
	c.workers = append(c.workers[1:], c.start())
	return waits
}

// BenchmarkConsumeWorkers compares the work of ten workers on one partition, where each record takes 20 ms, with that of one.
func BenchmarkConsumeWorkers(b *testing.B) {
	const work = 20 * time.Millisecond
	records := size(100, 500) // for each worker
	kafka := broker(b)
	j := newJudge(b, kafka)
	topic := j.topic(1)
	j.write(distinctKeys(topic, 0, 20*records)...)
	p := startPair(b, pairOptions{kafka: kafka, plain: true, withoutEdge: true})
	for b.Loop() {
		perSecond := func(workers int) float64 {
			c := startTeam(b, p, teamOptions{workers: workers, group: fmt.Sprintf("%s-%d-%d", topic, workers, time.Now().UnixNano()), topic: topic, inFlight: 10, work: work})
			c.await("records", workers) // all are at it
			c.forget()
			began := time.Now()
			c.await("records", workers*records)
			took := time.Since(began).Seconds()
			done := c.done()
			c.leave()
			return float64(done) / took
		}
		one, ten := perSecond(1), perSecond(10)
		rate := func(v float64) string { return fmt.Sprintf("%.0f/s", v) }
		table.add(figure{
			name: fmt.Sprintf("10 workers on 1 partition, %v of work on each of %s records (beside: 1 worker)", work, count(10*records)),
			ours: rate(ten), reference: rate(one), ratio: ten / one, target: ">= 8", met: ten >= 8*one,
		})
	}
}

// BenchmarkConsumeHotKey measures the delay of keys with and without another key beside them that has nine times as many records as they together, more
// than its worker can do.
func BenchmarkConsumeHotKey(b *testing.B) {
	const perSecond, keys, workers, work = 50, 100, 10, 5 * time.Millisecond // of the others
	records := size(500, 1250)                                               // the hot key's backlog stays below the window of 10,000
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true, withoutEdge: true})
	others := func(j *job) bool { return string(j.record.key) != "hot" }
	for b.Loop() {
		delays := map[bool][]float64{}
		for _, hot := range []bool{false, true, false, true} {
			topic := j.topic(1)
			c := startTeam(b, p, teamOptions{workers: workers, group: topic, topic: topic, inFlight: 100, work: work})
			warm := distinctKeys(topic, 0, 20)
			j.write(warm...)
			c.await("warm records", len(warm))
			c.forget()
			record := func(n int) *kgo.Record {
				return &kgo.Record{Topic: topic, Key: []byte("key-" + strconv.Itoa(n%keys)), Value: stampedValue(n)}
			}
			if hot {
				j.paced(10*records, 10*perSecond, func(n int) *kgo.Record {
					r := record(n / 10)
					if n%10 != 0 {
						r.Key = []byte("hot")
					}
					return r
				})
			} else {
				j.paced(records, perSecond, record)
			}
			await(b, time.Minute, "all records of the others", func() bool { return c.count(others) == records })
			delays[hot] = append(delays[hot], c.delays(others)...)
			c.leave()
		}
		for _, all := range delays {
			slices.Sort(all)
		}
		for _, q := range []float64{0.5, 0.99} {
			with, without := quantile(delays[true], q), quantile(delays[false], q)
			f := figure{
				name: fmt.Sprintf("delay of %d keys at %d/s beside a hot key with 90 %% of all records, %d workers, %v of work a record, p%.0f (beside: without it)", keys, perSecond, workers, work, 100*q),
				ours: ms(with), reference: ms(without), ratio: with / without,
			}
			if q == 0.99 {
				f.target, f.met = "+5 ms, one job", with <= without+5
			}
			table.add(f)
		}
	}
}
