package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"
)

// BenchmarkConsumeFirst measures how long a worker waits from its call to its first record, where this process is not a member of the group yet, and
// where it is; in turns with a bare group consumer.
func BenchmarkConsumeFirst(b *testing.B) {
	const partitions = 4
	rounds := size(20, 100)
	kafka := broker(b)
	j := newJudge(b, kafka)
	topic := j.topic(partitions)
	fill(j, topic, partitions, 1000, jsonValue)
	p := startPair(b, pairOptions{kafka: kafka, plain: true, withoutEdge: true, service: []string{"-max-groups", "1000"}}) // the rounds' groups linger
	firstDelivery(b, p, topic+"-warm", topic)
	for b.Loop() {
		bare := startReference(b, "-brokers", kafka, "-topic", topic, "-joins")
		var joined, member, ref []float64
		for round := range rounds {
			group := fmt.Sprintf("%s-%d-%d", topic, time.Now().UnixNano(), round)
			bare.asks("%s-bare", group)
			var waited float64
			bare.tells(&waited)
			ref = append(ref, waited)
			joined = append(joined, firstDelivery(b, p, group, topic))
			member = append(member, firstDelivery(b, p, group, topic)) // what the first worker gave back
		}
		bare.end()
		for _, all := range [][]float64{joined, member, ref} {
			slices.Sort(all)
		}
		for _, q := range []float64{0.5, 0.99} {
			v, r := quantile(joined, q), quantile(ref, q)
			table.add(figure{
				name: fmt.Sprintf("consume → first record of a group that is new here, p%.0f of %d (beside: a new bare group consumer)", 100*q, rounds),
				ours: fmt.Sprintf("%.0f ms (%+.0f)", v, v-r), reference: fmt.Sprintf("%.0f ms", r), ratio: v / r, target: "<= 200 ms added", met: v-r <= 200,
			})
		}
		table.add(figure{name: "… of a group that this process is a member of, p50", ours: ms(quantile(member, 0.5))})
	}
}

// firstDelivery is how many milliseconds a new worker of a group waits for a record.
func firstDelivery(b *testing.B, p *pair, group, topic string) float64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	s := rawConsume(ctx, b, p)
	if err := s.Send(consumeStart(group, topic, 10)); err != nil {
		b.Fatal(err)
	}
	for {
		m, err := s.Receive()
		if err != nil {
			b.Fatalf("no record: %v", err)
		}
		if len(appendTags(b, nil, *m)) > 0 {
			return float64(time.Since(began)) / float64(time.Millisecond)
		}
	}
}

// BenchmarkConsumeDelay writes 100 records a second and compares their delay at one worker, which acknowledges each, with that at a bare group
// consumer, at the same time.
func BenchmarkConsumeDelay(b *testing.B) {
	const partitions, perSecond, warm = 4, 100, 50
	records := size(1000, 6000)
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true, withoutEdge: true})
	for b.Loop() {
		topic := j.topic(partitions)
		bare := startReference(b, "-brokers", kafka, "-topic", topic, "-group", topic+"-bare", "-records", strconv.Itoa(records+warm), "-skip", strconv.Itoa(warm), "-latency")
		bare.says() // that it has partitions
		team := startTeam(b, p, teamOptions{workers: 1, group: topic, topic: topic, inFlight: 100})
		j.pace(topic, partitions, warm, perSecond, stampedValue)
		team.await("warm records", warm)
		team.forget()
		before := p.service.cpu()
		p.profiled(b, "delay", func() { j.pace(topic, partitions, records, perSecond, stampedValue) })
		team.await("records", records)
		used := p.service.cpu() - before
		var ref pollResult
		bare.tells(&ref)
		bare.end()
		delays := team.delays(anyJob)
		team.leave()
		p50, p99 := quantile(delays, 0.5), quantile(delays, 0.99)
		table.add(figure{
			name: fmt.Sprintf("delay at 100/s to one worker, p50 of %s records (beside: a bare group consumer)", count(records)),
			ours: fmt.Sprintf("%.2f ms (%+.2f)", p50, p50-ref.P50), reference: ms(ref.P50), ratio: p50 / ref.P50,
			cpu: per(int64(records), "record", cost{"service", used}, cost{"bare", ref.cpu()}),
		})
		table.add(figure{name: "… p99", ours: fmt.Sprintf("%.2f ms (%+.2f)", p99, p99-ref.P99), reference: ms(ref.P99), ratio: p99 / ref.P99})
	}
}
