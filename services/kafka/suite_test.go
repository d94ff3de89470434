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
	"starts at the last records":                    testLast,
	"starts at times":                               testTimes,
	"unknown topics are refused at once":            testUnknownTopics,
	"records are deleted under a reader":            testDeletedUnderAReader,
	"deleted records are a gap":                     testRetentionGap,
	"history tells what is out of range":            testHistoryOutOfRange,
	"a position beyond the log is truncation":       testBeyondTheEnd,
	"new partitions are told":                       testGrowth,
	"a deleted topic is told":                       testDeletion,
	"partitions are followed and left in any order": testFollowAndLeave,
	"400 partitions":                                testManyPartitions,
	"history equals the log":                        testHistory,
	"one history reader serves many partitions":     testOneHistoryReader,
	"history readers give up what is not wanted":    testHistoryCancel,
	"publish results":                               testPublishResults,
	"publish keeps order":                           testPublishOrder,
	"publish to partitions just added":              testPublishGrowth,
	"keys lie where the Java client puts them":      testPartitioner,
	"keys lie where librdkafka puts them":           testPartitioners,
	"topics are described":                          testTopics,
	"subscribers of a hub get the log":              testHub,
	"a transaction that is left open is named":      testHeldPartition,
	"misplaced keys are named":                      testMisplacedKeys,
	"a stopped partition is fetched again":          testStoppedPartition,
	"clients start and stop":                        testStartStop,
}

func TestEmbedded(t *testing.T) {
	runAll(t, func(t *testing.T) *kafkatest.Cluster { return kafkatest.StartEmbedded(t) })
}

func TestReal(t *testing.T) {
	runAll(t, func(t *testing.T) *kafkatest.Cluster { return kafkatest.Start(t) })
	// What the embedded broker cannot do, or does otherwise.
	for name, behaviour := range map[string]func(*testing.T, *kafkatest.Cluster){
		"times of the broker are left out": testAppendTime,
		"a flood of one caller":            testFlood,
		"publish too large among others":   testTooLargeAmongOthers,
		"publish to a compacted topic":     testCompacted,
		"a topic created anew is told":     testRecreation,
		"a topic comes back in time":       testBackInTime,
		"no consumer for a topic anew":     testRecreationWithoutAConsumer,
		"readers of a topic created anew":  testRecreationInAHub,
		"compaction leaves holes":          testCompaction,
		"retention overtakes a reader":     testRetentionUnderAReader,
		"searches are bounded":             testLastIsBounded,
	} {
		t.Run(name, func(t *testing.T) { behaviour(t, kafkatest.Start(t)) })
	}
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

func deleteBefore(t *testing.T, cluster *kafkatest.Cluster, topic string, partition int32, offset int64) {
	t.Helper()
	r, err := cluster.Admin(t).DeleteRecords(t.Context(), kadm.Offsets{topic: {partition: {Topic: topic, Partition: partition, At: offset}}})
	if err = errors.Join(err, r.Error()); err != nil {
		t.Fatal(err)
	}
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
			<-time.After(time.Duration(n) * time.Millisecond)
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
