package hub_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// bare is a Source without a log: the benchmark appends for itself, and every partition has depth records of history.
type bare struct {
	count int32
	depth int64
	mu    sync.Mutex
	topic *hub.Topic
}

func (b *bare) Resolve(_ context.Context, _ string, q hub.Query) (hub.Resolved, error) {
	r := hub.Resolved{TopicID: "id", Count: b.count}
	start := b.depth
	if q.Start.Kind == hub.Earliest {
		start = 0
	}
	for p := range b.count {
		r.Partitions = append(r.Partitions, hub.ResolvedPartition{Partition: p, Start: start, End: b.depth})
	}
	return r, nil
}

func (b *bare) Follow(t *hub.Topic, _ int32, _ int64) func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topic = t
	return func() {}
}

func (b *bare) ReadAt(_ context.Context, c hub.ChunkID, to int64, most int, _ *hub.Terms) ([]*hub.Entry, int64, error) {
	n := min(int64(most), to-c.From)
	return []*hub.Entry{filled(c.Partition, c.From, int(n), noKey)}, c.From + n, nil
}

func (b *bare) FiltersHistory() bool { return false }

// quiet is a Waker that does nothing.
type quiet struct{ _ byte }

func (*quiet) Moved(*hub.Topic) {}
func (*quiet) Ready(uint64)     {}

// begun returns a running hub over a bare source.
func begun(b *testing.B, count int32) (*hub.Hub, *bare) {
	b.Helper()
	src := &bare{count: count}
	h := hub.New(src, hub.Config{MemoryBudget: 64 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
	return h, src
}

const recordBytes = 160

// filled returns an entry of n records from an offset on; keys gives each its key, "" none.
func filled(partition int32, from int64, n int, key func(i int) string) *hub.Entry {
	e := &hub.Entry{Kind: hub.Records, Partition: partition, From: from, Next: from + int64(n), End: from + int64(n)}
	e.Body = make([]byte, n*recordBytes)
	e.Meta = make([]hub.Meta, n)
	for i := range n {
		piece := e.Body[i*recordBytes : (i+1)*recordBytes]
		piece[0] = 0x12
		binary.PutUvarint(piece[1:], recordBytes-3)
		m := hub.Meta{Offset: from + int64(i), End: int32((i + 1) * recordBytes), Key: -1}
		if k := key(i); k != "" {
			m.Key, m.KeyLen = int32(i*recordBytes+10), int32(copy(piece[10:], k))
		}
		e.Meta[i] = m
	}
	return e
}

func noKey(int) string { return "" }

// BenchmarkAppend is the price of a record at the writer, with one subscription to the whole topic.
func BenchmarkAppend(b *testing.B) {
	for _, c := range []struct {
		name             string
		entries, records int
	}{
		{"one record", 1, 1},
		{"batch of 100 entries", 100, 1},
		{"entry of 100 records", 1, 100},
	} {
		b.Run(c.name, func(b *testing.B) {
			h, src := begun(b, 8)
			s, err := h.Subscribe(b.Context(), hub.Request{Topic: "t"}, new(quiet), 0)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			const appends = 100 // timed at a time, so that making entries isn't
			batches := make([][]*hub.Entry, appends)
			var clock stopwatch
			for next := int64(0); b.Loop(); {
				for n := range batches {
					batches[n] = make([]*hub.Entry, c.entries)
					for i := range batches[n] {
						batches[n][i] = filled(0, next, c.records, noKey)
						next += int64(c.records)
					}
				}
				clock.start()
				for _, batch := range batches {
					src.topic.Append(batch...)
				}
				clock.stop()
			}
			clock.report(b, appends*c.entries*c.records)
		})
	}
}

// stopwatch measures the process's CPU time in a part of each round: Benchmark's own timer takes longer to stop than what is measured here,
// and wall time says little on a machine that does other things too.
type stopwatch struct {
	from, total time.Duration
}

func (s *stopwatch) start() { s.from = cpuTime() }
func (s *stopwatch) stop()  { s.total += cpuTime() - s.from }

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (s *stopwatch) report(b *testing.B, recordsPerRound int) {
	b.ReportMetric(float64(s.total.Nanoseconds())/float64(b.N*recordsPerRound), "cpu-ns/record")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkKeyed is a keyed record's way in and out among many keyed readers: the price must not grow with their number.
func BenchmarkKeyed(b *testing.B) {
	for _, readers := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("%d readers", readers), func(b *testing.B) {
			h, src := begun(b, 8)
			keys := make([]string, readers)
			subs := make([]*hub.Subscription, readers)
			for i := range subs {
				keys[i] = fmt.Sprintf("key-%d", i)
				s, err := h.Subscribe(b.Context(), hub.Request{Topic: "t", Keys: [][]byte{[]byte(keys[i])}, KeyScope: hub.KeyScopeAll}, new(quiet), 0)
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				_, _ = s.Pull(1 << 20) // caught up
				subs[i] = s
			}
			const records = 100
			next, got, n := int64(0), 0, 0
			var clock stopwatch
			for b.Loop() {
				e := filled(0, next, records, func(i int) string { return keys[(n*records+i)%readers] })
				next += records
				clock.start()
				src.topic.Append(e)
				for i := range min(records, readers) {
					batch, err := subs[(n*records+i)%readers].Pull(1 << 20)
					if err != nil {
						b.Fatal(err)
					}
					got += batch.Records
				}
				clock.stop()
				n++
			}
			if got != n*records {
				b.Fatalf("%d records came out, want %d", got, n*records)
			}
			clock.report(b, records)
		})
	}
}

// BenchmarkPull is one subscription to a whole topic that follows the writer.
func BenchmarkPull(b *testing.B) {
	h, src := begun(b, 8)
	s, err := h.Subscribe(b.Context(), hub.Request{Topic: "t"}, new(quiet), 0)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	const entries = 100
	batch := make([]*hub.Entry, entries)
	var clock stopwatch
	for next := int64(0); b.Loop(); {
		for i := range batch {
			batch[i] = filled(int32(i%8), next, 1, noKey)
			if i%8 == 7 {
				next++
			}
		}
		src.topic.Append(batch...)
		clock.start()
		for {
			got, err := s.Pull(256 << 10)
			if err != nil {
				b.Fatal(err)
			}
			if len(got.Parts) == 0 {
				break
			}
		}
		clock.stop()
	}
	clock.report(b, entries)
}

// BenchmarkReplay is a million records of history, by partitions, to one subscription that waits for its Waker.
func BenchmarkReplay(b *testing.B) {
	const all = 1_000_000
	for _, partitions := range []int32{1, 8, 400} {
		b.Run(fmt.Sprintf("%d partitions", partitions), func(b *testing.B) {
			h, src := begun(b, partitions)
			src.depth = all / int64(partitions)
			var wall time.Duration
			var clock stopwatch
			for b.Loop() {
				w := newSignal()
				began := time.Now()
				clock.start()
				s, err := h.Subscribe(b.Context(), hub.Request{Topic: fmt.Sprintf("t%d", b.N), Start: hub.Start{Kind: hub.Earliest}}, w, 0)
				if err != nil {
					b.Fatal(err)
				}
				for got := 0; got < all; {
					batch, err := s.Pull(256 << 10)
					if err != nil {
						b.Fatal(err)
					}
					if got += batch.Records; len(batch.Parts) == 0 && !batch.CaughtUp {
						<-w
					}
				}
				clock.stop()
				wall += time.Since(began)
				s.Close()
			}
			clock.report(b, all)
			b.ReportMetric(float64(b.N)*all/wall.Seconds(), "records/s")
		})
	}
}
