package stream

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// tracedPublish is publish within a span, which ends with the last acknowledgement.
func (h *streamService) tracedPublish(ctx context.Context, m *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
	var from trace.Parent
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		from = trace.ParentOf(info.RequestHeader())
	}
	ctx, span := h.server.cfg.Tracer.Send(ctx, from, m.GetTopic(), m.GetRecords())
	response, err := h.publish(ctx, m)
	if err != nil {
		v := judge(err)
		span.Failed(v.reason, toConnect(v, m.GetTopic()).Error())
		return nil, err
	}
	span.Results(response.GetResults())
	return response, nil
}

// traced begins the span of one record of a stream, which done ends.
func (p *pipeline) traced(ctx context.Context, m *tailracev1.PublishOne, done func(*tailracev1.PublishResult)) (context.Context, func(*tailracev1.PublishResult)) {
	from := trace.Parent{Traceparent: m.GetTraceparent(), Tracestate: m.GetTracestate()}
	if from.Traceparent == "" {
		from = trace.ParentOf(p.stream.RequestHeader())
	}
	var records []*tailracev1.PublishRecord
	if m.GetRecord() != nil {
		records = []*tailracev1.PublishRecord{m.GetRecord()}
	}
	ctx, span := p.server.cfg.Tracer.Send(ctx, from, m.GetTopic(), records)
	return ctx, func(r *tailracev1.PublishResult) {
		span.Result(r) // before the caller can know
		done(r)
	}
}

// tracedSubscribe is follow with a span, which ends with the first record.
func (s *Server) tracedSubscribe(ctx context.Context, m *tailracev1.SubscribeRequest, out *connect.ServerStream[wirev1.SubscribeResponse]) error {
	first := s.cfg.Tracer.Receive(ctx, trace.ParentOf(out.Conn().RequestHeader()), m.GetTopic())
	err := s.follow(ctx, m, out, first)
	endWithout(first, err)
	return err
}

// tracedConsume is work with a span, which ends with the first delivery.
func (s *Server) tracedConsume(
	ctx context.Context, c *call, start group.Start, stream *connect.BidiStream[tailracev1.ConsumeRequest, wirev1.ConsumeResponse],
) error {
	first := s.cfg.Tracer.Consume(ctx, trace.ParentOf(stream.RequestHeader()), start.Group, c.topic)
	err := s.work(ctx, c, start, stream, first)
	endWithout(first, err)
	return err
}

// endWithout ends the span of a stream that has ended with err. It has no effect after the first record.
func endWithout(first *trace.Receive, err error) {
	v := judge(err)
	if v.client || v.reason == ReasonDone {
		v.reason = ""
	}
	first.End(v.reason)
}

// endFirst ends the span: the first delivery has been sent.
func (o *consumer) endFirst(d *group.Delivery) {
	var m tailracev1.Record
	if err := proto.Unmarshal(d.Record.Body, &m); err == nil {
		o.first.Delivered(&m, d.Attempt)
	}
	o.first.End("")
	o.first = nil
}

// endFirst ends the span: the first record of b has been sent.
func (r *reader) endFirst(b *hub.Batch) {
	for i := range b.Parts {
		if p := &b.Parts[i]; p.Kind == hub.Records && p.Lo < p.Hi {
			r.first.First(p.Partition, p.Meta[p.Lo].Offset, p.Piece(p.Lo, p.Lo+1), b.History)
			r.first = nil
			return
		}
	}
}
