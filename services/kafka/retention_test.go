package kafka_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// testDeletedUnderAReader: records are deleted in front of one who reads history.
func testDeletedUnderAReader(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	overtaken(t, cluster, topic, func(end int64) int64 {
		deleteBefore(t, cluster, topic, 0, end-500)
		return end - 500
	})
}

// testRetentionUnderAReader: the same, by Kafka itself.
func testRetentionUnderAReader(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, map[string]string{"segment.ms": "100", "retention.ms": "600000"})
	overtaken(t, cluster, topic, func(end int64) int64 {
		short, long := "300", "600000"
		if _, err := cluster.Admin(t).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &short}}, topic); err != nil {
			t.Fatal(err)
		}
		c := newClient(t, cluster)
		var oldest int64
		eventually(t, func() bool { // the segment that is written to stays
			publish(t, c, topic, value("last"))
			oldest = resolve(t, c, topic, hub.Query{}).Partitions[0].Oldest
			<-time.After(50 * time.Millisecond)
			return oldest >= end
		}, "the records are gone")
		if _, err := cluster.Admin(t).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &long}}, topic); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second) // a look of the log cleaner that was under way
		return resolve(t, c, topic, hub.Query{}).Partitions[0].Oldest
	})
}

// overtaken starts to read a long topic, has some deleted and reads on: all records come, but for one gap that says what is missing.
func overtaken(t *testing.T, cluster *kafkatest.Cluster, topic string, remove func(end int64) (oldest int64)) {
	t.Helper()
	const n = 6000
	k := cluster.Client(t, kgo.ProducerBatchCompression(kgo.NoCompression()))
	value := noise(4000) // more than is fetched ahead
	for range n {
		k.Produce(t.Context(), &kgo.Record{Topic: topic, Value: value}, nil)
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := newHub(t, newClient(t, cluster), 1<<20)
	w := make(flag, 1)
	sub, err := h.Subscribe(t.Context(), hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}}, w, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	var at, oldest int64
	gaps := 0
	for until := time.Now().Add(patience); oldest == 0 || at < oldest+1; {
		b, err := sub.Pull(16 << 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range b.Parts {
			if p.From != at {
				t.Fatalf("a part from %d at position %d", p.From, at)
			}
			switch p.Kind {
			case hub.Records:
				var rs tailracev1.RecordBatch
				if err := proto.Unmarshal(p.Piece(p.Lo, p.Hi), &rs); err != nil {
					t.Fatal(err)
				}
				for i, r := range rs.Records {
					if r.Offset != at+int64(i) {
						t.Fatalf("got %d at %d", r.Offset, at+int64(i))
					}
				}
			case hub.Gap:
				if gaps++; p.Next != oldest || p.Entry.Reason != hub.GapRetention {
					t.Errorf("got a gap from %d to %d, reason %d; want to %d by retention", p.From, p.Next, p.Entry.Reason, oldest)
				}
			}
			at = p.Next
		}
		if at >= 100 && oldest == 0 {
			oldest = remove(n)
			k.Produce(t.Context(), &kgo.Record{Topic: topic, Value: []byte("after")}, nil)
		}
		if len(b.Parts) == 0 {
			select {
			case <-w:
			case <-time.After(time.Until(until)):
				t.Fatalf("not within %v: to %d, at %d", patience, oldest, at)
			}
		}
	}
	if gaps != 1 {
		t.Errorf("got %d gaps, want 1", gaps)
	}
}
