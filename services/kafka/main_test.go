package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// discard is a logger for what is not of interest.
var discard = slog.New(slog.DiscardHandler)

// patience is for what ought to come soon, on a machine that is busy with other things.
const patience = 60 * time.Second

// eventually waits until ok; what says what was waited for.
func eventually(t testing.TB, ok func() bool, what string, args ...any) {
	t.Helper()
	for until := time.Now().Add(patience); !ok(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within %v: %s", patience, fmt.Sprintf(what, args...))
		}
	}
}

// newClient runs a client until the test ends, and checks that it then ends soon.
func newClient(t testing.TB, cluster *kafkatest.Cluster, change ...func(*kafka.Config)) *kafka.Client {
	t.Helper()
	c, stop := startClient(t, cluster, change...)
	t.Cleanup(stop)
	return c
}

func startClient(t testing.TB, cluster *kafkatest.Cluster, change ...func(*kafka.Config)) (*kafka.Client, func()) {
	t.Helper()
	return startLogging(t, cluster, testWriter{t}, change...)
}

func startLogging(t testing.TB, cluster *kafkatest.Cluster, to io.Writer, change ...func(*kafka.Config)) (*kafka.Client, func()) {
	t.Helper()
	cfg := kafka.DefaultConfig()
	cfg.Bootstrap = cluster.Bootstrap
	cfg.WatchInterval = 200 * time.Millisecond
	cfg.DeletedAfter = time.Second
	for _, do := range change {
		do(&cfg)
	}
	level := slog.LevelInfo
	if cfg.Properties["debug"] != "" {
		level = slog.LevelDebug
	}
	logger := slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}))
	c, err := kafka.New(cfg, logger, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // the test's own ends before its cleanups
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return c, func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Fatal("Run does not end")
		}
	}
}

// testWriter makes log lines part of the test's output.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// warnings keeps the log lines of a client.
type warnings struct {
	testWriter
	mu    sync.Mutex
	lines []string
}

func (w *warnings) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.lines = append(w.lines, string(p))
	w.mu.Unlock()
	return w.testWriter.Write(p)
}

// with counts the lines that contain all of these.
func (w *warnings) with(parts ...string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.lines {
		has := true
		for _, p := range parts {
			has = has && strings.Contains(l, p)
		}
		if has {
			n++
		}
	}
	return n
}

// newLogged is newClient with a log to look at.
func newLogged(t testing.TB, cluster *kafkatest.Cluster, change ...func(*kafka.Config)) (*kafka.Client, *warnings) {
	t.Helper()
	w := &warnings{testWriter: testWriter{t}}
	c, stop := startLogging(t, cluster, w, change...)
	t.Cleanup(stop)
	return c, w
}

// recorder stands in for a hub.Topic and checks what any source owes it: each partition's entries follow each other without a seam.
type recorder struct {
	t     testing.TB
	name  string
	id    string
	count int32

	mu       sync.Mutex
	next     map[int32]int64
	end      map[int32]int64
	records  map[int32][]*tailracev1.Record
	controls []*hub.Entry // all but Records and Advance
}

func newRecorder(t testing.TB, r hub.Resolved, topic string) *recorder {
	return &recorder{t: t, name: topic, id: r.TopicID, count: r.Count,
		next: map[int32]int64{}, end: map[int32]int64{}, records: map[int32][]*tailracev1.Record{}}
}

func (r *recorder) Name() string { return r.name }
func (r *recorder) ID() string   { return r.id }
func (r *recorder) Count() int32 { return r.count }

func (r *recorder) Append(batch ...*hub.Entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range batch {
		if at, ok := r.next[e.Partition]; ok && e.Partition >= 0 && e.From != at {
			r.t.Errorf("partition %d: entry %d from %d, want from %d", e.Partition, e.Kind, e.From, at)
		}
		if e.Kind != hub.Records && e.Kind != hub.Advance {
			r.controls = append(r.controls, e)
		} else if e.End < e.Next {
			r.t.Errorf("partition %d: end %d is below next %d", e.Partition, e.End, e.Next)
		}
		if e.Partition >= 0 {
			r.next[e.Partition], r.end[e.Partition] = e.Next, e.End
		}
		if e.Kind == hub.Records {
			r.records[e.Partition] = append(r.records[e.Partition], decode(r.t, e)...)
		}
	}
}

// follow follows a partition until the test ends.
func (r *recorder) follow(c *kafka.Client, partition int32, from int64) {
	r.mu.Lock()
	r.next[partition] = from
	r.mu.Unlock()
	r.t.Cleanup(c.FollowTo(r, partition, from))
}

func (r *recorder) position(partition int32) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next[partition]
}

func (r *recorder) got(partition int32) []*tailracev1.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*tailracev1.Record(nil), r.records[partition]...)
}

func (r *recorder) total() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, rs := range r.records {
		n += len(rs)
	}
	return n
}

// control returns the control entries of a kind.
func (r *recorder) control(kind hub.Kind) []*hub.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	var es []*hub.Entry
	for _, e := range r.controls {
		if e.Kind == kind {
			es = append(es, e)
		}
	}
	return es
}

// decode takes an entry's body apart as a reader would, and compares it with its meta.
func decode(t testing.TB, e *hub.Entry) []*tailracev1.Record {
	var b tailracev1.RecordBatch
	if err := proto.Unmarshal(e.Body, &b); err != nil {
		t.Errorf("decode body: %v", err)
		return nil
	}
	if len(b.Records) != len(e.Meta) || len(b.Records) == 0 {
		t.Errorf("got %d records, meta of %d", len(b.Records), len(e.Meta))
		return nil
	}
	last := e.From - 1
	for i, r := range b.Records {
		m := e.Meta[i]
		if r.Offset != m.Offset || m.Offset <= last || m.Offset >= e.Next {
			t.Errorf("record at %d, meta %d after %d in [%d, %d)", r.Offset, m.Offset, last, e.From, e.Next)
		}
		if string(r.Key) != string(e.KeyOf(i)) || (r.Key == nil) != (e.KeyOf(i) == nil) {
			t.Errorf("record at %d: key %q, meta says %q", r.Offset, r.Key, e.KeyOf(i))
		}
		last = m.Offset
	}
	return b.Records
}

// resolve asks where a topic stands.
func resolve(t testing.TB, c *kafka.Client, topic string, q hub.Query) hub.Resolved {
	t.Helper()
	r, err := c.Resolve(t.Context(), topic, q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// history reads [from, to) of a partition, chunk by chunk.
func history(t testing.TB, c *kafka.Client, id hub.ChunkID, to int64, limit int) []*tailracev1.Record {
	t.Helper()
	var out []*tailracev1.Record
	until := time.Now().Add(patience)
	for id.From < to {
		es, next, err := c.ReadAt(t.Context(), id, to, limit, nil)
		if errors.Is(err, hub.ErrUnavailable) && time.Now().Before(until) {
			continue // as the hub does: a busy machine may be silent for long
		}
		if err != nil {
			t.Fatalf("read at %d of [%d): %v", id.From, to, err)
		}
		if next <= id.From || next > to {
			t.Fatalf("read at %d: next %d, want in (%d, %d]", id.From, next, id.From, to)
		}
		for _, e := range es {
			if e.From != id.From || e.Next != next {
				t.Errorf("read at %d to %d: entry covers [%d, %d)", id.From, next, e.From, e.Next)
			}
			out = append(out, decode(t, e)...)
		}
		id.From = next
	}
	return out
}

// text is a record in a form that is compared and printed: null and empty differ, times are left out.
func text(partition int32, offset int64, key, value []byte, headers []kgo.RecordHeader) string {
	quote := func(b []byte) string {
		switch {
		case b == nil:
			return "null"
		case len(b) > 100:
			return fmt.Sprintf("%d bytes, sum %x", len(b), sum(b))
		}
		return fmt.Sprintf("%q", b)
	}
	s := fmt.Sprintf("%d@%d %s=%s", partition, offset, quote(key), quote(value))
	for _, h := range headers {
		s += fmt.Sprintf(" %q:%s", h.Key, quote(h.Value))
	}
	return s
}

func sum(b []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

func ofOurs(r *tailracev1.Record) string {
	var hs []kgo.RecordHeader
	for _, h := range r.Headers {
		hs = append(hs, kgo.RecordHeader{Key: h.Name, Value: h.Value})
	}
	return text(r.Partition, r.Offset, r.Key, r.Value, hs)
}

func ofTheirs(r *kgo.Record) string { return text(r.Partition, r.Offset, r.Key, r.Value, r.Headers) }

func texts[R any](rs []R, of func(R) string) []string {
	out := make([]string, len(rs))
	for i, r := range rs {
		out[i] = of(r)
	}
	return out
}

// log reads a partition up to its end with the independent client.
func readLog(t testing.TB, cluster *kafkatest.Cluster, topic string, partition int32, to int64) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	k := cluster.Client(t, kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}))
	defer k.Close()
	var out []*kgo.Record
	for {
		fs := k.PollFetches(ctx)
		if err := fs.Err(); err != nil {
			t.Fatalf("read the log of %q partition %d: %v", topic, partition, err)
		}
		for _, r := range fs.Records() {
			if r.Attrs.IsControl() {
				if r.Offset == to-1 {
					return out
				}
				continue
			}
			out = append(out, r)
			if r.Offset == to-1 {
				return out
			}
		}
	}
}

// publish publishes and expects every record to be acknowledged.
func publish(t testing.TB, c *kafka.Client, topic string, rs ...*tailracev1.PublishRecord) []*tailracev1.Published {
	t.Helper()
	results, err := c.Publish(t.Context(), topic, rs)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]*tailracev1.Published, len(results))
	for i, r := range results {
		if out[i] = r.GetPublished(); out[i] == nil {
			t.Fatalf("record %d: %v", i, r.GetFailure())
		}
	}
	return out
}

// noise returns n bytes that do not compress.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(b)
	return b
}

func value(format string, args ...any) *tailracev1.PublishRecord {
	return &tailracev1.PublishRecord{Value: fmt.Appendf(nil, format, args...)}
}

func on(partition int32, r *tailracev1.PublishRecord) *tailracev1.PublishRecord {
	r.Partition = &partition
	return r
}
