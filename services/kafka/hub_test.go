package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// newHub runs a hub over a client until the test ends.
func newHub(t testing.TB, c *kafka.Client, budget int64) *hub.Hub {
	t.Helper()
	h := hub.New(c, hub.Config{Logger: discard, Linger: 200 * time.Millisecond, MemoryBudget: budget})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("hub: %v", err)
			}
		case <-time.After(patience):
			t.Error("the hub does not end")
		}
	})
	return h
}

// flag is a hub.Waker for one reader.
type flag chan struct{}

func (f flag) Moved(*hub.Topic) { f.Ready(0) }
func (f flag) Ready(uint64) {
	select {
	case f <- struct{}{}:
	default:
	}
}

// reader is a subscription with a goroutine of its own.
type reader struct {
	t        testing.TB
	sub      *hub.Subscription
	filtered bool // it jumps over what is not its own

	mu      sync.Mutex
	records map[int32][]*tailracev1.Record
	gaps    []hub.Part
	numbers []int32 // of partitions, as told
	next    map[int32]int64
	err     error
	stop    func()
}

func subscribe(t testing.TB, h *hub.Hub, r hub.Request) *reader {
	t.Helper()
	w := make(flag, 1)
	sub, err := h.Subscribe(t.Context(), r, w, 0)
	if err != nil {
		t.Fatal(err)
	}
	v := &reader{t: t, sub: sub, filtered: r.Keys != nil, records: map[int32][]*tailracev1.Record{}, next: map[int32]int64{}}
	for _, p := range sub.Started().Partitions {
		v.next[p.Partition] = p.Start
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		v.run(w, quit)
	}()
	v.stop = sync.OnceFunc(func() {
		close(quit)
		<-done
		sub.Close()
	})
	t.Cleanup(v.stop)
	return v
}

func (v *reader) run(w flag, quit chan struct{}) {
	for {
		b, err := v.sub.Pull(256 << 10)
		v.mu.Lock()
		for _, p := range b.Parts {
			v.take(p)
		}
		v.err = err
		v.mu.Unlock()
		if err != nil {
			return
		}
		if len(b.Parts) > 0 {
			continue
		}
		select {
		case <-w:
		case <-quit:
			return
		}
	}
}

// take checks and keeps one part. mu is held.
func (v *reader) take(p hub.Part) {
	if p.Kind == hub.Topology {
		v.numbers = append(v.numbers, p.Count)
		return
	}
	if p.Kind == hub.Deleted || p.Kind == hub.Unavailable || p.Kind == hub.Available {
		return
	}
	first := p.Kind == hub.Gap && p.Next == v.next[p.Partition] // what was asked for is not there: started told where it goes on
	if at, ok := v.next[p.Partition]; ok && !v.filtered && p.From != at && !first {
		v.t.Errorf("partition %d: a part from %d at position %d", p.Partition, p.From, at)
	}
	v.next[p.Partition] = p.Next
	switch p.Kind {
	case hub.Records:
		var b tailracev1.RecordBatch
		if err := proto.Unmarshal(p.Piece(p.Lo, p.Hi), &b); err != nil {
			v.t.Error(err)
		}
		v.records[p.Partition] = append(v.records[p.Partition], b.Records...)
	case hub.Gap, hub.Recreated:
		v.gaps = append(v.gaps, p)
	}
}

// gapsOf returns what was told as missing.
func (v *reader) gapsOf() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for _, g := range v.gaps {
		out = append(out, fmt.Sprintf("%d: %d to %d", g.Partition, g.From, g.Next))
	}
	return out
}

// counts are the numbers of partitions that were told.
func (v *reader) counts() []int32 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.numbers)
}

// failed is what ended the reader.
func (v *reader) failed() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.err
}

func (v *reader) at(partition int32) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.next[partition]
}

func (v *reader) got(partition int32) []*tailracev1.Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.records[partition])
}

// testHub compares what subscribers of a hub get, from the beginning, from positions and live, with the log.
func testHub(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions, each = 4, 3000
	topic := cluster.NewTopic(t, partitions, nil)
	c := newClient(t, cluster)
	h := newHub(t, c, 1<<20) // far less than the topic: readers fall to history
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range each {
		for p := range int32(partitions) {
			k.Produce(t.Context(), &kgo.Record{Topic: topic, Partition: p, Key: fmt.Append(nil, i%7), Value: noise(i % 300)}, nil)
		}
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	early := subscribe(t, h, hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}})
	latest := subscribe(t, h, hub.Request{Topic: topic})
	middle := subscribe(t, h, hub.Request{Topic: topic, Partitions: []int32{2}, Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 2, Offset: 1234, Epoch: -1}}}})
	keyed := subscribe(t, h, hub.Request{Topic: topic, Keys: [][]byte{[]byte("3")}, KeyScope: hub.KeyScopeAll, Start: hub.Start{Kind: hub.Earliest}})
	tk := cluster.Client(t, kgo.TransactionalID(t.Name()), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	transaction(t, tk, topic, 5, kgo.TryCommit)
	for i := range 500 {
		publish(t, c, topic, on(int32(i%partitions), &tailracev1.PublishRecord{Key: fmt.Append(nil, i%7), Value: noise(i % 300)}))
	}
	transaction(t, tk, topic, 5, kgo.TryAbort)
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		id := p.Partition
		truth := readLog(t, cluster, topic, id, p.End)
		from := func(offset int64, rs []*kgo.Record) (out []*kgo.Record) {
			for _, r := range rs {
				if r.Offset >= offset {
					out = append(out, r)
				}
			}
			return out
		}
		compare := func(name string, v *reader, want []*kgo.Record) {
			t.Helper()
			eventually(t, func() bool { return v.at(id) >= p.End }, "%s: partition %d to %d, at %d", name, id, p.End, v.at(id))
			if got := texts(v.got(id), ofOurs); !slices.Equal(got, texts(want, ofTheirs)) {
				t.Errorf("%s, partition %d: got %d records, want %d others", name, id, len(got), len(want))
			}
		}
		compare("earliest", early, truth)
		compare("latest", latest, from(each, truth))
		if id == 2 {
			compare("middle", middle, from(1234, truth))
		}
		var threes []*kgo.Record
		for _, r := range truth {
			if string(r.Key) == "3" {
				threes = append(threes, r)
			}
		}
		eventually(t, func() bool { return len(keyed.got(id)) >= len(threes) }, "keyed: %d records of partition %d", len(threes), id)
		if got := texts(keyed.got(id), ofOurs); !slices.Equal(got, texts(threes, ofTheirs)) {
			t.Errorf("keyed, partition %d: got %d records, want %d others", id, len(got), len(threes))
		}
	}
	bounded := subscribe(t, h, hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}, Stop: hub.Stop{AtEnd: true}})
	eventually(t, func() bool { bounded.mu.Lock(); defer bounded.mu.Unlock(); return errors.Is(bounded.err, io.EOF) }, "a reader that stops at the end")
	for _, v := range []*reader{early, latest, middle, keyed, bounded} {
		if len(v.gaps) != 0 {
			t.Errorf("got gaps %+v", v.gaps)
		}
		v.stop()
	}
	eventually(t, func() bool { return h.Stats().Partitions == 0 }, "nothing is followed any more")
}

// refusedAtOnce: while nothing of Kafka answers, each record is refused without a question that waits for it.
func refusedAtOnce(t *testing.T, c *kafka.Client, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	refused := 0
	begin := func() {
		c.Begin(ctx, t.Name(), topic, on(0, value("in vain")), func(r *tailracev1.PublishResult) {
			mu.Lock()
			defer mu.Unlock()
			if r.GetFailure().GetReason() == kafka.ReasonKafkaUnavailable {
				refused++
			}
		})
	}
	eventually(t, func() bool {
		begin()
		mu.Lock()
		defer mu.Unlock()
		return refused > 0
	}, "publishing is refused")
	const n = 200 // a question for each would take minutes
	for range n {
		begin()
	}
	if ctx.Err() != nil {
		t.Errorf("%d records are not refused within %v", n, patience)
	}
}

// TestHubThroughAKill: a subscriber of the hub sees the log exactly though the only broker is killed under load.
func TestHubThroughAKill(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 1)
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	h := newHub(t, c, 8<<20)
	v := subscribe(t, h, hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}})
	stop, done := make(chan struct{}), make(chan []attempt)
	go func() { done <- publishThrough(t, c, topic, 2, stop) }()
	eventually(t, func() bool { return v.at(0)+v.at(1) > 100 }, "records flow")
	cluster.Kill9(t, 1)
	eventually(t, func() bool { return len(v.sub.Unavailable(nil)) == 2 }, "the partitions are told as unavailable")
	refusedAtOnce(t, c, topic)
	cluster.Restart(t, 1)
	eventually(t, func() bool { return len(v.sub.Unavailable(nil)) == 0 }, "the partitions are available again")
	before := v.at(0) + v.at(1)
	eventually(t, func() bool { return v.at(0)+v.at(1) > before+100 }, "records flow again")
	close(stop)
	<-done
	var last string
	eventually(t, func() bool {
		was := last
		last = fmt.Sprint(resolve(t, c, topic, hub.Query{}).Partitions)
		<-time.After(time.Second)
		return last == was
	}, "the log stands still")
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		eventually(t, func() bool { return v.at(p.Partition) >= p.End }, "partition %d to %d", p.Partition, p.End)
		want := texts(readLog(t, cluster, topic, p.Partition, p.End), ofTheirs)
		if got := texts(v.got(p.Partition), ofOurs); !slices.Equal(got, want) {
			t.Errorf("partition %d: got %d records, the log has %d others", p.Partition, len(got), len(want))
		}
	}
}
