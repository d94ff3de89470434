package kafka_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// transaction publishes n records and ends the transaction.
func transaction(t *testing.T, k *kgo.Client, topic string, n int, end kgo.TransactionEndTry) {
	t.Helper()
	if err := k.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "%v %d", end, i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.EndTransaction(t.Context(), end); err != nil {
		t.Fatal(err)
	}
}

func testTransactions(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	k := cluster.Client(t, kgo.TransactionalID(t.Name()), kgo.DefaultProduceTopic(topic))
	for range 3 {
		transaction(t, k, topic, 3, kgo.TryCommit)
		transaction(t, k, topic, 2, kgo.TryAbort)
	}
	var end int64
	eventually(t, func() bool { // the broker answers before it has written the marker
		end = resolve(t, c, topic, hub.Query{}).Partitions[0].End
		return end >= 15+6
	}, "the log has 15 records and 6 markers, its end is %d", end)
	// The log ends with an aborted transaction: the position must pass it without a record.
	eventually(t, func() bool { return live.position(0) >= end }, "live to %d", end)
	if got := len(live.got(0)); got != 9 {
		t.Errorf("got %d records live, want the 9 committed", got)
	}
	check(t, cluster, c, topic, 0)

	all := newClient(t, cluster, func(cfg *kafka.Config) { cfg.Isolation = kafka.ReadUncommitted })
	if got := history(t, all, hub.ChunkID{Topic: topic}, end, 1000); len(got) != 15 {
		t.Errorf("got %d records uncommitted, want 15", len(got))
	}
}

func testOpenTransaction(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, value("before"))
	k := cluster.Client(t, kgo.TransactionalID(t.Name()), kgo.DefaultProduceTopic(topic))
	if err := k.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	publish(t, c, topic, value("behind it"))
	r := resolve(t, c, topic, hub.Query{})
	if got := r.Partitions[0].End; got != 1 {
		t.Errorf("end with an open transaction: got %d, want 1", got)
	}
	d, err := c.GetTopic(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if p := d.Partitions[0]; p.End != 1 || p.HighWatermark != 3 {
		t.Errorf("described: end %d, high watermark %d; want 1, 3", p.End, p.HighWatermark)
	}
	live := newRecorder(t, r, topic)
	live.follow(c, 0, 0)
	eventually(t, func() bool { return live.position(0) == 1 }, "live to 1")
	if err := k.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return live.position(0) >= 4 }, "live past the commit")
	if got, want := texts(live.got(0), ofOurs), []string{`0@0 null="before"`, `0@1 null="open"`, `0@2 null="behind it"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
