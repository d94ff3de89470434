package kafka_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"tailrace.dev/tailrace/services/group"
)

// TestCommitsOneAtATime: while the coordinator does not answer a commit, records are delivered as ever, and no other commit is sent. What was
// acknowledged meanwhile is the next commit's, all at once.
func TestCommitsOneAtATime(t *testing.T) {
	const interval = 20 * time.Millisecond
	fake, cluster := faulty(t)
	var commits atomic.Int64
	held, release := make(chan struct{}), make(chan struct{})
	fake.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if commits.Add(1) == 1 {
			fake.SleepControl(func() { close(held); <-release })
		}
		return nil, nil, false
	})
	topic := cluster.NewTopic(t, 1, nil)
	name := topic + "-group"
	_, gs, _ := newProcess(t, cluster, func(c *group.Config) { c.CommitInterval = interval })
	k := newTaken()
	k.work(t, gs, startOf(name, topic), nil)
	write := func(n int) {
		writeKeyed(t, cluster, topic, 1)
		eventually(t, func() bool { return k.distinct() == n }, "record %d is delivered and acknowledged", n)
	}
	write(1)
	<-held
	n := 1
	for since := time.Now(); time.Since(since) < 20*interval; {
		n++
		write(n)
	}
	close(release)
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "all %d are committed", n)
	if got := commits.Load(); got > 3 {
		t.Errorf("%d commits were sent while one was unanswered", got-1)
	}
	if got := k.count(topic, 0, 0, int64(n)); got != n {
		t.Errorf("%d records were acknowledged %d times", n, got)
	}
}
