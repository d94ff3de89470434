package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge/frame/frametest"
)

// BenchmarkConsumeSocketHandOver closes a socket that holds records, and measures how long after that each of them is at another socket.
func BenchmarkConsumeSocketHandOver(b *testing.B) {
	const each = 20
	rounds := size(50, 300)
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		topic := j.topic(1)
		var waits []float64
		for round := range rounds {
			holder := consumeBySocket(b, p, topic)
			j.write(distinctKeys(topic, round*each, each)...)
			readDeliveries(b, holder, each) // all of them: there is nobody else
			other := consumeBySocket(b, p, topic)
			began := time.Now()
			holder.abort(false)
			for got := 0; got < each; {
				got += readDeliveries(b, other, 1)
				waits = append(waits, float64(time.Since(began))/float64(time.Millisecond))
			}
			if err := other.write(opText, []byte(`{"op":"ack","id":"q","upTo":1000000}`)); err != nil {
				b.Fatal(err)
			}
			other.abort(false)
		}
		slices.Sort(waits)
		p50, p99, most := quantile(waits, 0.5), quantile(waits, 0.99), quantile(waits, 1)
		table.add(figure{
			name: fmt.Sprintf("closed socket → its %d records at another socket, %d times: p50, p99, max", each, rounds),
			ours: fmt.Sprintf("%s, %s, %s", ms(p50), ms(p99), ms(most)), target: "<= 50 ms", met: most <= 50,
		})
	}
}

// BenchmarkConsumeSocket reads a topic from the start as a queue, by one socket in either form that acknowledges every record, beside a bare group
// consumer that commits.
func BenchmarkConsumeSocket(b *testing.B) {
	const partitions = 8
	rounds := size(3, 5)
	records := size(400_000, 1_000_000)
	kafka := broker(b)
	j := newJudge(b, kafka)
	topic := j.topic(partitions)
	fillKeyed(j, topic, partitions, records, true)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		var bare reading
		ours := map[bool]*reading{false: {}, true: {}}
		for round := range rounds {
			ref := readAsMember(b, kafka, topic, fmt.Sprintf("%s-bare-%d", topic, round), records)
			bare.seconds, bare.bare = append(bare.seconds, ref.Seconds), append(bare.bare, ref.cpu())
			for binary, o := range ours {
				group := fmt.Sprintf("%s-%t-%d", topic, binary, round)
				p.profiled(b, fmt.Sprintf("binary-%t", binary), func() {
					before := p.burnt()
					began := time.Now()
					consumeAllBySocket(b, p, group, topic, records, binary)
					o.add(time.Since(began), p.burnt().since(before))
				})
				j.awaitCommitted(group, topic)
			}
		}
		for _, binary := range []bool{false, true} {
			o, form := ours[binary], "JSON"
			if binary {
				form = "binary"
			}
			table.add(figure{
				name: fmt.Sprintf("one worker by WebSocket, %s, 10 k keys, 10 k in flight, acks up to, %s records, per second (beside: a bare group consumer)", form, count(records)),
				ours: kilo(float64(records) / median(o.seconds)), reference: kilo(float64(records) / median(bare.seconds)), ratio: median(bare.seconds) / median(o.seconds),
				cpu: per(int64(records), "record", cost{"service", median(o.service)}, cost{"edge", median(o.edge)}, cost{"bare", median(bare.bare)}),
			})
		}
	}
}

// consumeAllBySocket is a worker that acknowledges what it gets, until that is the topic.
func consumeAllBySocket(b *testing.B, p *pair, group, topic string, records int, binary bool) {
	b.Helper()
	o, op := dialOptions{}, byte(opText)
	if binary {
		o.protocols, op = []string{"tailrace.v1.proto"}, opBinary
	}
	s, err := dialSocket(b.Context(), p.ws, "/ws", o)
	if err != nil {
		b.Fatal(err)
	}
	defer s.abort(false)
	s.br = bufio.NewReaderSize(s.br, 64<<10)
	say := func(format string, args ...any) {
		text := fmt.Appendf(nil, format, args...)
		if binary {
			if text, err = frametest.Client(text); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.write(op, text); err != nil {
			b.Fatal(err)
		}
	}
	say(`{"op":"consume","id":"q","group":%q,"topics":[%q],"maxInFlight":10000}`, group, topic)
	_ = s.conn.SetReadDeadline(time.Now().Add(5 * time.Minute))
	for got := int64(0); got < int64(records); { // each is delivered once here: the newest tag is how many there were
		_, message, err := s.next()
		if err != nil || bytes.HasPrefix(message, []byte(`{"op":"error"`)) {
			b.Fatalf("after %d records: %v, %s", got, err, message)
		}
		newest := lastTag(b, message, binary)
		if newest == 0 {
			continue
		}
		got = newest
		say(`{"op":"ack","id":"q","upTo":%d}`, got)
	}
}

// lastTag is that of the last record of a frame; 0: there is none.
func lastTag(b *testing.B, message []byte, binary bool) (tag int64) {
	b.Helper()
	if !binary {
		mark := []byte(`"tag":`)
		if at := bytes.LastIndex(message, mark); at >= 0 {
			_, _ = fmt.Sscan(string(message[at+len(mark):min(len(message), at+len(mark)+20)]), &tag)
		}
		return tag
	}
	each(b, message, 14, func(frame []byte) { // ServerFrame.deliveries, of them deliveries
		each(b, frame, 2, func(delivery []byte) { tag = tagOf(b, delivery) })
	})
	return tag
}

// consumeBySocket is a worker of the group named after a topic, that has started.
func consumeBySocket(b *testing.B, p *pair, topic string) *socket {
	b.Helper()
	s, err := dialSocket(b.Context(), p.ws, "/ws", dialOptions{})
	if err == nil {
		err = s.write(opText, fmt.Appendf(nil, `{"op":"consume","id":"q","group":%q,"topics":[%q],"maxAttempts":1000}`, topic, topic))
	}
	for err == nil {
		var message []byte
		if _, message, err = s.next(); bytes.HasPrefix(message, []byte(`{"op":"started"`)) {
			return s
		}
	}
	b.Fatal(err)
	return nil
}

// readDeliveries reads until there are at least n records, and returns how many came.
func readDeliveries(b *testing.B, s *socket, n int) (got int) {
	b.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(time.Minute))
	for got < n {
		_, message, err := s.next()
		if err != nil || bytes.HasPrefix(message, []byte(`{"op":"error"`)) {
			b.Fatalf("after %d records: %v, %s", got, err, message)
		}
		got += bytes.Count(message, []byte(`"tag":`))
	}
	return got
}
