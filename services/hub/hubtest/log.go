package hubtest

import (
	"fmt"

	"tailrace.dev/tailrace/services/hub"
)

// topicLog is one topic under one id. A topic that is created again is another topicLog.
type topicLog struct {
	name       string
	id         string
	partitions []*partitionLog
}

// partitionLog is one partition: a slot for each offset that was ever given out, from 0.
type partitionLog struct {
	slots       []slot
	oldest      int64
	opened      int64 // first record of the open transaction, -1 without one
	epoch       int32
	unavailable bool
}

type slotKind uint8

const (
	hole   slotKind = iota // control record, aborted or compacted away
	record                 // a committed record
	open                   // a record of the open transaction
)

type slot struct {
	kind  slotKind
	piece []byte
	meta  hub.Meta // places relative to piece
}

// high is the high watermark.
func (p *partitionLog) high() int64 { return int64(len(p.slots)) }

// end is the last stable offset: the first record of the open transaction, or the high watermark.
func (p *partitionLog) end() int64 {
	if p.opened >= 0 {
		return p.opened
	}
	return p.high()
}

// since returns the first record with this time, in Unix milliseconds, or a later one; the end if there is none.
func (p *partitionLog) since(at int64) int64 {
	for i := p.oldest; i < p.end(); i++ {
		if sl := &p.slots[i]; sl.kind == record && sl.meta.Time >= at {
			return i
		}
	}
	return p.end()
}

// last returns the first of the last n records that have one of the keys (nil: all). It looks back over reach offsets; incomplete: there may
// be more below.
func (p *partitionLog) last(n int, keys [][]byte, reach int64) (start int64, incomplete bool) {
	terms := &hub.Terms{}
	if keys != nil {
		terms.Keys = map[string]struct{}{}
		for _, k := range keys {
			terms.Keys[string(k)] = struct{}{}
		}
	}
	bottom := max(p.oldest, p.end()-reach)
	for i := p.end() - 1; i >= bottom; i-- {
		if sl := &p.slots[i]; sl.kind == record && terms.Has(keyOf(sl)) {
			if n--; n == 0 {
				return i, false
			}
		}
	}
	return bottom, bottom > p.oldest
}

// settle turns the records of the open transaction into to, and closes it with a control record.
func (p *partitionLog) settle(to slotKind) {
	if p.opened < 0 {
		return
	}
	for i := range p.slots {
		if p.slots[i].kind == open {
			p.slots[i].kind = to
		}
	}
	p.slots = append(p.slots, slot{kind: hole})
	p.opened = -1
}

// CreateTopic makes an empty topic, or makes an existing one anew under another id. Followers of the old one are told Recreated, at offset 0,
// also those of partitions that the new one does not have.
func (s *Source) CreateTopic(name string, partitions int32) {
	s.change(func() {
		s.created++
		t := &topicLog{name: name, id: fmt.Sprintf("%s-id-%d", name, s.created)}
		for range partitions {
			t.partitions = append(t.partitions, &partitionLog{opened: -1})
		}
		s.topics[name] = t
	})
}

// DeleteTopic deletes a topic for good. Followers are told Deleted.
func (s *Source) DeleteTopic(name string) {
	s.change(func() { delete(s.topics, name) })
}

// Grow raises the number of partitions of a topic. One of its followers is told Topology.
func (s *Source) Grow(name string, partitions int32) {
	s.change(func() {
		t := s.topic(name)
		for int32(len(t.partitions)) < partitions {
			t.partitions = append(t.partitions, &partitionLog{opened: -1})
		}
	})
}

// Append adds committed records and returns the offset of the first.
func (s *Source) Append(topic string, partition int32, records ...Record) int64 {
	return s.add(topic, partition, record, records)
}

// AppendOpen adds records to the partition's open transaction (it opens one where there is none). Until Commit or Abort the end of the
// partition stays below them, also for records appended by others meanwhile. It returns the offset of the first.
func (s *Source) AppendOpen(topic string, partition int32, records ...Record) int64 {
	return s.add(topic, partition, open, records)
}

// AppendHoles adds n offsets without a record, such as control records or an aborted transaction leave. It returns the first.
func (s *Source) AppendHoles(topic string, partition int32, n int) (first int64) {
	s.change(func() {
		p := s.partition(topic, partition)
		first = p.high()
		p.slots = append(p.slots, make([]slot, n)...)
	})
	return first
}

// Commit commits the partition's open transaction: its records appear, and one control record follows.
func (s *Source) Commit(topic string, partition int32) {
	s.change(func() { s.partition(topic, partition).settle(record) })
}

// Abort aborts the partition's open transaction: its records become holes, and one control record follows.
func (s *Source) Abort(topic string, partition int32) {
	s.change(func() { s.partition(topic, partition).settle(hole) })
}

// Compact removes the record at an offset, as compaction would: a hole is left.
func (s *Source) Compact(topic string, partition int32, offset int64) {
	s.change(func() { s.partition(topic, partition).slots[offset].kind = hole })
}

// Retain removes everything below oldest (at most the end), as retention does. Followers that stand below are told a Gap.
func (s *Source) Retain(topic string, partition int32, oldest int64) {
	s.change(func() {
		p := s.partition(topic, partition)
		p.oldest = max(p.oldest, min(oldest, p.end()))
	})
}

// Truncate loses the end of the log from high on, as an unclean leader election does; an open transaction that reaches there is lost whole.
// Followers that stand above are told a Gap, and go on at high. The leader epoch rises.
func (s *Source) Truncate(topic string, partition int32, high int64) {
	s.change(func() {
		p := s.partition(topic, partition)
		if high >= p.high() || high < p.oldest {
			return
		}
		p.slots = p.slots[:high:high]
		if p.opened >= high {
			p.opened = -1
		}
		p.settle(hole)
		p.epoch++
		for f := range s.followers {
			if f.name == topic && f.partition == partition && f.top > high && (f.cut < 0 || f.cut > high) {
				f.cut = high
			}
		}
	})
}

// Elect makes another leader: the epoch of records that are appended from now on rises.
func (s *Source) Elect(topic string, partition int32) {
	s.change(func() { s.partition(topic, partition).epoch++ })
}

// SetUnavailable makes a partition unreadable, or readable again. Followers are told; ReadAt and Resolve fail meanwhile.
func (s *Source) SetUnavailable(topic string, partition int32, unavailable bool) {
	s.change(func() { s.partition(topic, partition).unavailable = unavailable })
}

// TopicID returns the id that a topic has now, "" if there is none.
func (s *Source) TopicID(topic string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.topics[topic]; t != nil {
		return t.id
	}
	return ""
}

// Offsets returns where a partition stands: its oldest offset, its end (last stable offset) and its high watermark.
func (s *Source) Offsets(topic string, partition int32) (oldest, end, high int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partition(topic, partition)
	return p.oldest, p.end(), p.high()
}

func (s *Source) add(topic string, partition int32, kind slotKind, records []Record) (first int64) {
	s.change(func() {
		p := s.partition(topic, partition)
		first = p.high()
		if kind == open && p.opened < 0 && len(records) > 0 {
			p.opened = first
		}
		for _, r := range records {
			piece, meta := encode(topic, partition, p.high(), p.epoch, r)
			p.slots = append(p.slots, slot{kind: kind, piece: piece, meta: meta})
		}
	})
	return first
}

// change changes the store and tells the followers.
func (s *Source) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	for f := range s.followers {
		f.signal()
	}
}

// topic and partition panic where there is none: a test that errs there is wrong. s.mu is held.
func (s *Source) topic(name string) *topicLog {
	t := s.topics[name]
	if t == nil {
		panic(fmt.Sprintf("hubtest: no topic %q", name))
	}
	return t
}

func (s *Source) partition(topic string, partition int32) *partitionLog {
	t := s.topic(topic)
	if partition < 0 || int(partition) >= len(t.partitions) {
		panic(fmt.Sprintf("hubtest: topic %q has no partition %d", topic, partition))
	}
	return t.partitions[partition]
}
