package kafka

import (
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
	touched time.Time
	heard   time.Time // the last sign of life from Kafka, at least roughly
	silent  time.Time // since when requests got no answer; zero: the last one got one
	parked  *read     // waits for its next turn
}

// live notes a sign of life at a place.
func (c *cursor) live() { c.heard, c.silent = time.Now(), time.Time{} }

// full says whether what is at hand answers the request: a chunk's worth, or all there is below to.
func (c *cursor) full(q *read) bool {
	return len(c.ready) >= q.max || c.bytes >= hub.MaxChunkBytes+len(c.ready)*recordOverhead || c.end >= q.to
}
