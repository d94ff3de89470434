package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// groupTool is what kafka-consumer-groups.sh runs.
const groupTool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

// groupsOf is the queue mode of a client.
func groupsOf(t *testing.T, c *kafka.Client) (gs *group.Groups, leave func()) {
	t.Helper()
	gs = group.New(group.Config{Cluster: c, DeadLetters: c, CommitInterval: 50 * time.Millisecond, Linger: 50 * time.Millisecond, Grace: 10 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = gs.Run(ctx) }()
	leave = func() { cancel(); <-ended }
	t.Cleanup(leave)
	return gs, leave
}

// pullAll pulls so many records, which the worker then holds.
func pullAll(t *testing.T, w *group.Worker, n int) (all []group.Delivery) {
	t.Helper()
	eventually(t, func() bool {
		p, err := w.Pull(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, slices.Clone(p.Deliveries)...)
		return len(all) >= n
	}, "%d records", n)
	return all
}

// write puts n records into each partition.
func write(t *testing.T, cluster *kafkatest.Cluster, topic string, partitions int32, n int) {
	t.Helper()
	client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var rs []*kgo.Record
	for p := range partitions {
		for i := range n {
			rs = append(rs, &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%d/%d", p, i)})
		}
	}
	if err := client.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// committed are the offsets of a group's partitions, in order, as Kafka tells another client.
func committed(t *testing.T, cluster *kafkatest.Cluster, name, topic string, partitions int32) (at []int64) {
	t.Helper()
	commits, err := cluster.Admin(t).FetchOffsets(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for p := range partitions {
		o, ok := commits.Lookup(topic, p)
		if !ok {
			o.At = -1
		}
		at = append(at, o.At)
	}
	return at
}

// described is GetGroup's answer for one partition.
func described(g *tailracev1.Group) (text []string) {
	for _, p := range g.GetPartitions() {
		text = append(text, fmt.Sprintf("%d:%d/%d-%d", p.GetPartition(), p.GetCommitted(), p.GetEnd(), p.GetLag()))
	}
	return text
}

// TestGroupAdmin: a group is described while it works, in both protocols, and Kafka's own tool says the same; what it is reset to is where it goes on.
func TestGroupAdmin(t *testing.T) {
	cluster := kafkatest.Start(t)
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c := newClient(t, cluster, func(c *kafka.Config) { c.GroupProtocol = protocol })
			topic := cluster.NewTopic(t, 2, nil)
			name := topic + "-group"
			write(t, cluster, topic, 2, 10)
			gs, leave := groupsOf(t, c)
			w, err := gs.Join(t.Context(), startOf(name, topic))
			if err != nil {
				t.Fatal(err)
			}
			// The first four of partition 0 are done, and its last one, but not those between.
			var tags []int64
			for _, d := range pullAll(t, w, 20) {
				if r := decodeDelivered(t, d); r.GetPartition() == 0 && (r.GetOffset() < 4 || r.GetOffset() == 9) {
					tags = append(tags, d.Tag)
				}
			}
			if refused := w.Ack(tags, 0); len(refused) > 0 {
				t.Fatalf("refused: %v", refused)
			}
			eventually(t, func() bool { return slices.Equal(committed(t, cluster, name, topic, 2), []int64{4, 0}) }, "the fronts are committed")

			g, err := c.GetGroup(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := fmt.Sprint(g.GetState(), described(g)), fmt.Sprint("Stable", []string{"0:4/10-6", "1:0/10-10"}); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if m := g.GetMembers(); len(m) != 1 || m[0].GetProcess() != c.GroupMember() || len(m[0].GetPartitions()) != 2 {
				t.Errorf("got members %v, want %s", m, c.GroupMember())
			}
			load := gs.Load(name)
			if at := (group.Partition{Topic: topic}); load.Workers != 1 || load.InFlight[at] != 5 || len(load.InFlight) != 2 {
				t.Errorf("got load %+v", load)
			}
			told := cluster.Tool(t, groupTool, "--describe", "--group", name)
			line := regexp.MustCompile(regexp.QuoteMeta(topic) + `\s+0\s+(\S+\s+)?4\s+10\s+6\s+.*` + regexp.QuoteMeta(c.GroupMember()))
			if !line.MatchString(told) {
				t.Errorf("Kafka's tool says %s", told)
			}

			earliest := &tailracev1.ResetOffsetsRequest{Group: name, Topic: topic, To: &tailracev1.ResetOffsetsRequest_Earliest{Earliest: true}}
			for _, earliest.DryRun = range []bool{true, false} {
				if got, err := c.ResetOffsets(t.Context(), earliest); !errors.Is(err, group.ErrActive) {
					t.Errorf("reset while a worker is there: got %v, %v", got, err)
				}
			}
			if got := committed(t, cluster, name, topic, 2); !slices.Equal(got, []int64{4, 0}) {
				t.Errorf("got %v after refused resets", got)
			}
			leave()
			if g, err = c.GetGroup(t.Context(), name); err != nil || g.GetState() != "Empty" || len(g.GetMembers()) > 0 {
				t.Errorf("got %v, %v, want an empty group", g, err)
			}
			takeOver(t, cluster, name, topic, map[int32]int64{0: 4, 1: 0})

			all, err := c.ListGroups(t.Context())
			if err != nil || !slices.ContainsFunc(all, func(s *tailracev1.GroupSummary) bool { return s.GetGroup() == name && s.GetState() == "Empty" }) {
				t.Errorf("got %v, %v", all, err)
			}
		})
	}
}

// takeOver: a plain librdkafka consumer in the group gets exactly what is not done, and leaves again without a commit.
func takeOver(t *testing.T, cluster *kafkatest.Cluster, name, topic string, from map[int32]int64) {
	t.Helper()
	plain, err := confluent.NewConsumer(&confluent.ConfigMap{
		"bootstrap.servers": cluster.Bootstrap, "group.id": name, "enable.auto.commit": false, "auto.offset.reset": "error",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Subscribe(topic, nil); err != nil {
		t.Fatal(err)
	}
	first := map[int32]int64{}
	eventually(t, func() bool {
		if m, ok := plain.Poll(100).(*confluent.Message); ok {
			if _, seen := first[m.TopicPartition.Partition]; !seen {
				first[m.TopicPartition.Partition] = int64(m.TopicPartition.Offset)
			}
		}
		return len(first) == len(from)
	}, "a record of each partition: got %v", first)
	if fmt.Sprint(first) != fmt.Sprint(from) {
		t.Errorf("a plain consumer went on at %v, want %v", first, from)
	}
}

// TestResetOffsets: to everything that it can be reset to; a dry run moves nothing; what is wrong is refused; workers go on from there.
func TestResetOffsets(t *testing.T) {
	cluster := kafkatest.Start(t)
	c := newClient(t, cluster)
	topic := cluster.NewTopic(t, 2, nil)
	name := topic + "-group"
	client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	base := time.Now().Add(-time.Hour).Truncate(time.Second)
	for p := range int32(2) {
		for i := range 10 {
			r := &kgo.Record{Topic: topic, Partition: p, Value: fmt.Append(nil, i), Timestamp: base.Add(time.Duration(i+5*int(p)) * time.Minute)}
			if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	request := func(m *tailracev1.ResetOffsetsRequest) *tailracev1.ResetOffsetsRequest {
		m.Group, m.Topic = name, topic
		return m
	}
	if _, err := c.ResetOffsets(t.Context(), request(&tailracev1.ResetOffsetsRequest{To: &tailracev1.ResetOffsetsRequest_Latest{Latest: true}})); !errors.Is(err, group.ErrUnknown) {
		t.Errorf("unknown group: got %v", err)
	}
	if _, err := c.GetGroup(t.Context(), name); !errors.Is(err, group.ErrUnknown) {
		t.Errorf("unknown group: got %v", err)
	}
	// It has committed partition 0, once.
	commit(t, cluster.Admin(t), topic, 3)

	at := func(p int32, offset int64) *tailracev1.Position {
		return &tailracev1.Position{Partition: p, Offset: offset}
	}
	positions := func(ps ...*tailracev1.Position) *tailracev1.ResetOffsetsRequest_Positions {
		return &tailracev1.ResetOffsetsRequest_Positions{Positions: &tailracev1.ResetPositions{Positions: ps}}
	}
	before := []int64{3, -1}
	for _, test := range []struct {
		title string
		to    *tailracev1.ResetOffsetsRequest
		want  []int64
	}{
		{"latest", &tailracev1.ResetOffsetsRequest{To: &tailracev1.ResetOffsetsRequest_Latest{Latest: true}}, []int64{10, 10}},
		{"earliest of one", &tailracev1.ResetOffsetsRequest{To: &tailracev1.ResetOffsetsRequest_Earliest{Earliest: true}, Partitions: []int32{1}}, []int64{10, 0}},
		{"time", &tailracev1.ResetOffsetsRequest{To: &tailracev1.ResetOffsetsRequest_Time{Time: timestamppb.New(base.Add(7*time.Minute - time.Second))}}, []int64{7, 2}},
		{"time behind all of one", &tailracev1.ResetOffsetsRequest{To: &tailracev1.ResetOffsetsRequest_Time{Time: timestamppb.New(base.Add(12 * time.Minute))}}, []int64{10, 7}},
		{"positions", &tailracev1.ResetOffsetsRequest{To: positions(at(0, 6), at(1, 10))}, []int64{6, 10}},
		{"earliest", &tailracev1.ResetOffsetsRequest{To: &tailracev1.ResetOffsetsRequest_Earliest{Earliest: true}}, []int64{0, 0}},
		{"position of one", &tailracev1.ResetOffsetsRequest{To: positions(at(1, 4))}, []int64{0, 4}},
	} {
		m := request(test.to)
		for _, m.DryRun = range []bool{true, false} {
			got, err := c.ResetOffsets(t.Context(), m)
			if err != nil {
				t.Fatalf("%s: %v", test.title, err)
			}
			for _, p := range got {
				if p.GetBefore() != before[p.GetPartition()] || p.GetAfter() != test.want[p.GetPartition()] {
					t.Errorf("%s: got %v, want from %v to %v", test.title, got, before, test.want)
				}
			}
			if m.GetDryRun() {
				if now := committed(t, cluster, name, topic, 2); !slices.Equal(now, before) {
					t.Errorf("%s: the dry run moved offsets to %v", test.title, now)
				}
			}
		}
		if now := committed(t, cluster, name, topic, 2); !slices.Equal(now, test.want) {
			t.Errorf("%s: got %v, want %v", test.title, now, test.want)
		}
		before = test.want
	}

	_, err := c.ResetOffsets(t.Context(), request(&tailracev1.ResetOffsetsRequest{To: positions(at(0, 1), at(1, 11))}))
	if out := new(hub.OffsetOutOfRangeError); !errors.As(err, &out) || out.Partition != 1 || out.Offset != 11 || out.Oldest != 0 || out.End != 10 {
		t.Errorf("a position behind the end: got %v", err)
	}
	_, err = c.ResetOffsets(t.Context(), request(&tailracev1.ResetOffsetsRequest{To: positions(at(2, 1))}))
	if unknown := new(hub.UnknownPartitionError); !errors.As(err, &unknown) || unknown.Partition != 2 || unknown.Count != 2 {
		t.Errorf("a partition that is not there: got %v", err)
	}
	m := request(&tailracev1.ResetOffsetsRequest{To: positions(at(0, 1))})
	m.Topic = "no-such-topic"
	if _, err = c.ResetOffsets(t.Context(), m); !errors.Is(err, hub.ErrUnknownTopic) {
		t.Errorf("unknown topic: got %v", err)
	}
	if now := committed(t, cluster, name, topic, 2); !slices.Equal(now, before) {
		t.Errorf("refused resets moved offsets to %v", now)
	}

	// Kafka's own tool resets it, and workers go on there.
	told := cluster.Tool(t, groupTool, "--reset-offsets", "--group", name, "--topic", topic, "--shift-by", "2", "--execute")
	if now := committed(t, cluster, name, topic, 2); !slices.Equal(now, []int64{2, 6}) {
		t.Fatalf("Kafka's tool: got %v: %s", now, told)
	}
	gs, _ := groupsOf(t, c)
	k := newTaken()
	k.work(t, gs, startOf(name, topic), nil)
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "all is done")
	k.mu.Lock()
	defer k.mu.Unlock()
	for p, from := range []int{2, 6} {
		for i := range 10 {
			if n := k.times[fmt.Sprintf("%s/%d/%d", topic, p, i)]; (n == 1) != (i >= from) {
				t.Errorf("partition %d, record %d was delivered %d times", p, i, n)
			}
		}
	}
	if len(k.gaps) > 0 || strings.Contains(told, "Error") {
		t.Errorf("got gaps %v, %s", k.gaps, told)
	}
}

// TestGroupIsEmptyAfterItsLastWorker: Kafka sees a process as a member until Linger after its last worker, and then no more, as a reset needs it.
func TestGroupIsEmptyAfterItsLastWorker(t *testing.T) {
	t.Parallel()
	const linger, soon = time.Second, 10 * time.Second
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 1, nil)
	name := topic + "-group"
	writeKeyed(t, cluster, topic, 10)
	_, gs, _ := newProcess(t, cluster, func(c *group.Config) { c.Linger = linger })
	k := newTaken()
	admin := cluster.Admin(t)
	state := func() (string, int) {
		described, err := admin.DescribeGroups(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return described[name].State, len(described[name].Members)
	}
	for n := range 2 { // who comes back begins anew
		stop := k.work(t, gs, startOf(name, topic), nil)
		eventually(t, func() bool { return k.distinct() == 10 && lag(t, cluster, name, topic) == 0 }, "all is done")
		eventually(t, func() bool { s, members := state(); return s == "Stable" && members == 1 }, "it is a member")
		left := time.Now()
		stop()
		eventually(t, func() bool { s, members := state(); return s == "Empty" && members == 0 }, "it has left")
		if took := time.Since(left); took < linger || took > linger+soon {
			t.Errorf("round %d: it left after %v, want about %v", n, took, linger)
		} else {
			t.Logf("round %d: it left after %v", n, took)
		}
	}
}
