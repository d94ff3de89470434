package kafka_test

import (
	"math"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// testDeletedUnderAReader: records are deleted in front of one who reads history.
func testDeletedUnderAReader(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	var oldest int64
	gaps := overtaken(t, cluster, topic, func(_ *kafka.Client, end int64) {
		oldest = end - 500
		deleteBefore(t, cluster, topic, 0, oldest)
	})
	if len(gaps) != 1 || gaps[0].Next != oldest {
		t.Errorf("got gaps %+v, want one to %d", gaps, oldest)
	}
}

// testRetentionUnderAReader: the same, by Kafka itself, which may go on with it: there may be more than one gap.
func testRetentionUnderAReader(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, map[string]string{"segment.ms": "100", "retention.ms": "600000"})
	oldest := func(c *kafka.Client) int64 { return resolve(t, c, topic, hub.Query{}).Partitions[0].Oldest }
	var c *kafka.Client
	var least int64
	gaps := overtaken(t, cluster, topic, func(by *kafka.Client, end int64) {
		c = by
		retain := func(ms string) {
			if _, err := cluster.Admin(t).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &ms}}, topic); err != nil {
				t.Fatal(err)
			}
		}
		retain("300")
		eventually(t, func() bool { // the segment that is written to stays
			publish(t, c, topic, value("last"))
			least = oldest(c)
			return least >= end
		}, "the records are gone")
		retain("600000")
	})
	most := oldest(c)
	if len(gaps) == 0 || gaps[0].Next < least || gaps[len(gaps)-1].Next > most {
		t.Errorf("got gaps %+v, want the first to %d or later, none beyond %d", gaps, least, most)
	}
}

// overtaken starts to read a long topic, has some deleted and reads on: all records come, but for the gaps that it returns, each of which begins where
// the reader is and ends where the next record is.
func overtaken(t *testing.T, cluster *kafkatest.Cluster, topic string, remove func(c *kafka.Client, end int64)) (gaps []hub.Entry) {
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
	c := newClient(t, cluster)
	h := newHub(t, c, 1<<20)
	w := make(flag, 1)
	sub, err := h.Subscribe(t.Context(), hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}}, w, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	var at int64
	last := int64(math.MaxInt64) // what comes when all was removed
	for until := time.Now().Add(patience); at <= last; {
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
				if p.Entry.Reason != hub.GapRetention {
					t.Errorf("got a gap from %d to %d, reason %d; want retention", p.From, p.Next, p.Entry.Reason)
				}
				gaps = append(gaps, hub.Entry{From: p.From, Next: p.Next})
			}
			at = p.Next
		}
		if at >= 100 && last == math.MaxInt64 {
			remove(c, n)
			r := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("after")})
			if err := r.FirstErr(); err != nil {
				t.Fatal(err)
			}
			last = r[0].Record.Offset
		}
		if len(b.Parts) == 0 {
			select {
			case <-w:
			case <-time.After(time.Until(until)):
				t.Fatalf("not within %v: to %d, at %d", patience, last, at)
			}
		}
	}
	return gaps
}
