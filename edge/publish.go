package edge

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Bounds of what one session publishes.
const (
	maxQueued      = 256     // records waiting or under way
	maxQueuedBytes = 4 << 20 // of them together
	maxCallBytes   = 1 << 20 // of one call, or one record: the service refuses a larger call than 4 MiB whole, whatever its records are
	queueRetry     = 100 * time.Millisecond
)

// publishing is a session's queue of records to publish, in order. The first busy ones are under way, in one call.
type publishing struct {
	queue []queued
	bytes int
	busy  int
	call  *task
}

// queued is a record to publish.
type queued struct {
	op   *frame.Publish
	size int
	by   time.Time // when it has to be answered
}

// cost is about what records hold in memory.
func cost(records []queued) (n int) {
	for i := range records {
		n += opCost + records[i].size
	}
	return n
}

func (w *worker) publish(s *session, op *frame.Publish) {
	if s.retiring != nil {
		w.refuse(s, w.refusal(s, op.ID, hub.ErrDraining))
		return
	}
	if s.pub == nil {
		s.pub = &publishing{}
	}
	p := s.pub
	if slices.ContainsFunc(p.queue, func(q queued) bool { return q.op.ID == op.ID }) {
		w.refuse(s, &frame.Error{
			Re: "publish", ID: op.ID, Code: "already_exists", Reason: "ID_IN_USE", Outcome: "refused",
			Message: "the id is in use by a publish of this session",
		})
		return
	}
	size := proto.Size(op.Record)
	if len(p.queue) == maxQueued || p.bytes+size > maxQueuedBytes && len(p.queue) > 0 {
		e := frame.ErrorOf("publish", op.ID, &hub.LimitError{Limit: "publishes of a session", Value: maxQueued, Retry: queueRetry})
		e.Outcome = "refused"
		w.refuse(s, e)
		return
	}
	p.queue = append(p.queue, queued{op, size, time.Now().Add(w.srv.cfg.PublishTimeout)})
	p.bytes += size
	if !w.srv.input.keep(s, cost(p.queue[len(p.queue)-1:])) {
		w.end(s, &endOverLimit, "publish")
		return
	}
	w.startPublish(s)
}

// startPublish sends what is queued for one topic, unless something is under way: one call at a time keeps the order. The oldest record says
// how long all may wait to be sent, the newest when the call ends: a record that waited for others may take twice PublishTimeout.
func (w *worker) startPublish(s *session) {
	p := s.pub
	if p.busy > 0 || len(p.queue) == 0 {
		return
	}
	topic, room := p.queue[0].op.Topic, maxCallBytes
	for p.busy < len(p.queue) && p.queue[p.busy].op.Topic == topic && (p.busy == 0 || p.queue[p.busy].size <= room) {
		room -= p.queue[p.busy].size
		p.busy++
	}
	sent := p.queue[:p.busy]
	records := make([]*tailracev1.PublishRecord, len(sent))
	for i := range records {
		records[i] = sent[i].op.Record
	}
	srv, oldest, newest := w.srv, sent[0].by, sent[len(sent)-1].by
	result := published{n: len(sent), cost: cost(sent)}
	p.call = srv.publishes.run(topic, oldest, func() {
		ctx, cancel := context.WithDeadline(srv.ctx, newest)
		defer cancel()
		ask := access.Request{Identity: s.identity, Action: access.ActionPublish, Topic: topic}
		if err := access.Allow(ctx, ask); err != nil {
			result.err = denied{err}
		} else if len(topic) > maxTopic {
			result.err = hub.ErrUnknownTopic
		} else {
			result.results, result.err = srv.publisher.Publish(ctx, topic, records)
		}
		w.inbox.post(s, result)
	}, func() {
		result.err = hub.ErrUnavailable
		w.inbox.post(s, result)
	})
}

// published answers a call's records and starts the next.
func (w *worker) published(s *session, r published) {
	w.srv.input.keep(s, -r.cost)
	if s.state != open {
		return
	}
	p := s.pub
	for i, q := range p.queue[:r.n] {
		op := q.op
		switch {
		case r.err != nil:
			w.refuse(s, w.refusal(s, op.ID, r.err))
		case i < len(r.results):
			w.say(s, frame.Result{ID: op.ID, Result: r.results[i]})
		default:
			w.srv.log.Error("publish: results are missing", "session", s.name, "topic", op.Topic)
			w.say(s, frame.Result{ID: op.ID, Result: missingResult()})
		}
		p.bytes -= q.size
	}
	p.queue, p.busy, p.call = slices.Delete(p.queue, 0, r.n), 0, nil
	if len(p.queue) == 0 {
		s.pub = nil
		if s.retiring != nil {
			w.end(s, s.retiring, "")
		}
		return
	}
	w.startPublish(s)
}

// refusal is the answer to a publish of which nothing was sent.
func (w *worker) refusal(s *session, id string, err error) *frame.Error {
	return w.srv.refusalOf(s.name, id, err)
}

func (s *Server) refusalOf(session, id string, err error) *frame.Error {
	if no, ok := errors.AsType[denied](err); ok {
		return frame.Denied("publish", id, no.error)
	}
	e := frame.ErrorOf("publish", id, err)
	e.Outcome = "refused"
	if e.Code == "internal" {
		s.log.Error("publish", "session", session, "error", err)
	}
	return e
}

func missingResult() *tailracev1.PublishResult {
	return &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: &tailracev1.PublishFailure{
		Code: "internal", Reason: "INTERNAL", Message: "internal error", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN,
	}}}
}

// forgetPublishes drops what was not sent yet when the session ends: it is certainly not in the log. What is under way ends by itself, and
// is charged for until then.
func (w *worker) forgetPublishes(s *session) {
	p := s.pub
	if p == nil {
		return
	}
	sent := p.busy
	if p.call != nil && w.srv.publishes.drop(p.call) {
		sent = 0
	}
	w.srv.input.keep(s, -cost(p.queue[sent:]))
	s.pub = nil
}
