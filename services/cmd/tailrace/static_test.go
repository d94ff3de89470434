package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// number is the value of a metric's series of a process, -1 if it has none.
func number(t *testing.T, ops, series string) float64 {
	t.Helper()
	r, err := http.Get("http://" + ops + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindSubmatch(text)
	if found == nil {
		return -1
	}
	n, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestStaticMemberIsKilled: of two processes with instance names one is killed and comes back within its session: the partitions of the other stay
// where they are, and its own are its at once.
func TestStaticMemberIsKilled(t *testing.T) {
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 4, nil)
	group := topic + "-group"
	instances := [2][]string{{"-kafka", cluster.Bootstrap, "-kafka.group-instance", "a"}, {"-kafka", cluster.Bootstrap, "-kafka.group-instance", "b"}}
	c := &children{t: t}
	l := &ledger{t: t, acked: map[int64]int{}, last: map[string]int64{}, anyOrder: true}
	for n := range instances {
		c.args = instances[n]
		c.start(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	for n := range instances {
		go func() {
			defer func() { ended <- struct{}{} }()
			for ctx.Err() == nil {
				life, cut := context.WithCancel(ctx)
				_ = l.stream(life, cut, "http://"+c.at[n].Load().rpc, group, topic)
				cut()
				select {
				case <-time.After(10 * time.Millisecond): // it is being replaced
				case <-ctx.Done():
				}
			}
		}()
	}
	defer func() { cancel(); <-ended; <-ended }()
	partitions := func(n int) float64 {
		return number(t, c.at[n].Load().ops, fmt.Sprintf("tailrace_group_partitions{group=%q}", group))
	}
	eventually(t, "the partitions are shared", func() bool { return partitions(0) == 2 && partitions(1) == 2 })
	changes := func() (n float64) {
		for _, change := range []string{"assigned", "revoked", "lost"} {
			n += number(t, c.at[0].Load().ops, fmt.Sprintf("tailrace_kafka_group_rebalances_total{change=%q}", change))
		}
		return n
	}
	producer := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	write := func() {
		records := make([]*kgo.Record, 200)
		for i := range records {
			records[i] = &kgo.Record{Topic: topic, Partition: int32(i % 4), Key: fmt.Appendf(nil, "k%d", i), Value: []byte("v")}
		}
		if err := producer.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	adm := cluster.Admin(t)
	for round := 1; ; round++ {
		before := changes()
		write()
		victim := c.at[1].Load()
		_ = victim.cmd.Process.Signal(syscall.SIGKILL)
		<-victim.ended
		killed := time.Now()
		write()
		c.args = instances[1]
		c.start(1)
		eventually(t, "all is done, where it was", func() bool {
			commits, err := adm.FetchOffsets(t.Context(), group)
			if err != nil || partitions(1) != 2 {
				return false
			}
			for p := range int32(4) {
				if at, ok := commits.Lookup(topic, p); !ok || at.At != int64(100*round) {
					return false
				}
			}
			return true
		})
		took := time.Since(killed)
		switch after := changes(); {
		case after == before && before >= 1:
			return
		case took > 5*time.Second && round < 4: // a busy machine: its session was over
			t.Logf("again: it took %v", took)
		default:
			t.Fatalf("the other process saw %v changes of what it has, want none beyond %v (%v)", after, before, took)
		}
	}
}

// TestSharedInstanceName: of two processes with one name the later has the group; the earlier says so, and rests.
func TestSharedInstanceName(t *testing.T) {
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 2, nil)
	group := topic + "-group"
	c := &children{t: t, args: []string{"-kafka", cluster.Bootstrap, "-kafka.group-instance", "one"}}
	l := &ledger{t: t, acked: map[int64]int{}, last: map[string]int64{}, anyOrder: true}
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer cancel()
	has2 := func(n int) func() bool {
		return func() bool {
			return number(t, c.at[n].Load().ops, fmt.Sprintf("tailrace_group_partitions{group=%q}", group)) == 2
		}
	}
	for n := range 2 {
		c.start(n)
		workers.Go(func() {
			for ctx.Err() == nil {
				life, cut := context.WithCancel(ctx)
				_ = l.stream(life, cut, "http://"+c.at[n].Load().rpc, group, topic)
				cut()
			}
		})
		eventually(t, "the newest has the partitions", has2(n))
	}
	eventually(t, "the earlier says so", func() bool { return has(c.at[0].Load().log.String(), "another process is this member") })
	eventually(t, "and has nothing", func() bool { return !has2(0)() })
	if err := cluster.Client(t).ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a record is acknowledged", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.acked[0] > 0
	})
}
