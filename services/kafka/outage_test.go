package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// one publishes one record and returns its result.
func one(t *testing.T, c *kafka.Client, within time.Duration, topic string, r *tailracev1.PublishRecord) *tailracev1.PublishResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	results, err := c.Publish(ctx, topic, []*tailracev1.PublishRecord{r})
	if err != nil {
		t.Fatal(err)
	}
	return results[0]
}

// flood publishes to partitions, with several callers that never have enough, until it is stopped: then it returns all that was told.
func flood(t *testing.T, c *kafka.Client, topic string, partitions []int32, callers int) (stop func() []attempt) {
	var mu sync.Mutex
	var all []attempt
	ctx, cancel := context.WithCancel(context.Background())
	var running, under sync.WaitGroup
	pad := string(noise(2000))
	for caller := range callers {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				v := fmt.Sprintf("%d-%d", caller, n)
				under.Add(1)
				c.Begin(ctx, fmt.Sprint("flood ", caller), topic, on(partitions[n%len(partitions)], value("%s %s", v, pad)), func(r *tailracev1.PublishResult) {
					defer under.Done()
					mu.Lock()
					defer mu.Unlock()
					all = append(all, attempt{v, r.GetFailure().GetOutcome(), r.GetPublished().GetOffset()})
					if f := r.GetFailure(); f.GetOutcome() == tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED && f.Code != "canceled" && f.RetryAfter == nil {
						t.Errorf("refused without a hint when to retry: %v", f)
					}
				})
				if n%100 == 99 {
					select { // a refusal is no reason to spin
					case <-time.After(time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	once := sync.OnceValue(func() []attempt {
		cancel()
		running.Wait()
		under.Wait()
		return all
	})
	t.Cleanup(func() { once() })
	return once
}

// judge compares what was told of records with the log: nothing twice, acknowledged ones are there, refused ones are not.
func judge(t *testing.T, cluster *kafkatest.Cluster, c *kafka.Client, topic string, name func(value []byte) string, all []attempt) {
	t.Helper()
	count := map[string]int{}
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		if p.End > 0 {
			for _, r := range readLog(t, cluster, topic, p.Partition, p.End) {
				count[name(r.Value)]++
			}
		}
	}
	told := map[tailracev1.PublishOutcome]int{}
	for _, a := range all {
		told[a.outcome]++
		n := count[a.value]
		switch {
		case n > 1:
			t.Errorf("%s is in the log %d times", a.value, n)
		case a.outcome == 0 && n != 1:
			t.Errorf("%s was acknowledged at %d and is not in the log", a.value, a.offset)
		case a.outcome == tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED && n != 0:
			t.Errorf("%s was refused and is in the log", a.value)
		}
	}
	t.Logf("%d published: %v", len(all), told)
}

// testPublishLeaderAway kills the leader of some partitions, which have no other: two seconds later publishing there is unavailable at once, and
// all the while the others go on.
func testPublishLeaderAway(t *testing.T, cluster *kafkatest.Cluster) {
	const topic = "publish-leader-away"
	r, err := cluster.Admin(t).CreateTopic(t.Context(), 6, 1, nil, topic)
	if err = errors.Join(err, r.Err); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !slices.Contains(leaders(t, cluster, topic), -1) }, "%s has leaders", topic)
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.PublishBytes = 16 << 20 })
	eventually(t, func() bool {
		_, err := c.Resolve(t.Context(), topic, hub.Query{})
		return err == nil
	}, "the topic is known")
	ls := leaders(t, cluster, topic)
	victim := ls[0]
	var dead, alive []int32
	for p, l := range ls {
		if l == victim {
			dead = append(dead, int32(p))
		} else {
			alive = append(alive, int32(p))
		}
	}
	for p := range int32(6) {
		eventually(t, func() bool { return one(t, c, patience, topic, on(p, value("before"))).GetPublished() != nil }, "partition %d takes records", p)
	}
	stop := flood(t, c, topic, dead, 4)
	cluster.Kill9(t, int(victim))
	killed := time.Now()

	var slowest atomic.Int64
	var acked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	for _, p := range alive {
		others.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				result := one(t, c, patience, topic, on(p, value("alive")))
				if result.GetPublished() == nil {
					t.Errorf("partition %d: %v", p, result)
				}
				acked.Add(1)
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
			}
		})
	}
	var told time.Duration
	eventually(t, func() bool {
		began := time.Now()
		f := one(t, c, 500*time.Millisecond, topic, on(dead[0], value("dead"))).GetFailure()
		told = time.Since(killed)
		return f.GetReason() == kafka.ReasonKafkaUnavailable && f.Code == "unavailable" && f.RetryAfter != nil && time.Since(began) < 400*time.Millisecond
	}, "unavailable at once")
	for range 2000 { // without waiting
		if f := one(t, c, patience, topic, on(dead[0], value("dead"))).GetFailure(); f.GetReason() != kafka.ReasonKafkaUnavailable {
			t.Errorf("got %v", f)
			break
		}
	}
	for n := range 200 { // where it does not matter, they go elsewhere
		if result := one(t, c, patience, topic, value("anywhere")); result.GetPublished() == nil || slices.Contains(dead, result.GetPublished().Partition) {
			t.Errorf("record %d without key: %v", n, result)
		}
	}
	before := acked.Load()
	eventually(t, func() bool { return acked.Load() > before+100 }, "others go on")
	eventually(t, func() bool { // once Kafka knows; the description waits for nobody
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		d, err := c.GetTopic(ctx, topic)
		if err != nil || len(d.Partitions) != 6 {
			return false
		}
		for p, said := range d.Partitions {
			if gone := slices.Contains(dead, int32(p)); gone != (said.Leader == -1) || gone != (said.End == -1) || !gone && said.HighWatermark < 1 {
				return false
			}
		}
		return true
	}, "the topic's description says which partitions have no leader, and where the others end")
	cluster.Restart(t, int(victim))
	ready := time.Now()
	eventually(t, func() bool { return one(t, c, time.Second, topic, on(dead[0], value("again"))).GetPublished() != nil }, "it recovers by itself")
	recovered := time.Since(ready)
	cancel()
	others.Wait()
	t.Logf("unavailable at once %v after the kill, taken again %v after the broker was ready; %d records of others meanwhile, the slowest in %v", told, recovered, acked.Load(), time.Duration(slowest.Load()))
	all := stop()
	name := func(v []byte) string {
		var s string
		_, _ = fmt.Sscan(string(v), &s)
		return s
	}
	judge(t, cluster, c, topic, name, all)
}

// testFlood: a caller that never has enough does not make another one wait or fail.
func testFlood(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.PublishBytes = 16 << 20 })
	publish(t, c, topic, on(0, value("before")), on(1, value("before")))
	stop := flood(t, c, topic, []int32{0, 1}, 2)
	var slowest time.Duration
	for range 20 {
		began := time.Now()
		publish(t, c, topic, on(0, value("other")))
		slowest = max(slowest, time.Since(began))
	}
	all := stop()
	acked := 0
	for _, a := range all {
		switch a.outcome {
		case 0:
			acked++
		case tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN:
			t.Fatalf("%s is unknown", a.value)
		default:
		}
	}
	t.Logf("%d records of the flood were acknowledged, the slowest of the other caller took %v", acked, slowest)
	if acked < 1000 {
		t.Errorf("only %d records of the flood were acknowledged", acked)
	}
}

// testTooLargeAmongOthers: the broker judges a record that is too large, and its neighbours do not suffer, whatever the batches.
func testTooLargeAmongOthers(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, map[string]string{"max.message.bytes": "20000"})
	c := newClient(t, cluster)
	var rs []*tailracev1.PublishRecord
	for i := range 500 {
		switch {
		case i%100 == 50: // a few bytes: only the broker knows
			rs = append(rs, &tailracev1.PublishRecord{Value: noise(19_999)})
		case i%100 == 75:
			rs = append(rs, &tailracev1.PublishRecord{Value: noise(30_000)})
		default:
			rs = append(rs, value("%d %s", i, noise(500)))
		}
	}
	results, err := c.Publish(t.Context(), topic, rs)
	if err != nil {
		t.Fatal(err)
	}
	next := int64(0)
	for i, r := range results {
		if i%100 == 50 || i%100 == 75 {
			if f := r.GetFailure(); f.GetReason() != kafka.ReasonRecordTooLarge || f.Outcome != tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED {
				t.Errorf("record %d: got %v", i, r)
			}
			continue
		}
		if r.GetPublished().GetOffset() != next || r.GetPublished() == nil {
			t.Fatalf("record %d: got %v, want it at %d", i, r, next)
		}
		next++
	}
}

// testCompacted: a record without key is refused where the broker would refuse its neighbours with it.
func testCompacted(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, map[string]string{"cleanup.policy": "compact"})
	c := newClient(t, cluster)
	results, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{
		{Key: []byte("a")}, {Value: []byte("no key")}, {Key: []byte{}, Value: []byte("v")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].GetPublished() == nil || results[1].GetFailure().GetReason() != kafka.ReasonInvalidRecord || results[2].GetPublished() == nil {
		t.Errorf("got %v", results)
	}
}

// testPublishGrowth: a partition that was added a moment ago is published to, by number and by key.
func testPublishGrowth(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, value("before"))
	r, err := cluster.Admin(t).UpdatePartitions(t.Context(), 4, topic)
	if err = errors.Join(err, r.Error()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		return !slices.Contains(leaders(t, cluster, topic), -1) && len(leaders(t, cluster, topic)) == 4
	}, "four partitions")
	var at *tailracev1.Published
	eventually(t, func() bool { // once the broker that is asked has heard of it
		at = one(t, c, patience, topic, on(3, value("new"))).GetPublished()
		return at != nil
	}, "partition 3 takes records")
	if at.Partition != 3 {
		t.Errorf("got %v", at)
	}
	if f := one(t, c, patience, topic, on(4, value("none"))).GetFailure(); f.GetReason() != kafka.ReasonUnknownPartition {
		t.Errorf("got %v", f)
	}
	var key []byte
	for i := 0; hub.PartitionOf(key, 4) != 2; i++ {
		key = fmt.Append(nil, i)
	}
	if at := publish(t, c, topic, &tailracev1.PublishRecord{Key: key})[0]; at.Partition != 2 {
		t.Errorf("key %q: got %v", key, at)
	}
}

// TestWithoutKafka: while nobody answers, a publish waits within its deadline, is refused soon, and nothing of it is ever sent.
func TestWithoutKafka(t *testing.T) {
	c := newClient(t, &kafkatest.Cluster{Bootstrap: "127.0.0.1:1"})
	for _, within := range []time.Duration{200 * time.Millisecond, patience} {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		results, err := c.Publish(ctx, "t", []*tailracev1.PublishRecord{value("v")})
		if !errors.Is(err, hub.ErrUnavailable) {
			t.Errorf("got %v, %v", results, err)
		}
		done := make(chan *tailracev1.PublishResult, 1)
		c.Begin(ctx, "c", "t", value("v"), func(r *tailracev1.PublishResult) { done <- r })
		if f := (<-done).GetFailure(); f.GetReason() != kafka.ReasonKafkaUnavailable || f.Code != "unavailable" {
			t.Errorf("got %v", f)
		}
		cancel()
	}
}
