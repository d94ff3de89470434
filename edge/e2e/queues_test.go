package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestQueuesBesideBroadcast follows one topic with very many sockets and some gRPC streams while three groups work on it, in one service process: each
// subscriber gets the whole log once, each group each record once, and the broker sends every byte once for all subscribers and once for each group.
func TestQueuesBesideBroadcast(t *testing.T) {
	const partitions, groups, workers, streams, burst, valueSize = 4, 3, 3, 10, 40, 2000
	sockets, strictly, bursts := size(300, 1000), size(10, 50), size(8, 50)
	kafka := startCounted(t)
	j := newJudge(t, kafka.direct)
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka.through})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	teams := make([]*team, groups)
	for i := range teams {
		teams[i] = startTeam(t, p, teamOptions{workers: workers, group: fmt.Sprintf("%s-%d", topic, i), topic: topic, inFlight: 100})
	}
	crowd := newCrowd(ctx, t, p, topic, strictly, map[string]any{"start": "earliest"})
	listeners := make([]*listener, sockets-strictly)
	for i := range listeners {
		listeners[i] = listen(ctx, t, p, topic, partitions, i == 0)
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	life, leave := context.WithCancel(ctx)
	defer leave()
	readers := make([]*reader, streams)
	subscribe := subscribers(t, p.rpc)["grpc"]
	for i := range readers {
		r := newReader(topic, false)
		s, err := subscribe(life, r.request(earliest()))
		if err != nil {
			t.Fatal(err)
		}
		readers[i] = r
		reading.Go(func() {
			if err := r.follow(s, func() bool { return life.Err() != nil }); life.Err() == nil {
				t.Errorf("a gRPC subscriber: %v", err)
			}
		})
		await(t, time.Minute, "start of a gRPC subscriber", r.isStarted)
	}
	for _, c := range teams {
		await(t, time.Minute, "partitions of group "+c.o.group, func() bool {
			assigned, found := tryMetric(t, p.rpcOps, "tailrace_group_partitions", `group="`+c.o.group+`"`)
			return found && assigned == partitions
		})
	}

	sent := kafka.sent.Load()
	random := make([]byte, valueSize*3/4)
	for n := range bursts {
		records := make([]*kgo.Record, burst)
		for i := range records {
			rand.Read(random) // it must not compress: the broker's answers have a size of their own
			records[i] = mixed(topic, int32(i%partitions), int64(n*burst+i), base64.RawURLEncoding.EncodeToString(random))
		}
		j.write(records...)
		pause(ctx, burst*time.Second/time.Duration(rateFor(sockets)))
	}
	ends := j.ends(topic)
	crowd.awaitEnds(5*time.Minute, ends)
	for i, l := range listeners {
		if !eventually(ctx, 5*time.Minute, func() bool { return l.why() != nil || l.reached(ends) }) || l.why() != nil {
			t.Fatalf("socket %d is at %v of %v: %v", i, l.positions(), ends, l.why())
		}
	}
	for _, c := range teams {
		c.await("records", bursts*burst)
		j.awaitCommitted(c.o.group, topic)
	}
	for _, r := range readers {
		await(t, time.Minute, "the end at a gRPC subscriber", func() bool { return r.reached(ends) })
	}
	fetched := kafka.since(sent)

	log := j.read(topic, false)
	crowd.verify(log)
	for p, end := range ends {
		if held := len(log.marks[p]); int64(held) != end {
			t.Fatalf("partition %d has %d records and ends at %d: listeners have counted offsets that there are not", p, held, end)
		}
	}
	if d := listeners[0].tape(t, topic).diff(log); d != "" {
		t.Errorf("a socket did not get the log:\n%s", d)
	}
	for i, l := range listeners {
		for p := range l.sum {
			if l.sum[p].Load() != listeners[0].sum[p].Load() {
				t.Errorf("socket %d did not get the same bytes of partition %d as the first", i, p)
			}
		}
	}
	for i, r := range readers {
		if err := r.verify(log); err != nil {
			t.Errorf("gRPC subscriber %d: %v", i, err)
		}
	}
	for _, c := range teams {
		if d := c.tape().diff(log); d != "" {
			t.Errorf("group %s did not work on each record of the log once:\n%s", c.o.group, d)
		}
	}
	stored := j.bytes(topic)
	if most := stored * (1 + groups) * 1.1; fetched > most {
		t.Errorf("the broker sent %.2f MB for a topic of %.2f MB, want at most %.2f", fetched, stored, most)
	}
	proof(t, "%d sockets, %d gRPC streams and %d groups of %d workers on one topic: each subscriber got the %d records of the log once and in order, each group acknowledged each once; "+
		"the broker sent %.2f MB for %.2f MB in the log, %.2f for each of the %d readers that there have to be",
		sockets, streams, groups, workers, log.count(), fetched, stored, fetched/stored/(1+groups), 1+groups)
}

// listener is a socket that reads no more of its records than where they lie, which has to be each offset of the log, in order; of the rest it keeps a
// sum, which has to be that of a listener whose records are compared with the log.
type listener struct {
	next   []atomic.Int64  // by partition
	sum    []atomic.Uint64 // likewise
	keeps  bool
	kept   [][]byte // JSON of records, from behind their partition's name; until it has reached the end
	failed atomic.Pointer[error]
}

// listen follows a topic from its start, by a socket that ends with the test.
func listen(ctx context.Context, t *testing.T, p *pair, topic string, partitions int, keeps bool) *listener {
	t.Helper()
	s, err := dialSocket(ctx, p.ws, "/ws/"+topic+"?start=earliest", dialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{next: make([]atomic.Int64, partitions), sum: make([]atomic.Uint64, partitions), keeps: keeps}
	ended := make(chan struct{})
	started := make(chan struct{})
	t.Cleanup(func() { s.abort(true); <-ended })
	go func() {
		defer close(ended)
		begin := sync.OnceFunc(func() { close(started) })
		for {
			_, message, err := s.next()
			if err == nil && bytes.HasPrefix(message, []byte(`{"op":"started"`)) {
				begin()
			}
			if err == nil {
				err = l.take(message)
			}
			if err != nil {
				l.failed.Store(&err)
				begin()
				return
			}
		}
	}()
	<-started
	return l
}

// take looks for the partition and the offset of each record: they come in this order, and nowhere else in a frame of these records.
func (l *listener) take(message []byte) error {
	if !bytes.HasPrefix(message, []byte(`{"op":"records"`)) {
		if bytes.HasPrefix(message, []byte(`{"op":"gap"`)) || bytes.HasPrefix(message, []byte(`{"op":"error"`)) {
			return fmt.Errorf("a socket got %s", message)
		}
		return nil
	}
	end := bytes.LastIndex(message, []byte(`}]`)) // of the records: behind them are positions at most, which have none
	_, message, found := bytes.Cut(message[:max(end, 0)], partitionName)
	for found {
		var text []byte
		text, message, found = bytes.Cut(message, partitionName)
		if found {
			text = text[:max(0, bytes.LastIndex(text, []byte(`},{"topic":`)))]
		}
		var partition int
		var offset int64
		if _, err := fmt.Sscanf(string(text[:min(len(text), 64)]), `%d,"offset":%d`, &partition, &offset); err != nil || partition >= len(l.next) {
			return fmt.Errorf("a record that begins with %.64s: %w", text, err)
		}
		if want := l.next[partition].Load(); offset != want {
			return fmt.Errorf("partition %d goes on with offset %d, want %d", partition, offset, want)
		}
		l.sum[partition].Store(bits.RotateLeft64(l.sum[partition].Load(), 1) ^ maphash.Bytes(seed, text))
		if l.keeps {
			l.kept = append(l.kept, bytes.Clone(text))
		}
		l.next[partition].Add(1)
	}
	return nil
}

var partitionName = []byte(`"partition":`)

// tape is what it has kept.
func (l *listener) tape(t *testing.T, topic string) *tape {
	t.Helper()
	got := newTape(false)
	for _, text := range l.kept {
		var r recordJSON
		err := strict(fmt.Appendf(nil, `{"topic":%q,"partition":%s}`, topic, text), &r)
		if err == nil {
			var rec *record
			if rec, _, err = r.decode(); err == nil {
				got.add(rec)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return got
}

// why is what ended it, if anything has.
func (l *listener) why() error {
	if err := l.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (l *listener) positions() (at []int64) {
	for p := range l.next {
		at = append(at, l.next[p].Load())
	}
	return at
}

func (l *listener) reached(ends map[int32]int64) bool {
	for p, end := range ends {
		if l.next[p].Load() < end {
			return false
		}
	}
	return true
}

// bytes is what the records of a topic take in the log, in megabytes.
func (j *judge) bytes(topic string) float64 {
	j.t.Helper()
	dirs, err := j.admin.DescribeAllLogDirs(j.t.Context(), nil)
	if err != nil {
		j.t.Fatal(err)
	}
	n := int64(0)
	for _, d := range dirs.Sorted() {
		if d.Err != nil {
			j.t.Fatal(d.Err)
		}
		for _, p := range d.Topics[topic] {
			n += p.Size
		}
	}
	return float64(n) / 1e6
}
