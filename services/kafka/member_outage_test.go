package kafka_test

import (
	"bytes"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestGroupThroughAnOutage: the broker is killed and comes back: work goes on from where it was, and dead letters that could not be stored are. The
// broker comes back without the end of a log: what comes there anew is worked on, and a gap is told. A process that ends while it is away ends in time.
func TestGroupThroughAnOutage(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.StartOwn(t, 1, "broker.session.timeout.ms=1500", "broker.heartbeat.interval.ms=250")
	topic, cut, poisoned := cluster.NewTopic(t, 2, nil), cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 1, nil)
	cluster.CreateTopic(t, poisoned+".dlq", 1, nil)
	writeKeyed(t, cluster, topic, 200)
	writeKeyed(t, cluster, cut, 5)
	writeKeyed(t, cluster, poisoned, 10)
	gs, leave := newGroups(t, cluster, watchful, func(c *kafka.Config) {
		c.SessionTimeout, c.DeletedAfter = 30*time.Second, time.Hour // its partitions stay its
	})
	k := newTaken()
	k.work(t, gs, startOf(topic+"-group", topic), nil)
	shortened := newTaken()
	shortened.work(t, gs, startOf(cut+"-group", cut), nil)
	s := startOf(poisoned+"-group", poisoned)
	s.MaxAttempts = 1
	first, err := gs.Join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	eventually(t, func() bool { return k.distinct() == 200 && shortened.distinct() == 5 }, "the first records")
	eventually(t, func() bool {
		return slices.ContainsFunc(gs.Stats(), func(g group.Stats) bool { return g.Group == s.Group && g.Waiting == 10 })
	}, "those of which one is poison were read")

	cluster.Kill9(t, 1)
	saved := cluster.SaveLog(t, 1, cut, 0)
	others := newTaken()
	others.work(t, gs, s, func(r *tailracev1.Record) bool { return string(r.GetValue()) != "v3" })
	eventually(t, func() bool { return others.distinct() == 9 }, "one becomes a dead letter, which cannot be stored")
	cluster.Restart(t, 1)
	writeKeyed(t, cluster, topic, 200)
	writeKeyed(t, cluster, cut, 5)
	eventually(t, func() bool { return k.distinct() == 400 && shortened.distinct() == 10 }, "the records after the outage")
	eventually(t, func() bool {
		return lag(t, cluster, topic+"-group", topic) == 0 && lag(t, cluster, cut+"-group", cut) == 0 && lag(t, cluster, poisoned+"-group", poisoned) == 0
	}, "all is committed")
	if got := letters(t, cluster, poisoned+".dlq"); len(got) != 1 || got[3] < 1 {
		t.Errorf("got letters %v, want that of offset 3", got)
	}

	cluster.Kill9(t, 1)
	cluster.ReplaceLog(t, 1, cut, 0, saved)
	cluster.Restart(t, 1)
	eventually(t, func() bool { return len(shortened.gapsOf()) == 1 }, "the loss is told")
	want := group.Gap{Partition: group.Partition{Topic: cut}, From: 10, To: 5, Reason: hub.GapTruncation}
	if got := shortened.gapsOf()[0]; got != want {
		t.Errorf("got gap %+v, want %+v", got, want)
	}
	writeKeyed(t, cluster, cut, 3)
	eventually(t, func() bool { return shortened.count(cut, 0, 5, 8) == 6 && lag(t, cluster, cut+"-group", cut) == 0 }, "what came in the place of what was lost")
	writeKeyed(t, cluster, topic, 100)
	eventually(t, func() bool { return k.distinct() == 500 }, "the last records")

	if err := cluster.Client(t).ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("to be committed")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return k.distinct() == 501 }, "the very last")
	cluster.Kill9(t, 1)
	began := time.Now()
	leave()
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %v to leave without Kafka", took)
	}
	t.Logf("left in %v", time.Since(began))
	cluster.Restart(t, 1)
	eventually(t, func() bool {
		stacks := make([]byte, 1<<20)
		return !bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("kafka.closeWithin"))
	}, "commits that still waited for the coordinator end with it, and their members")
}
