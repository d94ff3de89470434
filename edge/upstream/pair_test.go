package upstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/stream"
)

const topicName = "orders"

// store is the log behind the services: what was appended, and what Kafka's admin side would tell.
type store struct {
	*hubtest.Source

	mu     sync.Mutex
	pieces map[place][]byte
}

type place struct {
	id        string
	partition int32
	offset    int64
}

func newStore(partitions int32) *store {
	s := &store{Source: hubtest.New(), pieces: map[place][]byte{}}
	s.CreateTopic(topicName, partitions)
	return s
}

// add appends a record and keeps what a reader must get for it.
func (s *store) add(partition int32, r hubtest.Record) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	offset := s.Append(topicName, partition, r)
	s.pieces[place{s.TopicID(topicName), partition, offset}] = hubtest.Piece(topicName, partition, offset, 0, r)
	return offset
}

func (s *store) piece(p place) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pieces[p]
}

func (s *store) PublishAs(context.Context, string, string, []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	return nil, hub.ErrUnimplemented
}

func (s *store) Begin(context.Context, string, string, *tailracev1.PublishRecord, func(*tailracev1.PublishResult)) {
}

func (s *store) ListTopics(context.Context) ([]*tailracev1.TopicSummary, error) {
	return nil, hub.ErrUnimplemented
}

func (s *store) GetTopic(ctx context.Context, topic string) (*tailracev1.Topic, error) {
	r, err := s.Resolve(ctx, topic, hub.Query{Start: hub.Start{Kind: hub.Earliest}})
	if err != nil {
		return nil, err
	}
	m := &tailracev1.Topic{Name: topic, TopicId: r.TopicID}
	for _, p := range r.Partitions {
		m.Partitions = append(m.Partitions, &tailracev1.Partition{Partition: p.Partition, Start: p.Oldest, End: p.End})
	}
	return m, nil
}

// service is a real service over the store. It can be killed and started again at the same address.
type service struct {
	t       testing.TB
	store   *store
	address string
	end     func()
}

func newService(t testing.TB, st *store) *service {
	t.Helper()
	s := &service{t: t, store: st, address: "127.0.0.1:0"}
	s.start()
	t.Cleanup(func() {
		s.kill()
		if v := st.Violations(); len(v) > 0 {
			t.Errorf("the hub broke its contract with the source: %v", v)
		}
	})
	return s
}

func (s *service) start() {
	var ln net.Listener
	for deadline := time.Now().Add(patience); ln == nil; {
		var err error
		if ln, err = net.Listen("tcp", s.address); err != nil && time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
	s.address = ln.Addr().String()
	h := hub.New(s.store, hub.Config{Logger: quiet(), Linger: time.Second, MemoryBudget: 1 << 20})
	server := stream.New(stream.Config{Hub: h, Publisher: s.store, Topics: s.store, Logger: quiet(), Registerer: prometheus.NewRegistry()})
	serving, drain := context.WithCancel(context.Background())
	life, end := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Run(serving, ln, time.Millisecond) }) // streams are cut off
	wg.Go(func() { _ = h.Run(life) })
	s.end = func() {
		drain()
		end()
		wg.Wait()
	}
}

func (s *service) kill() {
	s.end()
	s.end = func() {}
}

// newHub is an edge's hub over a source.
func newHub(t testing.TB, src hub.Source, change func(*hub.Config)) *hub.Hub {
	t.Helper()
	cfg := hub.Config{Logger: quiet(), Linger: 20 * time.Millisecond}
	if change != nil {
		change(&cfg)
	}
	h := hub.New(src, cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("hub: %v", err)
		}
	})
	return h
}

type signal chan struct{}

func (w signal) Moved(*hub.Topic) { w.Ready(0) }

func (w signal) Ready(uint64) {
	select {
	case w <- struct{}{}:
	default:
	}
}

// reader is a subscription of an edge, and what it was told: every record is compared with the store, every position with the one before.
type reader struct {
	t     testing.TB
	store *store
	hub   *hub.Hub
	woken signal
	sub   *hub.Subscription

	id      string
	next    map[int32]int64
	epoch   map[int32]int32
	records int
	gaps    []string
	others  []string
	caught  bool
	keys    map[string]struct{} // nil: all records
}

func newReader(t testing.TB, st *store, h *hub.Hub, r hub.Request) *reader {
	t.Helper()
	rd := &reader{t: t, store: st, hub: h, woken: make(signal, 1), next: map[int32]int64{}, epoch: map[int32]int32{}}
	if r.Keys != nil {
		rd.keys = map[string]struct{}{}
		for _, k := range r.Keys {
			rd.keys[string(k)] = struct{}{}
		}
	}
	rd.subscribe(r)
	t.Cleanup(func() { rd.sub.Close() })
	return rd
}

func (r *reader) subscribe(q hub.Request) {
	r.t.Helper()
	q.Topic = topicName
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sub, err := r.hub.Subscribe(ctx, q, r.woken, 0)
	if err != nil {
		r.t.Fatalf("subscribe: %v", err)
	}
	r.sub, r.id = sub, sub.Started().TopicID
	for _, p := range sub.Started().Partitions {
		if was, known := r.next[p.Partition]; known && was != p.Start {
			r.t.Fatalf("partition %d: resumed at %d, want %d", p.Partition, p.Start, was)
		}
		r.next[p.Partition] = p.Start
	}
}

// resume closes the subscription and opens it again where it was.
func (r *reader) resume() {
	r.t.Helper()
	r.sub.Close()
	q := hub.Request{TopicID: r.id, Start: hub.Start{Kind: hub.AtPositions}}
	for p, next := range r.next {
		q.Start.Positions = append(q.Start.Positions, hub.Position{Partition: p, Offset: next, Epoch: -1})
	}
	r.subscribe(q)
}

// until pulls until ok.
func (r *reader) until(what string, ok func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for !ok() {
		b, err := r.sub.Pull(64 << 10)
		if err != nil {
			r.t.Fatalf("pull: %v", err)
		}
		r.caught = r.caught || b.CaughtUp
		for i := range b.Parts {
			r.take(&b.Parts[i])
		}
		if len(b.Parts) > 0 || b.CaughtUp {
			continue
		}
		select {
		case <-r.woken:
		case <-deadline.C:
			r.t.Fatalf("not within %v: %s; at %v, %d records, gaps %v, %v", patience, what, r.next, r.records, r.gaps, r.others)
		}
	}
}

func (r *reader) take(p *hub.Part) {
	switch p.Kind {
	case hub.Records, hub.Advance:
		// Where records are filtered, positions also move without a word.
		if next := r.next[p.Partition]; p.From != next && (r.keys == nil || p.From < next) {
			r.t.Fatalf("partition %d: got [%d,%d), want from %d", p.Partition, p.From, p.Next, r.next[p.Partition])
		}
		r.check(p)
	case hub.Gap:
		r.gaps = append(r.gaps, fmt.Sprintf("%d: [%d,%d) %d", p.Partition, p.From, p.Next, p.Reason))
	case hub.Recreated:
		r.gaps = append(r.gaps, fmt.Sprintf("%d: [%d,%d) %s", p.Partition, p.From, p.Next, p.TopicID))
		if p.TopicID != "" {
			r.id = p.TopicID
		}
	case hub.Topology:
		r.others = append(r.others, fmt.Sprintf("topology %d", p.Count))
		return
	default:
		r.others = append(r.others, fmt.Sprintf("kind %d of %d", p.Kind, p.Partition))
		return
	}
	r.next[p.Partition] = p.Next
}

// check compares a part with the store: each record that is there, and no other, once.
func (r *reader) check(p *hub.Part) {
	i := p.Lo
	for offset := p.From; offset < p.Next; offset++ {
		want := r.store.piece(place{r.id, p.Partition, offset})
		if i < p.Hi && p.Meta[i].Offset == offset {
			if got := p.Piece(i, i+1); !bytes.Equal(got, want) {
				r.t.Fatalf("partition %d, offset %d: got %x, want %x", p.Partition, offset, got, want)
			}
			r.records++
			i++
			continue
		}
		if want != nil && r.keys == nil {
			r.t.Fatalf("partition %d, offset %d is missing in [%d,%d)", p.Partition, offset, p.From, p.Next)
		}
	}
	if i != p.Hi {
		r.t.Fatalf("partition %d: records outside of [%d,%d)", p.Partition, p.From, p.Next)
	}
}

// at says whether the reader has reached the end of every partition.
func (r *reader) atEnd() bool {
	_, count := r.partitions()
	for p := range count {
		if _, end, _ := r.store.Offsets(topicName, p); r.next[p] != end {
			return false
		}
	}
	return true
}

func (r *reader) partitions() (string, int32) {
	res, err := r.store.Resolve(context.Background(), topicName, hub.Query{})
	if errors.Is(err, hub.ErrUnavailable) {
		return "", int32(len(r.next))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return res.TopicID, res.Count
}

func (r *reader) wantGaps(want ...string) {
	r.t.Helper()
	slices.Sort(r.gaps)
	if !slices.Equal(r.gaps, want) {
		r.t.Errorf("got gaps %q, want %q", r.gaps, want)
	}
}

func text(n int) hubtest.Record {
	return hubtest.Text(fmt.Sprintf("k%d", n%7), fmt.Sprintf(`{"n":%d}`, n))
}
