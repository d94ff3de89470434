package kafka_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// watchful has statistics told often, and open transactions named soon.
func watchful(cfg *kafka.Config) {
	cfg.StatsInterval, cfg.HeldAfter = 200*time.Millisecond, time.Second
}

// testHeldPartition: an open transaction holds its partition, and log and metric name it until it ends.
func testHeldPartition(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c, log := newLogged(t, cluster, watchful)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	live.follow(c, 1, 0)
	k := cluster.Client(t, kgo.TransactionalID(t.Name()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for end := range 2 {
		if err := k.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 1, Value: []byte("open")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		publish(t, c, topic, on(1, value("behind it")), on(0, value("beside it")))
		eventually(t, func() bool { return c.Held() > 0 }, "the partition is named by a metric")
		if n := log.with("an open transaction holds a partition", "topic="+topic+" ", "partition=1 "); n != end+1 {
			t.Errorf("%d lines name the partition, want %d", n, end+1)
		}
		if n := log.with("an open transaction holds a partition"); n != end+1 {
			t.Errorf("%d lines name partitions, want %d", n, end+1)
		}
		if err := k.EndTransaction(t.Context(), kgo.TransactionEndTry(end == 1)); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return c.Held() == 0 }, "it is named no longer")
	}
	eventually(t, func() bool { return live.position(1) == 6 && live.position(0) == 2 }, "live to the end")
	if got, want := texts(live.got(1), ofOurs), []string{`1@1 null="behind it"`, `1@3 null="open"`, `1@4 null="behind it"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// testMisplacedKeys: a key that lies elsewhere than its hash says is counted, and warned of once per topic.
func testMisplacedKeys(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 3
	topic := cluster.NewTopic(t, partitions, nil)
	c, log := newLogged(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	for p := range int32(partitions) {
		live.follow(c, p, 0)
	}
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	wrong, all := 0, 0
	for i := range 60 {
		r := &kgo.Record{Topic: topic, Partition: int32(i % partitions), Key: fmt.Append(nil, i)}
		if i%4 == 0 {
			r.Key = nil
		} else if hub.PartitionOf(r.Key, partitions) != r.Partition {
			wrong++
		}
		if i >= 30 {
			r.Partition = hub.PartitionOf(fmt.Append(nil, i), partitions) // from here on all is well
			if r.Key != nil && hub.PartitionOf(r.Key, partitions) != int32(i%partitions) {
				wrong--
			}
		}
		if err := k.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		all++
	}
	eventually(t, func() bool { return live.total() == all }, "all records")
	if got := c.Misplaced(); got != wrong || wrong == 0 {
		t.Errorf("got %d misplaced, want %d", got, wrong)
	}
	if n := log.with("keys do not lie where the partitioner puts them", "topic="+topic+" "); n != 1 {
		t.Errorf("%d warnings, want 1", n)
	}
}

// testStoppedPartition: a partition that librdkafka has stopped to fetch, without a word, is fetched again where it was.
func testStoppedPartition(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c, log := newLogged(t, cluster, watchful)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	live.follow(c, 1, 0)
	publish(t, c, topic, on(0, value("0")), on(1, value("0")))
	eventually(t, func() bool { return live.position(0) == 1 && live.position(1) == 1 }, "live to 1")
	c.StopFetching(topic, 1, -1)
	publish(t, c, topic, on(0, value("1")), on(1, value("1")))
	eventually(t, func() bool { return live.position(0) == 2 && live.position(1) == 2 }, "live to 2")
	if n := log.with("partition had stopped", "topic="+topic+" ", "partition=1 "); n != 1 {
		t.Errorf("%d lines tell so, want 1", n)
	}
	if got, want := texts(live.got(1), ofOurs), []string{`1@0 null="0"`, `1@1 null="1"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
