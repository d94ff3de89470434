package kafka_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"tailrace.dev/tailrace/services/group"
)

// TestCommitsOneAtATime: while the coordinator does not answer a commit, records are delivered as ever, and no other commit is sent. What was
// acknowledged meanwhile is the next commit's, all at once.
func TestCommitsOneAtATime(t *testing.T) {
	const interval, partitions = 20 * time.Millisecond, 8 // each of which has its own commits
	fake, cluster := faulty(t)
	var commits atomic.Int64
	held, release := make(chan struct{}), make(chan struct{})
	fake.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if commits.Add(1) == 2 { // the first is of where the group begins, in all partitions
			fake.SleepControl(func() { close(held); <-release })
		}
		return nil, nil, false
	})
	topic := cluster.NewTopic(t, partitions, nil)
	name := topic + "-group"
	_, gs, _ := newProcess(t, cluster, func(c *group.Config) { c.CommitInterval = interval })
	k := newTaken()
	k.work(t, gs, startOf(name, topic), nil)
	client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	write := func(n int) {
		r := &kgo.Record{Topic: topic, Partition: int32(n % partitions), Value: []byte("v")}
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() bool { return k.distinct() == n }, "record %d is delivered and acknowledged", n)
	}
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "the beginning is committed")
	write(1)
	<-held
	n := 1
	for since := time.Now(); time.Since(since) < 20*interval; {
		n++
		write(n)
	}
	close(release)
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "all %d are committed", n)
	if got := commits.Load(); got > 4 {
		t.Errorf("%d commits were sent while one was unanswered", got-2)
	}
}
