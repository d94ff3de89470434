package edge

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// maxRunning is the number of subscribes of one session that are under way at once; the others wait for them.
const maxRunning = 16

// maxTopic is the longest name that a topic can have (Kafka's Topic.MAX_NAME_LENGTH): a longer one need not travel to be unknown.
const maxTopic = 249

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

func (w *worker) subscribe(s *session, op *frame.Subscribe, inURL bool) {
	if !w.mayOpen(s, "subscribe", op.ID) {
		return
	}
	keys := len(op.Request.Keys)
	if limit := w.srv.cfg.MaxKeys; s.keys+keys > limit {
		w.refuse(s, frame.ErrorOf("subscribe", op.ID, &hub.LimitError{Limit: "keys of a session", Value: int64(limit)}))
		return
	}
	s.keys += keys
	sb := &subscription{s: s, id: op.ID, as: op.As, request: &op.Request, inURL: inURL, waiting: true, keys: keys, cost: costOf(&op.Request)}
	sb.by = time.Now().Add(w.srv.cfg.SubscribeTimeout)
	sb.span = w.traceSubscribe(s, op.Request.Topic)
	w.sit(sb)
	s.subs = append(s.subs, sb)
	if !w.srv.input.keep(s, sb.cost) {
		w.end(s, &endOverLimit, "subscribe")
		return
	}
	w.startSubscribes(s)
}

// mayOpen says whether a session may have another subscription or consume, with this id; else it is refused.
func (w *worker) mayOpen(s *session, re, id string) bool {
	limit := w.srv.cfg.MaxSubscriptions
	switch {
	case s.uses(id):
		w.refuse(s, frame.IDInUse(re, id))
	case len(s.subs)+len(s.work) >= limit:
		w.refuse(s, frame.ErrorOf(re, id, &hub.LimitError{Limit: "subscriptions of a session", Value: int64(limit)}))
	default:
		return true
	}
	return false
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
	ctx, cancel := context.WithDeadline(sb.span.In(srv.ctx), sb.by)
	sb.cancel = cancel
	result := subscribed{to: sb}
	sb.call = srv.subscribes.run(request.Topic, sb.by, func() {
		defer cancel()
		ask := access.Request{Identity: s.identity, Action: access.ActionSubscribe, Topic: request.Topic, Keys: request.Keys}
		if err := srv.allow(ctx, ask); err != nil {
			result.err = denied{err}
		} else if len(request.Topic) > maxTopic {
			result.err = hub.ErrUnknownTopic
		} else {
			result.sub, result.err = srv.hub.Subscribe(ctx, request, w.inbox, token)
		}
		if errors.Is(result.err, context.DeadlineExceeded) {
			result.err = hub.ErrUnavailable
		}
		w.inbox.post(s, result)
	}, func() {
		cancel()
		result.err = hub.ErrUnavailable
		w.inbox.post(s, result)
	})
}

// costOf is about what a request holds in memory, and its subscription after it.
func costOf(r *hub.Request) int {
	n := opCost + 4*len(r.Partitions) + 24*(len(r.Start.Positions)+len(r.Stop.Positions))
	for _, k := range r.Keys {
		n += 24 + len(k)
	}
	return n
}

func (w *worker) subscribed(s *session, r subscribed) {
	sb := r.to
	s.running--
	sb.call, sb.cancel = nil, nil
	if s.state != open {
		if r.sub != nil {
			r.sub.Close()
		}
		return
	}
	if r.err != nil && s.events != nil {
		w.over(sb, r.err)
	} else if r.err != nil {
		w.say(s, w.finish(sb, r.err))
		w.endURL(sb, r.err)
	} else {
		w.started(sb, r.sub)
	}
	w.startSubscribes(s)
}

func (w *worker) started(sb *subscription, sub *hub.Subscription) {
	sb.sub = sub
	w.count.subscriptions++
	if sb.s.events != nil {
		if !w.beginEvents(sb, sb.request.Topic) {
			return
		}
	} else {
		w.say(sb.s, frame.Started{ID: sb.id, Topic: sb.request.Topic, At: sub.Started()})
	}
	whole := len(sb.request.Keys) == 0 && len(sb.request.Partitions) == 0
	sb.request = nil
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
	case sb == nil && s.uses(op.ID):
		w.leaveGroup(s.worker(op.ID))
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
	w.say(sb.s, frame.Unsubscribed{ID: sb.id, Reason: "client"})
}

// finish releases a subscription that has ended with err and returns the frame that says so.
func (w *worker) finish(sb *subscription, err error) frame.Frame {
	defer w.release(sb)
	if errors.Is(err, io.EOF) {
		return frame.Unsubscribed{ID: sb.id, Reason: "until"}
	}
	return w.errorOf(sb, err)
}

// errorOf is what the client is told of the error that has ended a subscription.
func (w *worker) errorOf(sb *subscription, err error) *frame.Error {
	if no, ok := errors.AsType[denied](err); ok {
		e := frame.Denied("subscribe", sb.id, no.error)
		sb.span.End(e.Reason)
		return e
	}
	e := w.srv.explain(frame.ErrorOf("subscribe", sb.id, err))
	sb.span.End(e.Reason)
	if e.Code == "internal" {
		w.srv.log.Error("subscription failed", "session", sb.s.name, "id", sb.id, "cause", err)
	}
	return e
}

// explain makes the text of an answer say what is away, for people who do not know what a source is.
func (s *Server) explain(e *frame.Error) *frame.Error {
	if e.Reason != "UNAVAILABLE" {
		return e
	}
	if cause, ok := strings.CutPrefix(e.Message, hub.ErrUnavailable.Error()+": "); ok {
		e.Message = cause
	} else if s.cfg.UpstreamProblem != nil {
		e.Message = s.cfg.UpstreamProblem()
	}
	return e
}

// endURL ends a session whose reason to be was the subscription of its URL, and any when this process drains.
func (w *worker) endURL(sb *subscription, err error) {
	_, lagged := errors.AsType[*hub.LaggedError](err)
	_, forbidden := errors.AsType[denied](err)
	switch {
	case sb.inURL && forbidden:
		w.end(sb.s, &endForbidden, err.Error())
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
	sb.span.End("") // errorOf has said why, if it was an error
	sb.span = nil
	if sb.call != nil {
		sb.cancel()
		w.srv.subscribes.drop(sb.call)
	}
	w.srv.input.keep(sb.s, -sb.cost)
	sb.s.keys -= sb.keys
	if sb.sub != nil {
		w.count.subscriptions--
		sb.sub.Close()
	}
}
