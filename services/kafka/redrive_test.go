package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func anyTopic(string) error { return nil }

// letterOf is a dead letter as a group makes it, with further headers behind.
func letterOf(in, topic string, partition int32, name, value string, more ...kgo.RecordHeader) *kgo.Record {
	h := func(k, v string) kgo.RecordHeader { return kgo.RecordHeader{Key: "tailrace-" + k, Value: []byte(v)} }
	return &kgo.Record{Topic: in, Value: []byte(value), Headers: append([]kgo.RecordHeader{
		h("topic", topic), h("partition", strconv.Itoa(int(partition))), h("offset", "0"), h("group", name), h("attempts", "1"), h("reason", ""), h("time", ""),
	}, more...)}
}

// row goes on until a redrive is done.
type row struct {
	calls, redriven, skipped int
	failures                 []string
	positions                []*tailracev1.Position
}

func redriveAll(t *testing.T, c *kafka.Client, m *tailracev1.RedriveDeadLettersRequest, allow func(string) error) (all row) {
	t.Helper()
	for {
		r, err := c.RedriveDeadLetters(t.Context(), m, allow)
		if err != nil {
			t.Fatal(err)
		}
		all.calls++
		looked := len(r.GetFailures()) + int(r.GetSkipped())
		for _, o := range r.GetRedriven() {
			all.redriven += int(o.GetRecords())
			looked += int(o.GetRecords())
		}
		if looked > int(m.GetMaxRecords()) {
			t.Errorf("a call looked at %d records, more than %d", looked, m.GetMaxRecords())
		}
		all.skipped += int(r.GetSkipped())
		for _, f := range r.GetFailures() {
			all.failures = append(all.failures, fmt.Sprintf("%d/%d %s %v", f.GetPartition(), f.GetOffset(), f.GetReason(), f.GetRetryable()))
		}
		all.positions, m.Positions = r.GetPositions(), r.GetPositions()
		if r.GetDone() {
			return all
		}
	}
}

// TestRedrive: dead letters of a group go back to where they came from as they were, each once in a row of calls; what cannot is told.
func TestRedrive(t *testing.T) {
	cluster := kafkatest.Start(t)
	c := newClient(t, cluster)
	topic, small := cluster.NewTopic(t, 2, nil), cluster.NewTopic(t, 1, map[string]string{"max.message.bytes": "1000"})
	name, letters := topic+"-group", topic+".dlq"
	cluster.CreateTopic(t, letters, 2, nil)
	client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	put := func(rs ...*kgo.Record) {
		t.Helper()
		if err := client.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	texts := func(rs []*kgo.Record) (all []string) {
		for _, r := range rs {
			all = append(all, fmt.Sprintf("%d %q %t %q %t %s", r.Partition, r.Key, r.Key == nil, r.Value, r.Value == nil, r.Headers))
		}
		slices.Sort(all)
		return all
	}
	// Real dead letters: keys, values, tombstones and headers of all sorts, in a partition that their keys do not hash to.
	var originals []*kgo.Record
	for i := range 8 {
		r := &kgo.Record{Topic: topic, Partition: int32(i % 2), Key: []byte("the same key"), Value: fmt.Append(nil, i)}
		switch i {
		case 5:
			r.Key, r.Value = []byte{}, []byte{}
		case 6:
			r.Key = nil
		case 7:
			r.Value = nil
		}
		if i < 4 {
			r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: []byte("2")}, {Key: "tailrace-topic", Value: []byte("not ours")}}
		}
		originals = append(originals, r)
	}
	put(originals...)
	gs, leave := groupsOf(t, c)
	s := startOf(name, topic)
	s.MaxAttempts = 1
	newTaken().work(t, gs, s, func(*tailracev1.Record) bool { return false })
	eventually(t, func() bool { return lag(t, cluster, name, topic) == 0 }, "all are dead letters")
	leave()
	// And others, which lie behind them in partition 0 and 1.
	ends := readEnds(t, c, letters)
	put(
		letterOf(letters, topic, 0, "another-group", "skipped"),
		&kgo.Record{Topic: letters, Value: []byte("no headers")},
		letterOf(letters, topic, 0, name, "cut", kgo.RecordHeader{Key: "tailrace-truncated", Value: []byte("100")}),
		letterOf(letters, "no-such-topic", 0, name, "lost"),
		letterOf(letters, small, 0, name, string(make([]byte, 2000))),
		letterOf(letters, "secret", 0, name, "forbidden"),
		letterOf(letters, topic, 9, name, "of a partition that is not there"),
	)
	failures := func(from int64) (all []string) {
		for i, reason := range []string{"NOT_A_DEAD_LETTER", "TRUNCATED", "UNKNOWN_TOPIC", "RECORD_TOO_LARGE", "FORBIDDEN"} {
			all = append(all, fmt.Sprintf("0/%d %s false", from+1+int64(i), reason))
		}
		return all
	}(ends[0])
	allow := func(topic string) error {
		if topic == "secret" {
			return errors.New("no")
		}
		return nil
	}
	request := func() *tailracev1.RedriveDeadLettersRequest {
		return &tailracev1.RedriveDeadLettersRequest{DeadLetterTopic: letters, Group: name, MaxRecords: 3}
	}

	dry := request()
	dry.DryRun = true
	would := redriveAll(t, c, dry, allow)
	known := slices.Delete(slices.Clone(failures), 3, 4) // that one is too large only Kafka knows
	if would.redriven != 10 || would.skipped != 1 || !slices.Equal(would.failures, known) {
		t.Errorf("dry run: got %+v, want 10 and %v", would, known)
	}
	if now := readEnds(t, c, topic); now[0] != 4 || now[1] != 4 {
		t.Errorf("the dry run published: ends %v", now)
	}
	for n := range int64(2) { // a row that begins anew redrives anew
		did := redriveAll(t, c, request(), allow)
		if did.redriven != 9 || did.skipped != 1 || !slices.Equal(did.failures, failures) || did.calls < 5 {
			t.Errorf("got %+v, want 9 and %v", did, failures)
		}
		var got []*kgo.Record
		extra := 0
		for p, end := range readEnds(t, c, topic) {
			for _, r := range readLog(t, cluster, topic, p, end) {
				if r.Offset < 4 {
					continue
				}
				if string(r.Value) == "of a partition that is not there" {
					extra++
					continue
				}
				got = append(got, r)
			}
		}
		want := slices.Repeat(originals, int(n)+1)
		if fmt.Sprint(texts(got)) != fmt.Sprint(texts(want)) || extra != int(n)+1 {
			t.Errorf("got %v (and %d others)\nwant %v", texts(got), extra, texts(want))
		}
		again := request()
		again.Positions = did.positions
		if rest := redriveAll(t, c, again, allow); rest.redriven+rest.skipped+len(rest.failures) != 0 || rest.calls != 1 {
			t.Errorf("behind the end: got %+v", rest)
		}
	}

	for _, at := range []*tailracev1.Position{{Partition: 0, Offset: 1000}, {Partition: 5}} {
		m := request()
		m.Positions = []*tailracev1.Position{at}
		_, err := c.RedriveDeadLetters(t.Context(), m, anyTopic)
		out, unknown := new(hub.OffsetOutOfRangeError), new(hub.UnknownPartitionError)
		if !errors.As(err, &out) && !errors.As(err, &unknown) {
			t.Errorf("from %v: got %v", at, err)
		}
	}
	m := request()
	m.DeadLetterTopic = "no-such-topic"
	if _, err := c.RedriveDeadLetters(t.Context(), m, anyTopic); !errors.Is(err, hub.ErrUnknownTopic) {
		t.Errorf("got %v", err)
	}
}

// readEnds are the ends of a topic's partitions.
func readEnds(t *testing.T, c *kafka.Client, topic string) map[int32]int64 {
	t.Helper()
	ends := map[int32]int64{}
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		ends[p.Partition] = p.End
	}
	return ends
}
