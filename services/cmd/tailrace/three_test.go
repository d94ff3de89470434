package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

var rounds = flag.Int("tailrace.rounds", 1, "how often the test of three processes has them join, leave and die")

const threePartitions = 6

// three are three processes of the service that share a group; their workers acknowledge at once.
type three struct {
	*children
	cluster *kafkatest.Cluster
	adm     *kadm.Client
	topic   string
	group   string
	book    *visits
	lives   [3]atomic.Pointer[string]
	born    int
	work    [3]func() // ends the workers at a process
}

// rise starts a process, and two workers of the group there.
func (x *three) rise(n int) {
	x.t.Helper()
	x.start(n)
	x.born++
	life := fmt.Sprintf("%d of process %d", x.born, n)
	x.lives[n].Store(&life)
	ctx, cancel := context.WithCancel(x.t.Context())
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			if err := x.book.consume(ctx, x.t, "http://"+x.at[n].Load().rpc, x.group, x.topic, life); ctx.Err() == nil && n == 0 {
				x.t.Errorf("a worker at the process that stays has ended: %v", err)
			}
		})
	}
	x.work[n] = func() { cancel(); workers.Wait() }
	x.t.Cleanup(x.work[n])
	eventually(x.t, "its workers have something to do", func() bool { return x.book.at(life) > 0 })
}

// end ends a process by a signal, and returns what its life was called.
func (x *three) end(n int, by os.Signal) (life string) {
	x.t.Helper()
	victim := x.at[n].Load()
	if err := victim.cmd.Process.Signal(by); err != nil {
		x.t.Fatal(err)
	}
	<-victim.ended
	x.work[n]()
	return *x.lives[n].Load()
}

// committed is what Kafka has of the group.
func (x *three) committed(group string) map[int32]int64 {
	at := map[int32]int64{}
	commits, err := x.adm.FetchOffsets(x.t.Context(), group)
	if err != nil {
		x.t.Fatal(err)
	}
	for partition, o := range commits[x.topic] {
		at[partition] = o.At
	}
	return at
}

// owners are the members of the group, by partition, once it has so many, and all is dealt.
func (x *three) owners(members int) map[int32]string {
	x.t.Helper()
	var at map[int32]string
	eventually(x.t, fmt.Sprintf("the group has %d members", members), func() bool {
		described, err := x.adm.DescribeGroups(x.t.Context(), x.group)
		if err != nil || described[x.group].State != "Stable" || len(described[x.group].Members) != members {
			return false
		}
		at = map[int32]string{}
		for _, m := range described[x.group].Members {
			name := m.MemberID
			if m.InstanceID != nil {
				name = *m.InstanceID
			}
			if assigned, ok := m.Assigned.AsConsumer(); ok {
				for _, topic := range assigned.Topics {
					for _, p := range topic.Partitions {
						at[p] = name
					}
				}
			}
		}
		return len(at) == threePartitions
	})
	return at
}

// TestGroupOfThreeProcesses: processes join a group under load, leave it, are killed, and, as static members, are killed and come back. Nothing is lost, and what
// comes again was in flight. Another group and readers of the topic at a process that stays notice nothing.
func TestGroupOfThreeProcesses(t *testing.T) {
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, threePartitions, nil)
	x := &three{
		children: &children{t: t, args: []string{"-kafka", cluster.Bootstrap}, each: map[int][]string{2: {"-kafka.group-instance", "two"}}},
		cluster:  cluster, adm: cluster.Admin(t), topic: topic, group: topic + "-three", book: newVisits(),
	}
	x.rise0()
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	other, url := newVisits(), "http://"+x.at[0].Load().rpc
	for range 2 {
		beside.Go(func() {
			if err := other.consume(ctx, t, url, topic+"-other", topic, "all"); ctx.Err() == nil {
				t.Errorf("a worker of the other group has ended: %v", err)
			}
		})
	}
	readers := [2]*follower{newFollower(), newFollower()}
	for _, r := range readers {
		beside.Go(func() {
			if err := r.follow(ctx, t, url, topic); ctx.Err() == nil {
				t.Errorf("a reader beside has ended: %v", err)
			}
		})
	}
	load := startLoad(t, cluster, topic)
	fates := map[string]fate{}
	for range *rounds {
		x.rise(1) // joins
		x.rise(2) // joins, as a static member
		before := x.owners(3)
		killed := time.Now()
		life := x.end(2, syscall.SIGKILL)
		fates[life] = fate{killed, x.committed(x.group)} // nobody has its partitions yet
		x.rise(2)
		back := time.Since(killed)
		if after := x.owners(3); back < 5*time.Second && !maps.Equal(after, before) {
			t.Errorf("a static member came back after %v, and the partitions went from %v to %v", back, before, after)
		}
		left := time.Now()
		fates[x.end(1, syscall.SIGTERM)] = fate{when: left} // leaves
		x.owners(2)
		x.rise(1)
		x.owners(3)
		killed = time.Now()
		life = x.end(1, syscall.SIGKILL)
		fates[life] = fate{killed, x.committed(x.group)}
		left = time.Now()
		fates[x.end(2, syscall.SIGTERM)] = fate{when: left} // it does not leave, being static: its session ends
		x.owners(1)
		t.Logf("a static member was killed, and its workers had something to do again after %v", back.Round(time.Millisecond))
	}
	ends := load.stop(t)
	for _, group := range []string{x.group, topic + "-other"} {
		eventually(t, "the committed offsets are the ends of the log", func() bool { return maps.Equal(x.committed(group), ends) })
	}
	for _, r := range readers {
		eventually(t, "the readers beside are at the ends of the log", func() bool { return maps.Equal(r.next(), ends) })
	}
	x.work[0]()
	cancel()
	beside.Wait()
	for _, r := range readers {
		r.check(t, ends)
	}
	if _, again := other.check(t, ends, nil); again != 0 {
		t.Errorf("%d records of the other group came again", again)
	}
	killed, moved := x.book.check(t, ends, fates)
	n := int64(0)
	for _, end := range ends {
		n += end
	}
	t.Logf("%d joins, %d leaves, %d SIGKILLs (half of them of a static member) under load: %d records, %d deliveries; after their ack %d came again where a process was killed, %d where "+
		"a partition moved otherwise; the other group and the readers beside saw each of them once", 4**rounds+1, 2**rounds, 2**rounds, n, len(x.book.all), killed, moved)
}

// rise0 starts the process that stays, before there are records.
func (x *three) rise0() {
	x.t.Helper()
	producer := x.cluster.Client(x.t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	records := make([]*kgo.Record, threePartitions)
	for p := range records {
		records[p] = &kgo.Record{Topic: x.topic, Partition: int32(p), Key: []byte("k0"), Value: []byte("first")}
	}
	if err := producer.ProduceSync(x.t.Context(), records...).FirstErr(); err != nil {
		x.t.Fatal(err)
	}
	x.rise(0)
}

// pour writes to a topic until it is told to stop.
type pour struct {
	adm    *kadm.Client
	topic  string
	cancel context.CancelFunc
	done   chan error
}

func startLoad(t *testing.T, cluster *kafkatest.Cluster, topic string) *pour {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &pour{cluster.Admin(t), topic, cancel, make(chan error, 1)}
	producer := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			records := make([]*kgo.Record, threePartitions)
			for p := range records {
				records[p] = &kgo.Record{Topic: topic, Partition: int32(p), Key: fmt.Appendf(nil, "k%d", n%20), Value: fmt.Appendf(nil, "v%d", n)}
			}
			if err := producer.ProduceSync(context.WithoutCancel(ctx), records...).FirstErr(); err != nil {
				l.done <- err
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				l.done <- nil
				return
			}
		}
	}()
	t.Cleanup(cancel)
	return l
}

// stop returns the ends of the log.
func (l *pour) stop(t *testing.T) map[int32]int64 {
	t.Helper()
	l.cancel()
	if err := <-l.done; err != nil {
		t.Fatal(err)
	}
	listed, err := l.adm.ListEndOffsets(t.Context(), l.topic)
	if err != nil {
		t.Fatal(err)
	}
	ends := map[int32]int64{}
	for _, p := range slices.Sorted(maps.Keys(listed[l.topic])) {
		ends[p] = listed[l.topic][p].Offset
	}
	return ends
}
