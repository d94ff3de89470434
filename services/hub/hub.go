package hub

import (
	"cmp"
	"context"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"tailrace.dev/tailrace/services/label"
)

// Config of a Hub. Zero fields take the defaults of DefaultConfig.
type Config struct {
	MemoryBudget   int64                 // bytes of rings, chunks and forms; default 256 MiB
	Retain         time.Duration         // how long the ring keeps records while the budget allows; default 30 s
	Linger         time.Duration         // from a partition's last subscription to its unfollow; default 5 s
	ResolveWait    time.Duration         // how long Subscribe asks a source again that is unavailable; default 5 s
	HistoryReaders int                   // concurrent ReadAt calls; default 8, as many as one subscription asks for
	SlowAfter      time.Duration         // traffic behind which slow policies act; default 10 s
	MaxTopics      int                   // topics subscribed to at a time; more get a LimitError; default 10000
	Logger         *slog.Logger          // default: nothing is logged
	Registerer     prometheus.Registerer // nil: no metrics
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		MemoryBudget: 256 << 20, Retain: 30 * time.Second, Linger: 5 * time.Second, ResolveWait: 5 * time.Second,
		HistoryReaders: 8, SlowAfter: 10 * time.Second, MaxTopics: 10_000, Logger: slog.New(slog.DiscardHandler),
	}
}

func (c Config) withDefaults() Config {
	d := DefaultConfig()
	c.MemoryBudget = cmp.Or(c.MemoryBudget, d.MemoryBudget)
	c.Retain = cmp.Or(c.Retain, d.Retain)
	c.Linger = cmp.Or(c.Linger, d.Linger)
	c.ResolveWait = cmp.Or(c.ResolveWait, d.ResolveWait)
	c.HistoryReaders = cmp.Or(c.HistoryReaders, d.HistoryReaders)
	c.SlowAfter = cmp.Or(c.SlowAfter, d.SlowAfter)
	c.MaxTopics = cmp.Or(c.MaxTopics, d.MaxTopics)
	c.Logger = cmp.Or(c.Logger, d.Logger)
	return c
}

// Waker is told that there is something to read. It is called at the end of a burst, from the hub's own goroutines, possibly
// concurrently, and from the owner's within Pull and Moved; it only sets flags and never blocks. One Waker serves one stream, or all
// sessions of one edge worker; Wakers are compared.
type Waker interface {
	// Moved: t has new entries, or other partitions of it are unavailable than before; called once per burst however many whole-topic
	// subscriptions share this Waker.
	Moved(t *Topic)
	// Ready: the subscription with this token (by key, by partition, or whose chunk came, or that has ended) has something to Pull, or other
	// partitions of its topic are unavailable. It may come before Subscribe has returned, so Pull once when it has; and once more after Close.
	Ready(token uint64)
}

// Request asks for a subscription; the fields are those of tailrace.v1.SubscribeRequest.
type Request struct {
	Topic          string
	TopicID        string
	Partitions     []int32
	Keys           [][]byte
	KeyScope       KeyScope
	Start          Start
	Stop           Stop
	OnOutOfRange   OutOfRange
	Slow           SlowPolicy
	MaxRecordBytes int
}

// Started tells how a subscription was resolved.
type Started struct {
	TopicID string
	Count   int32 // partitions of the topic
	// Partitioner is how the topic's producers place keys.
	Partitioner Partitioner
	Partitions  []StartedPartition
}

// StartedPartition is where reading begins, and where the end was then.
type StartedPartition struct {
	Partition  int32
	Start, End int64
	Incomplete bool
}

// Hub hands out subscriptions over a Source. Its methods may be called concurrently.
type Hub struct {
	src     Source
	filters bool // src filters history
	cfg     Config
	log     *slog.Logger

	history    history
	news       queue
	parts      sync.Pool     // of *[]Part, empty
	scratches  sync.Pool     // of *scratch
	keep       chan struct{} // one slot: the keeper is to look at the budget, or at topics that grew
	ringBytes  atomic.Int64
	formBytes  atomic.Int64
	ringHits   atomic.Int64
	slow       slowCounts
	clock      atomic.Int64 // nanoseconds since began, as of the keeper's last look
	segmentAge int64
	tick       time.Duration // of the clock
	began      time.Time
	draining   atomic.Bool
	tasks      sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	topics  map[string]*Topic
	retired map[*Topic]struct{} // deleted, and not let go of yet
	stopped bool                // Run has ended, or ends
	others  int64               // records of topics without a label of their own that are not in topics any more

	labels *label.Set // of topics, in metrics
}

// New returns an idle hub over src; Run makes it work.
func New(src Source, cfg Config) *Hub {
	h := &Hub{
		src: src, filters: src.FiltersHistory(), cfg: cfg.withDefaults(),
		topics: map[string]*Topic{}, retired: map[*Topic]struct{}{}, keep: make(chan struct{}, 1), began: time.Now(),
		labels: label.NewSet(label.Topics),
	}
	h.log = h.cfg.Logger
	h.segmentAge = int64(h.cfg.Retain / 8)
	h.tick = max(min(h.cfg.Retain/8, h.cfg.Linger/4, h.cfg.SlowAfter/paceSteps, time.Second), time.Millisecond)
	h.news.signal = make(chan struct{}, runtime.GOMAXPROCS(0))
	h.history.init(src, h.cfg.HistoryReaders, h.checkBudget, h.cfg.MemoryBudget/chunkShare)
	if h.cfg.Registerer != nil {
		h.cfg.Registerer.MustRegister(&collector{h})
	}
	return h
}

// Run does the hub's work until ctx ends: history, wakers, lingers, budget. It unfollows everything before it returns. It is called once.
func (h *Hub) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range cap(h.news.signal) {
		g.Go(func() error { h.wake(ctx); return nil })
	}
	for range h.cfg.HistoryReaders {
		g.Go(func() error { h.history.run(ctx); return nil })
	}
	g.Go(func() error { h.keeper(ctx); return nil })
	err := g.Wait()
	h.mu.Lock()
	h.stopped = true
	h.mu.Unlock()
	h.history.close()
	for _, t := range h.allTopics() {
		h.unfollowAll(t)
	}
	h.tasks.Wait()
	return err
}

// Drain ends all subscriptions: their next Pull returns ErrDraining once what is in memory was pulled; new ones are refused.
func (h *Hub) Drain() {
	h.draining.Store(true)
	for _, t := range h.allTopics() {
		t.followMu.Lock()
		subs := make([]*Subscription, 0, len(t.subs))
		for s := range t.subs {
			subs = append(subs, s)
		}
		t.followMu.Unlock()
		for _, s := range subs {
			s.wake()
		}
	}
}

// allTopics returns a snapshot.
func (h *Hub) allTopics() []*Topic {
	h.mu.Lock()
	defer h.mu.Unlock()
	ts := make([]*Topic, 0, len(h.topics)+len(h.retired))
	for _, t := range h.topics {
		ts = append(ts, t)
	}
	for t := range h.retired {
		ts = append(ts, t)
	}
	return ts
}

// takeParts returns an empty slice that was used before, or a new one.
func (h *Hub) takeParts() *[]Part {
	if parts, ok := h.parts.Get().(*[]Part); ok {
		return parts
	}
	return new([]Part)
}

// Subscribers returns the number of open subscriptions of a topic in this process.
func (h *Hub) Subscribers(topic string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[topic]; t != nil {
		return int(t.watched.Load())
	}
	return 0
}

// Stats is a snapshot for metrics and tests.
type Stats struct {
	Topics, Partitions, Subscriptions int // partitions: followed
	RingBytes, ChunkBytes, FormBytes  int64
	HistoryReads, ChunkHits, RingHits int64 // ring hits: starts at positions that needed no history
	ConflatedBytes                    int64 // kept by conflations under way

	// How often slow policies acted. Spilled: beyond what a conflation may keep, so that the reader was skipped to the head.
	Skipped, Conflated, Spilled, Failed int64
}

// Stats returns a snapshot.
func (h *Hub) Stats() Stats {
	st := Stats{
		RingBytes: h.ringBytes.Load(), ChunkBytes: h.history.bytes.Load(), FormBytes: h.formBytes.Load(),
		HistoryReads: h.history.reads.Load(), ChunkHits: h.history.hits.Load(), RingHits: h.ringHits.Load(),
		ConflatedBytes: h.slow.held.Load(),
		Skipped:        h.slow.skips.Load(), Conflated: h.slow.conflations.Load(), Spilled: h.slow.spills.Load(), Failed: h.slow.fails.Load(),
	}
	for _, t := range h.allTopics() {
		st.Topics++
		st.Subscriptions += int(t.watched.Load())
		st.Partitions += t.following()
	}
	return st
}
