package group

import "time"

// This file gives records to workers, and takes them back. Everything in it is called with Group.mu held.

// deal gives a worker what it may have at the moment: of its own keys and of what anybody may take, in turns. Of the latter it takes a share, so
// that others who wait get theirs.
func (g *Group) deal(w *Worker, bytes int) {
	room := w.start.MaxInFlight - w.held.count
	if room <= 0 {
		return
	}
	others := g.free.count + g.idle.count + g.coming
	if w.line != nil {
		others--
	}
	share := (g.ready + others) / (others + 1)
	if w.held.count > 0 { // what it takes now waits behind that, and need not where others have nothing to do
		share = min(share, g.ready-g.free.count-g.promised)
	}
	now := g.now()
	due := now + int64(w.start.AckTimeout)
	for size := 0; room > 0 && size < bytes; room-- {
		q := w.own.first
		if w.other = !w.other; q == nil || w.other && others == 0 {
			if share > 0 && g.lanesReady.first != nil {
				share--
				q = g.lanesReady.first.ready.first
			}
		}
		if q == nil {
			return
		}
		it := g.take(q, w, due)
		size += len(it.record.Body)
		w.deliver = append(w.deliver, Delivery{Record: it.record, Tag: it.tag, Attempt: it.attempts})
	}
}

// take gives the first record of a queue to a worker, and lets the next queue and the next lane have their turns.
func (g *Group) take(q *queue, w *Worker, due int64) *item {
	l := q.lane
	g.withdraw(q)
	if l.serving && g.lanesReady.last != l { // others first
		g.lanesReady.remove(l)
		g.lanesReady.push(l)
	}
	it := q.pop()
	g.undealt--
	q.hold(it)
	if !q.loose {
		q.holder = w
	}
	l.busy++
	w.tag++
	it.worker, it.tag, it.due = w, w.tag, due
	it.attempts++
	it.older = w.newest
	if w.newest == nil {
		w.oldest = it
	} else {
		w.newest.newer = it
	}
	w.newest = it
	w.held.put(it)
	g.counts.delivered.Add(1)
	if it.attempts > 1 {
		g.counts.redelivered.Add(1)
	}
	g.arm(due)
	g.place(q)
	return it
}

// withdraw takes a queue out of the line in which it stands.
func (g *Group) withdraw(q *queue) {
	if q.line == nil {
		return
	}
	l := q.lane
	if q.line == &l.ready {
		if q.loose {
			g.ready -= q.count
		} else {
			g.ready--
		}
		if q.leave(); l.ready.first == nil {
			g.lanesReady.remove(l)
		}
		return
	}
	q.leave()
}

// place puts a queue that stands in no line where it belongs now.
func (g *Group) place(q *queue) {
	l := q.lane
	switch {
	case l.leaving || l.gone:
	case q.count == 0:
		if !q.loose && q.heldFirst == nil && !q.timed {
			delete(l.keys, q.hash)
			g.freeQueue(q)
		}
	case q.notYet > 0 && q.notYet > g.now():
		if !q.timed {
			q.timed = true
			g.later.push(delay{at: q.notYet, queue: q})
			g.arm(q.notYet)
		}
	case q.holder != nil:
		q.holder.own.push(q)
		g.roused(q.holder)
	default:
		l.ready.push(q)
		if q.loose {
			g.ready += q.count
		} else {
			g.ready++
		}
		g.lanesReady.push(l)
	}
}

// again is when more idle workers are woken if what others were woken for is still there: those may be busy with sending.
const again = int64(20 * time.Millisecond)

// rouse wakes as many idle workers as there are things to take, for which nobody was woken yet: first those that hold nothing, to which so much is
// promised for a while.
func (g *Group) rouse() {
	n := g.ready - g.coming
	for ; n > 0 && g.free.first != nil; n-- {
		g.free.first.promise()
		g.free.first.wake()
	}
	for ; n > 0 && g.idle.first != nil; n-- {
		g.idle.first.wake()
	}
	switch {
	case g.ready == 0:
		g.wakeBy = never // it was taken: what comes next has its own time
	case g.wakeBy == never && g.free.count+g.idle.count > 0:
		g.wakeBy = g.now() + again
		g.arm(g.wakeBy)
	}
}

// rouseMore wakes others for what was not taken in time, of either kind: whoever comes first may have it. Each time they are more, so that it takes
// few turns to get past many that do not come.
func (g *Group) rouseMore() {
	g.wakeBy = never
	for n := g.ready + g.coming; n > 0 && g.ready > 0; n-- {
		switch {
		case g.free.first != nil:
			g.free.first.wake()
		case g.idle.first != nil:
			g.idle.first.wake()
		default:
			return
		}
	}
}

// roused wakes a worker that sleeps if there is something for it, or counts it among the idle.
func (g *Group) roused(w *Worker) {
	if !w.asleep || w.closed || w.held.count >= w.start.MaxInFlight {
		return
	}
	if w.own.first != nil || g.ready > 0 || g.draining && w.held.count == 0 {
		w.wake()
		return
	}
	g.rest(w)
}

// rest puts a worker that found nothing in the line where it belongs.
func (g *Group) rest(w *Worker) {
	line := &g.idle
	if w.held.count == 0 {
		line = &g.free
	}
	if w.line != line {
		w.line.remove(w)
		line.push(w)
	}
}

// release takes a delivery from its worker; the item is then in no list.
func (g *Group) release(it *item) {
	w, q := it.worker, it.queue
	w.held.remove(it)
	if it.older == nil {
		w.oldest = it.newer
	} else {
		it.older.newer = it.newer
	}
	if it.newer == nil {
		w.newest = it.older
	} else {
		it.newer.older = it.older
	}
	it.older, it.newer, it.worker, it.named = nil, nil, nil, false
	q.unhold(it)
	g.eased(it.lane)
}

// eased counts one less that is held or dying.
func (g *Group) eased(l *lane) {
	if l.busy--; l.busy == 0 && l.quiet != nil {
		close(l.quiet)
		l.quiet = nil
	}
}

// freed lets others have a key of which nothing is held any more.
func (g *Group) freed(q *queue) {
	if q.heldFirst == nil {
		q.holder = nil
	}
	g.withdraw(q)
	g.place(q)
}

// finish ends a delivery: the record is done.
func (g *Group) finish(it *item, how outcome) {
	q := it.queue
	g.release(it)
	g.done(it, how)
	if !q.loose && q.heldFirst == nil {
		g.freed(q)
		g.rouse()
	}
}

// done moves the tracker.
func (g *Group) done(it *item, how outcome) {
	it.state = settled
	g.counts.settle(how)
	l := it.lane
	_, before := l.tracker.Beyond()
	if l.tracker.Done(it.seq) {
		l.forget()
	}
	_, after := l.tracker.Beyond()
	g.charge(after - before)
	it.record = nil
}

// giveBack takes a delivery back, to be delivered again not before a time: it failed, unless its worker has left in order. Under OrderByKey those of
// its key behind it come along: what is delivered again must not be overtaken.
func (g *Group) giveBack(it *item, how outcome, reason string, notBefore int64) {
	q := it.queue
	if q.loose {
		g.counts.settle(how)
		g.release(it)
		if how != workerLeft {
			it.failures++
			it.reason = reason
		}
		if how == workerEnded {
			notBefore = g.now() + endedRest(it.failures)
		}
		switch {
		case it.failures >= g.settings.MaxAttempts:
			g.die(it)
		case notBefore > g.now():
			it.state = delayed
			g.later.push(delay{at: notBefore, item: it})
			g.arm(notBefore)
		default:
			g.back(it)
		}
		g.rouse()
		return
	}
	g.withdraw(q)
	for last := false; !last; {
		t := q.heldLast
		last = t == it
		g.counts.settle(whichOf(last || t.named, how))
		failed := (last || t.named) && how != workerLeft
		g.release(t)
		if failed {
			t.failures++
			if t.reason = reason; t.failures >= g.settings.MaxAttempts {
				g.die(t)
				continue
			}
			if how == workerEnded {
				notBefore = max(notBefore, g.now()+endedRest(t.failures))
			}
		}
		q.pushFront(t)
		g.undealt++
	}
	q.notYet = max(q.notYet, notBefore)
	g.freed(q)
	g.rouse()
}

// whichOf is the outcome of a delivery that was given back by itself, or taken along.
func whichOf(itself bool, how outcome) outcome {
	if itself {
		return how
	}
	return takenAlong
}

// endedRest is how long a record waits whose worker was lost, after so many failures: at first not at all. Where many are lost at one moment, as when a
// proxy in front of them restarts, it would go from one to the next, all about to be lost, until it counts as a record that nobody survives.
func endedRest(failures int) int64 {
	if failures < 2 {
		return 0
	}
	return int64(min(EndedRest<<min(failures-2, 10), EndedRestMost))
}

// back puts an item without order before what waits.
func (g *Group) back(it *item) {
	q := it.queue
	g.withdraw(q)
	q.pushFront(it)
	g.undealt++
	g.place(q)
}
