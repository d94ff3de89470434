package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// pulled pulls until so many records have come, and returns their tags by offset.
func pulled(t *testing.T, w *group.Worker, n int) (tags map[int64]int64, gaps []group.Gap) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tags = map[int64]int64{}
	for {
		p, err := w.Pull(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		gaps = append(gaps, p.Gaps...)
		for _, d := range p.Deliveries {
			tags[d.Record.Offset] = d.Tag
		}
		if len(tags) >= n {
			return tags, gaps
		}
		if len(p.Deliveries)+len(p.Gaps) > 0 {
			continue
		}
		select {
		case <-w.Signal():
		case <-ctx.Done():
			t.Fatalf("got %d records, want %d", len(tags), n)
		}
	}
}

// TestRetentionBeneathAGroup: a partition waits for a record that nobody acknowledges, and what comes next is deleted meanwhile. The workers are told what
// is missing, the member stays what it is, and so does what it has read of other partitions.
func TestRetentionBeneathAGroup(t *testing.T) {
	cluster := kafkatest.Start(t)
	for _, protocol := range []string{"classic", "consumer"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			topic := cluster.NewTopic(t, 1, nil)
			writeKeyed(t, cluster, topic, 100)
			c, gs, _ := newProcess(t, cluster, func(c *group.Config) { c.WindowRecords = 100 }, func(c *kafka.Config) { c.GroupProtocol = protocol })
			s := startOf(topic+"-group", topic)
			s.MaxInFlight = 1000
			w, err := gs.Join(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			tags, _ := pulled(t, w, 100)
			eventually(t, func() bool { return gs.Stats()[0].Paused == 1 }, "the partition waits")
			writeKeyed(t, cluster, topic, 400)
			deleteBefore(t, cluster, topic, 0, 300)
			for offset := range int64(100) {
				w.Ack([]int64{tags[offset]}, 0)
			}
			more, gaps := pulled(t, w, 100)
			want := group.Gap{Partition: group.Partition{Topic: topic}, From: 100, To: 300, Reason: hub.GapRetention}
			if len(gaps) != 1 || gaps[0] != want {
				t.Errorf("got gaps %+v, want %+v", gaps, want)
			}
			for offset, tag := range more {
				if offset < 300 {
					t.Errorf("got offset %d, which was deleted", offset)
				}
				w.Ack([]int64{tag}, 0)
			}
			for _, tag := range first(pulled(t, w, 200-len(more))) {
				w.Ack([]int64{tag}, 0)
			}
			eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "all that is left is done")
			if got := c.Rebalances("assigned"); got != 1 || c.Rebalances("revoked")+c.Rebalances("lost") != 0 {
				t.Errorf("partitions were assigned %d times, revoked %d, lost %d", got, c.Rebalances("revoked"), c.Rebalances("lost"))
			}
		})
	}
}

func first(tags map[int64]int64, _ []group.Gap) map[int64]int64 { return tags }

// TestWindow: a record that nobody acknowledges holds its partition at the window, and is named; the other partition goes on, and so does its own when it is done.
// What the pause throws away of what was fetched ahead is bounded: a slow group does not read its topic many times over.
func TestWindow(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 2, nil)
	name := topic + "-group"
	const each, size, window = 20_000, 100, 5000
	client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	rs := make([]*kgo.Record, 2*each)
	for i := range rs {
		rs[i] = &kgo.Record{Topic: topic, Partition: int32(i % 2), Value: noise(size)}
	}
	if err := client.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	c, gs, _ := newProcess(t, cluster, func(c *group.Config) { c.WindowRecords = window }, func(c *kafka.Config) { c.StatsInterval = c.WatchInterval })
	s := startOf(name, topic)
	s.MaxInFlight = 500
	w, err := gs.Join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	done := [2]int{}
	first := int64(0) // the tag of the first record of the first partition
	work := func(until func() bool, what string) {
		t.Helper()
		eventually(t, func() bool {
			p, err := w.Pull(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range p.Deliveries {
				r := decodeDelivered(t, d)
				if r.GetPartition() == 0 && r.GetOffset() == 0 && first == 0 {
					first = d.Tag
					continue
				}
				w.Ack([]int64{d.Tag}, 0)
				done[r.GetPartition()]++
			}
			return until()
		}, "%s", what)
	}
	work(func() bool { return done[1] == each && len(gs.Stats()[0].Holders) == 1 }, "the other partition goes on")
	if h := gs.Stats()[0].Holders[0]; h.Topic != topic || h.Partition.Partition != 0 || h.Offset != 0 || h.Attempts != 1 || h.State != "at a worker" || h.Records < window || h.Records > window+1000 {
		t.Errorf("got %+v", h)
	}
	if done[0] >= window+1000 {
		t.Errorf("%d records beyond the front were dealt, want about 5000", done[0])
	}
	if at := frontOf(t, cluster, name, topic); at > 0 {
		t.Errorf("the front moved to %d", at)
	}
	w.Ack([]int64{first}, 0)
	work(func() bool { return done[0] == each-1 }, "its own goes on")
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 && len(gs.Stats()[0].Holders) == 0 }, "all is done")
	bytes := 2 * each * (size + 10)
	eventually(t, func() bool { return c.FetchedByGroups() > bytes*9/10 }, "it says what it has fetched")
	if got := c.FetchedByGroups(); got > 4*bytes {
		t.Errorf("of %d bytes %d were fetched", bytes, got)
	}
	t.Logf("of %d bytes %d were fetched", bytes, c.FetchedByGroups())
}

// TestSlowWorkersKeepTheirPartitions: workers that hold what they have for longer than a member may be silent expel nobody: the member polls.
func TestSlowWorkersKeepTheirPartitions(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 2, nil)
	name := topic + "-group"
	writeKeyed(t, cluster, topic, 300)
	const silence = 1500 * time.Millisecond // that a group allows a member
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, gs, _ := newProcess(t, cluster, func(c *group.Config) { c.WindowRecords = 100 },
		func(c *kafka.Config) { c.SessionTimeout, c.MaxPollInterval = silence, silence })
	s := startOf(name, topic)
	s.MaxInFlight = 1000
	w, err := gs.Join(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	eventually(t, func() bool { return gs.Stats()[0].Paused == 2 }, "both partitions wait for the worker")
	before := memberIDs(t, cluster, name)
	began := time.Now()
	eventually(t, func() bool { // it does nothing
		return time.Since(began) > 3*silence
	}, "that took three times as long as a member may be silent")
	if after := memberIDs(t, cluster, name); after != before || before == "" {
		t.Errorf("members: got %q, before %q", after, before)
	}
	if c.Rebalances("assigned") != 1 || c.Rebalances("revoked")+c.Rebalances("lost") != 0 {
		t.Errorf("partitions were assigned %d times, revoked %d, lost %d", c.Rebalances("assigned"), c.Rebalances("revoked"), c.Rebalances("lost"))
	}
	for left := 300; left > 0; {
		p, err := w.Pull(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range p.Deliveries {
			if refused := w.Ack([]int64{d.Tag}, 0); len(refused) > 0 {
				t.Errorf("refused %v", refused)
			}
		}
		if left -= len(p.Deliveries); len(p.Deliveries) == 0 {
			select {
			case <-w.Signal():
			case <-ctx.Done():
				t.Fatalf("%d records did not come", left)
			}
		}
	}
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "all is done")
}
