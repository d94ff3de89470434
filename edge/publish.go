package edge

import (
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Bounds of what one session publishes. Beyond them a publish is refused with a hint when to retry; the socket is read on, for its pongs and its
// other requests.
const (
	maxQueued      = 256     // records without an answer
	maxQueuedBytes = 4 << 20 // of them together
	queueRetry     = 100 * time.Millisecond
)

// publishing is what a session that publishes has beyond others, from its first publish until it has published nothing for a while. The way to
// the service keeps the order; answers come in any.
type publishing struct {
	publish func(n uint64, topic string, record *tailracev1.PublishRecord, by time.Time, of *trace.Parent)
	hangUp  func()
	under   map[uint64]underWay
	ids     map[string]struct{} // of those
	bytes   int
	last    uint64
}

// underWay is a record without an answer.
type underWay struct {
	id   string
	size int
	came int64          // Server.now
	span *trace.Publish // nil: there is none
}

func (w *worker) publish(s *session, op *frame.Publish) {
	if s.retiring != nil {
		w.refusePublish(s, w.refusal(s, op.ID, hub.ErrDraining))
		return
	}
	if s.pub == nil {
		w.openPublishing(s)
	}
	p := s.pub
	if _, used := p.ids[op.ID]; used {
		w.refusePublish(s, &frame.Error{
			Re: "publish", ID: op.ID, Code: "already_exists", Reason: "ID_IN_USE", Outcome: "refused",
			Message: "the id is in use by a publish of this session",
		})
		return
	}
	size := proto.Size(op.Record)
	if err := w.admit(s, size); err != nil {
		w.refusePublish(s, w.refusal(s, op.ID, err))
		return
	}
	if err := w.srv.allow(w.srv.ctx, access.Request{Identity: s.identity, Action: access.ActionPublish, Topic: op.Topic}); err != nil {
		w.refusePublish(s, w.refusal(s, op.ID, denied{err}))
		return
	}
	if len(op.Topic) > maxTopic {
		w.refusePublish(s, w.refusal(s, op.ID, hub.ErrUnknownTopic))
		return
	}
	if !w.srv.input.keep(s, opCost+size) {
		w.srv.input.keep(s, -(opCost + size)) // there will be no answer that gives it back
		w.end(s, &endOverLimit, "publish")
		return
	}
	p.last++
	span := w.tracePublish(s, op)
	p.under[p.last] = underWay{op.ID, size, w.srv.now(), span}
	p.ids[op.ID] = struct{}{}
	p.bytes += size
	var of *trace.Parent
	if size <= maxCarried {
		of = span.Parent()
	}
	p.publish(p.last, op.Topic, op.Record, time.Now().Add(w.srv.cfg.PublishTimeout), of)
}

// refusePublish answers a publish that was not taken.
func (w *worker) refusePublish(s *session, e *frame.Error) {
	w.answered(outcomeRefused, w.srv.now())
	w.refuse(s, e)
}

// openPublishing makes ready for publishes.
func (w *worker) openPublishing(s *session) {
	p := &publishing{under: map[uint64]underWay{}, ids: map[string]struct{}{}}
	p.publish, p.hangUp = w.srv.publisher.OpenPublish(w.srv.ctx, func(n uint64, result *tailracev1.PublishResult, err error) {
		w.inbox.post(s, published{by: p, n: n, result: result, err: err})
	})
	s.pub = p
}

// admit says whether one more may be under way.
func (w *worker) admit(s *session, size int) error {
	p := s.pub
	if len(p.under) >= maxQueued || p.bytes+size > maxQueuedBytes && len(p.under) > 0 {
		return &hub.LimitError{Limit: "publishes of a session without an answer", Value: maxQueued, Retry: queueRetry}
	}
	rate := w.srv.cfg.PublishRate
	if rate == 0 {
		return nil
	}
	if wait := s.puts.spend(w.srv.now(), rate, publishBurst); wait > 0 {
		return &hub.LimitError{Limit: "publishes of a session in a second", Value: int64(rate), Retry: wait.Round(time.Millisecond) + time.Millisecond}
	}
	return nil
}

// published answers a publish.
func (w *worker) published(s *session, r published) {
	p := r.by
	if r.n == 0 {
		if s.pub == p && len(p.under) == 0 {
			s.pub = nil // idle for long
		}
		return
	}
	q, ok := p.under[r.n]
	if !ok {
		return
	}
	delete(p.under, r.n)
	delete(p.ids, q.id)
	p.bytes -= q.size
	w.answered(outcomeOf(r.result, r.err), q.came)
	w.srv.input.keep(s, -(opCost + q.size))
	if q.span != nil {
		endPublish(q.span, r.result, r.err)
	}
	if s.state != open {
		return
	}
	if r.err != nil {
		w.refuse(s, w.refusal(s, q.id, r.err))
	} else {
		w.say(s, frame.Result{ID: q.id, Result: r.result})
	}
	if s.retiring != nil && len(p.under) == 0 {
		w.end(s, s.retiring, "")
	}
}

// publishes says whether a session has publishes without an answer.
func (s *session) publishes() bool { return s.pub != nil && len(s.pub.under) > 0 }

// refusal is the answer to a publish of which nothing was sent.
func (w *worker) refusal(s *session, id string, err error) *frame.Error {
	return w.srv.refusalOf(s.name, id, err)
}

func (s *Server) refusalOf(session, id string, err error) *frame.Error {
	if no, ok := errors.AsType[denied](err); ok {
		return frame.Denied("publish", id, no.error)
	}
	e := s.explain(frame.ErrorOf("publish", id, err))
	e.Outcome = "refused"
	if e.Code == "internal" {
		s.log.Error("publish failed", "session", session, "cause", err)
	}
	return e
}

func missingResult() *tailracev1.PublishResult {
	return &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: &tailracev1.PublishFailure{
		Code: "internal", Reason: "INTERNAL", Message: "internal error", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN,
	}}}
}

// forgetPublishes hangs up when the session ends. What was not sent yet is certainly not in the log; what was goes on, and is charged for until
// its answer.
func (w *worker) forgetPublishes(s *session) {
	if s.pub != nil {
		s.pub.hangUp()
		s.pub = nil
	}
}
