package e2e_test

import (
	"fmt"
	"maps"
	"sync"
	"time"
)

// Of the workers of TestWorkersEndAtRandom.
const (
	hastyTimeout   = 3 * time.Second  // ackTimeout of workers that forget records
	patientTimeout = 60 * time.Second // of those that do not: more than a silent socket is kept
	lateness       = 2 * time.Second  // after the timeout, when a forgotten record is acknowledged all the same
)

// released is how a worker let go of a delivery.
type released uint8

const (
	held released = iota
	acked
	nacked
	along // with one of its key that was nacked before it
	ended // with the stream
)

// dealt is a delivery as a worker has seen it. All numbers are of the ledger's one sequence of what happened: what is to be sent is noted before, what
// came after.
type dealt struct {
	at      placeOf
	key     string // "": none
	tag     int64
	attempt int
	by      *consuming

	seq       int
	when      time.Time
	how       released
	until     int // when it was let go
	untilWhen time.Time
	delay     time.Duration // of the nack
	forgot    bool          // it is not acknowledged in time
	late      bool          // but afterwards
	before    *dealt        // the nack that took it along, or that was sent when it was on its way
	refused   bool          // the ack, or nack, was
	confirmed bool          // that it was not is certain, so it was held until then
}

// took says that a delivery was acknowledged, as far as anybody knows.
func (d *dealt) took() bool { return d.how == acked && !d.refused }

// consuming is one consume of a worker, and what it knows of it.
type consuming struct {
	n      int
	via    map[string]bool // the connection and the processes that it leads through, as far as they are known
	over   bool
	tags   map[int64]*dealt
	said   []*dealt          // acks, nacks and late acks, in order
	sure   int               // of said, those of which it is known whether they were taken
	probes map[int64]int     // tags never dealt, by what had been said before
	nacked map[string]*dealt // by key: what was nacked and did not come again here
}

// ledger is all that the workers of a group have seen and done.
type ledger struct {
	group   string
	ordered bool

	mu      sync.Mutex
	seq     int
	probe   int64
	all     []*dealt
	streams []*consuming
	gone    map[string]bool            // connections and processes that are no more
	freed   map[placeOf]time.Time      // what was held at an end that the test made, until it comes again
	waits   map[string][]time.Duration // how long that took, by the kind of the end
	kind    map[placeOf]string
	count   map[string]int
	done    map[placeOf]bool
	wrong   []string
}

func newLedger(group string, ordered bool) *ledger {
	return &ledger{
		group: group, ordered: ordered, probe: 1 << 52, gone: map[string]bool{}, freed: map[placeOf]time.Time{}, waits: map[string][]time.Duration{},
		kind: map[placeOf]string{}, count: map[string]int{}, done: map[placeOf]bool{},
	}
}

func (l *ledger) step() int {
	l.seq++
	return l.seq
}

func (l *ledger) breach(format string, args ...any) {
	if len(l.wrong) < 20 {
		l.wrong = append(l.wrong, l.group+": "+fmt.Sprintf(format, args...))
	}
}

// open notes a new stream; nil: what it leads through is gone.
func (l *ledger) open(via ...string) *consuming {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &consuming{n: len(l.streams), via: map[string]bool{}, tags: map[int64]*dealt{}, probes: map[int64]int{}, nacked: map[string]*dealt{}}
	for _, v := range via {
		if l.gone[v] {
			return nil
		}
		s.via[v] = true
	}
	l.streams = append(l.streams, s)
	l.count["streams"]++
	return s
}

// end notes that a stream is over; from now on nothing that comes of it counts. kind says how the test ended it; "": it did not.
func (l *ledger) end(s *consuming, kind string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endOf(s, kind)
}

func (l *ledger) endOf(s *consuming, kind string) {
	if s.over {
		return
	}
	s.over = true
	now := time.Now()
	for _, d := range s.tags {
		if d.how != held {
			continue
		}
		d.how, d.until, d.untilWhen = ended, l.step(), now
		if kind != "" && !d.forgot {
			l.freed[d.at], l.kind[d.at] = now, kind
		}
	}
}

// endAll ends all streams that lead through something that is about to end. It is false if that has ended already.
func (l *ledger) endAll(via, kind string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gone[via] {
		return false
	}
	l.gone[via] = true
	for _, s := range l.streams {
		if s.via[via] {
			l.endOf(s, kind)
		}
	}
	l.count[kind]++
	return true
}

// came notes deliveries; ok is false if the stream is over.
func (l *ledger) came(s *consuming, ds []*dealt) (ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.over {
		return false
	}
	now := time.Now()
	for _, d := range ds {
		d.by, d.seq, d.when = s, l.step(), now
		if s.tags[d.tag] != nil {
			l.breach("stream %d has got the tag %d twice", s.n, d.tag)
		}
		s.tags[d.tag] = d
		l.all = append(l.all, d)
		if at, was := l.freed[d.at]; was {
			l.waits[l.kind[d.at]] = append(l.waits[l.kind[d.at]], now.Sub(at))
			delete(l.freed, d.at)
		}
		if key := d.lane(); l.ordered && key != "" {
			if first, was := s.nacked[key]; was {
				if d.at.offset > first.at.offset && !l.done[first.at] {
					d.before = first
				} else {
					delete(s.nacked, key)
				}
			}
		}
	}
	return true
}

// forget notes that a delivery will not be acknowledged in time.
func (l *ledger) forget(d *dealt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.forgot = true
	l.count["forgotten"]++
}

// lane is the key, in its partition; "" of a record without one.
func (d *dealt) lane() string {
	if d.key == "" {
		return ""
	}
	return fmt.Sprintf("%d/%s", d.at.partition, d.key)
}

// acking notes acks that are to be sent, and returns the tags.
func (l *ledger) acking(s *consuming, ds []*dealt) (tags []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.over {
		return nil
	}
	now := time.Now()
	for _, d := range ds {
		tags = append(tags, d.tag)
		s.said = append(s.said, d)
		switch {
		case d.forgot:
			d.late = true
			l.count["late acks"]++
		case d.how == held:
			d.how, d.until, d.untilWhen = acked, l.step(), now
			l.done[d.at] = true
			l.count["acks"]++
		default: // along: it must be refused
			l.count["acks of what a nack took along"]++
		}
	}
	return tags
}

// nacking notes a nack. What is held of its key behind it goes along.
func (l *ledger) nacking(s *consuming, d *dealt, delay time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.over || d.how != held {
		return false
	}
	now := time.Now()
	d.how, d.until, d.untilWhen, d.delay = nacked, l.step(), now, delay
	s.said = append(s.said, d)
	l.count["nacks"]++
	if delay > 0 {
		l.count["nacks with delay"]++
	}
	if key := d.lane(); l.ordered && key != "" {
		s.nacked[key] = d
		for _, other := range s.tags {
			if other.how == held && other.lane() == key && other.at.offset > d.at.offset {
				other.how, other.until, other.untilWhen, other.before = along, l.step(), now, d
			}
		}
	}
	return true
}

// stranger returns a tag that is never dealt. The answer to its ack says that all acks before it have been looked at.
func (l *ledger) stranger(s *consuming) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probe++
	s.probes[l.probe] = len(s.said)
	return l.probe
}

// refuse notes the tags of a NOT_HELD.
func (l *ledger) refuse(s *consuming, tags []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.over {
		return
	}
	sure := s.sure
	for _, tag := range tags {
		if n, ok := s.probes[tag]; ok {
			delete(s.probes, tag)
			sure = max(sure, n)
			l.count["acks of what was never dealt"]++
			continue
		}
		d := s.tags[tag]
		if d == nil {
			l.breach("stream %d: NOT_HELD of tag %d, which it never had", s.n, tag)
			continue
		}
		d.refused = true
		l.count["refused"]++
	}
	for ; s.sure < sure; s.sure++ {
		l.learn(s.said[s.sure])
	}
}

// learn notes that it is certain whether an ack was taken.
func (l *ledger) learn(d *dealt) {
	d.confirmed = !d.refused
	if d.confirmed && d.late {
		l.breach("a late ack of %v was taken", d.at)
	}
	if d.confirmed && d.before != nil && !d.before.refused {
		l.breach("an ack of %v was taken, though a nack of %v had taken it along", d.at, d.before.at)
	}
}

// counts adds up what was done.
func (l *ledger) counts(into map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for what, n := range maps.All(l.count) {
		into[what] += n
	}
}

// countOf is how often something was done.
func (l *ledger) countOf(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[what]
}
