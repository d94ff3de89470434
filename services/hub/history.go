package hub

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// history reads chunks for subscriptions: each once however many wait, the partitions that are waited for in turns.
type history struct {
	src    Source
	work   chan struct{} // a slot for each reader; never closed
	bytes  atomic.Int64  // changed under mu
	reads  atomic.Int64
	hits   atomic.Int64
	charge func() // the budget is to be looked at
	room   int64  // for chunks that must not be evicted yet, and those being read
	most   int    // records of a chunk

	mu      sync.Mutex // guards the fields below and all lanes
	lanes   map[laneKey]*lane
	queue   []*lane // with wants, not being read
	newest  *chunk  // least recently used last
	oldest  *chunk
	awaited int64 // bytes of chunks that nobody has come for yet
	reading int64 // calls of ReadAt under way
	closed  bool
}

type laneKey struct {
	topic     *Topic
	id        string
	partition int32
	owner     *Subscription // of a lane that leaves others' records out; nil: shared
}

// lane is one partition's history. Readers of one key set have lanes of their own where the source filters.
type lane struct {
	key    laneKey
	only   *Terms
	chunks []*chunk // by from
	wants  []*want  // the first is being read while busy; at most two more than there are subscriptions
	queued bool     // in the queue, being read, or resting after an error
	busy   bool
	floor  int64 // oldest offset, as an error told
	end    int64
	gen    int // counts truncations
	rest   time.Duration
	late   int // times that nobody came for a chunk in time; the next one waits longer
	timer  *time.Timer
}

// want is a chunk to be read.
type want struct {
	from, to int64
	ahead    int // chunks to read after it
	waiters  []*Subscription
}

const (
	readAhead   = 2 // chunks
	turnChunks  = 8 // read of one partition while others wait: changing the partition has its price at the source
	keepAwaited = int64(time.Second)
	restAtFirst = 100 * time.Millisecond
	restAtMost  = 5 * time.Second
)

func (hs *history) init(src Source, readers int, charge func(), room int64) {
	hs.src, hs.charge, hs.room = src, charge, room
	hs.most = int(min(max(room/1024, 1), MaxChunkRecords)) // a small budget is for small chunks
	hs.lanes = map[laneKey]*lane{}
	hs.work = make(chan struct{}, readers)
}

// get returns the chunk that covers pos, or asks for it: then s is woken when it is there. Up to until, what comes after it is asked for
// too; to is how far the log may be read.
func (hs *history) get(key laneKey, pos, until, to int64, s *Subscription) (*chunk, *OffsetOutOfRangeError) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	l := hs.lanes[key]
	if l == nil {
		l = &lane{key: key, floor: -1}
		if key.owner != nil {
			l.only = &Terms{Keys: key.owner.filter.keys}
		}
		hs.lanes[key] = l
	}
	if c := l.cover(pos); c != nil {
		hs.hits.Add(1)
		l.late = 0
		hs.arrived(c)
		hs.unlink(c)
		hs.link(c)
		for n, last := 0, c; n < readAhead && last.next < until; n++ {
			after := l.cover(last.next)
			if after == nil {
				hs.want(l, last.next, to, readAhead-n-1, nil)
				break
			}
			last = after
		}
		return c, nil
	}
	if pos < l.floor {
		return nil, &OffsetOutOfRangeError{
			Topic: l.key.topic.name, Partition: l.key.partition, Offset: pos, Oldest: l.floor, End: l.end,
		}
	}
	hs.want(l, pos, to, readAhead, s)
	return nil, nil
}

// want notes that a chunk is to be read. mu is held.
func (hs *history) want(l *lane, from, to int64, ahead int, s *Subscription) {
	var w *want
	for _, other := range l.wants {
		if from >= other.from && from < other.from+MaxChunkRecords/2 || other.from == from {
			w = other // it may come with that one; if not, it is asked for again
			break
		}
	}
	if w == nil {
		w = &want{from: from}
		l.wants = append(l.wants, w)
	}
	w.to, w.ahead = max(w.to, to), max(w.ahead, ahead)
	if s != nil {
		waits := false
		for _, other := range w.waiters {
			waits = waits || other == s
		}
		if !waits {
			w.waiters = append(w.waiters, s)
		}
	}
	hs.enqueue(l)
}

func (hs *history) enqueue(l *lane) {
	if l.queued || len(l.wants) == 0 || hs.closed {
		return
	}
	l.queued = true
	hs.queue = append(hs.queue, l)
	hs.call()
}

// run is one history reader.
func (hs *history) run(ctx context.Context) {
	for {
		for l := hs.take(); l != nil; l = hs.take() {
			hs.serve(ctx, l)
		}
		select {
		case <-hs.work:
		case <-ctx.Done():
			return
		}
	}
}

func (hs *history) take() *lane {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if len(hs.queue) == 0 || hs.closed || hs.stalled() {
		return nil
	}
	l := hs.queue[0]
	hs.queue[0] = nil
	hs.queue = hs.queue[1:]
	l.busy = true
	return l
}

// stalled says that nothing more is read until somebody comes for a chunk, or it is evicted. mu is held.
func (hs *history) stalled() bool {
	return (hs.awaited > 0 || hs.reading > 0) && hs.awaited+(hs.reading+1)*MaxChunkBytes > hs.room
}

// arrived notes that a chunk is waited for no longer. mu is held.
func (hs *history) arrived(c *chunk) {
	if c.awaited == 0 {
		return
	}
	c.awaited = 0
	hs.awaited -= c.bytes
	hs.call()
}

// call calls a reader if there is work. mu is held.
func (hs *history) call() {
	if len(hs.queue) == 0 {
		return
	}
	select {
	case hs.work <- struct{}{}:
	default: // all readers are at work, and look again before they sleep
	}
}

// serve reads chunks of one lane until nothing is wanted, its turn is over, or an error makes it rest.
func (hs *history) serve(ctx context.Context, l *lane) {
	for turn := 1; ; turn++ {
		w, to, gen, waiters := hs.first(l)
		for _, s := range waiters {
			s.wake()
		}
		if w == nil {
			return
		}
		id := ChunkID{Topic: l.key.topic.name, TopicID: l.key.id, Partition: l.key.partition, From: w.from}
		hs.reads.Add(1)
		es, next, err := hs.src.ReadAt(ctx, id, to, hs.most, l.only)
		waiters, more := hs.finish(l, w, gen, es, next, err, turn)
		for _, s := range waiters {
			s.wake()
		}
		hs.charge()
		if !more {
			return
		}
	}
}

// first returns what to read next, dropping what nobody waits for any more, and those who wait for what is there.
func (hs *history) first(l *lane) (_ *want, to int64, gen int, waiters []*Subscription) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for len(l.wants) > 0 {
		w := l.wants[0]
		open := len(w.waiters) == 0 // read ahead
		for _, s := range w.waiters {
			open = open || !s.closed.Load()
		}
		if l.cover(w.from) != nil {
			waiters = append(waiters, w.waiters...)
		} else if open && !hs.closed {
			hs.reading++
			return w, w.to, l.gen, waiters // to: another reader may raise it meanwhile
		}
		l.wants = l.wants[1:]
	}
	hs.release(l)
	return nil, 0, 0, waiters
}

// release gives a lane back that is not read any more. mu is held.
func (hs *history) release(l *lane) {
	l.busy, l.queued, l.wants = false, false, nil
	if len(l.chunks) == 0 && l.floor < 0 && l.late == 0 && hs.lanes[l.key] == l {
		delete(hs.lanes, l.key)
	}
}

// finish takes the answer to a want, and returns who waits for it, and whether to go on with the lane.
func (hs *history) finish(l *lane, w *want, gen int, es []*Entry, next int64, err error, turn int) (waiters []*Subscription, more bool) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.reading--
	defer hs.call()
	if hs.closed || hs.lanes[l.key] != l {
		hs.release(l)
		return nil, false
	}
	var outOfRange *OffsetOutOfRangeError
	switch {
	case l.gen != gen:
		// The log lost its end meanwhile: what was read may be what was lost.
		return nil, true
	case errors.As(err, &outOfRange) && outOfRange.Oldest > w.from:
		l.floor, l.end = max(l.floor, outOfRange.Oldest), outOfRange.End
		waiters = w.waiters
		l.wants = l.wants[1:]
	case err != nil || next <= w.from:
		// Away, deleted (the live side tells), or nothing there yet although it is told to be.
		l.wants = append(l.wants[1:], w) // another may fare better
		hs.pause(l)
		return nil, false
	default:
		waiters = w.waiters
		l.wants = l.wants[1:]
		c := hs.insert(l, w.from, next, es)
		if len(waiters) > 0 {
			c.awaited = l.key.topic.hub.clock.Load() + keepAwaited<<min(l.late, 4)
			hs.awaited += c.bytes
		}
		if w.ahead > 0 && next < w.to && l.cover(next) == nil && !hs.stalled() {
			l.prepend(&want{from: next, to: w.to, ahead: w.ahead - 1})
		}
	}
	l.rest = 0
	if len(l.wants) > 0 && (turn >= turnChunks && len(hs.queue) > 0 || hs.stalled()) {
		l.busy, l.queued = false, false
		hs.enqueue(l)
		return waiters, false
	}
	return waiters, true
}

// prepend puts a want in front, unless it is there.
func (l *lane) prepend(w *want) {
	for _, other := range l.wants {
		if other.from == w.from {
			return
		}
	}
	l.wants = append([]*want{w}, l.wants...)
}

// pause lets a lane rest after an error.
func (hs *history) pause(l *lane) {
	l.busy = false
	l.rest = min(max(2*l.rest, restAtFirst), restAtMost)
	l.timer = time.AfterFunc(l.rest, func() {
		hs.mu.Lock()
		defer hs.mu.Unlock()
		l.queued = false
		hs.enqueue(l)
	})
}

// revive ends the rests of a partition's lanes: it can be read again. mu is not held.
func (hs *history) revive(t *Topic, partition int32) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for key, l := range hs.lanes {
		if key.topic != t || key.partition != partition {
			continue
		}
		l.rest = 0 // also where a call is under way that may have failed before
		if l.timer != nil && l.timer.Stop() {
			l.queued = false
			hs.enqueue(l)
		}
	}
}

// close ends reading. Rests are over.
func (hs *history) close() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	hs.closed = true
	for _, l := range hs.lanes {
		if l.timer != nil {
			l.timer.Stop()
		}
	}
}
