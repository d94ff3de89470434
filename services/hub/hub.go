// Package hub is the heart of Tailrace.
package hub

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config of a Hub. Zero fields take the defaults of DefaultConfig.
type Config struct {
	MemoryBudget   int64         // bytes of rings, chunks and forms; default 256 MiB
	Retain         time.Duration // how long the ring keeps records while the budget allows; default 30 s
	Linger         time.Duration // from a partition's last subscription to its unfollow; default 5 s
	HistoryReaders int           // concurrent ReadAt calls; default 4
	SlowAfter      time.Duration // traffic behind which slow policies act; default 10 s
	Logger         *slog.Logger
	Registerer     prometheus.Registerer // nil: no metrics
}

// Waker is told that there is something to read. It is called at the end of a burst, from the hub's own goroutines, possibly
// concurrently; it only sets flags and never blocks. One Waker serves one stream, or all sessions of one edge worker; Wakers are compared.
type Waker interface {
	// Moved: t has new entries; called once per burst however many whole-topic subscriptions share this Waker.
	Moved(t *Topic)
	// Ready: the subscription with this token (by key, by partition, or whose chunk came, or that has ended) has something to Pull.
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
	TopicID    string
	Count      int32 // partitions of the topic
	Partitions []StartedPartition
}

// StartedPartition is where reading begins, and where the end was then.
type StartedPartition struct {
	Partition  int32
	Start, End int64
	Incomplete bool
}

// New returns an idle hub over src; Run makes it work.
func New(src Source, cfg Config) *Hub { panic("in the making") }

// Run does the hub's work until ctx ends: history, wakers, lingers, budget. It unfollows everything before it returns.
func (h *Hub) Run(ctx context.Context) error { panic("in the making") }

// Subscribe resolves the request, follows what it needs, and returns when Started is known. It blocks for a round trip where the topic is
// not followed yet, and not at all where it is. Errors: those of Source.Resolve, *InvalidError, ErrDraining, ErrUnavailable after ctx's deadline is near.
func (h *Hub) Subscribe(ctx context.Context, r Request, w Waker, token uint64) (*Subscription, error) {
	panic("in the making")
}

// Drain ends all subscriptions: their next Pull returns ErrDraining once what is in memory was pulled; new ones are refused.
func (h *Hub) Drain() { panic("in the making") }

// Subscribers returns the number of open subscriptions of a topic in this process.
func (h *Hub) Subscribers(topic string) int { panic("in the making") }

// Stats is a snapshot for metrics and tests.
type Stats struct {
	Topics, Partitions, Subscriptions int // partitions: followed
	RingBytes, ChunkBytes, FormBytes  int64
	HistoryReads, ChunkHits, RingHits int64
}

// Stats returns a snapshot.
func (h *Hub) Stats() Stats { panic("in the making") }

// Topic is a topic's ring. Sources append to it; readers read it by Seq.
type Topic struct{}

// Name, ID (it changes with Recreated) and Count (of partitions) of the topic.
func (t *Topic) Name() string { panic("in the making") }
func (t *Topic) ID() string   { panic("in the making") }
func (t *Topic) Count() int32 { panic("in the making") }

// Append adds a batch of entries in arrival order. One writer per partition; different partitions may be appended concurrently. What lies
// below the partition's next is dropped. It takes one short lock, and never waits for, wakes or walks readers: it signals the
// topic's waker, so append once at the end of a burst.
func (t *Topic) Append(batch ...*Entry) { panic("in the making") }

// Head is the Seq after the newest entry.
func (t *Topic) Head() Seq { panic("in the making") }

// Read returns entries from a Seq on, at most max bytes of pieces or one entry; ok is false if they were evicted. It takes no lock.
func (t *Topic) Read(from Seq, max int, dst *Batch) (ok bool) { panic("in the making") }

// Subscription is a cursor. It has no goroutine and no queue. It belongs to one goroutine at a time.
type Subscription struct{}

func (s *Subscription) Topic() *Topic    { panic("in the making") }
func (s *Subscription) Started() Started { panic("in the making") }

// Pull returns what comes next, at most max bytes of pieces or one record; it never blocks; an empty batch means: wait for the Waker.
// Final errors: io.EOF (a stop was reached), *LaggedError, *OffsetOutOfRangeError, ErrTopicDeleted, ErrDraining, ErrClosed. Everything
// before the error was returned by earlier calls.
func (s *Subscription) Pull(max int) (Batch, error) { panic("in the making") }

// At returns the subscription's place. shared: it is live on the whole topic with nothing of its own pending, so that its next Pull is
// exactly Topic.Read(at): one frame serves all subscriptions that stand there.
func (s *Subscription) At() (at Seq, shared bool) { panic("in the making") }

// Skip moves a shared subscription past a batch that Topic.Read(at) gave and that the owner sent for it.
func (s *Subscription) Skip(b *Batch) { panic("in the making") }

// Moved appends the positions that moved without a record since they were last told (by a Part, or by Moved), for heartbeats.
func (s *Subscription) Moved(dst []Position) []Position { panic("in the making") }

// Positions appends the current position of every partition.
func (s *Subscription) Positions(dst []Position) []Position { panic("in the making") }

// Unavailable appends the partitions that cannot be read at the moment.
func (s *Subscription) Unavailable(dst []int32) []int32 { panic("in the making") }

// Lag is the number of offsets between the positions and the ends, as far as known.
func (s *Subscription) Lag() int64 { panic("in the making") }

// Close gives up the subscription. Idempotent.
func (s *Subscription) Close() { panic("in the making") }

// FormID names a form, such as a JSON rendering.
type FormID uint8

// Form is an entry rendered otherwise: Body, and where each record's piece ends in it.
type formSet struct{}

// Form is an entry rendered otherwise.
type Form struct {
	Body []byte
	Ends []int32
}

// Form returns the entry in another form: made by enc when first asked for, at most once per FormID, charged to the budget, and dropped with the entry.
// At most eight FormIDs (0 to 7).
func (e *Entry) Form(id FormID, enc func(*Entry) *Form) *Form { panic("in the making") }

// Hub hands out subscriptions over a Source.
type Hub struct{}
