package edge

import (
	"fmt"
	"math/rand/v2"
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

// maxTurns is how long the inbox may wait for turns of writing.
const maxTurns = int64(10 * time.Millisecond)

// worker owns a shard of the sessions: it alone writes to them and ends them. Whoever wants something of a session posts it to the inbox.
type worker struct {
	srv    *Server
	inbox  *inbox
	poller *poller

	// Owned by run.
	taken     taken
	sessions  []*session
	crowds    map[*hub.Topic]*crowd
	seats     []subscriptionSeat // by the lower half of the token
	freeSeats []uint32
	dirty     []*session // have control frames to flush
	again     []*session // are to have a turn of writing
	passes    uint64
	rest      int64 // Server.now before which no pass starts
	tickAt    int64
	drain     *drain
	upstream  bool  // as told last
	downSince int64 // Server.now when the service was found to be away; 0: it is there
	doubted   int64 // Server.now when the poller was last told that it seems to be deaf
	blocked   int   // sessions, as counted last
	held      int   // bytes, as counted last
	beat      frame.Heartbeat
	ids       []int32 // partitions, for lacks
	writer
	count counts
	tallies
	wall int64 // Server.now 0 in nanoseconds of the calendar, as of the last tick
}

func newWorker(srv *Server) (*worker, error) {
	w := &worker{srv: srv, inbox: newInbox(), crowds: make(map[*hub.Topic]*crowd), upstream: true}
	w.taken.moved, w.taken.ready = make(map[*hub.Topic]struct{}), make(map[uint64]struct{})
	w.initWriter()
	var err error
	w.poller, err = newPoller(w)
	return w, err
}

// discard closes what tasks left in the inbox after run had returned. No task is running any more.
func (w *worker) discard() {
	w.inbox.take(&w.taken)
	for _, p := range w.taken.posts {
		w.srv.input.held.Add(-p.charged)
		switch r := p.what.(type) {
		case subscribed:
			if r.sub != nil {
				r.sub.Close()
			}
		case published:
			if q, ok := r.by.under[r.n]; ok {
				delete(r.by.under, r.n)
				w.srv.input.keep(p.s, -(opCost + q.size))
			}
		}
	}
}

// run serves until it is ordered to stop, and then ends all sessions.
func (w *worker) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		w.inbox.take(&w.taken)
		if w.taken.drain && w.drain == nil {
			w.startDrain()
		}
		for _, p := range w.taken.posts {
			if p.charged > 0 {
				w.srv.input.held.Add(-p.charged)
			}
			w.handle(p.s, p.what)
		}
		for _, s := range w.taken.writable {
			w.queue(s)
		}
		w.flushDirty()
		w.takeTurns()
		now := w.srv.now()
		if now >= w.rest && (len(w.taken.moved) > 0 || len(w.taken.ready) > 0) {
			w.pass(now)
			w.flushDirty()
			now = w.srv.now()
		}
		if now >= w.tickAt {
			w.tick(now)
		}
		if w.taken.stop {
			w.stopAll()
			return
		}
		w.publishCounts()
		next := w.tickAt
		if len(w.taken.moved) > 0 || len(w.taken.ready) > 0 {
			next = min(next, w.rest)
		}
		next = min(next, w.drainStep(now))
		w.flushDirty()
		if len(w.again) > 0 {
			continue
		}
		timer.Reset(time.Duration(next - now))
		select {
		case <-w.inbox.wake:
		case <-timer.C:
		}
	}
}

func (w *worker) flushDirty() {
	for len(w.dirty) > 0 {
		dirty := w.dirty
		w.dirty = nil
		for _, s := range dirty {
			s.dirty = false
			if s.blocked.Load() {
				w.hold(s) // it is flushed when it becomes writable
			} else {
				w.flush(s)
			}
		}
		if w.dirty == nil {
			w.dirty = reuse(dirty)
		}
	}
}

// touch marks a session that has control frames to flush.
func (w *worker) touch(s *session) {
	if !s.dirty {
		s.dirty = true
		w.dirty = append(w.dirty, s)
	}
}

// queue gives a session a turn of writing.
func (w *worker) queue(s *session) {
	if !s.again {
		s.again = true
		w.again = append(w.again, s)
	}
}

// takeTurns goes on with sessions that became writable, or had more than one turn's worth, for as long as others may be kept waiting.
func (w *worker) takeTurns() {
	turns := w.again
	w.again = nil
	until := w.srv.now() + maxTurns
	for i, s := range turns {
		s.again = false
		w.flush(s)
		if i+1 < len(turns) && w.srv.now() > until {
			w.again = append(turns[i+1:len(turns):len(turns)], w.again...)
			return
		}
	}
	if w.again == nil {
		w.again = reuse(turns)
	}
}

func (w *worker) handle(s *session, what any) {
	switch what := what.(type) {
	case opened:
		w.open(s)
		return
	case subscribed:
		w.subscribed(s, what)
		return
	case published:
		w.published(s, what)
		return
	case consumed:
		w.consumed(s, what)
		return
	case eof:
		w.eof(s)
		return
	case peerClose:
		w.closedByPeer(s, what)
		return
	case ended:
		if what.reason.silent && s.state > open {
			w.drop(s) // the connection broke while it was being closed
			return
		}
		w.end(s, what.reason, what.cause)
		return
	}
	if s.state != open {
		return
	}
	s.messages++
	w.count.messages++
	if re, id := askedBy(what); re != "" && !w.mayAsk(s) {
		w.tooMany(s, re, id)
		return
	}
	switch what := what.(type) {
	case *frame.Subscribe:
		w.subscribe(s, what, false)
	case *frame.Unsubscribe:
		w.unsubscribe(s, what)
	case *frame.Consume:
		w.consume(s, what)
	case *frame.Settle:
		w.settle(s, what)
	case *frame.Publish:
		w.publish(s, what)
	case *frame.Ping:
		w.say(s, frame.Pong{ID: what.ID})
	case *frame.Unbuilt:
		w.refuseOp(s, what.Refusal())
	case *frame.Error:
		w.refuseOp(s, what)
	case ping:
		w.pong(s, what.payload)
	default:
		w.srv.log.Error("handle post", "session", s.name, "type", fmt.Sprintf("%T", what))
	}
}

// say queues a frame.
func (w *worker) say(s *session, f frame.Frame) {
	s.spoke = true
	if s.ctl = w.appendMessage(s.ctl, s, f); len(s.ctl) > maxHeld && s.state == open {
		s.paused.Store(true) // until it is flushed
	}
	w.touch(s)
}

func (w *worker) refuse(s *session, e *frame.Error) { w.say(s, e) }

// refuseOp refuses an op that was not understood, or that this build does not have. A final answer would end the open subscription of its id.
func (w *worker) refuseOp(s *session, e *frame.Error) {
	if e.Re == "publish" {
		w.answered(outcomeRefused, w.srv.now())
	}
	if e.Final && e.ID != "" && s.uses(e.ID) {
		if e.Re == "subscribe" || e.Re == "consume" {
			e = frame.IDInUse(e.Re, e.ID)
		} else {
			e.Final = false
		}
	}
	w.refuse(s, e)
}

// open takes a session over from its handshake. It is on the worker's list before the poller can tell of it.
func (w *worker) open(s *session) {
	s.state = open
	s.pos, s.share = int32(len(w.sessions)), rand.Float32()
	w.sessions = append(w.sessions, s)
	now := w.srv.now()
	s.life = life{sent: now, beat: now, progress: now}
	if s.events == nil {
		w.say(s, frame.Welcome{Session: s.name, Heartbeat: w.srv.cfg.HeartbeatInterval, MaxMessageBytes: w.srv.cfg.MaxMessageBytes})
	}
	switch {
	case w.drain != nil:
		w.end(s, &endDraining, "")
	case s.urlError != nil:
		w.refuse(s, s.urlError)
	case s.url != nil:
		w.subscribe(s, s.url, true)
	}
	s.url, s.urlError = nil, nil
	if err := w.poller.add(s); err != nil {
		w.end(s, &endInternal, err.Error())
	}
}
