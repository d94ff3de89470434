package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// behaviours hold on every broker.
var behaviours = map[string]func(t *testing.T, cluster *kafkatest.Cluster){
	"records arrive byte for byte":                  testRoundTrip,
	"every compression is read":                     testCompressions,
	"large records":                                 testLargeRecords,
	"transactions":                                  testTransactions,
	"an open transaction holds the end":             testOpenTransaction,
	"starts are resolved":                           testResolve,
	"unknown topics are refused at once":            testUnknownTopics,
	"deleted records are a gap":                     testRetentionGap,
	"history tells what is out of range":            testHistoryOutOfRange,
	"a position beyond the log is truncation":       testBeyondTheEnd,
	"new partitions are told":                       testGrowth,
	"a deleted topic is told":                       testDeletion,
	"partitions are followed and left in any order": testFollowAndLeave,
	"400 partitions":                                testManyPartitions,
	"history equals the log":                        testHistory,
	"history readers give up what is not wanted":    testHistoryCancel,
	"publish results":                               testPublishResults,
	"publish keeps order":                           testPublishOrder,
	"keys lie where the Java client puts them":      testPartitioner,
	"topics are described":                          testTopics,
	"subscribers of a hub get the log":              testHub,
	"clients start and stop":                        testStartStop,
}

func TestEmbedded(t *testing.T) {
	runAll(t, func(t *testing.T) *kafkatest.Cluster { return kafkatest.StartEmbedded(t) })
}

func TestReal(t *testing.T) {
	runAll(t, func(t *testing.T) *kafkatest.Cluster { return kafkatest.Start(t) })
}

func runAll(t *testing.T, start func(*testing.T) *kafkatest.Cluster) {
	for _, name := range slices.Sorted(maps.Keys(behaviours)) {
		t.Run(name, func(t *testing.T) { behaviours[name](t, start(t)) })
	}
}

// awkward are the records whose fields are easily lost.
var awkward = []struct {
	key, value []byte
	headers    []kgo.RecordHeader
}{
	{[]byte("key"), []byte("value"), nil},
	{nil, []byte("no key"), nil},
	{[]byte{}, []byte("empty key"), nil},
	{[]byte("tombstone"), nil, nil},
	{[]byte("empty value"), []byte{}, nil},
	{nil, nil, nil},
	{[]byte("\x00\xff"), []byte("\xff\x00\n"), []kgo.RecordHeader{{Key: "bin", Value: []byte{0, 255}}}},
	{[]byte("headers"), []byte("v"), []kgo.RecordHeader{
		{Key: "twice", Value: []byte("1")}, {Key: "null", Value: nil}, {Key: "twice", Value: []byte("2")}, {Key: "empty", Value: []byte{}}, {Key: "", Value: []byte("no name")},
	}},
}

func testRoundTrip(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	r := resolve(t, c, topic, hub.Query{})
	live := newRecorder(t, r, topic)
	for p := range int32(2) {
		live.follow(c, p, 0)
	}
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var want [2]int64
	for _, a := range awkward {
		// ours to partition 0, theirs to partition 1
		ours := on(0, &tailracev1.PublishRecord{Key: a.key, Value: a.value})
		for _, h := range a.headers {
			ours.Headers = append(ours.Headers, &tailracev1.Header{Name: h.Key, Value: h.Value})
		}
		if at := publish(t, c, topic, ours)[0]; at.Partition != 0 || at.Offset != want[0] || at.Time == nil {
			t.Errorf("got %v, want partition 0, offset %d, a time", at, want[0])
		}
		if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 1, Key: a.key, Value: a.value, Headers: a.headers}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		want[0]++
		want[1]++
	}
	for p := range int32(2) {
		eventually(t, func() bool { return live.position(p) >= want[p] }, "partition %d live to %d", p, want[p])
		truth := texts(readLog(t, cluster, topic, p, want[p]), ofTheirs)
		for i, a := range awkward {
			if w := text(p, int64(i), a.key, a.value, a.headers); truth[i] != w {
				t.Errorf("the log has %s, want %s", truth[i], w)
			}
		}
		if got := texts(live.got(p), ofOurs); !slices.Equal(got, truth) {
			t.Errorf("live:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(truth, "\n     "))
		}
		past := history(t, c, hub.ChunkID{Topic: topic, TopicID: r.TopicID, Partition: p}, want[p], 3)
		if got := texts(past, ofOurs); !slices.Equal(got, truth) {
			t.Errorf("history:\n got %s\nwant %s", strings.Join(got, "\n     "), strings.Join(truth, "\n     "))
		}
	}
	at := live.got(1)[0]
	if at.Topic != topic || at.TimeType != tailracev1.TimestampType_TIMESTAMP_TYPE_CREATE || time.Since(at.Time.AsTime()).Abs() > time.Hour || at.LeaderEpoch == nil {
		t.Errorf("got %v: want its topic, a create time of now and a leader epoch", at)
	}
}

// check compares a partition of a topic, live from 0 and in history, with the log up to the end.
func check(t *testing.T, cluster *kafkatest.Cluster, c *kafka.Client, topic string, partition int32) {
	t.Helper()
	r := resolve(t, c, topic, hub.Query{Partitions: []int32{partition}})
	end := r.Partitions[0].End
	truth := texts(readLog(t, cluster, topic, partition, end), ofTheirs)
	live := newRecorder(t, r, topic)
	live.follow(c, partition, 0)
	eventually(t, func() bool { return live.position(partition) >= end }, "live to %d, at %d", end, live.position(partition))
	if got := texts(live.got(partition), ofOurs); !slices.Equal(got, truth) {
		t.Errorf("live:\n got %v\nwant %v", got, truth)
	}
	past := history(t, c, hub.ChunkID{Topic: topic, TopicID: r.TopicID, Partition: partition}, end, hub.MaxChunkRecords)
	if got := texts(past, ofOurs); !slices.Equal(got, truth) {
		t.Errorf("history:\n got %v\nwant %v", got, truth)
	}
}

func testCompressions(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		k := cluster.Client(t, kgo.ProducerBatchCompression(codec))
		var rs []*kgo.Record
		for i := range 50 {
			rs = append(rs, &kgo.Record{Topic: topic, Key: []byte(name), Value: []byte(strings.Repeat(fmt.Sprint(name, i), 30))})
		}
		if err := k.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	check(t, cluster, newClient(t, cluster), topic, 0)
}

func testLargeRecords(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	for _, n := range []int{1_000_000, 1, 1_000_001, 999_999} {
		publish(t, c, topic, &tailracev1.PublishRecord{Key: []byte("large"), Value: noise(n)})
	}
	check(t, cluster, c, topic, 0)
}

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
	end := resolve(t, c, topic, hub.Query{}).Partitions[0].End
	if end < 15+6 {
		t.Errorf("end %d, want 15 records and 6 markers at least", end)
	}
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

func testResolve(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 3, nil)
	c := newClient(t, cluster)
	base := time.UnixMilli(1_700_000_000_000)
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range 10 {
		if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 1, Value: []byte("v"), Timestamp: base.Add(time.Duration(i) * time.Second)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	deleteBefore(t, cluster, topic, 1, 2)
	start := func(q hub.Query) string {
		t.Helper()
		r := resolve(t, c, topic, q)
		if r.Count != 3 || r.TopicID == "" {
			t.Errorf("got count %d, id %q", r.Count, r.TopicID)
		}
		var s []string
		for _, p := range r.Partitions {
			s = append(s, fmt.Sprintf("%d:%d[%d,%d)", p.Partition, p.Start, p.Oldest, p.End))
		}
		return strings.Join(s, " ")
	}
	positions := []hub.Position{{Partition: 1, Offset: 5, Epoch: -1}, {Partition: 2, Offset: 77, Epoch: -1}}
	for _, test := range []struct {
		q    hub.Query
		want string
	}{
		{hub.Query{}, "0:0[0,0) 1:10[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.Earliest}}, "0:0[0,0) 1:2[2,10) 2:0[0,0)"},
		{hub.Query{Partitions: []int32{1}, Start: hub.Start{Kind: hub.Earliest}}, "1:2[2,10)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: positions}}, "0:0[0,0) 1:5[2,10) 2:77[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: positions[1:], Missing: hub.MissingLatest}}, "0:0[0,0) 1:10[2,10) 2:77[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: positions, Missing: hub.MissingSkip}}, "1:5[2,10) 2:77[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(6*time.Second - time.Millisecond)}}, "0:0[0,0) 1:6[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(time.Hour)}}, "0:0[0,0) 1:10[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(-time.Hour)}}, "0:0[0,0) 1:2[2,10) 2:0[0,0)"},
	} {
		if got := start(test.q); got != test.want {
			t.Errorf("%+v:\n got %s\nwant %s", test.q, got, test.want)
		}
	}
	if _, err := c.Resolve(t.Context(), topic, hub.Query{Start: hub.Start{Kind: hub.Last, Last: 3}}); !errors.Is(err, hub.ErrUnimplemented) {
		t.Errorf("last: got %v", err)
	}
	_, err := c.Resolve(t.Context(), topic, hub.Query{Partitions: []int32{3}})
	if e, ok := errors.AsType[*hub.UnknownPartitionError](err); !ok || e.Partition != 3 || e.Count != 3 {
		t.Errorf("partition 3: got %v", err)
	}
}

func deleteBefore(t *testing.T, cluster *kafkatest.Cluster, topic string, partition int32, offset int64) {
	t.Helper()
	r, err := cluster.Admin(t).DeleteRecords(t.Context(), kadm.Offsets{topic: {partition: {Topic: topic, Partition: partition, At: offset}}})
	if err = errors.Join(err, r.Error()); err != nil {
		t.Fatal(err)
	}
}

func testUnknownTopics(t *testing.T, cluster *kafkatest.Cluster) {
	c := newClient(t, cluster)
	for _, topic := range []string{"no-such-topic", "", "..", "not legal", strings.Repeat("x", 250), "umläut"} {
		if _, err := c.Resolve(t.Context(), topic, hub.Query{}); !errors.Is(err, hub.ErrUnknownTopic) {
			t.Errorf("resolve %q: got %v", topic, err)
		}
		if _, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("v")}); !errors.Is(err, hub.ErrUnknownTopic) {
			t.Errorf("publish to %q: got %v", topic, err)
		}
		if _, err := c.GetTopic(t.Context(), topic); !errors.Is(err, hub.ErrUnknownTopic) {
			t.Errorf("get %q: got %v", topic, err)
		}
	}
	// A topic that has just been created is no longer unknown.
	cluster.CreateTopic(t, "no-such-topic", 1, nil)
	t.Cleanup(func() { deleteTopic(t, cluster, "no-such-topic") })
	resolve(t, c, "no-such-topic", hub.Query{})
}

func deleteTopic(t *testing.T, cluster *kafkatest.Cluster, topic string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	k := cluster.Client(t)
	defer k.Close()
	r, err := kadm.NewClient(k).DeleteTopic(ctx, topic)
	if err = errors.Join(err, r.Err); err != nil {
		t.Fatal(err)
	}
}

func testRetentionGap(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	for i := range 10 {
		publish(t, c, topic, on(0, value("%d", i)))
	}
	deleteBefore(t, cluster, topic, 0, 6)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 1, 0) // a neighbour that nothing happens to
	live.follow(c, 0, 3)
	eventually(t, func() bool { return live.position(0) >= 10 }, "live to 10")
	gaps := live.control(hub.Gap)
	if len(gaps) != 1 || gaps[0].Partition != 0 || gaps[0].From != 3 || gaps[0].Next != 6 || gaps[0].Reason != hub.GapRetention {
		t.Errorf("got gaps %+v, want one of [3, 6) by retention", gaps)
	}
	if got, want := texts(live.got(0), ofOurs), []string{`0@6 null="6"`, `0@7 null="7"`, `0@8 null="8"`, `0@9 null="9"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	publish(t, c, topic, on(1, value("neighbour")))
	eventually(t, func() bool { return live.position(1) == 1 }, "the neighbour goes on")
}

func testHistoryOutOfRange(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	for i := range 10 {
		publish(t, c, topic, value("%d", i))
	}
	deleteBefore(t, cluster, topic, 0, 4)
	for _, from := range []int64{0, 3, 11, 1000} {
		_, _, err := c.ReadAt(t.Context(), hub.ChunkID{Topic: topic, From: from}, 2000, 100, nil)
		e, ok := errors.AsType[*hub.OffsetOutOfRangeError](err)
		if !ok || e.Offset != from || e.Oldest != 4 || e.End != 10 || e.Topic != topic {
			t.Errorf("read at %d: got %v", from, err)
		}
	}
	if got := history(t, c, hub.ChunkID{Topic: topic, From: 4}, 10, 100); len(got) != 6 {
		t.Errorf("got %d records, want 6", len(got))
	}
	if _, next, err := c.ReadAt(t.Context(), hub.ChunkID{Topic: topic, From: 10}, 12, 100, nil); !errors.Is(err, hub.ErrUnavailable) || next != 10 {
		t.Errorf("read at the end: got next %d, %v; want 10, unavailable", next, err)
	}
}

func testBeyondTheEnd(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, value("0"), value("1"))
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 50)
	eventually(t, func() bool { return len(live.control(hub.Gap)) == 1 }, "a gap")
	if g := live.control(hub.Gap)[0]; g.From != 50 || g.Next != 2 || g.Reason != hub.GapTruncation {
		t.Errorf("got gap %+v, want from 50 to 2 by truncation", g)
	}
	publish(t, c, topic, value("2"))
	eventually(t, func() bool { return live.position(0) == 3 }, "live to 3")
}

func testGrowth(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	live.follow(c, 1, 0)
	r, err := cluster.Admin(t).UpdatePartitions(t.Context(), 5, topic)
	if err = errors.Join(err, r.Error()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(live.control(hub.Topology)) > 0 }, "told of new partitions")
	if es := live.control(hub.Topology); len(es) != 1 || es[0].Count != 5 {
		t.Errorf("got %+v, want one with count 5", es)
	}
	live.follow(c, 4, 0)
	publish(t, c, topic, on(4, value("new")))
	eventually(t, func() bool { return live.position(4) == 1 }, "the new partition is read")
}

func testDeletion(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	live.follow(c, 1, 0)
	publish(t, c, topic, on(0, value("last")))
	eventually(t, func() bool { return live.position(0) == 1 }, "live to 1")
	deleteTopic(t, cluster, topic)
	eventually(t, func() bool { return len(live.control(hub.Deleted)) > 0 }, "told of the deletion")
	if n := len(live.control(hub.Deleted)); n != 1 {
		t.Errorf("told %d times", n)
	}
}

func testFollowAndLeave(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 8
	topic := cluster.NewTopic(t, partitions, nil)
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.Consumers = 3 })
	r := resolve(t, c, topic, hub.Query{})
	for p := range int32(partitions) {
		publish(t, c, topic, on(p, value("0")))
	}
	for round := range 10 {
		live := newRecorder(t, r, topic)
		var leave []func()
		for p := range int32(partitions) {
			leave = append(leave, c.FollowTo(live, p, int64(round)))
		}
		publish(t, c, topic, on(int32(round%partitions), value("%d", round)))
		eventually(t, func() bool { return live.total() > 0 }, "a record in round %d", round)
		for _, do := range leave {
			do()
		}
		n := live.total()
		for p := range int32(partitions) {
			publish(t, c, topic, on(p, value("late")))
		}
		if got := live.total(); got != n {
			t.Errorf("%d records after it was left", got-n)
		}
	}
}

func testManyPartitions(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 400
	topic := cluster.NewTopic(t, partitions, nil)
	t.Cleanup(func() { deleteTopic(t, cluster, topic) })
	c := newClient(t, cluster)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	for p := range int32(partitions) {
		live.follow(c, p, 0)
	}
	for range 3 {
		var rs []*tailracev1.PublishRecord
		for p := range int32(partitions) {
			rs = append(rs, on(p, value("%d", p)))
		}
		publish(t, c, topic, rs...)
	}
	eventually(t, func() bool { return live.total() == 3*partitions }, "3 records of each of %d partitions", partitions)
	for p := range int32(partitions) {
		v := fmt.Sprintf("%q", fmt.Sprint(p))
		want := []string{fmt.Sprintf("%d@0 null=%s", p, v), fmt.Sprintf("%d@1 null=%s", p, v), fmt.Sprintf("%d@2 null=%s", p, v)}
		if got := texts(live.got(p), ofOurs); !slices.Equal(got, want) {
			t.Errorf("partition %d: got %v, want %v", p, got, want)
		}
	}
}

func testHistory(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions, each = 6, 5000
	topic := cluster.NewTopic(t, partitions, nil)
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(partitions) {
		for i := range each {
			k.Produce(t.Context(), &kgo.Record{Topic: topic, Partition: p, Value: noise(i % 200)}, nil)
		}
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.HistoryReaders = 2 })
	done := make(chan struct{})
	for p := range int32(partitions) {
		go func() {
			defer func() { done <- struct{}{} }()
			var at int64
			for at < each {
				_, next, err := c.ReadAt(t.Context(), hub.ChunkID{Topic: topic, Partition: p, From: at}, each, 700, nil)
				if err != nil || next <= at || next > at+700 {
					t.Errorf("read %d at %d: next %d, %v", p, at, next, err)
					return
				}
				at = next
			}
		}()
	}
	for range partitions {
		<-done
	}
	for p := range int32(2) {
		check(t, cluster, c, topic, p)
	}
}

func testHistoryCancel(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.HistoryReaders = 1 })
	publish(t, c, topic, value("0"))
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		// At the end of the log: it would wait.
		if _, _, err := c.ReadAt(ctx, hub.ChunkID{Topic: topic, From: 1}, 5, 100, nil); err == nil {
			t.Error("no error")
		}
		cancel()
	}
	if got := history(t, c, hub.ChunkID{Topic: topic}, 1, 100); len(got) != 1 {
		t.Errorf("got %d records, want 1", len(got))
	}
}

func testTopics(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 3, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, on(2, value("v")))
	list, err := c.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found *tailracev1.TopicSummary
	for i, s := range list {
		if i > 0 && list[i-1].Name >= s.Name {
			t.Errorf("%q after %q", s.Name, list[i-1].Name)
		}
		if strings.HasPrefix(s.Name, "__") {
			t.Errorf("internal topic %q is listed", s.Name)
		}
		if s.Name == topic {
			found = s
		}
	}
	d, err := c.GetTopic(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if found == nil || found.Partitions != 3 || found.TopicId != d.TopicId || d.TopicId == "" {
		t.Errorf("listed %v, described id %q", found, d.TopicId)
	}
	if len(d.Partitions) != 3 || d.Partitions[2].End != 1 || d.Partitions[2].HighWatermark != 1 || d.Partitions[2].Start != 0 || d.Partitions[0].End != 0 {
		t.Errorf("got %v", d)
	}
	for _, p := range d.Partitions {
		if p.Leader < 0 {
			t.Errorf("partition %d has no leader", p.Partition)
		}
	}
}

func testStartStop(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 4, nil)
	for n := range 20 {
		began := time.Now()
		c, stop := startClient(t, cluster)
		switch n % 4 {
		case 0: // stopped before anything happened
		case 1:
			resolve(t, c, topic, hub.Query{})
		case 2: // stopped amid reading
			live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
			for p := range int32(4) {
				c.FollowTo(live, p, 0)
			}
			publish(t, c, topic, value("%d", n))
		case 3: // stopped amid history and publishing
			go func() { _, _, _ = c.ReadAt(t.Context(), hub.ChunkID{Topic: topic}, 100, 100, nil) }()
			go func() { _, _ = c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("v")}) }()
			time.Sleep(time.Duration(n) * time.Millisecond)
		}
		stop()
		if d := time.Since(began); d > patience/2 {
			t.Errorf("cycle %d took %v", n, d)
		}
		if _, err := c.Resolve(t.Context(), topic, hub.Query{}); !errors.Is(err, hub.ErrDraining) {
			t.Errorf("resolve after the end: got %v", err)
		}
		c.FollowTo(newRecorder(t, hub.Resolved{}, topic), 0, 0)() // returns
	}
}
