package transcript_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

const soakPartitions = 3

// TestStrictClients: clients that ping, publish and leave at random judge every frame that they get, in both subprotocols; over all their sockets
// each gets each record once and in order, and what was acknowledged to it is in the log, once.
func TestStrictClients(t *testing.T) {
	set := defaultSettings()
	w := newWorld(t, set)
	w.cluster.CreateTopic(t, "soak", soakPartitions, nil)
	w.cluster.CreateTopic(t, "said", 2, nil)
	frames := int64(size(100_000, 1_000_000))
	s := &soak{w: w, goal: frames, acked: map[string]string{}}
	var clients, producer sync.WaitGroup
	producer.Go(func() { s.produce(t) })
	for i := range 40 {
		c := &strictClient{soak: s, name: i, protocol: protocols()[i%2], rng: rand.New(rand.NewPCG(11, uint64(i))), next: map[int32]int64{}}
		for p := range int32(soakPartitions) {
			c.next[p] = 0
		}
		clients.Go(func() {
			if err := c.run(); err != nil {
				t.Errorf("client %d, %s: %v", i, c.protocol, err)
				s.failed.Store(true)
			}
		})
	}
	clients.Wait()
	producer.Wait()
	if t.Failed() {
		return
	}
	s.compare(t)
	proof(t, "%d frames to 40 strict clients over %d sockets, no protocol error; %d records to each, once and in order; %d publishes acknowledged, each in the log once",
		s.frames.Load(), s.sockets.Load(), s.ends[0].Load()+s.ends[1].Load()+s.ends[2].Load(), len(s.acked))
}

// soak is what the clients share.
type soak struct {
	w       *world
	goal    int64
	frames  atomic.Int64
	sockets atomic.Int64
	over    atomic.Bool // no more records come
	failed  atomic.Bool
	ends    [soakPartitions]atomic.Int64

	mu    sync.Mutex
	acked map[string]string // text → partition/offset
}

// produce appends records, a few at a time, until enough frames have come.
func (s *soak) produce(t *testing.T) {
	defer s.over.Store(true)
	rng := rand.New(rand.NewPCG(3, 5))
	for s.frames.Load() < s.goal && !s.failed.Load() {
		p := rng.Int32N(soakPartitions)
		records := make([]hubtest.Record, 1+rng.IntN(3))
		for i := range records {
			records[i] = hubtest.Text("k", `{"n":`+strconv.Itoa(rng.IntN(1<<30))+`}`)
		}
		if err := s.w.kafka.append(t.Context(), "soak", p, records...); err != nil {
			t.Errorf("append: %v", err)
			return
		}
		s.ends[p].Add(int64(len(records)))
		<-time.After(time.Millisecond)
	}
}

// compare reads the topic that clients have published to.
func (s *soak) compare(t *testing.T) {
	t.Helper()
	reader := s.w.cluster.Client(t, kgo.ConsumeTopics("said"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	seen := map[string]string{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	order := map[string]int{} // by socket and partition
	for missing := len(s.acked); missing > 0; {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			t.Fatalf("%d acknowledged records are not in the log: %v", missing, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			text := string(r.Value)
			if _, twice := seen[text]; twice {
				t.Errorf("%s is in the log twice", text)
			}
			seen[text] = fmt.Sprintf("%d/%d", r.Partition, r.Offset)
			if at, ok := s.acked[text]; ok {
				missing--
				if at != seen[text] {
					t.Errorf("%s was acknowledged at %s and is at %s", text, at, seen[text])
				}
			}
			var client, socket, n int
			if _, err := fmt.Sscanf(text, "%d-%d-%d", &client, &socket, &n); err != nil {
				t.Errorf("nobody has published %q", text)
			}
			by := fmt.Sprintf("%d-%d/%d", client, socket, r.Partition)
			if was, ok := order[by]; ok && n <= was {
				t.Errorf("%s lies behind number %d", text, was)
			}
			order[by] = n
		})
	}
}
