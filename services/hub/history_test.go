package hub_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestChunksAreReadOnce: however many readers replay a topic at once, each chunk is read once.
func TestChunksAreReadOnce(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.SetDelays(hubtest.Delays{BeforeRead: 10 * time.Millisecond})
		src.CreateTopic("a", 4)
		for p := range int32(4) {
			records(src, "a", p, 5*hub.MaxChunkRecords)
		}
		var all sync.WaitGroup
		for range 20 {
			w := newSignal()
			s := subscribe(t, h, earliest("a"), w)
			all.Go(func() { drainTo(t, s, w, 20*hub.MaxChunkRecords) })
		}
		all.Wait()
		if got, want := src.Counts().Reads, 20; got != want {
			t.Errorf("%d reads, want %d", got, want)
		}
		if got := h.Stats().ChunkHits; got < 19*20 {
			t.Errorf("%d chunk hits, want at least %d", got, 19*20)
		}
	})
}

// TestChunkCoversLaterPositions: a reader in the middle of a chunk that is in memory needs no other.
func TestChunkCoversLaterPositions(t *testing.T) {
	bubble(t, hub.Config{Retain: time.Second}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		records(src, "a", 0, 2*hub.MaxChunkRecords)
		w := newSignal()
		drainTo(t, subscribe(t, h, earliest("a"), w), w, 2*hub.MaxChunkRecords)
		reads := src.Counts().Reads
		at := hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 0, Offset: 500, Epoch: -1}}}
		w = newSignal()
		drainTo(t, subscribe(t, h, hub.Request{Topic: "a", Start: at}, w), w, 2*hub.MaxChunkRecords-500)
		if got := src.Counts().Reads; got != reads {
			t.Errorf("%d reads, want still %d", got, reads)
		}
	})
}

// TestTurns: a long replay does not hold up a short one of another partition, even with one history reader.
func TestTurns(t *testing.T) {
	bubble(t, hub.Config{HistoryReaders: 1}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		const read = 10 * time.Millisecond
		src.SetDelays(hubtest.Delays{BeforeRead: read})
		src.CreateTopic("a", 2)
		records(src, "a", 0, 100*hub.MaxChunkRecords)
		records(src, "a", 1, 10)
		long := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a", Partitions: []int32{0}, Start: hub.Start{Kind: hub.Earliest}}, long)
		drainTo(t, s, long, 5*hub.MaxChunkRecords)
		done := make(chan struct{})
		go func() { defer close(done); drainTo(t, s, long, 94*hub.MaxChunkRecords) }()
		began := time.Now()
		short := newSignal()
		one := subscribe(t, h, hub.Request{Topic: "a", Partitions: []int32{1}, Start: hub.Start{Kind: hub.Earliest}}, short)
		drainTo(t, one, short, 10)
		if took, most := time.Since(began), time.Duration(hub.TurnChunks+2)*read; took > most {
			t.Errorf("the short replay took %v, want at most %v", took, most)
		}
		<-done
	})
}

// TestReconnectIsARingHit: who comes back within the retention is served from the ring, without a round trip.
func TestReconnectIsARingHit(t *testing.T) {
	for name, keys := range map[string][][]byte{"whole": nil, "by key": {[]byte("key-3")}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
				src.CreateTopic("a", 3)
				request := hub.Request{Topic: "a", Keys: keys, KeyScope: hub.KeyScopeAll}
				first := subscribe(t, h, request, newSignal())
				for p := range int32(3) {
					records(src, "a", p, 50)
				}
				synctest.Wait()
				at := first.Positions(nil)
				first.Close()
				time.Sleep(time.Second)
				for p := range int32(3) {
					records(src, "a", p, 50)
				}
				synctest.Wait()
				before := src.Counts()
				request.Start = hub.Start{Kind: hub.AtPositions, Positions: at}
				want := 300
				if keys != nil {
					want = 30
				}
				w := newSignal()
				drainTo(t, subscribe(t, h, request, w), w, want)
				if after := src.Counts(); after != before {
					t.Errorf("source was called: %+v, before %+v", after, before)
				}
				if got := h.Stats().RingHits; got != 1 {
					t.Errorf("%d ring hits, want 1", got)
				}
			})
		})
	}
}

// TestResolveIsShared: those who come at once share a round trip; those who come later need none.
func TestResolveIsShared(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.SetDelays(hubtest.Delays{AfterResolve: 100 * time.Millisecond})
		src.CreateTopic("a", 400)
		var all sync.WaitGroup
		for p := range int32(400) {
			all.Go(func() { subscribe(t, h, hub.Request{Topic: "a", Partitions: []int32{p}}, newSignal()) })
		}
		all.Wait()
		began := time.Now()
		subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		if took := time.Since(began); took != 0 {
			t.Errorf("a warm subscribe took %v", took)
		}
		if got := src.Counts(); got.Resolves != 1 || got.Follows != 400 {
			t.Errorf("%d resolves, %d follows; want 1, 400", got.Resolves, got.Follows)
		}
	})
}

// TestFilteredChunksGoWithTheirReader: nobody else could read them.
func TestFilteredChunksGoWithTheirReader(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		records(src, "a", 0, 100)
		subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		request := earliest("a")
		request.Keys = [][]byte{[]byte("key-3")}
		w := newSignal()
		s := subscribe(t, h, request, w)
		drainTo(t, s, w, 10)
		if h.Stats().ChunkBytes == 0 {
			t.Error("no chunk is held")
		}
		s.Close()
		if got := h.Stats().ChunkBytes; got != 0 {
			t.Errorf("chunks hold %d bytes after their reader", got)
		}
	})
}
