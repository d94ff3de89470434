package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// lastOf is where the last n records with one of the keys begin (nil: any), and how many there are.
func lastOf(log []*kgo.Record, n int, keys [][]byte, end int64) (start int64, found int) {
	start = end
	for _, r := range slices.Backward(log) {
		if found == n {
			break
		}
		if keys == nil || r.Key != nil && slices.ContainsFunc(keys, func(k []byte) bool { return string(k) == string(r.Key) }) {
			start = r.Offset
			found++
		}
	}
	return start, found
}

// testLast compares the start at the last records with the log, which has holes: aborted transactions, markers and deleted records.
func testLast(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 3
	topic := cluster.NewTopic(t, partitions, nil)
	c := newClient(t, cluster)
	k := cluster.Client(t, kgo.DefaultProduceTopic(topic)) // its partitioner is that of the Java client
	tk := cluster.Client(t, kgo.DefaultProduceTopic(topic), kgo.TransactionalID(t.Name()))
	for round := range 6 {
		for i := range 400 {
			r := &kgo.Record{Key: fmt.Append(nil, i%(7+round)), Value: []byte("v")}
			switch {
			case i%11 == 0:
				r.Key = nil
			case i%13 == 0:
				r.Key = []byte{}
			}
			k.Produce(t.Context(), r, nil)
		}
		if err := k.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		transaction(t, tk, topic, 20, kgo.TryAbort)
		transaction(t, tk, topic, 5, kgo.TryCommit)
	}
	deleteBefore(t, cluster, topic, 1, 50)
	logs := map[int32][]*kgo.Record{}
	oldest := map[int32]int64{}
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		logs[p.Partition], oldest[p.Partition] = readLog(t, cluster, topic, p.Partition, p.End), p.Oldest
	}
	compare := func(n int, keys [][]byte, scope hub.KeyScope) {
		r := resolve(t, c, topic, hub.Query{Keys: keys, KeyScope: scope, Start: hub.Start{Kind: hub.Last, Last: n}})
		want := partitions
		if keys != nil && scope != hub.KeyScopeAll {
			in := map[int32]bool{}
			for _, key := range keys {
				in[hub.PartitionOf(key, partitions)] = true
			}
			want = len(in)
		}
		if len(r.Partitions) != want {
			t.Errorf("last %d of %q: got %d partitions, want %d", n, keys, len(r.Partitions), want)
		}
		for _, p := range r.Partitions {
			start, found := lastOf(logs[p.Partition], n, keys, p.End)
			// Where there are fewer, any start down to the oldest offset has them all.
			if p.Start != start && (found == n || p.Start > start || p.Start < oldest[p.Partition]) || p.Incomplete {
				t.Errorf("last %d of %q in partition %d: got %d, incomplete %v; want %d (%d records)", n, keys, p.Partition, p.Start, p.Incomplete, start, found)
			}
		}
	}
	c.SearchMemory(2000) // less than for one of the partitions
	compare(10, [][]byte{[]byte("3"), []byte("4"), []byte("5"), []byte("6")}, hub.KeyScopeAll)
	compare(300, nil, hub.KeyScopeDefault)
	if n := c.SearchMemory(1 << 20); n > 12*2000 {
		t.Errorf("searches keep %d bytes, want no more than of one partition", n)
	}
	var both sync.WaitGroup
	for _, keys := range [][][]byte{nil, {[]byte("3")}, {[]byte("11")}, {{}}, {[]byte("0"), []byte("5"), []byte("none")}, {[]byte("none")}} {
		for _, n := range []int{1, 2, 10, 150, 500, 100_000} {
			for _, scope := range []hub.KeyScope{hub.KeyScopeDefault, hub.KeyScopeAll} {
				both.Go(func() { compare(n, keys, scope) })
			}
		}
	}
	both.Wait()
	// What was remembered goes on from there.
	for i := range 30 {
		if err := k.ProduceSync(t.Context(), &kgo.Record{Key: fmt.Append(nil, i%7), Value: []byte("new")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		logs[p.Partition] = readLog(t, cluster, topic, p.Partition, p.End)
	}
	compare(3, [][]byte{[]byte("3")}, hub.KeyScopeDefault)
	compare(400, nil, hub.KeyScopeDefault)

	// Through a hub: exactly the n newest arrive, then what comes.
	h := newHub(t, c, 8<<20)
	key := []byte("3")
	at := hub.PartitionOf(key, partitions)
	v := subscribe(t, h, hub.Request{Topic: topic, Keys: [][]byte{key}, Start: hub.Start{Kind: hub.Last, Last: 4}})
	if err := k.ProduceSync(t.Context(), &kgo.Record{Key: key, Value: []byte("live")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return len(v.got(at)) >= 5 }, "four records and a live one")
	var want []string
	for _, r := range logs[at] {
		if string(r.Key) == "3" {
			want = append(want, ofTheirs(r))
		}
	}
	if got := texts(v.got(at), ofOurs); !slices.Equal(got[:4], want[len(want)-4:]) {
		t.Errorf("got %v, want %v and one more", got, want[len(want)-4:])
	}
}

// testLastIsBounded: a key that is nowhere is looked for in 100,000 offsets, however many ask for how many such keys, and by then all records have
// been read once.
func testLastIsBounded(t *testing.T, cluster *kafkatest.Cluster) {
	const records, asking = 130_000, 300
	topic := cluster.NewTopic(t, 1, nil)
	k := cluster.Client(t, kgo.DefaultProduceTopic(topic), kgo.MaxBufferedRecords(20_000))
	for i := range records {
		k.Produce(t.Context(), &kgo.Record{Key: fmt.Append(nil, i), Value: []byte("v")}, nil)
	}
	if err := k.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := newClient(t, cluster, func(cfg *kafka.Config) { cfg.HistoryReaders = 2 })
	ask := func(key string) hub.ResolvedPartition {
		t.Helper()
		for { // on a busy machine the time may be up before the offsets are, or before it is its turn
			began := time.Now()
			r := resolve(t, c, topic, hub.Query{Keys: [][]byte{[]byte(key)}, Start: hub.Start{Kind: hub.Last, Last: 10}})
			if time.Since(began) < kafka.SearchTime || t.Context().Err() != nil {
				return r.Partitions[0]
			}
		}
	}
	began := time.Now()
	if p := ask("nowhere"); p.Start != records || !p.Incomplete {
		t.Errorf("a key that is nowhere: got %+v, want the end, incomplete", p)
	}
	t.Logf("searched 100,000 offsets in %v", time.Since(began))
	if p := ask("20"); p.Start != records || !p.Incomplete { // it is in the log, too far back
		t.Errorf("a key too far back: got %+v, want the end, incomplete", p)
	}
	began = time.Now()
	var all sync.WaitGroup
	for i := range asking {
		all.Go(func() {
			at := records - 1 - i*300
			if p := ask(fmt.Sprint(at)); p.Start != int64(at) || !p.Incomplete {
				t.Errorf("key %d: got %+v", at, p)
			}
		})
	}
	all.Wait()
	t.Logf("%d more keys in %v", asking, time.Since(began))
	if n := c.HistoryRecords(); n > 150_000 {
		t.Errorf("read %d records for %d searches in one partition, want each about once", n, asking+2)
	}
}

// testTimes: the broker's rule, the first offset with a time at or after it. Times that go backwards, and records that are not committed yet,
// do not change it.
func testTimes(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	base := time.UnixMilli(1_700_000_000_000)
	k := cluster.Client(t, kgo.DefaultProduceTopic(topic))
	for _, s := range []int{0, 10, 5, 20} {
		if err := k.ProduceSync(t.Context(), &kgo.Record{Value: []byte("v"), Timestamp: base.Add(time.Duration(s) * time.Second)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	tk := cluster.Client(t, kgo.DefaultProduceTopic(topic), kgo.TransactionalID(t.Name()))
	if err := tk.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := tk.ProduceSync(t.Context(), &kgo.Record{Value: []byte("open"), Timestamp: base.Add(time.Minute)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for s, want := range map[int]int64{-5: 0, 0: 0, 1: 1, 5: 1, 10: 1, 11: 3, 20: 3, 21: 4, 60: 4, 600: 4} {
		r := resolve(t, c, topic, hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(time.Duration(s) * time.Second)}})
		if p := r.Partitions[0]; p.Start != want || p.End != 4 {
			t.Errorf("%d s: got start %d, end %d; want %d, 4 (an open transaction)", s, p.Start, p.End, want)
		}
	}
	if err := tk.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		r, err := c.Resolve(t.Context(), topic, hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(time.Minute)}})
		return errors.Join(err) == nil && r.Partitions[0].Start == 4 && r.Partitions[0].End == 6
	}, "the committed record is found by its time")
}
