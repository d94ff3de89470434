package e2e_test

import (
	"fmt"
	"maps"
	"sync"
)

// reader is a client's side of one subscription, over any transport and any number of connections: it keeps the positions that the next
// connection resumes from, and refuses what the protocol forbids. The first mistake sticks.
type reader struct {
	topic string
	keyed bool // gaps and positions may skip what is not ours

	mu        sync.Mutex
	tape      *tape
	topicID   string
	next      map[int32]int64
	epoch     map[int32]int32 // of the record before next, where known
	begun     map[int32]int64 // where each partition was first started
	started   bool            // on this connection
	caughtUp  bool            // on this connection
	starts    int
	gaps      []gap
	partCount int32
}

type gap struct {
	partition int32
	from, to  int64
	reason    string
	left      int64 // records that it counts
}

func newReader(topic string, keep bool) *reader {
	return &reader{topic: topic, tape: newTape(keep), next: map[int32]int64{}, epoch: map[int32]int32{}, begun: map[int32]int64{}}
}

type startedAt struct {
	partition  int32
	start, end int64
}

// onStarted begins a connection's life of the subscription.
func (r *reader) onStarted(topicID string, parts []startedAt) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started {
		return fmt.Errorf("started twice")
	}
	if r.topicID != "" && topicID != r.topicID {
		return fmt.Errorf("topic id changed from %q to %q", r.topicID, topicID)
	}
	r.topicID, r.started, r.caughtUp = topicID, true, false
	r.starts++
	for _, p := range parts {
		if p.start > p.end {
			return fmt.Errorf("started at %d, beyond the end %d of partition %d", p.start, p.end, p.partition)
		}
		if at, resumed := r.next[p.partition]; resumed && at != p.start {
			return fmt.Errorf("partition %d resumed at %d, asked for %d", p.partition, p.start, at)
		}
		if _, known := r.begun[p.partition]; !known {
			r.begun[p.partition] = p.start
		}
		r.next[p.partition] = p.start
	}
	return nil
}

// onRecord takes one record.
func (r *reader) onRecord(topic string, rec *record, epoch int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, known := r.next[rec.partition]
	switch {
	case !r.started:
		return fmt.Errorf("record before started")
	case topic != r.topic:
		return fmt.Errorf("record of topic %q in a subscription of %q", topic, r.topic)
	case !known && r.partCount == 0:
		return fmt.Errorf("record of partition %d, which started did not name", rec.partition)
	case rec.offset < at:
		return fmt.Errorf("record %d/%d, but the position is %d: twice or out of order", rec.partition, rec.offset, at)
	}
	r.next[rec.partition] = rec.offset + 1
	if epoch >= 0 {
		r.epoch[rec.partition] = epoch
	} else {
		delete(r.epoch, rec.partition)
	}
	r.tape.add(rec)
	return nil
}

// onPosition takes a position that moved without a record.
func (r *reader) onPosition(partition int32, to int64, epoch int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started {
		return fmt.Errorf("position before started")
	}
	if at := r.next[partition]; to < at {
		return fmt.Errorf("position of partition %d moved back from %d to %d", partition, at, to)
	}
	r.next[partition] = to
	if epoch >= 0 {
		r.epoch[partition] = epoch
	} else {
		delete(r.epoch, partition)
	}
	return nil
}

func (r *reader) onGap(g gap) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started {
		return fmt.Errorf("gap before started")
	}
	if at := r.next[g.partition]; g.from != at && !r.keyed {
		return fmt.Errorf("gap %+v, but the position is %d", g, at)
	}
	r.gaps = append(r.gaps, g)
	r.next[g.partition] = g.to
	delete(r.epoch, g.partition)
	return nil
}

func (r *reader) onCaughtUp() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.started || r.caughtUp {
		return fmt.Errorf("caught up: started %v, caught up before %v", r.started, r.caughtUp)
	}
	r.caughtUp = true
	return nil
}

func (r *reader) onTopology(count int32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.partCount = count
	return nil
}

// disconnected ends a connection's life; the positions stay.
func (r *reader) disconnected() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = false
}

func (r *reader) startCount() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts
}

func (r *reader) isStarted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.started
}

func (r *reader) isCaughtUp() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.caughtUp
}

func (r *reader) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tape.count()
}

func (r *reader) positions() (next map[int32]int64, epoch map[int32]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.next), maps.Clone(r.epoch)
}

// reached says whether every end is behind the reader.
func (r *reader) reached(ends map[int32]int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, end := range ends {
		if r.next[p] < end {
			return false
		}
	}
	return true
}

// verify compares what was delivered with the log since the reader's first start.
func (r *reader) verify(log *tape) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.gaps) > 0 {
		return fmt.Errorf("%d gaps, the first %+v", len(r.gaps), r.gaps[0])
	}
	if d := r.tape.diff(log.since(r.begun)); d != "" {
		return fmt.Errorf("delivered is not the log:\n%s", d)
	}
	return nil
}
