package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestUpgradeStorm opens very many /ws/{topic}?key=… at once, while other connections come, half come, and go. Each socket gets the
// records of its own key and nobody else's: a parameter or a descriptor that slips to another connection shows here.
func TestUpgradeStorm(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 6
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	n := size(500, 2000)

	var churned atomic.Int64
	churn, stopChurn := context.WithCancel(ctx)
	var churners sync.WaitGroup
	for i := range 8 {
		churners.Go(func() {
			for churn.Err() == nil {
				comeAndGo(churn, p.ws, topic, i)
				churned.Add(1)
			}
		})
	}

	keys, readers, sessions := make([]string, n), make([]*reader, n), make([]*session, n)
	gate := make(chan struct{})
	var opening, reading sync.WaitGroup
	var leaving atomic.Bool
	for i := range n {
		keys[i] = fmt.Sprintf("key %d/%s", i, string(rune('a'+i%26)))
		readers[i] = newReader(topic, true)
		readers[i].keyed = true
		opening.Go(func() {
			<-gate
			s, err := dialSession(ctx, p.ws, "/ws/"+topic+"?key="+url.QueryEscape(keys[i]), readers[i], dialOptions{})
			if err != nil {
				t.Errorf("socket %d: %v", i, err)
				return
			}
			sessions[i] = s
		})
	}
	began := time.Now()
	close(gate)
	opening.Wait()
	defer func() {
		leaving.Store(true)
		for _, s := range sessions {
			if s != nil {
				s.abort(true)
			}
		}
		reading.Wait()
	}()
	for i, s := range sessions {
		if s == nil {
			continue
		}
		reading.Go(func() {
			if err := s.run(forever); !leaving.Load() {
				t.Errorf("socket %d (%s): %v", i, keys[i], err)
			}
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	for i, r := range readers {
		await(t, time.Minute, fmt.Sprintf("start of socket %d", i), func() bool { return r.isStarted() || t.Failed() })
	}
	opened := time.Since(began)

	const rounds = 5
	hash := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	for round := range rounds {
		var records []*kgo.Record
		for _, i := range rand.Perm(n) {
			r := &kgo.Record{Topic: topic, Key: []byte(keys[i]), Value: fmt.Appendf(nil, `{"to":%q,"round":%d}`, keys[i], round)}
			r.Partition = int32(hash.Partition(r, partitions))
			records = append(records, r)
		}
		j.write(records...)
	}
	for i, r := range readers {
		await(t, time.Minute, fmt.Sprintf("%d records at socket %d", rounds, i), func() bool { return r.count() >= rounds || t.Failed() })
	}
	stopChurn()
	churners.Wait()
	log := j.read(topic, true)
	byKey := map[string]*tape{}
	for _, marks := range log.whole {
		for i := range marks {
			r := &marks[i]
			if byKey[string(r.key)] == nil {
				byKey[string(r.key)] = newTape(true)
			}
			byKey[string(r.key)].add(r)
		}
	}
	for i, r := range readers {
		for _, records := range r.tape.whole {
			for k := range records {
				if !bytes.Equal(records[k].key, []byte(keys[i])) {
					t.Fatalf("socket %d asked for %q and got %v", i, keys[i], &records[k])
				}
			}
		}
		if err := r.verify(byKey[keys[i]]); err != nil {
			t.Fatalf("socket %d (%s): %v", i, keys[i], err)
		}
	}
	proof(t, "%d simultaneous upgrades with a key each, all started after %v, %d other connections came and went meanwhile: each got its own %d records and nobody else's",
		n, opened.Round(time.Millisecond), churned.Load(), rounds)
}

// comeAndGo is a connection that leaves at a random moment: before, within or after its upgrade, politely or not.
func comeAndGo(ctx context.Context, address, topic string, i int) {
	path := fmt.Sprintf("/ws/%s?key=stranger-%d-%d&start=earliest", topic, i, rand.IntN(1000))
	switch rand.IntN(4) {
	case 0: // leaves within its request
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return
		}
		request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n", path, address)
		_, _ = conn.Write([]byte(request[:rand.IntN(len(request))]))
		conn.Close()
	default:
		s, err := dialSocket(ctx, address, path, dialOptions{})
		if err != nil {
			return
		}
		for range rand.IntN(3) {
			_ = s.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if _, _, err := s.next(); err != nil {
				break
			}
		}
		if rand.IntN(2) == 0 {
			_ = s.hangUp()
		}
		s.abort(rand.IntN(2) == 0)
	}
	pause(ctx, time.Duration(rand.IntN(10))*time.Millisecond)
}
