package kafka_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// newGroups runs the queue mode of a process of its own; leave ends it as a drain does.
func newGroups(t *testing.T, cluster *kafkatest.Cluster, change ...func(*kafka.Config)) (gs *group.Groups, leave func()) {
	t.Helper()
	_, gs, leave = newProcess(t, cluster, nil, change...)
	return gs, leave
}

// newProcess is newGroups with a Config of the groups, and the client.
func newProcess(t *testing.T, cluster *kafkatest.Cluster, groups func(*group.Config), change ...func(*kafka.Config)) (c *kafka.Client, gs *group.Groups, leave func()) {
	t.Helper()
	c, stop := startClient(t, cluster, change...)
	cfg := group.Config{
		Cluster: c, DeadLetters: c, CommitInterval: 100 * time.Millisecond, Linger: 200 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}
	if groups != nil {
		groups(&cfg)
	}
	gs, leave = runGroups(t, cfg, stop)
	t.Cleanup(leave)
	return c, gs, leave
}

// runGroups runs Groups until leave, which then stops what they need.
func runGroups(t *testing.T, cfg group.Config, stop func()) (gs *group.Groups, leave func()) {
	t.Helper()
	gs = group.New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = gs.Run(ctx) }()
	var once sync.Once
	return gs, func() { once.Do(func() { cancel(); <-ended; stop() }) }
}

// taken is what workers of a group acknowledged, and the gaps that they were told.
type taken struct {
	mu    sync.Mutex
	times map[string]int // by topic/partition/offset
	gaps  []group.Gap
}

func newTaken() *taken { return &taken{times: map[string]int{}} }

func (k *taken) distinct() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.times)
}

// count is how often records of [from, to) of a partition were acknowledged.
func (k *taken) count(topic string, partition int32, from, to int64) (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for offset := from; offset < to; offset++ {
		n += k.times[fmt.Sprintf("%s/%d/%d", topic, partition, offset)]
	}
	return n
}

func (k *taken) gapsOf() []group.Gap {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.gaps)
}

func decodeDelivered(t testing.TB, d group.Delivery) *tailracev1.Record {
	t.Helper()
	r := &tailracev1.Record{}
	if err := proto.Unmarshal(d.Record.Body, r); err != nil {
		t.Error(err)
	}
	return r
}

// work acknowledges everything until the test or the group ends.
func (k *taken) work(t *testing.T, gs *group.Groups, s group.Start, judge func(*tailracev1.Record) bool) (stop func()) {
	t.Helper()
	w, err := gs.Join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer w.Close()
		for {
			p, err := w.Pull(64 << 10)
			if err != nil {
				return
			}
			k.mu.Lock()
			k.gaps = append(k.gaps, p.Gaps...)
			k.mu.Unlock()
			for _, d := range p.Deliveries {
				r := decodeDelivered(t, d)
				if judge != nil && !judge(r) {
					w.Nack([]int64{d.Tag}, 0, "bad record")
				} else if len(w.Ack([]int64{d.Tag}, 0)) == 0 {
					k.mu.Lock()
					k.times[fmt.Sprintf("%s/%d/%d", r.GetTopic(), r.GetPartition(), r.GetOffset())]++
					k.mu.Unlock()
				}
			}
			if len(p.Deliveries)+len(p.Gaps) > 0 {
				continue
			}
			select {
			case <-w.Signal():
			case <-quit:
				return
			}
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { close(quit); <-ended }) }
	t.Cleanup(stop)
	return stop
}

func writeKeyed(t *testing.T, cluster *kafkatest.Cluster, topic string, n int) {
	t.Helper()
	client := cluster.Client(t)
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "k%d", i%50), Value: fmt.Appendf(nil, "v%d", i)}
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// lag is what Kafka's own accounts say is left for a group, -1 if it has not committed all partitions.
func lag(t *testing.T, cluster *kafkatest.Cluster, name, topic string) int64 {
	t.Helper()
	adm := cluster.Admin(t)
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	commits, err := adm.FetchOffsets(t.Context(), name)
	if err != nil {
		return -1
	}
	left := int64(0)
	for p, end := range ends[topic] {
		at, ok := commits.Lookup(topic, p)
		if !ok || at.At < 0 {
			return -1
		}
		left += end.Offset - at.At
	}
	return left
}

func startOf(name string, topics ...string) group.Start {
	return group.Start{Settings: group.Settings{Group: name, Topics: topics}, MaxInFlight: 50}
}

// TestGroupMembers: processes come and go under load; nothing is lost, and Kafka's own accounts say so.
func TestGroupMembers(t *testing.T) {
	cluster := kafkatest.Start(t)
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			with := func(c *kafka.Config) { c.GroupProtocol = protocol }
			topic := cluster.NewTopic(t, 6, nil)
			name := topic + "-group"
			const each = 1500
			writeKeyed(t, cluster, topic, each)
			k := newTaken()
			first, leave := newGroups(t, cluster, with)
			k.work(t, first, startOf(name, topic), nil)
			k.work(t, first, startOf(name, topic), nil)
			eventually(t, func() bool { return k.distinct() == each }, "the first member takes all")
			eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "lag 0")

			second, _ := newGroups(t, cluster, with)
			k.work(t, second, startOf(name, topic), nil)
			writeKeyed(t, cluster, topic, each)
			eventually(t, func() bool { return partitionsOf(second) == 3 && partitionsOf(first) == 3 }, "the partitions are shared")
			writeKeyed(t, cluster, topic, each)
			eventually(t, func() bool { return k.distinct() == 3*each }, "two members take all")
			leave()
			eventually(t, func() bool { return partitionsOf(second) == 6 }, "the one that stays has all partitions")
			writeKeyed(t, cluster, topic, each)
			eventually(t, func() bool { return k.distinct() == 4*each }, "the second takes the rest")
			eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "lag 0")
			k.mu.Lock()
			defer k.mu.Unlock()
			twice := 0
			for _, n := range k.times {
				if n > 1 {
					twice++
				}
			}
			if twice > 0 {
				t.Errorf("%d records were acknowledged twice, though every ack was within the grace", twice)
			}
			if len(k.gaps) > 0 {
				t.Errorf("got gaps %v", k.gaps)
			}
		})
	}
}

func partitionsOf(gs *group.Groups) (n int) {
	for _, s := range gs.Stats() {
		n += s.Partitions
	}
	return n
}

// TestGroupPlaces: where a group begins: initial, new partitions, lost offsets, a topic that was created anew.
func TestGroupPlaces(t *testing.T) {
	cluster := kafkatest.Start(t)
	t.Run("latest, and growth", func(t *testing.T) {
		t.Parallel()
		topic := cluster.NewTopic(t, 2, nil)
		writeKeyed(t, cluster, topic, 100)
		gs, _ := newGroups(t, cluster)
		k := newTaken()
		s := startOf(topic+"-group", topic)
		s.Initial = group.Latest
		k.work(t, gs, s, nil)
		eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "the beginning is committed")
		writeKeyed(t, cluster, topic, 30)
		eventually(t, func() bool { return k.distinct() == 30 }, "what came later")
		if _, err := cluster.Admin(t).UpdatePartitions(t.Context(), 4, topic); err != nil {
			t.Fatal(err)
		}
		var client *kgo.Client
		eventually(t, func() bool {
			client = cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
			return client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 3, Value: []byte("first")}).FirstErr() == nil
		}, "the new partition takes a record")
		eventually(t, func() bool { return k.distinct() == 31 }, "the first record of a new partition")
	})
	t.Run("retention", func(t *testing.T) {
		t.Parallel()
		topic := cluster.NewTopic(t, 1, nil)
		writeKeyed(t, cluster, topic, 20)
		adm := cluster.Admin(t)
		commit(t, adm, topic, 5)
		offsets := kadm.Offsets{}
		offsets.AddOffset(topic, 0, 12, -1)
		if _, err := adm.DeleteRecords(t.Context(), offsets); err != nil {
			t.Fatal(err)
		}
		gs, _ := newGroups(t, cluster)
		k := newTaken()
		k.work(t, gs, startOf(topic+"-group", topic), nil)
		eventually(t, func() bool { return k.distinct() == 8 && len(k.gapsOf()) == 1 }, "what is left, and a gap: got %v", k)
		want := group.Gap{Partition: group.Partition{Topic: topic}, From: 5, To: 12, Reason: hub.GapRetention}
		if got := k.gapsOf()[0]; got != want {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("created anew", func(t *testing.T) {
		t.Parallel()
		topic := cluster.NewTopic(t, 1, nil)
		writeKeyed(t, cluster, topic, 20)
		gs, _ := newGroups(t, cluster, patient)
		k := newTaken()
		k.work(t, gs, startOf(topic+"-group", topic), nil)
		eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "all is done")
		recreate(t, cluster, topic, 1)
		writeKeyed(t, cluster, topic, 50) // more than there were
		again := func() (n int) {
			k.mu.Lock()
			defer k.mu.Unlock()
			for i := range 20 {
				n += k.times[fmt.Sprintf("%s/0/%d", topic, i)] - 1
			}
			return n
		}
		eventually(t, func() bool { return k.distinct() == 50 && again() == 20 }, "the new log from its first record")
		eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "all of it is done")
		// Kafka has forgotten the commit with the topic. Until that is seen, librdkafka reads on in the new log.
		gaps := k.gapsOf()
		if len(gaps) != 1 || gaps[0].Topic != topic || gaps[0].From < 20 || gaps[0].To != 0 || gaps[0].Reason != hub.GapRecreated {
			t.Errorf("got gaps %v", gaps)
		}
	})
	t.Run("created anew, with fewer", func(t *testing.T) {
		t.Parallel()
		topic := cluster.NewTopic(t, 1, nil)
		writeKeyed(t, cluster, topic, 20)
		gs, _ := newGroups(t, cluster, patient)
		k := newTaken()
		k.work(t, gs, startOf(topic+"-group", topic), nil)
		eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "all is done")
		recreate(t, cluster, topic, 1)
		writeKeyed(t, cluster, topic, 5)
		eventually(t, func() bool { return k.count(topic, 0, 0, 5) == 10 }, "the new log from its first record")
		eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "all of it is done")
		// Kafka has forgotten the commit with the topic. Until that is seen, librdkafka reads on in the new log.
		gaps := k.gapsOf()
		if len(gaps) != 1 || gaps[0].Topic != topic || gaps[0].From < 20 || gaps[0].To != 0 || gaps[0].Reason != hub.GapRecreated {
			t.Errorf("got gaps %v", gaps)
		}
	})
	for _, initial := range []group.Initial{group.Earliest, group.Latest} {
		t.Run("a commit beyond the end, "+initial.String(), func(t *testing.T) {
			t.Parallel()
			topic := cluster.NewTopic(t, 1, nil)
			writeKeyed(t, cluster, topic, 20)
			commit(t, cluster.Admin(t), topic, 1000)
			gs, _ := newGroups(t, cluster)
			k := newTaken()
			s := startOf(topic+"-group", topic)
			s.Initial = initial
			k.work(t, gs, s, nil)
			want := group.Gap{Partition: group.Partition{Topic: topic}, From: 1000, To: 0, Reason: hub.GapTruncation}
			n := 20
			if initial == group.Latest {
				want.To, n = 20, 0
			}
			eventually(t, func() bool {
				return len(k.gapsOf()) == 1 && k.distinct() == n && lag(t, cluster, topic+"-group", topic) == 0
			}, "the policy's records")
			if got := k.gapsOf()[0]; got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			writeKeyed(t, cluster, topic, 3)
			eventually(t, func() bool { return k.distinct() == n+3 && lag(t, cluster, topic+"-group", topic) == 0 }, "it goes on")
		})
	}
}

func commit(t *testing.T, adm *kadm.Client, topic string, at int64) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, at, -1)
	if _, err := adm.CommitOffsets(t.Context(), topic+"-group", offsets); err != nil {
		t.Fatal(err)
	}
}
