package e2e_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"
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
