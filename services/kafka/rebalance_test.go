package kafka_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// memberIDs are those that Kafka tells of a group, in order.
func memberIDs(t *testing.T, cluster *kafkatest.Cluster, name string) string {
	t.Helper()
	described, err := cluster.Admin(t).DescribeGroups(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range described[name].Members {
		ids = append(ids, m.MemberID)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// expel ends the session of all members of a group, without their knowing.
func expel(t *testing.T, cluster *kafkatest.Cluster, name string) {
	t.Helper()
	for id := range strings.FieldsSeq(memberIDs(t, cluster, name)) {
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group = name
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID = id
		req.Members = append(req.Members, m)
		if _, err := req.RequestWith(t.Context(), cluster.Client(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostPartitions: Kafka takes a member for dead, which does not know. What it does from then on does not count: the front is that of who has the
// partitions since, who is dealt all that was held, and the one that was taken for dead comes back.
func TestLostPartitions(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 1, nil)
	name := topic + "-group"
	writeKeyed(t, cluster, topic, 40)
	lease := func(c *kafka.Config) { c.StatsInterval = c.WatchInterval }
	c, zombie, leave := newProcess(t, cluster, nil, lease)
	s := startOf(name, topic)
	w, err := zombie.Join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	tags, _ := pulled(t, w, 40)
	for offset := range int64(10) {
		w.Ack([]int64{tags[offset]}, 0)
	}
	eventually(t, func() bool { return frontOf(t, cluster, name, topic) == 10 }, "a front")
	expel(t, cluster, name)
	other, _ := newGroups(t, cluster)
	k := newTaken()
	eventually(t, func() bool { // as a worker that has not heard of it
		for offset := int64(10); offset < 40; offset++ {
			if offset != 20 { // so that what the zombie may commit, at most 20, is less than what comes
				w.Ack([]int64{tags[offset]}, 0)
			}
		}
		return c.Rebalances("lost") == 1
	}, "the partitions are lost")
	if held := w.Held(); held != 0 {
		t.Errorf("the worker still holds %d records", held)
	}
	if at := frontOf(t, cluster, name, topic); at != 10 {
		t.Errorf("the front of who was expelled moved to %d", at)
	}
	leave()
	k.work(t, other, s, nil)
	eventually(t, func() bool { return k.distinct() == 30 && lag(t, cluster, name, topic) == 0 }, "the others are at another process")
	if k.count(topic, 0, 0, 10) != 0 || k.count(topic, 0, 10, 40) != 30 {
		t.Errorf("got %d below the front, %d beyond", k.count(topic, 0, 0, 10), k.count(topic, 0, 10, 40))
	}
}

// TestRetainedPartitionsAreNotReadAgain: when another process comes, what stays is not fetched anew.
func TestRetainedPartitionsAreNotReadAgain(t *testing.T) {
	cluster := kafkatest.Start(t)
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			with := func(c *kafka.Config) { c.GroupProtocol, c.StatsInterval = protocol, c.WatchInterval }
			topic := cluster.NewTopic(t, 4, nil)
			name := topic + "-group"
			const records, size = 4000, 1000
			client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
			rs := make([]*kgo.Record, records)
			for i := range rs {
				rs[i] = &kgo.Record{Topic: topic, Partition: int32(i % 4), Key: fmt.Appendf(nil, "%d", i), Value: noise(size)}
			}
			if err := client.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			first, a, _ := newProcess(t, cluster, nil, with)
			s := startOf(name, topic)
			s.MaxInFlight = 1
			w, err := a.Join(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			eventually(t, func() bool { return a.Stats()[0].Waiting == records }, "all is read")
			second, b, _ := newProcess(t, cluster, nil, with)
			v, err := b.Join(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer v.Close()
			eventually(t, func() bool {
				return partitionsOf(a) == 2 && a.Stats()[0].Waiting == records/2 && partitionsOf(b) == 2 && b.Stats()[0].Waiting == records/2
			}, "each has half")
			const each = size + 100
			eventually(t, func() bool { return second.FetchedByGroups() > records/2*size }, "the second says what it has fetched")
			if got := first.FetchedByGroups(); got < records*size || got > records*each*11/10 {
				t.Errorf("the first fetched %d bytes, want %d and little more", got, records*size)
			}
			if got := second.FetchedByGroups(); got > records/2*each*11/10 {
				t.Errorf("the second fetched %d bytes, want %d and little more", got, records/2*size)
			}
			t.Logf("of %d bytes the first fetched %d, the second %d", records*size, first.FetchedByGroups(), second.FetchedByGroups())
		})
	}
}

// TestStaticMemberComesBack: a process with a name of its own ends and begins again: no partition of others moves, and its own are its at once.
func TestStaticMemberComesBack(t *testing.T) {
	cluster := kafkatest.Start(t)
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			as := func(instance string) func(*kafka.Config) {
				return func(c *kafka.Config) { c.GroupProtocol, c.GroupInstance = protocol, instance }
			}
			topic, second := cluster.NewTopic(t, 4, nil), cluster.NewTopic(t, 2, nil)
			name := topic + "-group"
			k := newTaken()
			stays, x, _ := newProcess(t, cluster, nil, as("a"))
			k.work(t, x, startOf(name, topic), nil)
			k.work(t, x, startOf(second+"-group", second), nil) // the same name in another group
			y, leave := newGroups(t, cluster, as("b"))
			k.work(t, y, startOf(name, topic), nil)
			eventually(t, func() bool { return partitionsOf(x) == 2+2 && partitionsOf(y) == 2 }, "the partitions are shared")
			writeKeyed(t, cluster, topic, 100)
			eventually(t, func() bool { return k.distinct() == 100 && lag(t, cluster, name, topic) == 0 }, "all is done")
			assigned, revoked := stays.Rebalances("assigned"), stays.Rebalances("revoked")
			leave()
			writeKeyed(t, cluster, topic, 100)
			y, _ = newGroups(t, cluster, as("b"))
			k.work(t, y, startOf(name, topic), nil)
			eventually(t, func() bool { return partitionsOf(y) == 2 && k.distinct() == 200 && lag(t, cluster, name, topic) == 0 }, "it is back, and its partitions")
			if stays.Rebalances("assigned") != assigned || stays.Rebalances("revoked") != revoked {
				t.Errorf("the other process saw %d assignments and %d revocations", stays.Rebalances("assigned")-assigned, stays.Rebalances("revoked")-revoked)
			}
		})
	}
}
