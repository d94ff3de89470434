package edge

import (
	"net/http"

	"google.golang.org/protobuf/proto"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// maxCarried is the largest record that is sent with its context beside it: the service has a bound for both together.
const maxCarried = 3 << 20

// parentOf is the context that the request for a session names, the parent of the session's spans. nil: none, or there are no spans.
func (s *Server) parentOf(r *http.Request) *trace.Parent {
	if s.cfg.Tracer == nil {
		return nil
	}
	return trace.ParentOf(r.Header).Keep()
}

// traceSubscribe begins the span of a subscription, nil without a tracer.
func (w *worker) traceSubscribe(s *session, topic string) *trace.Receive {
	t := w.srv.cfg.Tracer
	if t == nil {
		return nil
	}
	var from trace.Parent
	if s.parent != nil {
		from = *s.parent
	}
	return t.Receive(w.srv.ctx, from, topic)
}

// traceConsume begins the span of a consume, nil without a tracer.
func (w *worker) traceConsume(s *session, start *tailracev1.ConsumeStart) *trace.Receive {
	t := w.srv.cfg.Tracer
	if t == nil {
		return nil
	}
	var from trace.Parent
	if s.parent != nil {
		from = *s.parent
	}
	topic := ""
	if topics := start.GetTopics(); len(topics) == 1 {
		topic = topics[0]
	}
	return t.Consume(w.srv.ctx, from, start.GetGroup(), topic)
}

// endSpan ends the span of a consume, if it has one: the first of these encoded deliveries is its first.
func (c *consume) endSpan(deliveries []byte) {
	if c.span == nil {
		return
	}
	var m tailracev1.Deliveries
	if err := proto.Unmarshal(deliveries, &m); err == nil && len(m.GetDeliveries()) > 0 {
		d := m.GetDeliveries()[0]
		c.span.Delivered(d.GetRecord(), int(d.GetAttempt()))
	}
	c.span.End("")
	c.span = nil
}

// tracePublish begins the span of a publish by socket, nil without a tracer. Where the record's own headers name a trace, it belongs to that.
func (w *worker) tracePublish(s *session, op *frame.Publish) *trace.Publish {
	t := w.srv.cfg.Tracer
	if t == nil {
		return nil
	}
	_, span := t.AcceptOn(w.srv.ctx, s.parent, op.Topic, op.Record)
	return span
}

// endPublish ends the span of a publish by socket with its answer.
func endPublish(span *trace.Publish, result *tailracev1.PublishResult, err error) {
	if err != nil {
		e := frame.ErrorOf("publish", "", err)
		span.Failed(e.Reason, e.Message)
		return
	}
	span.Result(result)
}

// tracedPost is postRecord, within a span if there is a tracer.
func (s *Server) tracedPost(r *http.Request, op *frame.Publish) (*tailracev1.Published, *frame.Error) {
	t := s.cfg.Tracer
	if t == nil {
		return s.postRecord(s.ctx, op)
	}
	ctx, span := t.Accept(s.ctx, trace.ParentOf(r.Header), op.Topic, []*tailracev1.PublishRecord{op.Record})
	at, e := s.postRecord(ctx, op)
	switch {
	case e == nil:
		span.Result(&tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: at}})
	case e.Outcome == "unknown":
		span.Unknown(e.Reason, e.Message)
	default:
		span.Failed(e.Reason, e.Message)
	}
	return at, e
}

// composed notes that the first record of a subscription is part of what is written next, if it is the first and there is a span.
func (w *worker) composed(sb *subscription, b *hub.Batch) {
	if sb.span == nil {
		return
	}
	for i := range b.Parts {
		if p := &b.Parts[i]; p.Kind == hub.Records && p.Lo < p.Hi {
			first := firstRecord{
				span: sb.span, partition: p.Partition, offset: p.Meta[p.Lo].Offset, piece: p.Piece(p.Lo, p.Lo+1), history: b.History,
			}
			w.firsts = append(w.firsts, first)
			sb.span = nil
			return
		}
	}
}

// firstRecord is one that ends the span of its subscription.
type firstRecord struct {
	span      *trace.Receive
	partition int32
	offset    int64
	piece     []byte // of an entry, which is immutable
	history   bool
}

// endFirsts ends the spans of subscriptions whose first record was written, or given to a socket that takes it later.
func (w *worker) endFirsts() {
	if len(w.firsts) == 0 {
		return
	}
	for i := range w.firsts {
		f := &w.firsts[i]
		f.span.First(f.partition, f.offset, f.piece, f.history)
	}
	clear(w.firsts)
	w.firsts = w.firsts[:0]
}
