package kafka_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func testPublishResults(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, map[string]string{"max.message.bytes": "100000"})
	c := newClient(t, cluster)
	records := []*tailracev1.PublishRecord{
		on(0, value("first")),
		on(2, value("no such partition")),
		on(-1, value("negative")),
		on(0, &tailracev1.PublishRecord{Headers: []*tailracev1.Header{{Name: "a\x00b"}}}),
		on(0, &tailracev1.PublishRecord{Value: noise(200_000)}), // the topic's limit
		on(0, &tailracev1.PublishRecord{Value: make([]byte, 11_000_000)}),
		on(0, value("last")),
	}
	want := []string{"", kafka.ReasonUnknownPartition, kafka.ReasonInvalidRecord, kafka.ReasonInvalidRecord, kafka.ReasonRecordTooLarge, kafka.ReasonRecordTooLarge, ""}
	results, err := c.Publish(t.Context(), topic, records)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results {
		f, code := r.GetFailure(), "invalid_argument"
		if want[i] == kafka.ReasonUnknownPartition {
			code = "not_found"
		}
		if got := f.GetReason(); got != want[i] {
			t.Errorf("record %d: got %v, want reason %q", i, r, want[i])
		}
		if f != nil && (f.Outcome != tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED || f.Code != code || f.Message == "" || f.RetryAfter != nil) {
			t.Errorf("record %d: got %v", i, f)
		}
	}
	if got, want := texts(readLog(t, cluster, topic, 0, 2), ofTheirs), []string{`0@0 null="first"`, `0@1 null="last"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if results, err := c.Publish(t.Context(), topic, nil); err != nil || len(results) != 0 {
		t.Errorf("nothing: got %v, %v", results, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, err = c.Publish(ctx, topic, []*tailracev1.PublishRecord{value("late")})
	if err == nil && results[0].GetFailure() == nil {
		t.Errorf("cancelled: got %v", results)
	}
}

func testPublishOrder(t *testing.T, cluster *kafkatest.Cluster) {
	const records = 2000
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	offsets := make([]int64, records)
	var under sync.WaitGroup
	under.Add(records)
	for n := range records {
		c.Begin(t.Context(), "one", topic, value("%d", n), func(r *tailracev1.PublishResult) {
			defer under.Done()
			if r.GetPublished() == nil {
				t.Errorf("record %d: got %v", n, r)
			}
			offsets[n] = r.GetPublished().GetOffset()
		})
	}
	under.Wait()
	for n, at := range offsets {
		if at != int64(n) {
			t.Fatalf("record %d is at %d", n, at)
		}
	}
	for i, r := range readLog(t, cluster, topic, 0, records) {
		if got, want := string(r.Value), fmt.Sprint(i); got != want {
			t.Fatalf("offset %d: got %s", i, got)
		}
	}
}

func testPartitioner(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 7
	topic := cluster.NewTopic(t, partitions, nil)
	c := newClient(t, cluster)
	// franz-go's default is the Java client's: murmur2.
	java := kgo.StickyKeyPartitioner(nil).ForTopic(topic)
	spread := map[int32]bool{}
	for i := range 100 {
		key := bytes.Repeat(fmt.Append(nil, i), 1+i%5)
		at := publish(t, c, topic, &tailracev1.PublishRecord{Key: key})[0]
		if want := java.Partition(&kgo.Record{Key: key}, partitions); int(at.Partition) != want {
			t.Errorf("key %q: in partition %d, want %d", key, at.Partition, want)
		}
		spread[at.Partition] = true
	}
	if len(spread) != partitions {
		t.Errorf("100 keys in %d partitions of %d", len(spread), partitions)
	}
}

func testAppendTime(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	c := newClient(t, cluster)
	if at := publish(t, c, topic, value("v"))[0]; at.Time != nil {
		t.Errorf("got time %v, want none", at.Time)
	}
	r := history(t, c, hub.ChunkID{Topic: topic}, 1, 1)[0]
	if r.TimeType != tailracev1.TimestampType_TIMESTAMP_TYPE_APPEND || r.Time == nil {
		t.Errorf("got %v, want the broker's time", r)
	}
	mine := cluster.NewTopic(t, 1, nil)
	at := publish(t, c, mine, value("v"))[0]
	if r := history(t, c, hub.ChunkID{Topic: mine}, 1, 1)[0]; !r.Time.AsTime().Equal(at.Time.AsTime()) {
		t.Errorf("told time %v, the log has %v", at.Time.AsTime(), r.Time.AsTime())
	}
}

// attempt is a record that was published while brokers fell.
type attempt struct {
	value   string
	outcome tailracev1.PublishOutcome // 0: acknowledged
	offset  int64
}

// publishThrough publishes numbered records with several callers until stop, and returns what was told of each.
func publishThrough(t *testing.T, c *kafka.Client, topic string, callers int, stop <-chan struct{}) []attempt {
	var mu sync.Mutex
	var all []attempt
	var group sync.WaitGroup
	for caller := range callers {
		group.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				v := fmt.Sprintf("%d-%d", caller, n)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				results, err := c.Publish(ctx, topic, []*tailracev1.PublishRecord{value("%s", v)})
				cancel()
				a := attempt{value: v, outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED}
				if err == nil {
					a.outcome, a.offset = results[0].GetFailure().GetOutcome(), results[0].GetPublished().GetOffset()
				}
				mu.Lock()
				all = append(all, a)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return all
}
