package upstream_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge/upstream"
	"tailrace.dev/tailrace/services/hub"
)

func earliest() hub.Request { return hub.Request{Start: hub.Start{Kind: hub.Earliest}} }

func TestRecordsReachTheEdge(t *testing.T) {
	st := newStore(3)
	for n := range 3000 {
		st.add(int32(n%3), text(n))
	}
	st.AppendHoles(topicName, 1, 5)
	h := newHub(t, newSource(t, nil, newService(t, st).address), nil)
	all := newReader(t, st, h, earliest())
	live := newReader(t, st, h, hub.Request{})
	all.until("history", func() bool { return all.caught && all.atEnd() })
	for n := range 300 {
		st.add(int32(n%3), text(n))
	}
	all.until("live", all.atEnd)
	live.until("live", live.atEnd)
	if all.records != 3300 || live.records != 300 {
		t.Errorf("got %d and %d records", all.records, live.records)
	}
	all.wantGaps()
}

func TestHistoryComesInChunks(t *testing.T) {
	st := newStore(1)
	for n := range 5000 {
		st.add(0, text(n))
	}
	source := newSource(t, nil, newService(t, st).address)
	id := hub.ChunkID{Topic: topicName, TopicID: st.TopicID(topicName)}
	records := 0
	for id.From < 4500 {
		es, next, err := source.ReadAt(t.Context(), id, 4500, hub.MaxChunkRecords, nil)
		if err != nil || next <= id.From || next > 4500 {
			t.Fatalf("at %d: next %d, %v", id.From, next, err)
		}
		n := 0
		for _, e := range es {
			n += len(e.Meta)
		}
		if n == 0 || n > hub.MaxChunkRecords {
			t.Errorf("a chunk of %d records", n)
		}
		records += n
		id.From = next
	}
	if records != 4500 {
		t.Errorf("got %d records", records)
	}
	id.From = 100
	only := &hub.Terms{Keys: map[string]struct{}{"k3": {}}}
	es, next, err := source.ReadAt(t.Context(), id, 800, hub.MaxChunkRecords, only)
	n := 0
	for _, e := range es {
		n += len(e.Meta)
	}
	if err != nil || next != 800 || n != 100 {
		t.Errorf("got %d records of a key, next %d, %v", n, next, err)
	}
	st.Retain(topicName, 0, 1000)
	_, _, err = source.ReadAt(t.Context(), id, 800, hub.MaxChunkRecords, nil)
	if outside, ok := errors.AsType[*hub.OffsetOutOfRangeError](err); !ok || outside.Oldest != 1000 || outside.End != 5000 || outside.Offset != 100 {
		t.Errorf("got %v", err)
	}
	id.TopicID = "another"
	if es, next, err = source.ReadAt(t.Context(), id, 800, hub.MaxChunkRecords, nil); !errors.Is(err, hub.ErrTopicDeleted) {
		t.Errorf("got %d entries, %d, %v", len(es), next, err)
	}
}

func TestStartsAreResolvedByTheService(t *testing.T) {
	st := newStore(2)
	for n := range 20 {
		st.add(int32(n%2), text(n))
	}
	st.Retain(topicName, 0, 4)
	source := newSource(t, nil, newService(t, st).address)
	for name, c := range map[string]struct {
		query hub.Query
		want  []hub.ResolvedPartition
	}{
		"latest":   {hub.Query{}, []hub.ResolvedPartition{resolvedPartition(0, 4, 10, 10), resolvedPartition(1, 0, 10, 10)}},
		"earliest": {hub.Query{Start: hub.Start{Kind: hub.Earliest}}, []hub.ResolvedPartition{resolvedPartition(0, 4, 4, 10), resolvedPartition(1, 0, 0, 10)}},
		"one":      {hub.Query{Partitions: []int32{1}}, []hub.ResolvedPartition{resolvedPartition(1, 0, 10, 10)}},
		"positions": {
			hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 0, Offset: 2, Epoch: -1}, {Partition: 1, Offset: 5, Epoch: -1}}}},
			[]hub.ResolvedPartition{resolvedPartition(0, 4, 2, 10), resolvedPartition(1, 0, 5, 10)},
		},
		"a time to come": {
			hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: time.Now().Add(time.Hour)}},
			[]hub.ResolvedPartition{resolvedPartition(0, 4, 10, 10), resolvedPartition(1, 0, 10, 10)},
		},
		"positions and no more": {
			hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 1, Offset: 5, Epoch: -1}}, Missing: hub.MissingSkip}},
			[]hub.ResolvedPartition{resolvedPartition(1, 0, 5, 10)},
		},
	} {
		got, err := source.Resolve(t.Context(), topicName, c.query)
		slices.SortFunc(got.Partitions, func(a, b hub.ResolvedPartition) int { return int(a.Partition - b.Partition) })
		if err != nil || got.Count != 2 || got.TopicID != st.TopicID(topicName) || !slices.Equal(got.Partitions, c.want) {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		topic string
		query hub.Query
		want  error
	}{
		"topic":      {"nothing", hub.Query{}, hub.ErrUnknownTopic},
		"partitions": {topicName, hub.Query{Partitions: []int32{0, 7}}, &hub.UnknownPartitionError{Topic: topicName, Partition: 7, Count: 2, TopicID: st.TopicID(topicName)}},
	} {
		_, err := source.Resolve(t.Context(), c.topic, c.query)
		if !errors.Is(err, c.want) && !reflect.DeepEqual(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func TestKeysAndPartitionsReachTheEdge(t *testing.T) {
	st := newStore(3)
	want := 0
	for n := range 2100 {
		st.add(hub.PartitionOf(text(n).Key, 3), text(n))
		if n%7 == 3 || n%7 == 5 {
			want++
		}
	}
	h := newHub(t, newSource(t, nil, newService(t, st).address), nil)
	keyed := newReader(t, st, h, hub.Request{Start: hub.Start{Kind: hub.Earliest}, Keys: [][]byte{[]byte("k3"), []byte("k5")}})
	one := newReader(t, st, h, hub.Request{Start: hub.Start{Kind: hub.Earliest}, Partitions: []int32{1}})
	keyed.until("history of keys", func() bool { return keyed.records == want })
	for n := range 700 {
		st.add(hub.PartitionOf(text(n).Key, 3), text(n))
	}
	keyed.until("live keys", func() bool { return keyed.records == want+200 })
	_, end, _ := st.Offsets(topicName, 1)
	one.until("one partition", func() bool { return one.next[1] == end })
	if _, others := one.next[0]; others || one.records != int(end) {
		t.Errorf("got %d records of one partition, want %d", one.records, end)
	}
}

// TestTheServiceSaysWhereKeysLie: an edge looks for keys where the service's configuration says that the topic's producers put them.
func TestTheServiceSaysWhereKeysLie(t *testing.T) {
	for _, p := range []hub.Partitioner{hub.Murmur2, hub.CRC32, hub.FNV1a, hub.Anywhere} {
		t.Run(p.String(), func(t *testing.T) {
			const partitions, keys = 5, 7
			st := newStore(partitions)
			st.SetPartitioner(p)
			h := newHub(t, newSource(t, nil, newService(t, st).address), nil)
			var readers []*reader
			for n := range keys {
				readers = append(readers, newReader(t, st, h, hub.Request{Keys: [][]byte{text(n).Key}}))
			}
			for n := range keys {
				at := p.Partition(text(n).Key, partitions)
				if at < 0 {
					at = int32(n % partitions)
				}
				st.add(at, text(n))
			}
			for n, r := range readers {
				r.until(fmt.Sprintf("the record of key %d", n), func() bool { return r.records == 1 })
			}
		})
	}
}

func TestTheEdgeIsToldWhatTheServiceIsTold(t *testing.T) {
	st := newStore(2)
	for n := range 20 {
		st.add(int32(n%2), text(n))
	}
	h := newHub(t, newSource(t, nil, newService(t, st).address), nil)
	r := newReader(t, st, h, hub.Request{})
	r.until("the start", r.atEnd)

	st.SetUnavailable(topicName, 1, true)
	eventually(t, "unavailable", func() bool { return slices.Equal(r.sub.Unavailable(nil), []int32{1}) })
	st.SetUnavailable(topicName, 1, false)
	eventually(t, "available", func() bool { return len(r.sub.Unavailable(nil)) == 0 })

	st.Truncate(topicName, 0, 6)
	r.until("truncation", func() bool { return len(r.gaps) == 1 })
	r.wantGaps("0: [10,6) 2")

	st.Grow(topicName, 4)
	r.until("growth", func() bool { return len(r.others) == 1 })
	for p := range int32(4) {
		for n := range 5 {
			if p > 0 { // the epoch of partition 0 is another one now
				st.add(p, text(n))
			}
		}
	}
	r.until("records of the new partitions", func() bool { return r.next[3] == 5 && r.next[2] == 5 && r.next[1] == 15 })
	if !slices.Equal(r.others, []string{"topology 4"}) {
		t.Errorf("got %v", r.others)
	}

	r.gaps = nil
	st.CreateTopic(topicName, 4)
	id := st.TopicID(topicName)
	r.until("it was made anew", func() bool { return len(r.gaps) == 4 })
	r.wantGaps("0: [6,0) "+id, "1: [15,0) "+id, "2: [5,0) "+id, "3: [5,0) "+id)
	for p := range int32(4) {
		st.add(p, text(int(p)))
	}
	r.until("records of the new log", r.atEnd)

	r.gaps, r.others = nil, nil
	st.CreateTopic(topicName, 2)
	id = st.TopicID(topicName)
	r.until("it was made anew with fewer partitions", func() bool { return len(r.gaps) == 4 && len(r.others) == 1 })
	r.wantGaps("0: [1,0) "+id, "1: [1,0) "+id, "2: [1,0) ", "3: [1,0) ")
	if !slices.Equal(r.others, []string{"topology 2"}) {
		t.Errorf("got %v", r.others)
	}
	if ps := r.sub.Positions(nil); len(ps) != 2 {
		t.Errorf("got positions %v, want them of two partitions", ps)
	}
	r.next = map[int32]int64{0: 0, 1: 0}
	for p := range int32(2) {
		st.add(p, text(int(p)))
	}
	r.until("records of the log with fewer partitions", r.atEnd)

	st.DeleteTopic(topicName)
	deadline := time.Now().Add(patience)
	for {
		_, err := r.sub.Pull(1 << 20)
		if errors.Is(err, hub.ErrTopicDeleted) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("got %v", err)
		}
		select {
		case <-r.woken:
		case <-time.After(time.Second):
		}
	}
}

func TestStopsEndAtTheEdge(t *testing.T) {
	st := newStore(1)
	for n := range 50 {
		st.add(0, text(n))
	}
	h := newHub(t, newSource(t, nil, newService(t, st).address), nil)
	r := newReader(t, st, h, hub.Request{Start: hub.Start{Kind: hub.Earliest}, Stop: hub.Stop{AtEnd: true}})
	r.until("records", r.atEnd)
	if _, err := r.sub.Pull(1 << 20); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

// What is lost while the service is away is told as exactly as if it had been there.
func TestARestartedServiceIsResumedExactly(t *testing.T) {
	st := newStore(3)
	svc := newService(t, st)
	source := newSource(t, nil, svc.address)
	h := newHub(t, source, nil)
	r := newReader(t, st, h, earliest())
	for n := range 90 {
		st.add(int32(n%3), text(n))
	}
	r.until("records", r.atEnd)
	for round := range 3 {
		svc.kill()
		eventually(t, "the loss is told", func() bool { return len(r.sub.Unavailable(nil)) == 3 })
		for n := range 90 {
			st.add(int32(n%3), text(n))
		}
		_, end, _ := st.Offsets(topicName, 1)
		st.Retain(topicName, 1, end-10)
		from := r.next[1]
		svc.start()
		r.until("records of meanwhile", r.atEnd)
		eventually(t, "the return is told", func() bool { return len(r.sub.Unavailable(nil)) == 0 })
		if want := fmt.Sprintf("1: [%d,%d) 1", from, end-10); len(r.gaps) != round+1 || r.gaps[round] != want {
			t.Errorf("got gaps %v, want %s", r.gaps, want)
		}
	}
}

// A peer that vanished without a word is noticed by pings, not by the next write.
func TestASilentConnectionIsReplaced(t *testing.T) {
	st := newStore(2)
	wire := newRelay(t, newService(t, st).address)
	source := newSource(t, func(c *upstream.Config) { c.PingTimeout = 100 * time.Millisecond }, wire.address)
	h := newHub(t, source, nil)
	r := newReader(t, st, h, hub.Request{})
	for round := range 3 {
		for n := range 10 {
			st.add(int32(n%2), text(n))
		}
		r.until("records", r.atEnd)
		wire.freeze()
		for n := range 10 {
			st.add(int32(n%2), text(round+n))
		}
	}
	r.until("the rest", r.atEnd)
	if r.records != 60 {
		t.Errorf("got %d records", r.records)
	}
	r.wantGaps()
}

// Random cuts of the connection and restarts of the service, under records; readers that stay and readers that come and go.
func TestRandomDisconnectsLoseAndDoubleNothing(t *testing.T) {
	cuts := 60
	if *full {
		cuts = 500
	}
	const partitions = 4
	st := newStore(partitions)
	svc := newService(t, st)
	wire := newRelay(t, svc.address)
	source := newSource(t, nil, wire.address)
	h := newHub(t, source, nil)
	stays := newReader(t, st, h, earliest())
	comes := newReader(t, st, h, earliest())

	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { // the producer
		for n := 0; ; n++ {
			select {
			case <-over:
				return
			case <-time.After(200 * time.Microsecond):
				for range 1 + n%5 {
					st.add(int32(n*7%partitions), text(n))
				}
				if n%50 == 0 {
					st.AppendHoles(topicName, int32(n%partitions), 3)
				}
			}
		}
	})
	wg.Go(func() { // the trouble
		defer close(over)
		rng := rand.New(rand.NewPCG(7, 11))
		for n := range cuts {
			<-time.After(time.Duration(rng.IntN(30)) * time.Millisecond)
			if n%20 == 19 {
				svc.kill()
				<-time.After(time.Duration(rng.IntN(20)) * time.Millisecond)
				svc.start()
				continue
			}
			wire.cut()
		}
	})
	rng := rand.New(rand.NewPCG(5, 3))
	done := func() bool {
		select {
		case <-over:
			return true
		default:
			return false
		}
	}
	for !done() {
		goal := stays.records + 1 + rng.IntN(200)
		stays.until("more records", func() bool { return stays.records >= goal || done() })
		goal = comes.records + 1 + rng.IntN(200)
		comes.until("more records", func() bool { return comes.records >= goal || done() })
		comes.resume()
	}
	wg.Wait()
	stays.until("the rest", stays.atEnd)
	comes.until("the rest", comes.atEnd)
	if stays.records != len(st.pieces) || comes.records != len(st.pieces) {
		t.Errorf("got %d and %d records, want %d", stays.records, comes.records, len(st.pieces))
	}
	stays.wantGaps()
	comes.wantGaps()
	t.Logf("%d cuts, %d records", cuts, len(st.pieces))
}
