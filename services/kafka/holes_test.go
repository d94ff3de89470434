package kafka_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestGroupsOverHoles: where offsets have no record any more, or never had one that is delivered, each record that there is is taken once, nothing is
// told as a gap, and the front comes to the end of the log all the same, so that Kafka's own tools show no lag.
func TestGroupsOverHoles(t *testing.T) {
	cluster := kafkatest.Start(t)
	c := newClient(t, cluster)
	// taking has a group take what is behind from, of a log that may be compacted further meanwhile.
	taking := func(name, topic string, from, end int64) {
		t.Helper()
		there := func() (n int) {
			for _, r := range readLog(t, cluster, topic, 0, end) {
				if r.Offset >= from {
					n++
				}
			}
			return n
		}
		before := there()
		gs, leave := groupsOf(t, c)
		defer leave()
		k := newTaken()
		k.work(t, gs, startOf(name, topic), nil)
		eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "%s has no lag", name)
		if n, after := k.distinct(), there(); n > before || n < after || n == 0 {
			t.Errorf("%s took %d records, there were %d, and are %d", name, n, before, after)
		}
		if gaps := k.gapsOf(); len(gaps) > 0 {
			t.Errorf("%s was told of gaps: %v", name, gaps)
		}
	}

	t.Run("compaction", func(t *testing.T) {
		topic := compactedTopic(t, cluster)
		const front = 50
		commit := kadm.Offsets{}
		commit.AddOffset(topic, 0, front, -1)
		if err := cluster.Admin(t).CommitAllOffsets(t.Context(), topic+"-behind", commit); err != nil {
			t.Fatal(err)
		}
		end := compact(t, cluster, c, topic)
		for _, r := range readLog(t, cluster, topic, 0, end) {
			if r.Offset == front {
				t.Fatal("the record at the front is still there")
			}
		}
		taking(topic+"-all", topic, 0, end)
		taking(topic+"-behind", topic, front, end) // its front is in a hole
	})
	t.Run("transactions", func(t *testing.T) {
		topic := cluster.NewTopic(t, 1, nil)
		k := cluster.Client(t, kgo.TransactionalID(t.Name()), kgo.DefaultProduceTopic(topic))
		for range 3 {
			transaction(t, k, topic, 3, kgo.TryCommit)
			transaction(t, k, topic, 2, kgo.TryAbort)
		}
		const end = 15 + 6
		eventually(t, func() bool { return resolve(t, c, topic, hub.Query{}).Partitions[0].End >= end }, "the last marker is written")
		taking(topic+"-group", topic, 0, end)
	})
}
