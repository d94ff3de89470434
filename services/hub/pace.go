package hub

import "slices"

// paceSteps is how finely arrivals are noted: this many stretches make Config.SlowAfter.
const paceSteps = 10

// pace is when a topic's records arrived, as finely as slow policies need it. The clock is the keeper's, so it costs no look at one. Record
// timestamps say nothing of it: producers make them. Guarded by Topic.mu.
type pace struct {
	readers   int       // subscriptions with a slow policy; without any, nothing is noted
	stretches []stretch // oldest first; at most paceSteps and a few
}

// stretch is a run of arrivals.
type stretch struct {
	from        overdue // where it begins
	first, last int64   // the keeper's clock when its first and its last records arrived
}

// overdue is a place in a topic: records before it arrived at least Config.SlowAfter before the newest one. It keeps the index of its segment,
// so that it is a position in every partition too, when the ring has given that up.
type overdue struct {
	seg *segment
	seq Seq
}

// before says whether a record of a partition arrived before o. mu is not held.
func (o *overdue) before(t *Topic, partition int32, offset int64) bool {
	return offset < o.seg.markAt(partition, o.seq).next && !t.brokenAfter(partition, o.seq)
}

// arrived notes that records are about to be put. mu is held.
func (t *Topic) arrived() {
	p, now := &t.pace, t.touched
	if n := len(p.stretches); n == 0 || now-p.stretches[n-1].first >= int64(t.hub.cfg.SlowAfter/paceSteps) {
		p.stretches = append(p.stretches, stretch{from: overdue{t.seg, t.place()}, first: now})
	}
	last := len(p.stretches) - 1
	p.stretches[last].last = now
	// The clock may be a tick late: what arrived when it said last was there a tick later at the latest.
	n, bound := 0, now-int64(t.hub.cfg.SlowAfter+t.hub.tick)
	for n < last && p.stretches[n].last <= bound {
		n++
	}
	if n > 0 {
		o := p.stretches[n].from
		t.overdue.Store(&o)
		p.stretches = slices.Delete(p.stretches, 0, n)
	}
}

// paced notes that there is one more subscription with a slow policy. mu is held.
func (t *Topic) paced() { t.pace.readers++ }

// unpaced notes that there is one less.
func (t *Topic) unpaced() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pace.readers--; t.pace.readers == 0 {
		t.pace.stretches = nil
		t.overdue.Store(nil)
	}
}
