package kafka

import (
	"fmt"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/hub"
)

// cursor is a place of a reader: what it has fetched there and nobody has asked for yet.
type cursor struct {
	key     key
	next    int64                // of what was given out
	ready   []*confluent.Message // from next on, in offset order
	bytes   int
	end     int64 // behind the last message or the last end of partition that came, whichever is later
	atEnd   bool  // the log ended at end
	held    bool  // enough is at hand: it is not assigned, and fetched again from end on when that has been given out
	touched time.Time
	heard   time.Time // the last sign of life from Kafka, at least roughly
	silent  time.Time // since when requests got no answer; zero: the last one got one
	parked  *read     // waits for its next turn
}

// full says whether what is at hand answers the request: a chunk's worth, or all there is below to.
func (c *cursor) full(q *read) bool {
	return len(c.ready) >= q.max || c.bytes >= hub.MaxChunkBytes+len(c.ready)*recordOverhead || c.end >= q.to
}

// tidy gives up places that nobody asks for any more.
func (r *reader) tidy() {
	for _, c := range r.cursors {
		if time.Since(c.touched) >= cursorIdle {
			r.leave(c)
		}
	}
	if r.consumer == nil || len(r.cursors) > 0 {
		return
	}
	for range 100 { // statistics and error events of idle times
		switch e := r.consumer.Poll(0).(type) {
		case nil:
			return
		case *confluent.Stats:
			r.fetched.take(r.consumer, e)
		}
	}
}

// leave gives a place up, with what was fetched ahead.
func (r *reader) leave(c *cursor) {
	delete(r.cursors, c.key)
	r.bytes -= c.bytes
	r.history.left(r, c.key, c.next)
	r.hold(c)
}

// share is what may wait at one place.
func (r *reader) share() int { return (readerBytes - readerRoom) / max(len(r.cursors), readerShares) }

// hold ends fetching at a place. What has come stays; what librdkafka has fetched further ahead is dropped, and fetched again later.
func (r *reader) hold(c *cursor) {
	if c.held {
		return
	}
	c.held = true
	if err := r.consumer.IncrementalUnassign([]confluent.TopicPartition{{Topic: &c.key.topic, Partition: c.key.partition}}); err != nil {
		r.log.Error("unassign partition", "topic", c.key.topic, "partition", c.key.partition, "error", err)
	}
}

// fetch begins to fetch at a place, behind what has come.
func (r *reader) fetch(c *cursor) error {
	if !c.held {
		return nil
	}
	tp := confluent.TopicPartition{Topic: &c.key.topic, Partition: c.key.partition, Offset: confluent.Offset(c.end)}
	if err := r.consumer.IncrementalAssign([]confluent.TopicPartition{tp}); err != nil {
		return fmt.Errorf("assign %q partition %d: %w: %w", c.key.topic, c.key.partition, hub.ErrUnavailable, err)
	}
	c.held, c.atEnd = false, false
	return nil
}

// stand returns the cursor at the place that a request asks for, which is made if need be. Another request's place in the partition is
// left to it until that has its answer.
func (r *reader) stand(q *read) (*cursor, error) {
	k, at := key{q.id.Topic, q.id.Partition}, q.id.From
	c := r.cursors[k]
	if c != nil && c.next == at {
		if q.began.IsZero() {
			r.m.history.WithLabelValues(readerWarm).Inc()
		}
		return c, nil
	}
	if c != nil && c.parked != nil && c.parked != q && c.parked.ctx.Err() == nil {
		return nil, errLater
	}
	r.m.history.WithLabelValues(readerCold).Inc()
	if c != nil {
		r.leave(c)
	}
	for len(r.cursors) >= cursorsMax {
		var oldest *cursor
		for _, o := range r.cursors {
			if oldest == nil || o.touched.Before(oldest.touched) {
				oldest = o
			}
		}
		r.leave(oldest)
	}
	if r.known.due(k.topic, readSilence) {
		// Without a leader the first assign waits for a timer of half a second.
		_, err := r.consumer.GetMetadata(&k.topic, false, int(readSilence/time.Millisecond))
		r.known.note(k.topic, err)
	}
	if !r.known.met(k.topic) { // at once for a second: others wait for this reader
		return nil, fmt.Errorf("leaders of %q are not known: %w", k.topic, hub.ErrUnavailable)
	}
	c = &cursor{key: k, next: at, end: at, held: true}
	if err := r.fetch(c); err != nil {
		return nil, err
	}
	r.cursors[k] = c
	r.history.moved(r, k, at, at)
	return c, nil
}

// shed gives up the place that was not asked for the longest time: shares become smaller when places are added.
func (r *reader) shed(asked *cursor) {
	var oldest *cursor
	for _, c := range r.cursors {
		if c != asked && c.bytes > 0 && (oldest == nil || c.touched.Before(oldest.touched)) {
			oldest = c
		}
	}
	if oldest != nil {
		r.leave(oldest)
	}
}

// leaveOthers gives up all places but one that are fetched, as one of them has stopped.
func (r *reader) leaveOthers(c *cursor) {
	for _, o := range r.cursors {
		if o != c && !o.held {
			r.leave(o)
		}
	}
}
