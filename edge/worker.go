package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gobwas/ws"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// maxRunning is the number of subscribes of one session that are under way at once; the others wait for them.
const maxRunning = 16

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
	upstream  bool // as told last
	blocked   int  // sessions, as counted last
	held      int  // bytes, as counted last
	beat      frame.Heartbeat
	ids       []int32 // partitions, for lacks
	writer
	count counts
}

// crowd is the subscriptions of one worker to a whole topic: those that Moved is for.
type crowd struct {
	topic *hub.Topic
	subs  []*subscription
}

type subscriptionSeat struct {
	sb         *subscription
	generation uint32
}

// denied wraps the answer of access.Allow.
type denied struct{ error }

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
		if r, ok := p.what.(subscribed); ok && r.sub != nil {
			r.sub.Close()
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
		w.count.publish(w.srv.metrics)
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
	switch what := what.(type) {
	case *frame.Subscribe:
		w.subscribe(s, what, false)
	case *frame.Unsubscribe:
		w.unsubscribe(s, what)
	case *frame.Publish:
		w.publish(s, what)
	case published:
		w.published(s, what)
	case *frame.Ping:
		w.msg = frame.AppendPong(w.msg[:0], what.ID)
		w.say(s)
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

// say queues w.msg as a text frame.
func (w *worker) say(s *session) {
	s.ctl = appendFrame(s.ctl, ws.OpText, w.msg)
	w.touch(s)
}

func (w *worker) refuse(s *session, e *frame.Error) {
	w.msg = frame.AppendError(w.msg[:0], e)
	w.say(s)
}

// refuseOp refuses an op that was not understood, or that this build does not have. A final answer would end the open subscription of its id.
func (w *worker) refuseOp(s *session, e *frame.Error) {
	if e.Final && e.ID != "" && s.find(e.ID) != nil {
		e = frame.IDInUse(e.Re, e.ID)
	}
	w.refuse(s, e)
}

// open takes a session over from its handshake. It is on the worker's list before the poller can tell of it.
func (w *worker) open(s *session) {
	s.state = open
	s.pos = int32(len(w.sessions))
	w.sessions = append(w.sessions, s)
	now := w.srv.now()
	s.life = life{sent: now, beat: now, progress: now}
	w.msg = frame.AppendWelcome(w.msg[:0], s.name, w.srv.cfg.HeartbeatInterval, w.srv.cfg.MaxMessageBytes)
	w.say(s)
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

func (w *worker) subscribe(s *session, op *frame.Subscribe, inURL bool) {
	if s.find(op.ID) != nil {
		w.refuse(s, frame.IDInUse("subscribe", op.ID))
		return
	}
	if limit := w.srv.cfg.MaxSubscriptions; len(s.subs) >= limit {
		w.refuse(s, frame.ErrorOf("subscribe", op.ID, &hub.LimitError{Limit: "subscriptions of a session", Value: int64(limit)}))
		return
	}
	sb := &subscription{s: s, id: op.ID, as: op.As, request: &op.Request, inURL: inURL, waiting: true}
	w.sit(sb)
	s.subs = append(s.subs, sb)
	w.startSubscribes(s)
}

// startSubscribes starts those that wait, unless the client does not take the answers.
func (w *worker) startSubscribes(s *session) {
	for _, sb := range s.subs {
		if s.running >= maxRunning || s.paused.Load() {
			return
		}
		if sb.waiting {
			sb.waiting = false
			s.running++
			w.startSubscribe(sb)
		}
	}
}

func (w *worker) startSubscribe(sb *subscription) {
	s, srv, request, token := sb.s, w.srv, *sb.request, sb.token
	ctx, cancel := context.WithCancel(srv.ctx)
	sb.cancel = cancel
	srv.subscribes.run(func() {
		defer cancel()
		ctx, done := context.WithTimeout(ctx, srv.cfg.SubscribeTimeout)
		defer done()
		result := subscribed{to: sb}
		ask := access.Request{Identity: s.identity, Action: access.ActionSubscribe, Topic: request.Topic, Keys: request.Keys}
		if err := access.Allow(ctx, ask); err != nil {
			result.err = denied{err}
		} else {
			result.sub, result.err = srv.hub.Subscribe(ctx, request, w.inbox, token)
		}
		if errors.Is(result.err, context.DeadlineExceeded) {
			result.err = hub.ErrUnavailable
		}
		w.inbox.post(s, result)
	})
}

func (w *worker) subscribed(s *session, r subscribed) {
	sb := r.to
	s.running--
	sb.cancel = nil
	if s.state != open {
		if r.sub != nil {
			r.sub.Close()
		}
		return
	}
	if r.err != nil {
		w.msg = w.finish(w.msg[:0], sb, r.err)
		w.say(s)
		w.endURL(sb, r.err)
	} else {
		w.started(sb, r.sub)
	}
	w.startSubscribes(s)
}

func (w *worker) started(sb *subscription, sub *hub.Subscription) {
	sb.sub = sub
	w.msg = frame.AppendStarted(w.msg[:0], sb.id, sb.request.Topic, sub.Started())
	w.say(sb.s)
	whole := len(sb.request.Keys) == 0 && len(sb.request.Partitions) == 0
	sb.request = nil
	w.count.subscriptions++
	if sb.leaving {
		w.leave(sb)
		return
	}
	sb.hungry = true
	if whole {
		w.join(sb)
	}
}

func (w *worker) unsubscribe(s *session, op *frame.Unsubscribe) {
	sb := s.find(op.ID)
	switch {
	case sb == nil:
		w.refuse(s, frame.Invalid("unsubscribe", op.ID, "id", "names no open subscription"))
	case sb.sub == nil:
		sb.leaving = true // answered once it has started: the client gets started, then unsubscribed
	default:
		w.leave(sb)
	}
}

func (w *worker) leave(sb *subscription) {
	w.release(sb)
	w.msg = frame.AppendUnsubscribed(w.msg[:0], sb.id, "client")
	w.say(sb.s)
}

// finish releases a subscription that has ended with err and returns dst with the payload of the frame that says so.
func (w *worker) finish(dst []byte, sb *subscription, err error) []byte {
	w.release(sb)
	if errors.Is(err, io.EOF) {
		return frame.AppendUnsubscribed(dst, sb.id, "until")
	}
	if no, ok := errors.AsType[denied](err); ok {
		return frame.AppendError(dst, frame.Denied("subscribe", sb.id, no.error))
	}
	e := frame.ErrorOf("subscribe", sb.id, err)
	if e.Code == "internal" {
		w.srv.log.Error("subscription", "session", sb.s.name, "id", sb.id, "error", err)
	}
	return frame.AppendError(dst, e)
}

// endURL ends a session whose reason to be was the subscription of its URL, and any when this process drains.
func (w *worker) endURL(sb *subscription, err error) {
	_, lagged := errors.AsType[*hub.LaggedError](err)
	switch {
	case errors.Is(err, hub.ErrDraining):
		w.end(sb.s, &endDraining, err.Error())
	case sb.inURL && errors.Is(err, hub.ErrUnknownTopic):
		w.end(sb.s, &endUnknownTopic, err.Error())
	case sb.inURL && lagged:
		w.end(sb.s, &endLagged, err.Error())
	}
}

// sit gives a subscription its token, by which the hub tells of it.
func (w *worker) sit(sb *subscription) {
	var at uint32
	if n := len(w.freeSeats); n > 0 {
		at = w.freeSeats[n-1]
		w.freeSeats = w.freeSeats[:n-1]
	} else {
		at = uint32(len(w.seats))
		w.seats = append(w.seats, subscriptionSeat{})
	}
	w.seats[at].sb = sb
	sb.token = uint64(w.seats[at].generation)<<32 | uint64(at)
}

// at returns the subscription of a token, nil if it is gone.
func (w *worker) at(token uint64) *subscription {
	seat := &w.seats[uint32(token)]
	if seat.generation != uint32(token>>32) {
		return nil
	}
	return seat.sb
}

// join makes Moved count for a subscription.
func (w *worker) join(sb *subscription) {
	t := sb.sub.Topic()
	c := w.crowds[t]
	if c == nil {
		c = &crowd{topic: t}
		w.crowds[t] = c
	}
	sb.crowd, sb.seat = c, int32(len(c.subs))
	c.subs = append(c.subs, sb)
}

// release closes a subscription and frees its id.
func (w *worker) release(sb *subscription) {
	s := sb.s
	for i, other := range s.subs {
		if other == sb {
			s.subs = append(s.subs[:i], s.subs[i+1:]...)
			break
		}
	}
	w.dispose(sb)
}

// dispose closes a subscription that its session has forgotten, or is about to.
func (w *worker) dispose(sb *subscription) {
	if c := sb.crowd; c != nil {
		last := len(c.subs) - 1
		c.subs[sb.seat] = c.subs[last]
		c.subs[sb.seat].seat = sb.seat
		c.subs[last] = nil
		c.subs = c.subs[:last]
		if last == 0 {
			delete(w.crowds, c.topic)
		}
		sb.crowd = nil
	}
	at := uint32(sb.token)
	w.seats[at].sb = nil
	w.seats[at].generation++
	w.freeSeats = append(w.freeSeats, at)
	sb.hungry, sb.group = false, 0
	if sb.cancel != nil {
		sb.cancel()
	}
	if sb.sub != nil {
		w.count.subscriptions--
		sb.sub.Close()
	}
}
