package kafka

import (
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/hub"
)

// followed is one partition of a follower. It has no goroutine and no lock: it belongs to the follower's.
type followed struct {
	key   key
	topic appender
	set   *topicBatch

	sent    int64                // everything below was appended
	next    int64                // everything below was appended or is pending, or is a hole
	end     int64                // last stable offset as far as known, -1 unknown
	toldEnd int64                // what the last entry said
	pending []*confluent.Message // in offset order
	epoch   int32                // leader epoch of the last record that was taken, -1 unknown
	dirty   bool                 // on the follower's list

	assigned   bool
	assignedAt time.Time
	away       bool      // unavailable
	gone       bool      // the topic was deleted
	barred     bool      // its consumer must not read this log, and there is no other yet
	stuck      bool      // statistics say that nothing fetches it
	held       held      // by an open transaction
	beyond     time.Time // when the leader first said that next is beyond its log; zero: it did not
}

func newFollowed(t appender, partition int32, from int64) *followed {
	return &followed{key: key{t.Name(), partition}, topic: t, sent: from, next: from, end: -1, toldEnd: -1, epoch: -1}
}

// message takes a record; false if it lies below what has been taken. An offset above next is a hole (compaction, transactions): nothing
// else makes one, since auto.offset.reset=error never jumps.
func (p *followed) message(m *confluent.Message) bool {
	o := int64(m.TopicPartition.Offset)
	if o < p.next {
		return false
	}
	if e := m.TopicPartition.LeaderEpoch; e != nil {
		p.epoch = *e
	}
	p.pending = append(p.pending, m)
	p.next = o + 1
	return true
}

// reached takes the offset of an end-of-partition event.
func (p *followed) reached(end int64) {
	p.next = max(p.next, end)
	p.end = end
}

// take makes the entry for what has come since the last one; nil if nothing has.
func (p *followed) take() *hub.Entry {
	e := &hub.Entry{Kind: hub.Records, Partition: p.key.partition, From: p.sent, Next: p.next, End: max(p.end, p.next)}
	if len(p.pending) == 0 {
		if p.end < 0 || p.sent == p.next && e.End == p.toldEnd {
			return nil
		}
		e.Kind = hub.Advance
	} else {
		e.Body, e.Meta = encodeRecords(p.pending)
		clear(p.pending)
		p.pending = p.pending[:0]
	}
	p.sent, p.end, p.toldEnd = p.next, e.End, e.End
	return e
}

// control makes an entry that moves nothing.
func (p *followed) control(kind hub.Kind) *hub.Entry {
	return &hub.Entry{Kind: kind, Partition: p.key.partition, From: p.sent, Next: p.sent, End: p.end}
}

// jump moves the partition to another offset and returns the entry that tells so.
func (p *followed) jump(kind hub.Kind, to, end int64) *hub.Entry {
	clear(p.pending)
	p.pending = p.pending[:0]
	e := &hub.Entry{Kind: kind, Partition: p.key.partition, From: p.sent, Next: to, End: end}
	p.sent, p.next, p.end, p.toldEnd, p.beyond = to, to, end, end, time.Time{}
	p.epoch = -1
	return e
}
