package group

import (
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Delivery is one record, handed to one worker.
type Delivery struct {
	Record  *Record
	Tag     int64 // from 1, for each worker
	Attempt int   // from 1: how often the record has been delivered
}

// Pulled is what a worker gets at once.
type Pulled struct {
	Deliveries []Delivery
	Gaps       []Gap
}

// gapsKept is how many gaps wait for one worker; beyond, the oldest is left out (it is in the log).
const gapsKept = 1000

// Worker is one consumer of a group. Pull belongs to its owner; the other methods may be called concurrently with it.
type Worker struct {
	group  *Group
	start  Start
	signal chan struct{}

	// guarded by Group.mu
	held     holding
	oldest   *item // that it holds
	newest   *item
	tag      int64
	own      line // queues of which it holds a record: nobody else may have what comes next
	other    bool // whose turn it is: its own or others'
	gaps     []Gap
	asleep   bool        // its last Pull found nothing
	line     *workerLine // in which it waits to be woken; nil: it does not
	woken    bool        // it was woken since its last Pull
	promised int64       // and counts in Group.promised while this is its Group.promisedBy
	before   *Worker
	after    *Worker
	closed   bool
	deliver  []Delivery // scratch of Pull
	named    []*item    // scratch of Ack and Nack
}

// Settings are those in force, defaults filled in.
func (w *Worker) Settings() Start { return w.start }

// Signal has a value when a Pull that found nothing may find something now.
func (w *Worker) Signal() <-chan struct{} { return w.signal }

// Pull takes what there is for this worker: at most so many bytes, or one record, and never more than it may hold. It does not block; empty: wait
// for Signal. The slices are the owner's until the next Pull. Errors are final: hub.ErrDraining once it holds nothing (or a grace is over),
// hub.ErrClosed, hub.ErrTopicDeleted and what else ended the group; hub.ErrUnavailable says that the group was left for a moment: start again.
//
// With AutoAck, what the Pull before gave counts as acknowledged.
func (w *Worker) Pull(bytes int) (Pulled, error) {
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.closed {
		return Pulled{}, hub.ErrClosed
	}
	w.came()
	if w.start.AutoAck {
		for w.oldest != nil {
			g.finish(w.oldest, acked)
		}
	}
	if err := g.over(w); err != nil {
		return Pulled{}, err
	}
	p := Pulled{Gaps: w.gaps}
	w.gaps = nil
	w.deliver = w.deliver[:0]
	if !g.draining {
		g.deal(w, bytes)
	}
	p.Deliveries = w.deliver
	if w.asleep = len(p.Deliveries) == 0 && len(p.Gaps) == 0; w.asleep && w.held.count < w.start.MaxInFlight {
		g.rest(w)
	} else {
		w.line.remove(w)
	}
	g.rouse()
	return p, nil
}

// Ack ends deliveries: those with these tags, in any order, and all with a tag up to upTo (0: none). It returns the tags that this worker does not
// hold, which had no effect; one that it holds and that is named twice is not among them.
func (w *Worker) Ack(tags []int64, upTo int64) []int64 {
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	named, notHeld := w.find(tags)
	for _, it := range named {
		g.finish(it, acked)
	}
	clear(named) // it is kept
	for w.oldest != nil && w.oldest.tag <= upTo {
		g.finish(w.oldest, acked)
	}
	g.roused(w)
	return notHeld
}

// Nack gives deliveries back, to be delivered again after a delay, or to become dead letters. Under OrderByKey later ones of their keys go with
// them, and are not counted as failed. It returns what Ack does.
func (w *Worker) Nack(tags []int64, delay time.Duration, reason string) []int64 {
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(reason) > MaxReason {
		reason = reason[:MaxReason]
	}
	named, notHeld := w.find(tags)
	for _, it := range named {
		it.reason = reason
	}
	after := g.now() + int64(min(max(delay, 0), MaxDelay))
	for _, it := range named {
		if it.named && it.worker == w {
			g.giveBack(it, nacked, reason, after)
		}
	}
	clear(named)
	g.roused(w)
	return notHeld
}

// find names what has these tags, each once, and returns the tags that nothing has.
func (w *Worker) find(tags []int64) (named []*item, notHeld []int64) {
	named = w.named[:0]
	for _, tag := range tags {
		switch it := w.held.get(tag); {
		case it == nil:
			notHeld = append(notHeld, tag)
		case !it.named:
			it.named = true
			named = append(named, it)
		}
	}
	w.named = named
	return named, notHeld
}

// Held is how many deliveries it holds.
func (w *Worker) Held() int {
	w.group.mu.Lock()
	defer w.group.mu.Unlock()
	return w.held.count
}

// Leave ends the worker in order: what it holds is dealt to others at once, and has not failed. It may be called again.
func (w *Worker) Leave() { w.end(workerLeft) }

// Close ends a worker that was lost: what it holds is dealt to others, at once the first time (EndedRest), and counts as failed, since that may be why.
// Where it has left it does nothing; while the process drains it is Leave. It may be called again.
func (w *Worker) Close() { w.end(workerEnded) }

func (w *Worker) end(how outcome) {
	g := w.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.closed {
		return
	}
	if g.draining {
		how = workerLeft
	}
	w.came()
	w.closed = true
	w.line.remove(w)
	for w.oldest != nil {
		g.giveBack(w.oldest, how, "the worker ended", 0)
	}
	delete(g.workers, w)
	if len(g.workers) == 0 {
		g.emptySince = g.now()
		g.arm(g.emptySince + int64(g.cfg.Linger))
	}
	g.rouse() // it may have been the one that was woken
}

func (w *Worker) wake() {
	g := w.group
	w.line.remove(w)
	w.asleep = false
	if !w.woken {
		w.woken = true
		g.coming++
	}
	select {
	case w.signal <- struct{}{}:
	default: // it is awake already
	}
}

// promise keeps something of what is ready for a worker that is about to be woken.
func (w *Worker) promise() {
	g := w.group
	if g.promised == 0 {
		g.promisedBy = g.now() + again
		g.arm(g.promisedBy)
	}
	w.promised = g.promisedBy
	g.promised++
}

// came is called when it pulls, or ends.
func (w *Worker) came() {
	g := w.group
	if w.asleep = false; w.woken {
		w.woken = false
		g.coming--
	}
	if w.promised == g.promisedBy && g.promised > 0 {
		if g.promised--; g.promised == 0 {
			g.promisedBy = never
		}
	}
	w.promised = 0
}

// tell keeps a gap for it.
func (w *Worker) tell(gap Gap) {
	if len(w.gaps) == gapsKept {
		w.gaps = w.gaps[1:]
	}
	w.gaps = append(w.gaps, gap)
	w.wake()
}

// workerLine is a list of workers that wait for something to do.
type workerLine struct {
	first, last *Worker
	count       int
}

// push puts a worker that stands in no line at the end of this one.
func (ws *workerLine) push(w *Worker) {
	w.line, w.before, w.after = ws, ws.last, nil
	if ws.last == nil {
		ws.first = w
	} else {
		ws.last.after = w
	}
	ws.last = w
	ws.count++
}

// remove takes a worker out of its line, if it stands in one.
func (ws *workerLine) remove(w *Worker) {
	if ws == nil {
		return
	}
	if w.before == nil {
		ws.first = w.after
	} else {
		w.before.after = w.after
	}
	if w.after == nil {
		ws.last = w.before
	} else {
		w.after.before = w.before
	}
	w.line, w.before, w.after = nil, nil, nil
	ws.count--
}
