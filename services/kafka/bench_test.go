package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

const benchPartitions = 8

// filled makes a topic with n records of 128 bytes over eight partitions.
func filled(b *testing.B, cluster *kafkatest.Cluster, n int) string {
	b.Helper()
	topic := cluster.NewTopic(b, benchPartitions, nil)
	k := cluster.Client(b, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(100_000), kgo.ProducerLinger(5*time.Millisecond), kgo.ProducerBatchCompression(kgo.NoCompression()))
	for i := range n {
		k.Produce(b.Context(), &kgo.Record{Topic: topic, Partition: int32(i % benchPartitions), Key: fmt.Append(nil, i%1000), Value: make([]byte, 128)}, nil)
	}
	if err := k.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
	return topic
}

// processTime is the CPU time of this process: a real broker's is not in it.
func processTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure reports records per second, by the clock and by this process's CPU.
func measure(b *testing.B, n int, read func()) {
	b.ResetTimer()
	cpu, began := processTime(), time.Now()
	for range b.N {
		read()
	}
	b.ReportMetric(float64(n*b.N)/time.Since(began).Seconds(), "records/s")
	b.ReportMetric(float64(n*b.N)/(processTime()-cpu).Seconds(), "records/cpu-s")
}

// counter is a topic that only counts.
type counter struct {
	topic string
	mu    sync.Mutex
	n     int
	full  chan struct{}
	want  int
}

func (c *counter) Name() string { return c.topic }
func (c *counter) ID() string   { return "" }
func (c *counter) Count() int32 { return benchPartitions }
func (c *counter) Append(es ...*hub.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.n
	for _, e := range es {
		c.n += len(e.Meta)
	}
	if before < c.want && c.n >= c.want {
		close(c.full)
	}
}

// BenchmarkPollEncode reads a topic of eight partitions: a bare Poll loop as the reference, then live following (poll, encode, append), then history.
func BenchmarkPollEncode(b *testing.B) {
	const n = 400_000
	cluster := kafkatest.Start(b)
	topic := filled(b, cluster, n)

	b.Run("reference-poll", func(b *testing.B) {
		measure(b, n, func() {
			c, err := confluent.NewConsumer(&confluent.ConfigMap{
				"bootstrap.servers": cluster.Bootstrap, "group.id": "reference", "enable.auto.commit": false, "fetch.queue.backoff.ms": 1,
			})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			var tps []confluent.TopicPartition
			for p := range int32(benchPartitions) {
				tps = append(tps, confluent.TopicPartition{Topic: &topic, Partition: p, Offset: 0})
			}
			if err := c.Assign(tps); err != nil {
				b.Fatal(err)
			}
			for got := 0; got < n; {
				if _, ok := c.Poll(100).(*confluent.Message); ok {
					got++
				}
			}
		})
	})
	b.Run("follow", func(b *testing.B) {
		c := newClient(b, cluster, quiet)
		resolve(b, c, topic, hub.Query{})
		measure(b, n, func() {
			to := &counter{topic: topic, full: make(chan struct{}), want: n}
			var leave []func()
			for p := range int32(benchPartitions) {
				leave = append(leave, c.FollowTo(to, p, 0))
			}
			<-to.full
			for _, do := range leave {
				do()
			}
		})
	})
	for _, readers := range []int{1, 2, 4, 8} {
		b.Run(fmt.Sprint("history/", readers), func(b *testing.B) {
			c := newClient(b, cluster, quiet, func(cfg *kafka.Config) { cfg.HistoryReaders = readers })
			resolve(b, c, topic, hub.Query{})
			measure(b, n, func() { replay(b, c, topic, n/benchPartitions) })
		})
	}
}

// replay reads all partitions to an offset as the hub does: four at a time, a partition's chunks one after the other, partitions in turn.
func replay(b *testing.B, c *kafka.Client, topic string, to int64) {
	work := make(chan hub.ChunkID, benchPartitions)
	for p := range int32(benchPartitions) {
		work <- hub.ChunkID{Topic: topic, Partition: p}
	}
	var left sync.WaitGroup
	left.Add(benchPartitions)
	for range 4 {
		go func() {
			for id := range work {
				_, next, err := c.ReadAt(context.Background(), id, to, hub.MaxChunkRecords, nil)
				if err != nil {
					b.Error(err)
				}
				if next >= to {
					left.Done()
					continue
				}
				id.From = next
				work <- id
			}
		}()
	}
	left.Wait()
	close(work)
}

func quiet(cfg *kafka.Config) { cfg.WatchInterval, cfg.DeletedAfter = time.Second, 10*time.Second }

// BenchmarkPublish publishes records of 128 bytes, in batches as callers might.
func BenchmarkPublish(b *testing.B) {
	cluster := kafkatest.Start(b)
	topic := cluster.NewTopic(b, benchPartitions, nil)
	for _, batch := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(batch), func(b *testing.B) {
			c := newClient(b, cluster, quiet)
			rs := make([]*tailracev1.PublishRecord, batch)
			for i := range rs {
				rs[i] = &tailracev1.PublishRecord{Key: fmt.Append(nil, i), Value: make([]byte, 128)}
			}
			publish(b, c, topic, rs...)
			measure(b, batch, func() { publish(b, c, topic, rs...) })
		})
	}
}
