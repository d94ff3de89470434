package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestDeadLetters: what fails too often is found in a topic of its own, with all that is known of it, and the front moves on.
func TestDeadLetters(t *testing.T) {
	began := time.Now()
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 1, nil)
	writeKeyed(t, cluster, topic, 10)
	gs, _ := newGroups(t, cluster)
	k := newTaken()
	s := startOf(topic+"-group", topic)
	s.MaxAttempts = 2
	k.work(t, gs, s, func(r *tailracev1.Record) bool { return string(r.GetValue()) != "v3" })
	eventually(t, func() bool { return k.distinct() == 9 && lag(t, cluster, topic+"-group", topic) == 0 }, "the front moves on")
	client := cluster.Client(t, kgo.ConsumeTopics(topic+".dlq"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	letter := client.PollRecords(t.Context(), 1).Records()[0]
	got := map[string]string{}
	for _, h := range letter.Headers {
		got[strings.TrimPrefix(h.Key, "tailrace-")] = string(h.Value)
	}
	died, err := time.Parse(time.RFC3339Nano, got["time"])
	if since := time.Since(died); err != nil || died.Before(began) || since < 0 || !strings.HasSuffix(got["time"], "Z") {
		t.Errorf("it died at %q, which is not between %v and now: %v", got["time"], began, err)
	}
	delete(got, "time")
	want := map[string]string{"topic": topic, "partition": "0", "offset": "3", "group": topic + "-group", "attempts": "2", "reason": "bad record"}
	if fmt.Sprint(got) != fmt.Sprint(want) || string(letter.Value) != "v3" || string(letter.Key) != "k3" {
		t.Errorf("got %s=%s %v", letter.Key, letter.Value, got)
	}
}

// TestLargeDeadLetter: one that is too large for its topic is cut, and says so.
func TestLargeDeadLetter(t *testing.T) {
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 1, nil)
	small := cluster.NewTopic(t, 1, map[string]string{"max.message.bytes": "2000"})
	client := cluster.Client(t, kgo.ConsumeTopics(small), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: make([]byte, 100_000)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	gs, _ := newGroups(t, cluster)
	s := startOf(topic+"-group", topic)
	s.MaxAttempts, s.DeadLetter = 1, small
	newTaken().work(t, gs, s, func(*tailracev1.Record) bool { return false })
	eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "the front moves on")
	letter := client.PollRecords(t.Context(), 1).Records()[0]
	last := letter.Headers[len(letter.Headers)-1]
	if last.Key != "tailrace-truncated" || string(last.Value) != "100000" || len(letter.Value) == 0 || len(letter.Value) > 2000 {
		t.Errorf("got a value of %d bytes, header %s=%s", len(letter.Value), last.Key, last.Value)
	}
}

// letters are how often each offset has a letter in a topic of dead letters of one partition.
func letters(t *testing.T, cluster *kafkatest.Cluster, topic string) map[int64]int {
	t.Helper()
	got := map[int64]int{}
	for _, at := range origins(t, cluster, topic) {
		got[at.offset]++
	}
	return got
}

// origin is where the record of a dead letter lies.
type origin struct {
	partition int32
	offset    int64
}

// origins are those of the letters in a topic of dead letters of one partition, in their order.
func origins(t *testing.T, cluster *kafkatest.Cluster, topic string) (all []origin) {
	t.Helper()
	ends, err := cluster.Admin(t).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	if end.Err != nil || end.Offset <= 0 {
		return nil
	}
	for _, r := range readLog(t, cluster, topic, 0, end.Offset) {
		own := ownHeaders(r)
		partition, err := strconv.ParseInt(own["partition"], 10, 32)
		offset, other := strconv.ParseInt(own["offset"], 10, 64)
		if err != nil || other != nil {
			t.Errorf("the letter at %d has headers %v", r.Offset, own)
		}
		all = append(all, origin{int32(partition), offset})
	}
	return all
}

// frontOf is a group's offset in partition 0, -1 if it has none.
func frontOf(t *testing.T, cluster *kafkatest.Cluster, name, topic string) int64 {
	t.Helper()
	commits, err := cluster.Admin(t).FetchOffsets(t.Context(), name)
	if err != nil {
		return -1
	}
	if at, ok := commits.Lookup(topic, 0); ok {
		return at.At
	}
	return -1
}

// TestDeadLetterTopicIsMissing: where topics are not created, a dead letter waits for its own, and the front with it; nothing else does.
func TestDeadLetterTopicIsMissing(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 1, nil)
	name := topic + "-group"
	writeKeyed(t, cluster, topic, 10)
	gs, _ := newGroups(t, cluster, func(c *kafka.Config) { c.CreateDeadLetters = false })
	k := newTaken()
	s := startOf(name, topic)
	s.MaxAttempts = 1
	k.work(t, gs, s, func(r *tailracev1.Record) bool { return string(r.GetValue()) != "v3" })
	eventually(t, func() bool { return k.distinct() == 9 && frontOf(t, cluster, name, topic) == 3 }, "all others are done, the front is at the letter")
	writeKeyed(t, cluster, topic, 3)
	eventually(t, func() bool { return k.count(topic, 0, 10, 13) == 3 }, "others go on")
	if at := frontOf(t, cluster, name, topic); at != 3 {
		t.Errorf("the front moved to %d before the letter was stored", at)
	}
	cluster.CreateTopic(t, topic+".dlq", 1, nil)
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "the letter is stored, the front moves on")
	if got := letters(t, cluster, topic+".dlq"); len(got) != 1 || got[3] != 1 {
		t.Errorf("got letters %v, want one of offset 3", got)
	}
}

// TestManyDeadLetters: letters are stored side by side, each once. Those of a partition are stored in the order in which its records died.
func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	const partitions, poison = 2, 10_000
	topic := cluster.NewTopic(t, partitions, nil)
	cluster.CreateTopic(t, topic+".dlq", 1, nil) // those that need a second attempt, after it is made, are stored as they come
	records := make([]*kgo.Record, poison)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: fmt.Appendf(nil, "v%d", i)}
	}
	if err := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())).ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	gs, _ := newGroups(t, cluster)
	s := startOf(topic+"-group", topic)
	s.MaxAttempts, s.MaxInFlight = 1, 1000
	w, err := gs.Join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var died [partitions][]int64 // offsets, in the order of their nacks
	for nacked := 0; nacked < poison; {
		p, err := w.Pull(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		var tags []int64
		for _, d := range p.Deliveries {
			tags = append(tags, d.Tag)
			r := decodeDelivered(t, d)
			died[r.GetPartition()] = append(died[r.GetPartition()], r.GetOffset())
		}
		if nacked += len(tags); len(tags) > 0 {
			w.Nack(tags, 0, "poison")
			continue
		}
		select {
		case <-w.Signal():
		case <-ctx.Done():
			t.Fatalf("got %d of %d", nacked, poison)
		}
	}
	eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "all letters are stored")
	t.Logf("%d dead letters in %v", poison, time.Since(began))
	var got [partitions][]int64
	for _, at := range origins(t, cluster, topic+".dlq") {
		got[at.partition] = append(got[at.partition], at.offset)
	}
	for p := range got {
		if !slices.Equal(got[p], died[p]) {
			t.Errorf("partition %d: %d letters of %d records, in another order from %d on", p, len(got[p]), len(died[p]), firstDifference(got[p], died[p]))
		}
		slices.Sort(got[p])
		if n := len(slices.Compact(got[p])); n != poison/partitions {
			t.Errorf("partition %d: %d records have letters, want %d", p, n, poison/partitions)
		}
	}
}

// firstDifference is where two lists cease to be the same.
func firstDifference(a, b []int64) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
