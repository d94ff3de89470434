package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func testRetentionGap(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	for i := range 10 {
		publish(t, c, topic, on(0, value("%d", i)))
	}
	deleteBefore(t, cluster, topic, 0, 6)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 1, 0) // a neighbour that nothing happens to
	live.follow(c, 0, 3)
	eventually(t, func() bool { return live.position(0) >= 10 }, "live to 10")
	gaps := live.control(hub.Gap)
	if len(gaps) != 1 || gaps[0].Partition != 0 || gaps[0].From != 3 || gaps[0].Next != 6 || gaps[0].Reason != hub.GapRetention {
		t.Errorf("got gaps %+v, want one of [3, 6) by retention", gaps)
	}
	if got, want := texts(live.got(0), ofOurs), []string{`0@6 null="6"`, `0@7 null="7"`, `0@8 null="8"`, `0@9 null="9"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	publish(t, c, topic, on(1, value("neighbour")))
	eventually(t, func() bool { return live.position(1) == 1 }, "the neighbour goes on")
}

func testBeyondTheEnd(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, value("0"), value("1"))
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 50)
	eventually(t, func() bool { return len(live.control(hub.Gap)) == 1 }, "a gap")
	if g := live.control(hub.Gap)[0]; g.From != 50 || g.Next != 2 || g.Reason != hub.GapTruncation {
		t.Errorf("got gap %+v, want from 50 to 2 by truncation", g)
	}
	publish(t, c, topic, value("2"))
	eventually(t, func() bool { return live.position(0) == 3 }, "live to 3")
}

func testGrowth(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	live.follow(c, 1, 0)
	r, err := cluster.Admin(t).UpdatePartitions(t.Context(), 5, topic)
	if err = errors.Join(err, r.Error()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(live.control(hub.Topology)) > 0 }, "told of new partitions")
	if es := live.control(hub.Topology); len(es) != 1 || es[0].Count != 5 {
		t.Errorf("got %+v, want one with count 5", es)
	}
	live.follow(c, 4, 0)
	publish(t, c, topic, on(4, value("new")))
	eventually(t, func() bool { return live.position(4) == 1 }, "the new partition is read")
}

func testDeletion(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	live.follow(c, 1, 0)
	publish(t, c, topic, on(0, value("last")))
	eventually(t, func() bool { return live.position(0) == 1 }, "live to 1")
	deleteTopic(t, cluster, topic)
	eventually(t, func() bool { return len(live.control(hub.Deleted)) > 0 }, "told of the deletion")
	if n := len(live.control(hub.Deleted)); n != 1 {
		t.Errorf("told %d times", n)
	}
}

func testFollowAndLeave(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 8
	topic := cluster.NewTopic(t, partitions, nil)
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.Consumers = 3 })
	r := resolve(t, c, topic, hub.Query{})
	for p := range int32(partitions) {
		publish(t, c, topic, on(p, value("0")))
	}
	for round := range 10 {
		live := newRecorder(t, r, topic)
		var leave []func()
		for p := range int32(partitions) {
			leave = append(leave, c.FollowTo(live, p, int64(round)))
		}
		publish(t, c, topic, on(int32(round%partitions), value("%d", round)))
		eventually(t, func() bool { return live.total() > 0 }, "a record in round %d", round)
		for _, do := range leave {
			do()
		}
		n := live.total()
		for p := range int32(partitions) {
			publish(t, c, topic, on(p, value("late")))
		}
		if got := live.total(); got != n {
			t.Errorf("%d records after it was left", got-n)
		}
	}
}

func testManyPartitions(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 400
	topic := cluster.NewTopic(t, partitions, nil)
	t.Cleanup(func() { deleteTopic(t, cluster, topic) })
	c := newClient(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	for p := range int32(partitions) {
		live.follow(c, p, 0)
	}
	for range 3 {
		var rs []*tailracev1.PublishRecord
		for p := range int32(partitions) {
			rs = append(rs, on(p, value("%d", p)))
		}
		publish(t, c, topic, rs...)
	}
	eventually(t, func() bool { return live.total() == 3*partitions }, "3 records of each of %d partitions", partitions)
	for p := range int32(partitions) {
		v := fmt.Sprintf("%q", fmt.Sprint(p))
		want := []string{fmt.Sprintf("%d@0 null=%s", p, v), fmt.Sprintf("%d@1 null=%s", p, v), fmt.Sprintf("%d@2 null=%s", p, v)}
		if got := texts(live.got(p), ofOurs); !slices.Equal(got, want) {
			t.Errorf("partition %d: got %v, want %v", p, got, want)
		}
	}
}
