package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func testCompaction(t *testing.T, cluster *kafkatest.Cluster) {
	topic := compactedTopic(t, cluster)
	c := newClient(t, cluster)
	compact(t, cluster, c, topic)
	check(t, cluster, c, topic, 0)
}

// compactedTopic is one whose broker compacts at once what it may.
func compactedTopic(t *testing.T, cluster *kafkatest.Cluster) string {
	t.Helper()
	return cluster.NewTopic(t, 1, map[string]string{
		"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "min.compaction.lag.ms": "0",
	})
}

// compact writes to a topic and returns its end when that has holes.
func compact(t *testing.T, cluster *kafkatest.Cluster, c *kafka.Client, topic string) (end int64) {
	t.Helper()
	var rs []*tailracev1.PublishRecord
	for i := range 200 {
		rs = append(rs, &tailracev1.PublishRecord{Key: fmt.Append(nil, i%3), Value: fmt.Append(nil, i)})
	}
	publish(t, c, topic, rs...)
	eventually(t, func() bool {
		// A segment is closed, and so may be compacted, when a record comes after its time.
		end = publish(t, c, topic, &tailracev1.PublishRecord{Key: []byte("roll"), Value: []byte("v")})[0].Offset + 1
		<-time.After(200 * time.Millisecond) // for the broker to do its work
		return len(readLog(t, cluster, topic, 0, end)) < 150
	}, "the log is compacted")
	return end
}

// TestKillAndRestart kills the only broker under load: delivery resumes by itself, exactly, and what was told of published records is true.
func TestKillAndRestart(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 1)
	topic := cluster.NewTopic(t, 3, nil)
	c := newClient(t, cluster)
	r := resolve(t, c, topic, hub.Query{})
	live := newRecorder(t, r, topic)
	for p := range int32(3) {
		live.follow(c, p, 0)
	}
	stop, done := make(chan struct{}), make(chan []attempt)
	go func() { done <- publishThrough(t, c, topic, 4, stop) }()
	for range 2 {
		before := live.total()
		eventually(t, func() bool { return live.total() > before+100 }, "records flow")
		away := len(live.control(hub.Unavailable))
		cluster.Kill9(t, 1)
		eventually(t, func() bool { return len(live.control(hub.Unavailable)) == away+3 }, "three partitions are unavailable")
		eventually(t, func() bool { return !c.Health().Up }, "health says that Kafka is away")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if r, err := c.Resolve(ctx, topic, hub.Query{}); !errors.Is(err, hub.ErrUnavailable) {
			t.Errorf("resolve without a broker: got %v, %v", r, err)
		}
		cancel()
		cluster.Restart(t, 1)
		ready, n := time.Now(), live.total()
		eventually(t, func() bool { return len(live.control(hub.Available)) == away+3 }, "three partitions are available")
		told := time.Since(ready)
		eventually(t, func() bool { return live.total() > n }, "records flow")
		t.Logf("after the broker was ready: told available in %v, first record in %v", told, time.Since(ready))
	}
	before := live.total()
	eventually(t, func() bool { return live.total() > before+100 }, "records flow again")
	close(stop)
	all := <-done
	// Records that were given up by their callers may still be on their way.
	var ends map[int32]int64
	eventually(t, func() bool {
		was := fmt.Sprint(ends)
		ends = map[int32]int64{}
		for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
			ends[p.Partition] = p.End
		}
		<-time.After(time.Second)
		return fmt.Sprint(ends) == was
	}, "the log stands still")
	count := map[string]int{}
	for p, end := range ends {
		eventually(t, func() bool { return live.position(p) >= end }, "partition %d live to %d", p, end)
		truth := readLog(t, cluster, topic, p, end)
		if got, want := texts(live.got(p), ofOurs), texts(truth, ofTheirs); !slices.Equal(got, want) {
			t.Errorf("partition %d: got %d records live, the log has %d others", p, len(got), len(want))
		}
		for _, r := range truth {
			count[string(r.Value)]++
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
	if told[0] == 0 || told[tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN] == 0 {
		t.Errorf("got outcomes %v: want some acknowledged and some unknown", told)
	}
}
