package hub_test

import (
	"fmt"
	"time"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

// plainLog is what the hub is compared with: topics as lists of records, kept apart from the store that feeds the hub. It forgets nothing:
// what retention, compaction, truncation and re-creation took away is marked.
type plainLog struct {
	topics map[string]*plainTopic
}

type plainTopic struct {
	name       string
	id         string
	ids        []string // all that it had
	deleted    bool
	gone       []string          // ids that were deleted for good
	arrived    time.Time         // the newest record, at the hub
	partitions []*plainPartition // those from number on are not there any more
	number     int32
	counts     []int32 // numbers that it had
}

// plainPartition is one partition through all its lives.
type plainPartition struct {
	topic       string
	number      int32
	lives       []*life
	added       bool  // it was not there when the topic was made
	noted       int64 // up to where arrivals are noted, -1: it is not followed
	unavailable bool
}

// life is a stretch of time in which a partition only grew. The first life begins empty; the others begin with a copy of the one before
// up to fork (a truncation), or empty again (a re-creation).
type life struct {
	index     int
	id        string // of the topic
	recreated bool   // it began with a re-creation
	fork      int64
	epoch     int32
	oldest    *int64 // shared by the lives of one topic id
	opened    int64  // first record of the open transaction, -1 without one
	slots     []*plainRecord
}

// plainRecord is one offset of a partition; slots that outlive a truncation are shared by the lives.
type plainRecord struct {
	kind      plainKind
	compacted bool // may or may not be delivered
	key       []byte
	piece     []byte
	size      int       // of the encoded record
	arrived   time.Time // at the hub, live; zero: never, or not noted
	epoch     int32
}

type plainKind uint8

const (
	plainHole plainKind = iota
	plainCommitted
	plainOpen
)

func newPlainLog() *plainLog { return &plainLog{topics: map[string]*plainTopic{}} }

// create makes a topic, or makes it anew.
func (l *plainLog) create(name, id string, partitions int32) {
	t, again := l.topics[name]
	if !again {
		t = &plainTopic{name: name}
		l.topics[name] = t
	}
	t.id, t.deleted = id, false
	t.ids = append(t.ids, id)
	t.number = min(t.number, partitions)
	for _, p := range t.partitions { // also those that it has no more: they are empty, until it grows
		p.unavailable = false
		p.lives = append(p.lives, &life{index: len(p.lives), id: id, recreated: true, oldest: new(int64), opened: -1})
	}
	t.grow(partitions)
	for _, p := range t.partitions {
		p.added = p.added && again
	}
}

func (t *plainTopic) grow(partitions int32) {
	for _, p := range t.partitions[t.number:min(int(partitions), len(t.partitions))] {
		p.added = true
	}
	t.number = max(t.number, partitions)
	t.counts = append(t.counts, t.number)
	for int32(len(t.partitions)) < partitions {
		p := &plainPartition{topic: t.name, number: int32(len(t.partitions)), added: true, noted: -1}
		p.lives = []*life{{id: t.id, oldest: new(int64), opened: -1}}
		t.partitions = append(t.partitions, p)
	}
}

func (t *plainTopic) count() int32 { return t.number }

// present returns the partitions that it has now.
func (t *plainTopic) present() []*plainPartition { return t.partitions[:t.number] }

// snapshot returns how the topic is. followed says up to where the hub had a partition live, where it follows it: it need not know a later end.
func (t *plainTopic) snapshot(followed func(int32) (int64, bool)) *snapshot {
	s := &snapshot{ids: len(t.ids), count: t.count(), counts: len(t.counts)}
	for i := range t.partitions { // also those that are over, which the hub may not know yet
		_, ok := followed(int32(i))
		s.followed = s.followed || ok
	}
	for i, p := range t.present() {
		end := p.now().end()
		if next, ok := followed(int32(i)); ok {
			end, s.followed = min(end, next), true
		} else if p.added {
			end = 0 // the hub may be about to follow it from its oldest record on
		} else {
			s.idle = append(s.idle, int32(i))
		}
		s.ends = append(s.ends, end)
		s.lives = append(s.lives, len(p.lives))
	}
	return s
}

// now is the life that the log has now.
func (p *plainPartition) now() *life { return p.lives[len(p.lives)-1] }

func (v *life) high() int64 { return int64(len(v.slots)) }

// end is the last stable offset.
func (v *life) end() int64 {
	if v.opened >= 0 {
		return v.opened
	}
	return v.high()
}

func (p *plainPartition) append(kind plainKind, records ...hubtest.Record) {
	v := p.now()
	if kind == plainOpen && v.opened < 0 {
		v.opened = v.high()
	}
	for _, r := range records {
		piece := hubtest.Piece(p.topic, p.number, v.high(), v.epoch, r)
		v.slots = append(v.slots, &plainRecord{kind: kind, key: r.Key, piece: piece, size: recordSize(piece), epoch: v.epoch})
	}
}

func (p *plainPartition) appendHoles(n int) {
	v := p.now()
	for range n {
		v.slots = append(v.slots, &plainRecord{})
	}
}

func (p *plainPartition) settle(to plainKind) {
	v := p.now()
	if v.opened < 0 {
		return
	}
	for _, r := range v.slots[v.opened:] {
		if r.kind == plainOpen {
			r.kind = to
		}
	}
	v.opened = -1
	p.appendHoles(1)
}

func (p *plainPartition) truncate(high int64) {
	old := p.now()
	v := &life{index: len(p.lives), id: old.id, fork: high, epoch: old.epoch + 1, oldest: old.oldest, opened: -1}
	v.slots = append(v.slots, old.slots[:high]...)
	if old.opened >= 0 && old.opened < high {
		v.opened = old.opened
	}
	for _, r := range old.slots[high:] {
		if r.kind == plainOpen {
			r.kind = plainHole
		}
	}
	old.opened = -1
	p.lives = append(p.lives, v)
	p.settle(plainHole)
}

// lost returns the first offset of [from, to) in a life that a reader must not pass over silently, or why it must not be passed at all.
func (v *life) lost(from, to int64, wants func(*plainRecord) bool) error {
	if to > v.high() {
		return fmt.Errorf("position %d lies beyond the log's high watermark %d", to, v.high())
	}
	for i := from; i < to; i++ {
		r := v.slots[i]
		if r.kind == plainOpen {
			return fmt.Errorf("offset %d is of an open transaction", i)
		}
		if r.kind == plainCommitted && !r.compacted && wants(r) {
			return fmt.Errorf("offset %d is passed over", i)
		}
	}
	return nil
}

// recordSize is the size of the record in a piece: without tag and length.
func recordSize(piece []byte) int {
	n := 1
	for piece[n]&0x80 != 0 {
		n++
	}
	return len(piece) - n - 1
}
