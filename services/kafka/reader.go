package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/hub"
)

// What keeps a request from its answer for now.
var (
	errSilent = fmt.Errorf("no answer: %w", hub.ErrUnavailable)
	errLater  = errors.New("others wait") // never leaves a reader
)

// looks is how many records are taken between two looks at the clock and the contexts.
const looks = 64

// reader is one consumer with a few places in logs. Its goroutine is the only one that calls its consumer.
type reader struct {
	history *history
	client  *Client
	log     *slog.Logger
	m       *Metrics
	queue   chan *read
	stopped chan struct{} // closed when run has ended

	// guarded by history.mu
	waiting int          // requests queued or under way
	places  map[key]bool // partitions in which it stands

	// owned by run
	open     func() (*confluent.Consumer, error)
	consumer *confluent.Consumer // nil until the first request
	closing  sync.WaitGroup      // consumers that were replaced
	logs     topicLogs
	known    meetings
	cursors  map[key]*cursor
	bytes    int // at all of them
	fetched  meter
	clock    time.Time // the time, as of some polls ago
}

// load orders readers for a new place in a partition. Called with history.mu held.
func (r *reader) load(k key) int {
	n := 2*r.waiting + len(r.places)
	if r.places[k] {
		n += cursorsMax / 2
	}
	return n
}

// run serves until ctx ends, and closes the consumer.
func (r *reader) run(ctx context.Context) {
	defer close(r.stopped)
	defer r.closing.Wait()
	defer func() {
		if r.consumer != nil {
			closeBounded(r.log, "history reader", func() { _ = r.consumer.Close() })
		}
	}()
	tick := time.NewTicker(cursorIdle / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-r.queue:
			if err := r.prepare(q); err != nil {
				q.answer <- chunk{next: q.id.From, err: err}
				continue
			}
			a := r.serve(ctx, q)
			if errors.Is(a.err, errLater) {
				select {
				case r.queue <- q:
					continue
				default: // no room for another turn
					if c := r.cursors[key{q.id.Topic, q.id.Partition}]; c != nil && c.parked == q {
						c.parked = nil
					}
					a.err = fmt.Errorf("read %q partition %d: %w", q.id.Topic, q.id.Partition, errSilent)
				}
			}
			q.answer <- a
		case <-tick.C:
			r.tidy()
		}
	}
}

// prepare sees to it that there is a consumer which can read the log that is asked for.
func (r *reader) prepare(q *read) error {
	id := q.id.TopicID
	if id == "" {
		i, _ := r.client.admin.known(q.id.Topic)
		id = i.id
	}
	if r.logs.isAnother(q.id.Topic, id) && r.consumer != nil {
		for _, c := range r.cursors {
			c.held = true // its records are still right, unless they are of that topic
			if c.key.topic == q.id.Topic {
				r.leave(c)
			}
		}
		old := r.consumer
		r.closing.Go(func() { closeBounded(r.log, "history reader", func() { _ = old.Close() }) })
		r.consumer, r.known = nil, meetings{}
	}
	if r.consumer != nil {
		return nil
	}
	c, err := r.open()
	if err != nil {
		return fmt.Errorf("open history reader: %w: %w", hub.ErrUnavailable, err)
	}
	r.consumer = c
	return nil
}

// serve answers one request.
func (r *reader) serve(ctx context.Context, q *read) chunk {
	if q.ctx.Err() != nil {
		return chunk{next: q.id.From, err: q.ctx.Err()}
	}
	c, err := r.stand(q)
	if err != nil {
		return chunk{next: q.id.From, err: err}
	}
	c.touched = time.Now()
	if q.began.IsZero() {
		q.began = c.touched
	}
	c.parked = nil
	err = r.fill(ctx, q, c)
	c.touched = time.Now()
	switch {
	case err == nil:
		return r.cut(q, c)
	case errors.Is(err, errLater):
		c.parked = q
	case errors.Is(err, errSilent):
		// The place is kept: the answer may just be late, and the next request is then served from it.
		if c.silent.IsZero() {
			c.silent = q.began
		}
		if time.Since(c.silent) > placeSilence {
			r.leave(c)
		}
	case r.cursors[c.key] == c:
		r.leave(c)
	}
	return chunk{next: q.id.From, err: err}
}

// fill polls until the request can be answered. One that gets no answer at the moment lets others have their turn.
func (r *reader) fill(ctx context.Context, q *read, c *cursor) error {
	turn, limit := time.Now(), readSilence
	if r.clock = turn; !c.silent.IsZero() {
		limit = readAgain
	}
	if c.held && !c.full(q) {
		if err := r.fetch(c); err != nil {
			return err
		}
		c.heard = turn
	}
	for n := 1; !c.full(q); n++ {
		switch e := r.consumer.Poll(int(readPoll / time.Millisecond)).(type) {
		case *confluent.Message:
			if r.message(e, c); n%looks != 0 {
				continue
			}
		case confluent.PartitionEOF:
			if o := r.cursors[key{*e.Topic, e.Partition}]; o != nil && !o.held {
				o.end, o.atEnd = max(o.end, int64(e.Offset)), true
				o.heard, o.silent = time.Now(), time.Time{}
			}
		case confluent.Error:
			if err := r.failure(ctx, q, c, e); err != nil {
				return err
			}
		case *confluent.Stats:
			r.fetched.take(r.consumer, e)
		}
		r.clock = time.Now()
		quiet := min(r.clock.Sub(q.began), r.clock.Sub(c.heard))
		switch {
		case q.ctx.Err() != nil:
			return q.ctx.Err()
		case ctx.Err() != nil:
			return hub.ErrDraining
		case c.end > c.next && (c.atEnd || quiet > limit):
			return nil // less than was asked for, but all there is
		case c.atEnd && quiet > stillTimeout:
			return fmt.Errorf("read %q partition %d: nothing at %d yet: %w", c.key.topic, c.key.partition, c.next, hub.ErrUnavailable)
		case quiet > limit:
			return fmt.Errorf("read %q partition %d: %w", c.key.topic, c.key.partition, errSilent)
		case len(r.queue) > 0 && min(quiet, time.Since(turn)) >= readPoll:
			return errLater
		}
	}
	return nil
}

// message takes a record for whichever place it belongs to. A place that has its share is not fetched until it is asked for again; the one that is
// asked for has what the request needs, a chunk.
func (r *reader) message(m *confluent.Message, asked *cursor) {
	c := asked
	if m.TopicPartition.Partition != c.key.partition || *m.TopicPartition.Topic != c.key.topic {
		if c = r.cursors[key{*m.TopicPartition.Topic, m.TopicPartition.Partition}]; c == nil {
			return
		}
	}
	o := int64(m.TopicPartition.Offset)
	if m.TopicPartition.Error != nil || o < c.end || c.held {
		return
	}
	n := messageBytes(m)
	c.ready = append(c.ready, m)
	c.bytes += n
	c.end, c.atEnd, c.heard, c.silent = o+1, false, r.clock, time.Time{}
	if r.bytes += n; r.bytes > readerBytes {
		r.shed(asked)
	}
	if c != asked && c.bytes > r.share() {
		r.hold(c)
	}
}

// failure looks at what an error event means for the request; nil: nothing.
func (r *reader) failure(ctx context.Context, q *read, c *cursor, e confluent.Error) error {
	r.log.Debug("history consumer error", "code", e.Code().String(), "error", e)
	if e.Code() == confluent.ErrAllBrokersDown {
		return fmt.Errorf("read %q partition %d: %w: %w", c.key.topic, c.key.partition, hub.ErrUnavailable, e)
	}
	if !isOutOfRange(e) {
		if e.Code() == confluent.ErrUnknownTopicOrPart || e.Code() == confluent.ErrUnknownTopic {
			delete(r.known, c.key.topic)
			return fmt.Errorf("read %q partition %d: %w: %w", c.key.topic, c.key.partition, hub.ErrUnavailable, e)
		}
		return nil
	}
	// The event names no partition. If it is not this one, it is the place of another, which has stopped for good.
	b, err := r.bounds(ctx, q, c)
	if err != nil {
		r.leaveOthers(c)
		return err
	}
	if c.next < b.oldest || c.next > b.end {
		if bs, err := r.client.admin.bounds(q.ctx, c.key.topic, []int32{c.key.partition}, r.client.cfg.Isolation); err == nil {
			b.end = min(b.end, bs[c.key.partition].end) // the end that readers know is the last stable offset
		}
		return &hub.OffsetOutOfRangeError{Topic: c.key.topic, Partition: c.key.partition, Offset: c.next, Oldest: b.oldest, End: b.end}
	}
	r.leaveOthers(c)
	return nil
}

// bounds asks where the log begins and ends; twice before it says that the place is beyond it, since another replica may be ahead.
func (r *reader) bounds(ctx context.Context, q *read, c *cursor) (logBounds, error) {
	for again := false; ; again = true {
		ask, cancel := context.WithTimeout(q.ctx, readSilence)
		bs, err := r.client.admin.bounds(ask, c.key.topic, []int32{c.key.partition}, ReadUncommitted)
		cancel()
		if err == nil {
			err = bs[c.key.partition].err
		}
		if err != nil {
			return logBounds{}, fmt.Errorf("bounds of %q partition %d: %w: %w", c.key.topic, c.key.partition, hub.ErrUnavailable, err)
		}
		b := bs[c.key.partition]
		if c.next <= b.end || again {
			return b, nil
		}
		select {
		case <-time.After(beyondInterval):
		case <-q.ctx.Done():
			return logBounds{}, q.ctx.Err()
		case <-ctx.Done():
			return logBounds{}, hub.ErrDraining
		}
	}
}

// cut takes the answer from what is at hand.
func (r *reader) cut(q *read, c *cursor) chunk {
	n, size, headers := 0, 0, 0
	for n < len(c.ready) && n < q.max && int64(c.ready[n].TopicPartition.Offset) < q.to {
		s := messageBytes(c.ready[n]) - recordOverhead
		if n > 0 && size+s > hub.MaxChunkBytes {
			break
		}
		size += s
		headers += len(c.ready[n].Headers)
		n++
	}
	// The position passes holes: up to the next record that is at hand, or else as far as was looked.
	next := min(c.end, q.to)
	if n < len(c.ready) {
		next = min(int64(c.ready[n].TopicPartition.Offset), q.to)
	}
	var es []*hub.Entry
	if n > 0 {
		e := &hub.Entry{Kind: hub.Records, Partition: c.key.partition, From: q.id.From, Next: next, End: -1}
		e.Body, e.Meta = encodeRecords(c.ready[:n])
		if c.atEnd {
			e.End = c.end
		}
		es = []*hub.Entry{e}
		for _, m := range c.ready[:n] {
			c.bytes -= messageBytes(m)
			r.bytes -= messageBytes(m)
		}
		r.m.historyIn.Add(float64(n))
		r.m.historyByte.Add(float64(size - headers*headerOverhead))
	}
	clear(c.ready[:n])
	if c.ready = c.ready[n:]; len(c.ready) == 0 {
		c.ready = nil
	}
	from := c.next
	c.next, c.end = next, max(c.end, next)
	r.history.moved(r, c.key, from, next)
	return chunk{entries: es, next: next}
}
