package kafka

import (
	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// This file is what a group member does with each record.

// message takes one. They come in runs of one partition: what is known of partitions is looked up once for a run.
func (m *member) message(e *confluent.Message) {
	if n := len(m.newest); n > 0 {
		last, at := &m.newest[n-1].TopicPartition, &e.TopicPartition
		if last.Partition != at.Partition || *last.Topic != *at.Topic {
			m.gather()
		}
	}
	m.newest = append(m.newest, e)
}

// gather puts the run to what waits of its partition. Nobody looks at next, pending and epochs before.
func (m *member) gather() {
	if len(m.newest) == 0 {
		return
	}
	of := &m.newest[0].TopicPartition
	id := group.Partition{Topic: *of.Topic, Partition: of.Partition}
	if next, ok := m.next[id]; ok {
		pending, epoch := m.pending[id], m.epochs[id]
		for _, e := range m.newest {
			tp := &e.TopicPartition
			if int64(tp.Offset) < next {
				continue
			}
			next = int64(tp.Offset) + 1
			pending = append(pending, e)
			if tp.LeaderEpoch != nil {
				epoch = *tp.LeaderEpoch
			}
		}
		m.next[id], m.pending[id], m.epochs[id] = next, pending, epoch
	}
	clear(m.newest)
	m.newest = m.newest[:0]
}

// give appends what was taken.
func (m *member) give() {
	m.gather()
	for id, msgs := range m.pending {
		if len(msgs) == 0 {
			continue
		}
		m.group.Append(group.Batch{Partition: id, Records: encodeDealt(msgs), Next: m.next[id]})
		clear(msgs)
		m.pending[id] = msgs[:0]
		delete(m.ends, id)
	}
	for id, end := range m.ends {
		m.group.Append(group.Batch{Partition: id, Next: end})
	}
	clear(m.ends)
}

// encodeDealt makes records of messages of one partition, in offset order.
func encodeDealt(msgs []*confluent.Message) []group.Record {
	records := make([]group.Record, len(msgs))
	total := 0
	for _, m := range msgs {
		total += recordSize(m)
	}
	body := make([]byte, 0, total)
	var meta hub.Meta
	for i, m := range msgs {
		from := len(body)
		body = appendRecord(body, m, &meta)
		records[i] = group.Record{Offset: meta.Offset, Epoch: meta.Epoch, Body: body[from:len(body):len(body)]}
		if meta.Key >= 0 {
			records[i].Key = body[meta.Key : meta.Key+meta.KeyLen : meta.Key+meta.KeyLen]
		}
	}
	return records
}
