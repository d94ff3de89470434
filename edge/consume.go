package edge

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"tailrace.dev/tailrace/edge/frame"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// settleRetry is when an ack that was one too many may be tried again.
const settleRetry = 100 * time.Millisecond

// maxSettles is how many acks and nacks of a worker, or runs of acks, wait for the service.
const maxSettles = 64

// consume is a session's worker of a group: one stream at a service. Of that it holds one message, and takes the next when the socket has taken the last:
// so a client that takes nothing holds what max_in_flight allows, and little here. It is owned by the session's worker.
type consume struct {
	s       *session
	id      string
	cost    int // bytes of input that it holds, besides acks
	acks    int // bytes of acks and nacks that wait for the service, as charged for
	send    func(m *tailracev1.ConsumeRequest) bool
	waiting func() int
	hangUp  func(lost bool)
	next    chan struct{} // one slot: another message may come
	over    chan struct{} // closed when nobody takes any more
	message *wirev1.ConsumeResponse
	rest    []byte         // of the deliveries in message
	err     error          // why the stream is over
	span    *trace.Receive // until the first delivery; nil: there is none
	started bool
	leaving bool // unsubscribed before it started
}

// uses says whether an id names an open subscription or consume.
func (s *session) uses(id string) bool { return s.find(id) != nil || s.worker(id) != nil }

// worker returns the open consume of an id.
func (s *session) worker(id string) *consume {
	for _, c := range s.work {
		if c.id == id {
			return c
		}
	}
	return nil
}

func (w *worker) consume(s *session, op *frame.Consume) {
	if w.srv.cfg.Consumer == nil {
		w.refuseOp(s, (&frame.Unbuilt{Op: "consume", ID: op.ID}).Refusal())
		return
	}
	if !w.mayOpen(s, "consume", op.ID) {
		return
	}
	for _, topic := range op.Start.GetTopics() {
		ask := access.Request{Identity: s.identity, Action: access.ActionConsume, Topic: topic, Group: op.Start.GetGroup()}
		if err := w.srv.allow(w.srv.ctx, ask); err != nil {
			w.refuse(s, frame.Denied("consume", op.ID, err))
			return
		}
	}
	for _, topic := range hub.DeadLetterTopics(op.Start.GetTopics(), op.Start.GetDeadLetterTopic()) { // a nack may write there
		ask := access.Request{Identity: s.identity, Action: access.ActionPublish, Topic: topic, Group: op.Start.GetGroup()}
		if err := w.srv.allow(w.srv.ctx, ask); err != nil {
			w.refuse(s, frame.Denied("consume", op.ID, fmt.Errorf("dead letters to %q: %w", topic, err)))
			return
		}
	}
	c := &consume{s: s, id: op.ID, span: w.traceConsume(s, op.Start), cost: opCost + proto.Size(op.Start), next: make(chan struct{}, 1), over: make(chan struct{})}
	s.work = append(s.work, c)
	c.send, c.waiting, c.hangUp = w.srv.cfg.Consumer.OpenConsume(c.span.In(w.srv.ctx), op.Start, time.Now().Add(w.srv.cfg.SubscribeTimeout), func(m *wirev1.ConsumeResponse, err error) {
		select {
		case <-c.over:
			return
		default:
		}
		w.inbox.post(s, consumed{c, m, err})
		if err == nil {
			select {
			case <-c.next:
			case <-c.over:
			}
		}
	})
	if !w.srv.input.keep(s, c.cost) {
		w.end(s, &endOverLimit, "consume")
	}
}

// settle passes an ack or a nack on. They count as publishes do, also where there is nothing to settle.
func (w *worker) settle(s *session, op *frame.Settle) {
	if w.srv.cfg.Consumer == nil {
		w.refuseOp(s, (&frame.Unbuilt{Op: op.Op, ID: op.ID}).Refusal())
		return
	}
	err := w.maySettle(s)
	c := s.worker(op.ID)
	switch {
	case err != nil:
	case c == nil:
		w.refuse(s, frame.NotHeld(op.ID, op.Tags))
	case !c.send(op.Request):
		err = &hub.LimitError{Limit: "acks that wait for the service", Value: maxSettles, Retry: settleRetry}
	case !w.charge(c):
		w.end(s, &endOverLimit, "ack")
	}
	if err != nil {
		e := frame.ErrorOf(op.Op, op.ID, err)
		e.Tags = op.Tags
		w.refuse(s, e)
	}
}

// maySettle says whether a session may have another ack or nack looked at now.
func (w *worker) maySettle(s *session) error {
	rate := w.srv.cfg.PublishRate
	if rate == 0 {
		return nil
	}
	if wait := s.puts.spend(w.srv.now(), rate, publishBurst); wait > 0 {
		return &hub.LimitError{Limit: "publishes and acks of a session in a second", Value: int64(rate), Retry: wait.Round(time.Millisecond) + time.Millisecond}
	}
	return nil
}

// charge charges for the acks that wait now. They are sent elsewhere, and what was sent is given back at the next ack, or at the next message of the
// service, which has a heartbeat. It is false if they are too much.
func (w *worker) charge(c *consume) bool {
	now := c.waiting()
	more := now - c.acks
	c.acks = now
	return w.srv.input.keep(c.s, more)
}

// consumed takes a message of a worker's stream, or its end.
func (w *worker) consumed(s *session, r consumed) {
	c := r.by
	if s.state != open || s.worker(c.id) != c {
		return
	}
	c.message, c.err = r.m, r.err
	if d, ok := r.m.GetEvent().(*wirev1.ConsumeResponse_Deliveries); ok {
		c.rest = d.Deliveries
	}
	w.touch(s)
	if !w.charge(c) {
		w.end(s, &endOverLimit, "ack")
	}
}

// pullWork appends what the session's workers have, about so many bytes of records at most.
func (w *worker) pullWork(s *session, budget int) {
	for range len(s.work) {
		if budget <= 0 || len(s.work) == 0 {
			return
		}
		c := s.work[0]
		s.work = append(append(s.work[:0], s.work[1:]...), c) // each has its turn
		if c.message != nil || c.err != nil {
			budget -= w.pullFrom(c, budget)
		}
	}
}

// pullFrom appends what one worker has, and returns what of the budget that takes.
func (w *worker) pullFrom(c *consume, budget int) (took int) {
	if c.err != nil {
		w.finishWork(c, c.err)
		return 1
	}
	if len(c.rest) > 0 {
		head, rest, n, ok := frame.Cut(c.rest, budget)
		if !ok {
			w.finishWork(c, errors.New("malformed deliveries"))
			return 1
		}
		w.msg = c.s.form.AppendDeliveries(w.msg[:0], c.id, head)
		w.buf = appendFrame(w.buf, c.s.form.opcode, w.msg)
		w.delivered(c.s, &hub.Batch{Records: n})
		c.endSpan(head)
		if c.rest = rest; len(rest) == 0 {
			w.takeNext(c)
		}
		return max(len(head), 1)
	}
	f, err := c.event()
	if err != nil {
		w.finishWork(c, err)
		return 1
	}
	if f != nil {
		w.buf = w.appendMessage(w.buf, c.s, f)
	}
	if w.takeNext(c); c.leaving && c.started {
		w.forgetWork(c)
		w.buf = w.appendMessage(w.buf, c.s, frame.Unsubscribed{ID: c.id, Reason: "client"})
	}
	return 1
}

// takeNext lets the next message come.
func (w *worker) takeNext(c *consume) {
	c.message, c.rest = nil, nil
	c.next <- struct{}{} // nobody but the worker fills it, once a message
}

// event is the frame of a message without deliveries; nil: none is due.
func (c *consume) event() (frame.Frame, error) {
	read := func(b []byte, m proto.Message) error {
		if err := proto.Unmarshal(b, m); err != nil {
			return fmt.Errorf("malformed message: %w", err)
		}
		return nil
	}
	switch e := c.message.GetEvent().(type) {
	case *wirev1.ConsumeResponse_Started:
		m := &tailracev1.ConsumeStarted{}
		err := read(e.Started, m)
		c.started = true
		return frame.ConsumeStarted{ID: c.id, Settings: m.GetSettings()}, err
	case *wirev1.ConsumeResponse_AckRefused:
		m := &tailracev1.AckRefused{}
		err := read(e.AckRefused, m)
		return frame.NotHeld(c.id, m.GetTags()), err
	case *wirev1.ConsumeResponse_Gap:
		m := &tailracev1.ConsumeGap{}
		err := read(e.Gap, m)
		return frame.ConsumeGap{ID: c.id, Topic: m.GetTopic(), Gap: m.GetGap()}, err
	default: // heartbeats are the session's own; a newer service may say more
		return nil, nil
	}
}

// leaveGroup ends a consume as its client wants it: once it has started.
func (w *worker) leaveGroup(c *consume) {
	if !c.started {
		c.leaving = true
		return
	}
	w.forgetWork(c)
	w.say(c.s, frame.Unsubscribed{ID: c.id, Reason: "client"})
}

// finishWork tells why a consume is over.
func (w *worker) finishWork(c *consume, err error) {
	e := w.srv.explain(frame.ErrorOf("consume", c.id, err))
	c.span.End(e.Reason)
	if e.Code == "internal" {
		w.srv.log.Error("consume failed", "session", c.s.name, "id", c.id, "cause", err)
	}
	w.forgetWork(c)
	w.buf = w.appendMessage(w.buf, c.s, e)
}

// forgetWork frees an id.
func (w *worker) forgetWork(c *consume) {
	for i, other := range c.s.work {
		if other == c {
			c.s.work = append(c.s.work[:i], c.s.work[i+1:]...)
			break
		}
	}
	w.disband(c, false)
}

// disband hangs up: what the worker holds is dealt to others at once, and has failed if its client was lost.
func (w *worker) disband(c *consume, lost bool) {
	close(c.over)
	c.span.End("") // finishWork has said why, if it was an error
	c.hangUp(lost)
	c.message, c.rest = nil, nil
	w.srv.input.keep(c.s, -c.cost-c.acks)
}
