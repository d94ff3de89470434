package hub_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// bubble runs a hub over a source that delivers by itself, in a synctest bubble.
func bubble(t *testing.T, cfg hub.Config, do func(t *testing.T, h *hub.Hub, src *hubtest.Source)) {
	t.Helper()
	bubbleOver(t, hubtest.New, cfg, do)
}

// bubbleOver is bubble over another source.
func bubbleOver(t *testing.T, source func() *hubtest.Source, cfg hub.Config, do func(t *testing.T, h *hub.Hub, src *hubtest.Source)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		src := source()
		h := hub.New(src, cfg)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		defer func() { // also where do ends the test
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
			for _, v := range src.Violations() {
				t.Errorf("the hub broke the source's contract: %s", v)
			}
		}()
		synctest.Wait()
		do(t, h, src)
	})
}

// signal is a Waker of one slot.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) Moved(*hub.Topic) { s.set() }
func (s signal) Ready(uint64)     { s.set() }

func (s signal) set() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// records appends n records to a partition.
func records(src *hubtest.Source, topic string, partition int32, n int) {
	rs := make([]hubtest.Record, n)
	for i := range rs {
		rs[i] = hubtest.Text(fmt.Sprintf("key-%d", i%10), "value")
	}
	src.Append(topic, partition, rs...)
}

// subscribe subscribes, and closes at the end of the test at the latest.
func subscribe(t *testing.T, h *hub.Hub, r hub.Request, w hub.Waker) *hub.Subscription {
	t.Helper()
	s, err := h.Subscribe(t.Context(), r, w, 1)
	if err != nil {
		t.Fatalf("subscribe: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// drainTo pulls, woken by w, until want records came, and returns how many came in which partition.
func drainTo(t *testing.T, s *hub.Subscription, w signal, want int) map[int32]int {
	t.Helper()
	deadline := time.After(time.Minute)
	got, sum := map[int32]int{}, 0
	for {
		b, err := s.Pull(256 << 10)
		if err != nil {
			t.Fatalf("pull after %d of %d records: %v", sum, want, err)
		}
		for i := range b.Parts {
			got[b.Parts[i].Partition] += b.Parts[i].Hi - b.Parts[i].Lo
		}
		if sum += b.Records; sum >= want {
			return got
		}
		if len(b.Parts) > 0 || b.CaughtUp {
			continue
		}
		select {
		case <-w:
		case <-deadline:
			t.Fatalf("got %d records, want %d", sum, want)
		}
	}
}

func earliest(topic string) hub.Request {
	return hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}}
}

// TestLinger: a partition is followed for the linger after its last subscription; then nothing is left of the topic.
func TestLinger(t *testing.T) {
	bubble(t, hub.Config{Linger: 5 * time.Second}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 2)
		whole := subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		one := subscribe(t, h, hub.Request{Topic: "a", Partitions: []int32{1}}, newSignal())
		records(src, "a", 0, 10)
		synctest.Wait()
		whole.Close()
		time.Sleep(4 * time.Second)
		if got := src.Counts().Following; got != 2 {
			t.Errorf("%d followed during the linger, want 2", got)
		}
		subscribe(t, h, hub.Request{Topic: "a"}, newSignal()).Close()
		time.Sleep(4 * time.Second)
		if got := src.Counts(); got.Following != 2 || got.Follows != 2 {
			t.Errorf("%d followed by %d calls, want 2 by 2: somebody came back", got.Following, got.Follows)
		}
		time.Sleep(3 * time.Second)
		if got := src.Following("a"); len(got) != 1 || got[0] != 1 {
			t.Errorf("followed after the linger: %v, want [1]", got)
		}
		one.Close()
		time.Sleep(7 * time.Second)
		if got, want := h.Stats(), (hub.Stats{}); got != want {
			t.Errorf("left: %+v", got)
		}
	})
}

// TestRetain: the ring gives up what is older than the retention, and a reader that stood still gets it from history.
func TestRetain(t *testing.T) {
	bubble(t, hub.Config{Retain: 8 * time.Second}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a"}, w)
		records(src, "a", 0, 100)
		time.Sleep(6 * time.Second)
		if h.Stats().RingBytes == 0 {
			t.Error("the ring is empty before the retention")
		}
		time.Sleep(6 * time.Second)
		if got := h.Stats().RingBytes; got != 0 {
			t.Errorf("the ring holds %d bytes after the retention", got)
		}
		records(src, "a", 0, 100)
		drainTo(t, s, w, 200)
		// One for what the ring gave up, and at most one more: reading ahead may ask for what was appended meanwhile.
		if got := src.Counts().Reads; got < 1 || got > 2 {
			t.Errorf("%d reads, want 1 or 2", got)
		}
	})
}

// TestBudget: rings and chunks stay within the budget, and slow readers lose nothing by it.
func TestBudget(t *testing.T) {
	const budget = 1 << 20
	bubble(t, hub.Config{MemoryBudget: budget}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.SetShape(hubtest.Shape{EntryRecords: 10})
		src.CreateTopic("a", 4)
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a"}, w)
		for range 50 {
			for p := range int32(4) {
				records(src, "a", p, 200)
			}
			synctest.Wait()
			if st := h.Stats(); st.RingBytes+st.ChunkBytes+st.FormBytes > budget {
				t.Fatalf("over the budget: %+v", st)
			}
		}
		drainTo(t, s, w, 50*4*200)
	})
}

// TestTermsLinger: a key's log outlives its last reader for the retention, and is forgotten then.
func TestTermsLinger(t *testing.T) {
	bubble(t, hub.Config{Retain: 8 * time.Second}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		whole := subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		s := subscribe(t, h, hub.Request{Topic: "a", Keys: [][]byte{[]byte("key-3")}}, newSignal())
		records(src, "a", 0, 100)
		synctest.Wait()
		if got := whole.Topic().Refs("key-3"); got != 10 {
			t.Errorf("%d refs, want 10", got)
		}
		s.Close()
		time.Sleep(5 * time.Second)
		if got := whole.Topic().Terms(); got != 1 {
			t.Errorf("%d terms during the retention, want 1", got)
		}
		time.Sleep(6 * time.Second)
		if got := whole.Topic().Terms(); got != 0 {
			t.Errorf("%d terms after the retention, want 0", got)
		}
	})
}

// TestKeyedReaderIsNotEvictedByOthers: what others write does not send an idle keyed reader to history.
func TestKeyedReaderIsNotEvictedByOthers(t *testing.T) {
	bubble(t, hub.Config{MemoryBudget: 256 << 10}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.SetShape(hubtest.Shape{EntryRecords: 10})
		src.CreateTopic("a", 1)
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a", Keys: [][]byte{[]byte("mine")}}, w)
		for range 20 {
			records(src, "a", 0, 1000)
			synctest.Wait()
		}
		src.Append("a", 0, hubtest.Text("mine", "v"))
		drainTo(t, s, w, 1)
		if got := src.Counts().Reads; got != 0 {
			t.Errorf("%d reads, want 0", got)
		}
		for range 20 {
			records(src, "a", 0, 1000)
			synctest.Wait()
		}
		moved := s.Moved(nil)
		if len(moved) != 1 || moved[0].Offset != 40_001 {
			t.Errorf("moved to %v, want 40001", moved)
		}
		if pinned, head := s.Pinned(), s.Topic().Head(); pinned+2000 < head {
			t.Errorf("keeps the index at %d, the head is %d", pinned, head)
		}
	})
}

// TestLatestWaitsForAnUnavailablePartition: a stale ring is no start; after the wait the answer is ErrUnavailable.
func TestLatestWaitsForAnUnavailablePartition(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		first := subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		src.SetUnavailable("a", 0, true)
		synctest.Wait()
		if got := first.Unavailable(nil); len(got) != 1 {
			t.Errorf("unavailable: %v, want [0]", got)
		}
		began := time.Now()
		_, err := h.Subscribe(t.Context(), hub.Request{Topic: "a"}, newSignal(), 0)
		if took := time.Since(began); !errors.Is(err, hub.ErrUnavailable) || took < 3*time.Second || took > 6*time.Second {
			t.Errorf("subscribe = %v after %v, want ErrUnavailable after about 5s", err, took)
		}
		time.AfterFunc(time.Second, func() { src.SetUnavailable("a", 0, false) })
		began = time.Now()
		subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		if took := time.Since(began); took < time.Second || took > 4*time.Second {
			t.Errorf("subscribe took %v, want a little more than 1s", took)
		}
	})
}

// TestPositionBeyondTheEndIsAskedTwice: another replica may be ahead.
func TestPositionBeyondTheEndIsAskedTwice(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		records(src, "a", 0, 10)
		at := hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 0, Offset: 12, Epoch: -1}}}
		began := time.Now()
		_, err := h.Subscribe(t.Context(), hub.Request{Topic: "a", Start: at, OnOutOfRange: hub.OutOfRangeFail}, newSignal(), 0)
		var outOfRange *hub.OffsetOutOfRangeError
		if took := time.Since(began); !errors.As(err, &outOfRange) || took != 500*time.Millisecond || src.Counts().Resolves != 2 {
			t.Errorf("subscribe = %v after %v and %d resolves, want out of range after 500ms and 2", err, took, src.Counts().Resolves)
		}
		time.AfterFunc(100*time.Millisecond, func() { records(src, "a", 0, 10) })
		s := subscribe(t, h, hub.Request{Topic: "a", Start: at, OnOutOfRange: hub.OutOfRangeFail}, newSignal())
		if got := s.Started().Partitions[0]; got.Start != 12 || got.End != 20 {
			t.Errorf("started at %+v, want 12 of 20", got)
		}
	})
}

// TestDrain: what is in memory comes, then the reason; nobody is let in.
func TestDrain(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a"}, w)
		records(src, "a", 0, 10)
		synctest.Wait()
		h.Drain()
		drainTo(t, s, w, 10)
		if _, err := s.Pull(1); !errors.Is(err, hub.ErrDraining) {
			t.Errorf("pull = %v, want ErrDraining", err)
		}
		if _, err := h.Subscribe(t.Context(), hub.Request{Topic: "a"}, w, 0); !errors.Is(err, hub.ErrDraining) {
			t.Errorf("subscribe = %v, want ErrDraining", err)
		}
	})
}

// TestLimits: topics are bounded, and a topic that is let go of makes room.
func TestLimits(t *testing.T) {
	bubble(t, hub.Config{MaxTopics: 1}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		src.CreateTopic("b", 1)
		if _, err := h.Subscribe(t.Context(), hub.Request{Topic: "unknown"}, newSignal(), 0); !errors.Is(err, hub.ErrUnknownTopic) {
			t.Errorf("subscribe = %v, want ErrUnknownTopic", err)
		}
		s := subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		_, err := h.Subscribe(t.Context(), hub.Request{Topic: "b"}, newSignal(), 0)
		var limit *hub.LimitError
		if !errors.As(err, &limit) || limit.Limit != "topics" {
			t.Errorf("subscribe = %v, want a LimitError", err)
		}
		s.Close()
		time.Sleep(10 * time.Second)
		subscribe(t, h, hub.Request{Topic: "b"}, newSignal())
	})
}

// TestInvalidRequests: a request that cannot be meant is refused by the name of its field.
func TestInvalidRequests(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, _ *hubtest.Source) {
		twice := []hub.Position{{Partition: 1}, {Partition: 1}}
		for field, r := range map[string]hub.Request{
			"topic":            {},
			"partitions":       {Topic: "a", Partitions: []int32{1, 1}},
			"start.positions":  {Topic: "a", Start: hub.Start{Kind: hub.AtPositions, Positions: twice}},
			"stop.positions":   {Topic: "a", Stop: hub.Stop{Positions: twice}},
			"start.last":       {Topic: "a", Start: hub.Start{Kind: hub.Last}},
			"stop.records":     {Topic: "a", Stop: hub.Stop{Records: -1}},
			"stop.bytes":       {Topic: "a", Stop: hub.Stop{Bytes: -1}},
			"max_record_bytes": {Topic: "a", MaxRecordBytes: -1},
			"slow_policy":      {Topic: "a", Slow: hub.SlowFail + 1},
		} {
			var invalid *hub.InvalidError
			if _, err := h.Subscribe(t.Context(), r, newSignal(), 0); !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("subscribe = %v, want an InvalidError of %s", err, field)
			}
		}
	})
}

// TestForm: a form is made once, charged, and leaves the budget with its entry.
func TestForm(t *testing.T) {
	bubble(t, hub.Config{Retain: 8 * time.Second}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a"}, w)
		records(src, "a", 0, 10)
		synctest.Wait()
		b, err := s.Pull(1 << 20)
		if err != nil || len(b.Parts) != 1 {
			t.Fatalf("pull = %d parts, %v", len(b.Parts), err)
		}
		e := b.Parts[0].Entry
		var made sync.Map
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				f := e.Form(hub.FormID(i%2), func(*hub.Entry) *hub.Form { return &hub.Form{Body: make([]byte, 1000)} })
				made.Store(f, true)
			})
		}
		all.Wait()
		count := 0
		made.Range(func(any, any) bool { count++; return true })
		if count != 2 {
			t.Errorf("%d forms were made, want 2", count)
		}
		if got := h.Stats().FormBytes; got < 2000 || got > 2200 {
			t.Errorf("forms hold %d bytes, want about 2000", got)
		}
		time.Sleep(20 * time.Second)
		if got := h.Stats().FormBytes; got != 0 {
			t.Errorf("forms hold %d bytes after the retention", got)
		}
		e.Form(3, func(*hub.Entry) *hub.Form { return &hub.Form{Body: make([]byte, 1000)} })
		if got := h.Stats().FormBytes; got != 0 {
			t.Errorf("a form of an evicted entry is charged %d bytes", got)
		}
	})
}
