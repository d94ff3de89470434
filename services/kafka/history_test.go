package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func testHistoryOutOfRange(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	for i := range 10 {
		publish(t, c, topic, value("%d", i))
	}
	deleteBefore(t, cluster, topic, 0, 4)
	for _, from := range []int64{0, 3, 11, 1000} {
		_, _, err := c.ReadAt(t.Context(), hub.ChunkID{Topic: topic, From: from}, 2000, 100, nil)
		e, ok := errors.AsType[*hub.OffsetOutOfRangeError](err)
		if !ok || e.Offset != from || e.Oldest != 4 || e.End != 10 || e.Topic != topic {
			t.Errorf("read at %d: got %v", from, err)
		}
	}
	if got := history(t, c, hub.ChunkID{Topic: topic, From: 4}, 10, 100); len(got) != 6 {
		t.Errorf("got %d records, want 6", len(got))
	}
	if _, next, err := c.ReadAt(t.Context(), hub.ChunkID{Topic: topic, From: 10}, 12, 100, nil); !errors.Is(err, hub.ErrUnavailable) || next != 10 {
		t.Errorf("read at the end: got next %d, %v; want 10, unavailable", next, err)
	}
}

func testHistory(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions, each = 6, 5000
	topic := cluster.NewTopic(t, partitions, nil)
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(partitions) {
		for i := range each {
			k.Produce(t.Context(), &kgo.Record{Topic: topic, Partition: p, Value: noise(i % 200)}, nil)
		}
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.HistoryReaders = 2 })
	done := make(chan struct{})
	for p := range int32(partitions) {
		go func() {
			defer func() { done <- struct{}{} }()
			var at int64
			for at < each {
				_, next, err := c.ReadAt(t.Context(), hub.ChunkID{Topic: topic, Partition: p, From: at}, each, 700, nil)
				if err != nil || next <= at || next > at+700 {
					t.Errorf("read %d at %d: next %d, %v", p, at, next, err)
					return
				}
				at = next
			}
		}()
	}
	for range partitions {
		<-done
	}
	for p := range int32(2) {
		check(t, cluster, c, topic, p)
	}
}

func testHistoryCancel(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.HistoryReaders = 1 })
	publish(t, c, topic, value("0"))
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		// At the end of the log: it would wait.
		if _, _, err := c.ReadAt(ctx, hub.ChunkID{Topic: topic, From: 1}, 5, 100, nil); err == nil {
			t.Error("no error")
		}
		cancel()
	}
	if got := history(t, c, hub.ChunkID{Topic: topic}, 1, 100); len(got) != 1 {
		t.Errorf("got %d records, want 1", len(got))
	}
}

// testOneHistoryReader: one reader serves partitions in turns and keeps what it has fetched of the others, more than it may hold in all.
func testOneHistoryReader(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions, each, size = 8, 100, 40_000
	topic := cluster.NewTopic(t, partitions, nil)
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := noise(size)
	for i := range each {
		for p := range int32(partitions) {
			k.Produce(t.Context(), &kgo.Record{Topic: topic, Partition: p, Key: fmt.Append(nil, i), Value: value}, nil)
		}
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.HistoryReaders = 1 })
	at, began := [partitions]int64{}, time.Now()
	for left, turns := partitions, 1; left > 0; turns = each { // a little of each, so that all are fetched; then one after the other
		for p := range at {
			for turn := 0; turn < turns && at[p] < each; turn++ {
				es, next, err := c.ReadAt(t.Context(), hub.ChunkID{Topic: topic, Partition: int32(p), From: at[p]}, each, 10, nil)
				if errors.Is(err, hub.ErrUnavailable) {
					continue // a busy machine may be silent for long
				}
				if err != nil || len(es) != 1 || next != at[p]+int64(len(es[0].Meta)) {
					t.Fatalf("partition %d at %d: %d entries, next %d, %v", p, at[p], len(es), next, err)
				}
				for i, r := range decode(t, es[0]) {
					if want := at[p] + int64(i); r.Offset != want || string(r.Key) != fmt.Sprint(want) {
						t.Errorf("partition %d: got %d with key %q, want %d", p, r.Offset, r.Key, want)
					}
				}
				if at[p] = next; next == each {
					left--
				}
			}
		}
	}
	// On a busy machine some may have been idle for so long (3 s) that they were given up.
	if n := c.HistoryPlaces(); n != partitions && time.Since(began) < 3*time.Second {
		t.Errorf("took up %d places, want one in each of %d partitions", n, partitions)
	}
}
