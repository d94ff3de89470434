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
	queueRetry     = 100 * time.Millisecond
)

// publishing is a session's queue of records to publish, in order. The first busy ones are under way, in one call.
type publishing struct {
	queue []*frame.Publish
	sizes []int
	bytes int
	busy  int
}

func (w *worker) publish(s *session, op *frame.Publish) {
	if s.retiring {
		w.refuse(s, w.refusal(s, op.ID, hub.ErrDraining))
		return
	}
	if s.pub == nil {
		s.pub = &publishing{}
	}
	p := s.pub
	if slices.ContainsFunc(p.queue, func(o *frame.Publish) bool { return o.ID == op.ID }) {
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
	p.queue, p.sizes = append(p.queue, op), append(p.sizes, size)
	p.bytes += size
	w.startPublish(s)
}

// startPublish sends what is queued for one topic, unless something is under way: one call at a time keeps the order.
func (w *worker) startPublish(s *session) {
	p := s.pub
	if p.busy > 0 || len(p.queue) == 0 {
		return
	}
	topic := p.queue[0].Topic
	for p.busy < len(p.queue) && p.queue[p.busy].Topic == topic {
		p.busy++
	}
	records := make([]*tailracev1.PublishRecord, p.busy)
	for i := range records {
		records[i] = p.queue[i].Record
	}
	srv := w.srv
	srv.publishes.run(func() {
		ctx, cancel := context.WithTimeout(srv.ctx, srv.cfg.PublishTimeout)
		defer cancel()
		result := published{n: len(records)}
		ask := access.Request{Identity: s.identity, Action: access.ActionPublish, Topic: topic}
		if err := access.Allow(ctx, ask); err != nil {
			result.err = denied{err}
		} else {
			result.results, result.err = srv.publisher.Publish(ctx, topic, records)
		}
		w.inbox.post(s, result)
	})
}

// published answers a call's records and starts the next.
func (w *worker) published(s *session, r published) {
	p := s.pub
	for i, op := range p.queue[:r.n] {
		w.msg = w.msg[:0]
		switch {
		case r.err != nil:
			w.msg = frame.AppendError(w.msg, w.refusal(s, op.ID, r.err))
		case i < len(r.results):
			w.msg = frame.AppendResult(w.msg, op.ID, r.results[i])
		default:
			w.srv.log.Error("publish: results are missing", "session", s.name, "topic", op.Topic)
			w.msg = frame.AppendResult(w.msg, op.ID, missingResult())
		}
		w.say(s)
		p.bytes -= p.sizes[i]
	}
	p.queue, p.sizes, p.busy = slices.Delete(p.queue, 0, r.n), slices.Delete(p.sizes, 0, r.n), 0
	if len(p.queue) == 0 {
		s.pub = nil
		if s.retiring {
			w.end(s, &endDraining, "")
		}
		return
	}
	w.startPublish(s)
}

// refusal is the answer to a publish of which nothing was sent.
func (w *worker) refusal(s *session, id string, err error) *frame.Error {
	if no, ok := errors.AsType[denied](err); ok {
		return frame.Denied("publish", id, no.error)
	}
	e := frame.ErrorOf("publish", id, err)
	e.Outcome = "refused"
	if e.Code == "internal" {
		w.srv.log.Error("publish", "session", s.name, "error", err)
	}
	return e
}

func missingResult() *tailracev1.PublishResult {
	return &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: &tailracev1.PublishFailure{
		Code: "internal", Reason: "INTERNAL", Message: "internal error", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN,
	}}}
}

// forgetPublishes drops what was not sent yet when the session ends: it is certainly not in the log. What is under way ends by itself.
func (w *worker) forgetPublishes(s *session) { s.pub = nil }
