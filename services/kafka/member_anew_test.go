package kafka_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestTopicAnewWithMorePartitions: a topic is created anew with more partitions, and the rebalance for the new ones comes before the member looks at
// the topic's id, in most runs: what it holds of the old log must not be read on in the new one. So must groups that begin at the latest: to them the
// new log is what came later.
func TestTopicAnewWithMorePartitions(t *testing.T) {
	cluster := kafkatest.Start(t)
	for _, initial := range []group.Initial{group.Earliest, group.Latest} {
		for try := range 2 {
			t.Run(fmt.Sprint(initial, try), func(t *testing.T) {
				t.Parallel()
				topic := cluster.NewTopic(t, 1, nil)
				_, gs, _ := newProcess(t, cluster, nil, func(c *kafka.Config) { c.WatchInterval, c.DeletedAfter = 3*time.Second, time.Minute })
				k := newTaken()
				s := startOf(topic+"-group", topic)
				s.Initial = initial
				k.work(t, gs, s, nil)
				eventually(t, func() bool { return partitionsOf(gs) == 1 && lag(t, cluster, topic+"-group", topic) == 0 }, "it has begun")
				writeKeyed(t, cluster, topic, 20)
				eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 && k.distinct() == 20 }, "all is done")
				recreate(t, cluster, topic, 2)
				client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
				for i := range 50 {
					if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 0, Value: fmt.Appendf(nil, "new %d", i)}).FirstErr(); err != nil {
						t.Fatal(err)
					}
				}
				eventually(t, func() bool { return partitionsOf(gs) == 2 }, "the new partition")
				eventually(t, func() bool { return frontOf(t, cluster, topic+"-group", topic) == 50 }, "committed to the end")
				eventually(t, func() bool { return k.count(topic, 0, 0, 20) == 40 }, "the new log's first records, after the old one's at the same offsets")
				if gaps := k.gapsOf(); len(gaps) == 0 {
					t.Error("no gap was told")
				}
			})
		}
	}
}

// TestLatestOfTwoProcesses: two processes begin new groups at the latest, in one generation; one of them commits before the other asks where to begin.
func TestLatestOfTwoProcesses(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 1, "group.initial.rebalance.delay.ms=1500")
	topic := cluster.NewTopic(t, 4, nil)
	client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range 100 {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: int32(i % 4), Value: []byte("old")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	a, _ := newGroups(t, cluster)
	slow, b, _ := newProcess(t, cluster, nil)
	busy, rest := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	defer asking.Wait()
	defer rest()
	for range 40 { // the second one's questions to Kafka take longer: others ask much
		asking.Go(func() {
			for busy.Err() == nil {
				_, _ = slow.GetGroup(busy, "nobody")
			}
		})
	}
	var all sync.WaitGroup
	for i := range 10 {
		name := fmt.Sprintf("%s-%d", topic, i)
		s := startOf(name, topic)
		s.Initial = group.Latest
		k := newTaken()
		for _, gs := range []*group.Groups{a, b} {
			all.Go(func() { k.work(t, gs, s, nil) })
		}
		all.Go(func() {
			eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "all is committed")
			if n := k.distinct(); n > 0 {
				t.Errorf("group %d begins at the latest and got %d old records", i, n)
			}
		})
	}
	all.Wait()
}
