package hub_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// deliver has the source deliver, and notes what arrived at the hub.
func (w *world) deliver(name string, i int32, n int) int {
	w.note()
	n = w.src.Deliver(name, i, n)
	w.note()
	return n
}

// stall lets records come while nobody reads, for longer than a reader may be behind; before that, most readers may become live.
func (w *world) stall(random *rand.Rand, t *plainTopic) error {
	if random.IntN(4) > 0 {
		w.deliverAll()
		if err := w.settle(); err != nil {
			return err
		}
		if err := w.pullWoken(4000); err != nil {
			return err
		}
	}
	for range 5 + random.IntN(3) {
		time.Sleep(w.setup.SlowAfter / 4) //nolint:forbidigo // the bubble's clock
		if i := random.Int32N(t.count()); !t.deleted {
			records := w.draw(random, i, t.count())
			w.src.Append(t.name, i, records...)
			t.partitions[i].append(plainCommitted, records...)
			w.tracef("%s/%d: %d records appended, up to %d", t.name, i, len(records), t.partitions[i].now().high())
			w.deliver(t.name, i, -1)
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	return nil
}

// note notes which records have arrived at the hub live, and when, the last time. What a partition had when it began to be followed has no
// such time.
func (w *world) note() {
	now := time.Now()
	for _, name := range topics {
		t := w.log.topics[name]
		for i, p := range t.partitions {
			next, followed := w.src.FollowedTo(name, int32(i))
			slots := p.now().slots
			next = min(next, int64(len(slots)))
			switch {
			case !followed:
				p.noted = -1
			case p.noted < 0, next < p.noted:
				p.noted = next
			}
			for ; followed && p.noted < next; p.noted++ {
				s := slots[p.noted]
				if s.kind != plainCommitted || p.noted < *p.now().oldest { // a gap passes what was lost
					continue
				}
				if s.arrived = now; !s.compacted {
					t.arrived = now
				}
			}
		}
	}
}

// leniency is what a reader with a slow policy is judged by. slack is how long after its bound a policy acts at the latest: the hub notes
// arrivals in tenths of it.
type leniency struct {
	slowAfter time.Duration
	followed  func(topic string, partition int32) (int64, bool) // up to where the hub has a partition live
	live      bool                                              // it was live, so that its policy counts
	behind    time.Duration                                     // how much traffic it was behind when it began to pull
	unsure    bool                                              // perhaps more: something has no time of arrival
	acts      hub.SlowPolicy                                    // with the batch that is judged
	counts    bool                                              // what was overdue then must not be delivered
}

func (r *reader) slack() time.Duration { return r.slowAfter * 3 / 10 }

// look looks, before a pull, how far behind the reader is.
func (r *reader) look() {
	r.behind, r.unsure = 0, false
	stop := r.request.Stop
	r.counts = r.live && r.request.Slow != hub.SlowCatchUp && !r.conflating() && !stop.AtEnd && len(stop.Positions) == 0
	if r.races || r.request.Slow == hub.SlowCatchUp {
		return
	}
	for _, c := range r.cursors {
		reached := c.reach()
		for _, v := range c.partition.lives[reached[0].index:] {
			from := c.pos
			if !slices.Contains(reached, v) {
				from = min(from, v.fork) // it has yet to be told
			}
			for offset := from; offset < v.high(); offset++ {
				if s := v.slots[offset]; s.kind == plainCommitted && r.wants(s) {
					behind, known := r.overdue(s)
					r.behind, r.unsure = max(r.behind, behind), r.unsure || !known
				}
			}
		}
	}
}

// overdue says how much traffic has come since a record arrived.
func (r *reader) overdue(s *plainRecord) (time.Duration, bool) {
	return r.log.topics[r.request.Topic].arrived.Sub(s.arrived), !s.arrived.IsZero()
}

func (r *reader) conflating() bool {
	for _, c := range r.cursors {
		if c.conflated > c.pos {
			return true
		}
	}
	return false
}

// noteLive notes that a reader has everything that the hub has.
func (r *reader) noteLive() {
	if r.live || r.races || !r.caughtUp {
		return
	}
	for i, c := range r.cursors {
		if next, ok := r.followed(r.request.Topic, i); !ok || c.pos != next || c.fresh {
			return
		}
	}
	r.live = true
}

// mayAct says why a slow policy must not act: never on a reader within its bound.
func (r *reader) mayAct(policies ...hub.SlowPolicy) error {
	for _, policy := range policies {
		switch {
		case r.request.Slow != policy:
		case !r.caughtUp:
			return errors.New("a slow policy acts before the reader has caught up")
		case r.races || r.unsure || r.behind >= r.slowAfter || r.conflating():
			return nil
		default:
			return fmt.Errorf("a slow policy acts on a reader %v behind, less than %v", r.behind, r.slowAfter)
		}
	}
	return fmt.Errorf("the slow policy is %d", r.request.Slow)
}

// judgeSlow judges whether a policy may act, and notes where a conflation ends.
func (r *reader) judgeSlow(b *hub.Batch) error {
	switch r.acts = b.Slow; b.Slow {
	case hub.SlowConflate:
		if err := r.mayAct(hub.SlowConflate); err != nil {
			return err
		}
		for _, c := range r.cursors {
			r.conflate(c)
		}
	case hub.SlowSkip:
		if err := r.mayAct(hub.SlowSkip, hub.SlowConflate); err != nil {
			return err
		}
	}
	return nil
}

// conflate notes where a conflation that begins ends in one partition: at the head.
func (r *reader) conflate(c *cursor) {
	c.conflated = 1 << 62
	if head, known := r.head(c); known {
		c.conflated = head
	}
}

// head is the hub's head in a partition, or the stop. It is not known where the log was cut or made anew: whether the hub has heard of that matters.
func (r *reader) head(c *cursor) (head int64, known bool) {
	t, p := r.log.topics[r.request.Topic], c.partition
	if r.races || len(p.lives) > 1 || t.deleted {
		return 0, false
	}
	if head, known = r.followed(t.name, p.number); c.stop >= 0 {
		head = min(head, c.stop)
	}
	return head, known
}

// judgePatience judges a record that is delivered: the policy must have acted on one that was overdue, and conflation delivers the latest of a key.
func (r *reader) judgePatience(c *cursor, v *life, offset int64) error {
	s := v.slots[offset]
	toEnd := r.request.OnOutOfRange == hub.OutOfRangeLatest && offset < *v.oldest // then what is left is passed over, as policy has it
	if _, known := r.head(c); known && offset < c.conflated && c.conflated < 1<<62 && !toEnd {
		for later := max(offset+1, *v.oldest); later < min(c.conflated, v.high()); later++ { // one that was lost meanwhile replaces none
			if l := v.slots[later]; l.kind == plainCommitted && !l.compacted && sameKey(l, s) {
				return fmt.Errorf("offset %d is conflated into %d", offset, later)
			}
		}
		return nil
	}
	if r.counts && !r.conflating() && len(c.partition.lives) == 1 && offset >= c.conflated {
		if behind, known := r.overdue(s); known && behind >= r.slowAfter+r.slack() {
			return fmt.Errorf("offset %d is delivered %v of traffic late, the slow policy does not act", offset, behind)
		}
	}
	return nil
}

func sameKey(a, b *plainRecord) bool {
	return a.key != nil && b.key != nil && bytes.Equal(a.key, b.key)
}

// judgeSkipped judges the gap of a jump: to the head, no less.
func (r *reader) judgeSkipped(c *cursor, p *hub.Part) error {
	if r.acts != hub.SlowSkip {
		return errors.New("no slow policy acts") // whether it may was judged with the batch: a conflation under way ends with the first gap
	}
	if p.Next <= p.From {
		return errors.New("is empty or goes back")
	}
	if head, known := r.head(c); known && p.Next != head {
		return fmt.Errorf("does not go to the head, which is %d", head)
	}
	err := c.keep(func(v *life) error {
		if p.Next > v.high() {
			return fmt.Errorf("goes beyond the log's high watermark %d", v.high())
		}
		return v.lost(c.pos, p.From, r.wants)
	})
	c.pos, c.conflated = p.Next, 0
	return err
}

// judgeConflated judges what a conflation leaves out: records of which a later one has the key, counted.
func (r *reader) judgeConflated(c *cursor, p *hub.Part) error {
	if r.request.Slow != hub.SlowConflate || p.Next > c.conflated {
		return errors.New("nothing is conflated")
	}
	_, known := r.head(c)
	err := c.keep(func(v *life) error {
		if err := v.lost(c.pos, p.From, r.wants); err != nil {
			return err
		}
		if p.Next > v.high() {
			return fmt.Errorf("goes beyond the log's high watermark %d", v.high())
		}
		least, most := int64(0), int64(0)
		for offset := p.From; offset < p.Next; offset++ {
			s := v.slots[offset]
			if s.kind != plainCommitted || !r.wants(s) {
				continue
			}
			if most++; s.compacted {
				continue
			}
			least++
			if known && c.conflated < 1<<62 && !v.supersedes(s, offset+1, c.conflated) {
				return fmt.Errorf("offset %d is left out, and no later one has its key", offset)
			}
		}
		if p.Left < least || p.Left > most || p.Left == 0 {
			return fmt.Errorf("counts %d records, want %d to %d", p.Left, least, most)
		}
		return nil
	})
	c.pos = p.Next
	return err
}

// supersedes says whether a record of [from, to) has the key of s.
func (v *life) supersedes(s *plainRecord, from, to int64) bool {
	for offset := from; offset < min(to, v.high()); offset++ {
		if l := v.slots[offset]; l.kind == plainCommitted && sameKey(l, s) {
			return true
		}
	}
	return false
}

func (r *reader) judgeLagged() error { return r.mayAct(hub.SlowFail) }
