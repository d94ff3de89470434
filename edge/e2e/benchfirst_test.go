package e2e_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// firstResult is what pollbench -first prints: milliseconds from assign to the first record.
type firstResult struct {
	Warm  []float64 `json:"warm"`  // a consumer that is there
	Fresh []float64 `json:"fresh"` // one that was created for it, its creation included
}

// BenchmarkFirstRecord measures what a reader waits for its first record: of a topic that others follow, and of one that nobody has read before.
func BenchmarkFirstRecord(b *testing.B) {
	const records = 20
	topics, readers := size(300, 1000), size(500, 2000)
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		warm := j.topic(4)
		follower := join(b, 1, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + warm }})
		j.pace(warm, 4, records, 0, jsonValue)
		follower.await(b, "records", &follower.records, records)
		var subscribed, dialled []float64
		p.profiled(b, "warm", func() {
			for range readers {
				subscribed = append(subscribed, firstRecord(b, p, warm))
				dialled = append(dialled, firstOfURL(b, p, warm))
			}
		})
		follower.leave()

		names := manyTopics(j, topics)
		var cold []float64
		before := p.burnt()
		p.profiled(b, "cold", func() {
			for _, name := range names {
				cold = append(cold, firstRecord(b, p, name))
			}
		})
		used := p.burnt().since(before)
		bare := startReference(b, "-brokers", kafka, "-first")
		bare.asks("%s", strings.Join(names, " "))
		var ref firstResult
		bare.tells(&ref)
		bareCPU := bare.cpu()
		bare.end()

		for _, all := range [][]float64{subscribed, dialled, cold, ref.Warm, ref.Fresh} {
			slices.Sort(all)
		}
		row := func(name string, ours, reference []float64, q float64, target string, limit float64) {
			v, r := quantile(ours, q), quantile(reference, q)
			table.add(figure{name: fmt.Sprintf("%s, p%.0f of %d", name, q*100, len(ours)), ours: ms(v), reference: ms(r), ratio: v / r, target: target, met: v < limit})
		}
		row("subscribe → first record, warm (beside: assign of a consumer that is there)", subscribed, ref.Warm, 0.5, "< 5 ms", 5)
		row("… warm", subscribed, ref.Warm, 0.99, "", 0)
		row("dial, upgrade, subscribe → first record, warm", dialled, ref.Warm, 0.5, "", 0)
		row("subscribe → first record, cold: topics that nobody reads (beside: a new consumer)", cold, ref.Fresh, 0.5, "", 0)
		row("… cold", cold, ref.Fresh, 0.99, "< 300 ms", 300)
		table.add(figure{name: "… cold, CPU of each", cpu: per(int64(topics), "topic", append(used.costs(), cost{"bare, both ways", bareCPU})...)})
	}
}

// firstRecord subscribes at an open socket, and returns the milliseconds until a record is there.
func firstRecord(b *testing.B, p *pair, topic string) float64 {
	b.Helper()
	s, err := dialSocket(b.Context(), p.ws, "/ws", dialOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.abort(true)
	if _, _, err := s.next(); err != nil { // welcome
		b.Fatal(err)
	}
	began := time.Now()
	if err := s.write(opText, []byte(`{"op":"subscribe","id":"a","topic":"`+topic+`","start":"earliest"}`)); err != nil {
		b.Fatal(err)
	}
	return untilRecord(b, s, began)
}

// firstOfURL is firstRecord with the connection included.
func firstOfURL(b *testing.B, p *pair, topic string) float64 {
	b.Helper()
	began := time.Now()
	s, err := dialSocket(b.Context(), p.ws, "/ws/"+topic+"?start=earliest", dialOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.abort(true)
	return untilRecord(b, s, began)
}

func untilRecord(b *testing.B, s *socket, began time.Time) float64 {
	b.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for {
		_, message, err := s.next()
		if err != nil || bytes.HasPrefix(message, []byte(`{"op":"error"`)) {
			b.Fatalf("no record: %v, %s", err, message)
		}
		if bytes.HasPrefix(message, []byte(`{"op":"records"`)) {
			return float64(time.Since(began)) / float64(time.Millisecond)
		}
	}
}

// manyTopics makes topics with one record each.
func manyTopics(j *judge, n int) (names []string) {
	j.t.Helper()
	var records []*kgo.Record
	for i := range n {
		names = append(names, fmt.Sprintf("cold-%d-%d", time.Now().UnixNano(), i))
		records = append(records, &kgo.Record{Topic: names[i], Value: jsonValue(i)})
	}
	created, err := j.admin.CreateTopics(j.t.Context(), 1, 1, nil, names...)
	if err == nil {
		err = created.Error()
	}
	if err != nil {
		j.t.Fatalf("creating %d topics: %v", n, err)
	}
	await(j.t, time.Minute, "leaders for all topics", func() bool {
		ends, err := j.admin.ListEndOffsets(j.t.Context(), names...)
		return err == nil && ends.Error() == nil
	})
	j.write(records...)
	return names
}
