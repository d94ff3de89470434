package kafka

import (
	"context"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Bounds of history readers.
const (
	readQueue    = 64                     // requests that wait for one reader; more wait in their callers
	cursorIdle   = 3 * time.Second        // a place that nobody asked for this long is given up
	readerBytes  = 24 << 20               // what may wait at the places of one reader, in equal shares; a place that has its share is not fetched
	readerShares = 4                      // at least
	readerRoom   = 4 << 20                // of readerBytes, for the chunk that is asked for and what goes over the shares
	cursorsMax   = 64                     // places of one reader
	readPoll     = 10 * time.Millisecond  // how long a cancelled caller's request may go on, and what others wait for one without an answer
	readSilence  = time.Second            // without a sign of life at the place asked for: its leader may be away
	readAgain    = 200 * time.Millisecond // the same, at a place that was silent before
	placeSilence = 10 * time.Second       // a place that is silent for this long is given up: a late answer finds it until then
	stillTimeout = 500 * time.Millisecond // at the end of the log, below the offset asked for
)

// history deals requests to readers. A request that goes on where a reader stands is that reader's, which has fetched ahead; others go to
// the reader with the least to do.
type history struct {
	readers []*reader

	mu sync.Mutex // guards what follows and reader.places, reader.waiting
	// stands says which reader is at which place. A place is moved when its request is answered.
	stands map[place]*reader
}

// place is a position in a partition.
type place struct {
	key  key
	next int64
}

// read is one request.
type read struct {
	ctx    context.Context
	id     hub.ChunkID
	to     int64
	max    int
	answer chan chunk // of one slot: a reader never waits for a caller

	began time.Time // when its reader first looked at it; owned by the reader
}

type chunk struct {
	entries []*hub.Entry
	next    int64
	err     error
}

func newHistory(c *Client, n int) *history {
	h := &history{stands: map[place]*reader{}}
	for i := range n {
		h.readers = append(h.readers, &reader{
			history: h, client: c, log: c.log.With("reader", i), m: c.metrics,
			queue: make(chan *read, readQueue), stopped: make(chan struct{}),
			places: map[key]bool{}, known: meetings{}, logs: topicLogs{}, cursors: map[key]*cursor{},
			fetched: meter{total: c.metrics.fetched.WithLabelValues(consumerHistory)},
		})
	}
	return h
}

// readAt is hub.Source's ReadAt.
func (h *history) readAt(ctx context.Context, id hub.ChunkID, to int64, limit int) ([]*hub.Entry, int64, error) {
	if to <= id.From {
		return nil, id.From, nil
	}
	r := &read{ctx: ctx, id: id, to: to, max: min(max(limit, 1), hub.MaxChunkRecords), answer: make(chan chunk, 1)}
	by := h.pick(place{key{id.Topic, id.Partition}, id.From})
	defer h.done(by)
	select {
	case by.queue <- r:
	case <-by.stopped:
		return nil, id.From, hub.ErrDraining
	case <-ctx.Done():
		return nil, id.From, ctx.Err()
	}
	select {
	case a := <-r.answer:
		return a.entries, a.next, a.err
	case <-by.stopped:
		return nil, id.From, hub.ErrDraining
	case <-ctx.Done():
		return nil, id.From, ctx.Err()
	}
}

func (h *history) pick(p place) *reader {
	h.mu.Lock()
	defer h.mu.Unlock()
	best := h.stands[p]
	if best == nil {
		for _, r := range h.readers {
			// A reader has one place in a partition: one that has another there would lose it.
			if best == nil || r.load(p.key) < best.load(p.key) {
				best = r
			}
		}
	}
	best.waiting++
	return best
}

func (h *history) done(r *reader) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.waiting--
}

// moved and left keep stands up to date.
func (h *history) moved(r *reader, k key, from, to int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(r, place{k, from})
	h.stands[place{k, to}] = r
	r.places[k] = true
}

func (h *history) left(r *reader, k key, from int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(r, place{k, from})
	delete(r.places, k)
}

func (h *history) forget(r *reader, p place) {
	if h.stands[p] == r {
		delete(h.stands, p)
	}
}
