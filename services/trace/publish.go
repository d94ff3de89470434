package trace

import (
	"context"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// outcomeKey is what became of a publish: acknowledged, refused (certainly not in the log) or unknown; of several records, the worst.
const outcomeKey = attribute.Key("tailrace.publish.outcome")

// Values of outcomeKey.
const (
	acknowledged = "acknowledged"
	refused      = "refused"
	unknown      = "unknown"
)

// maxTopic is the longest name that a topic can have (Kafka's Topic.MAX_NAME_LENGTH); what callers ask for may be longer.
const maxTopic = 249

// Publish is the span of a publish, until its acknowledgement. nil: there is none. One of Results and Failed must be called, once.
type Publish struct {
	span oteltrace.Span
	from Parent
}

// Send begins the service's span of a publish, of the kind PRODUCER: its context is the one that records get. It is a child of what the caller
// gave; or, without that, of the context in the only record's own headers. Other records that have one are linked to. The context that it
// returns carries the span. The records are only looked at.
func (t *Tracer) Send(ctx context.Context, from Parent, topic string, records []*tailracev1.PublishRecord) (context.Context, *Publish) {
	return t.publish(ctx, oteltrace.SpanKindProducer, from, topic, records)
}

// Accept begins an edge's span of a publish, of the kind SERVER, as Send does; Parent is what goes on to the service.
func (t *Tracer) Accept(ctx context.Context, from Parent, topic string, records []*tailracev1.PublishRecord) (context.Context, *Publish) {
	return t.publish(ctx, oteltrace.SpanKindServer, from, topic, records)
}

// AcceptOn is Accept of one record that came by a session: the context in the record's own headers comes before that of the session; nil: it has none.
func (t *Tracer) AcceptOn(ctx context.Context, session *Parent, topic string, record *tailracev1.PublishRecord) (context.Context, *Publish) {
	var from Parent
	if session != nil && !parentOfRecord(record.GetHeaders()).context(ctx).IsValid() {
		from = *session
	}
	return t.Accept(ctx, from, topic, []*tailracev1.PublishRecord{record})
}

func (t *Tracer) publish(ctx context.Context, kind oteltrace.SpanKind, from Parent, topic string, records []*tailracev1.PublishRecord) (context.Context, *Publish) {
	if t == nil {
		return ctx, nil
	}
	parent := from.context(ctx)
	if !parent.IsValid() && len(records) == 1 {
		parent = parentOfRecord(records[0].GetHeaders()).context(ctx)
	}
	options := []oteltrace.SpanStartOption{
		oteltrace.WithSpanKind(kind),
		oteltrace.WithAttributes(attributes("send", semconv.MessagingOperationTypeSend, topic)...),
	}
	if len(records) > 1 {
		options = append(options, oteltrace.WithAttributes(semconv.MessagingBatchMessageCount(len(records))))
	}
	links := 0
	for _, r := range records {
		if links == maxLinks || len(r.GetHeaders()) == 0 {
			continue
		}
		if of := parentOfRecord(r.GetHeaders()).context(ctx); of.IsValid() && of.TraceID() != parent.TraceID() {
			options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: of}))
			links++
		}
	}
	ctx, span := t.tracer.Start(oteltrace.ContextWithRemoteSpanContext(ctx, parent), "send "+short(topic), options...)
	return ctx, &Publish{span, parentIn(ctx)}
}

// Parent is the span's context, for the service.
func (p *Publish) Parent() *Parent {
	if p == nil {
		return nil
	}
	return &p.from
}

// Result ends the span of one record.
func (p *Publish) Result(r *tailracev1.PublishResult) {
	if p == nil {
		return
	}
	if at := r.GetPublished(); at != nil {
		p.span.SetAttributes(place(at.GetPartition(), at.GetOffset())...)
	}
	p.end(r)
}

// Results ends the span with what became of its records.
func (p *Publish) Results(rs []*tailracev1.PublishResult) {
	switch {
	case p == nil:
	case len(rs) == 1:
		p.Result(rs[0])
	default:
		var worst *tailracev1.PublishResult
		for _, r := range rs {
			if worst == nil || rank(r) > rank(worst) {
				worst = r
			}
		}
		p.end(worst)
	}
}

// Failed ends the span of a publish of which certainly nothing was appended, for a reason of the closed set.
func (p *Publish) Failed(reason, text string) {
	if p != nil {
		p.fail(refused, reason, text)
	}
}

// Unknown ends the span of a publish that may be in the log, or appear there.
func (p *Publish) Unknown(reason, text string) {
	if p != nil {
		p.fail(unknown, reason, text)
	}
}

func (p *Publish) end(r *tailracev1.PublishResult) {
	switch f := r.GetFailure(); rank(r) {
	case 0:
		p.span.SetAttributes(outcomeKey.String(acknowledged))
		p.span.End()
	case 1:
		p.fail(refused, f.GetReason(), f.GetMessage())
	default:
		p.fail(unknown, f.GetReason(), f.GetMessage())
	}
}

func (p *Publish) fail(outcome, reason, text string) {
	p.span.SetAttributes(outcomeKey.String(outcome), semconv.ErrorTypeKey.String(reason))
	p.span.SetStatus(codes.Error, clip(text, maxValue))
	p.span.End()
}

// rank orders results, the worst last.
func rank(r *tailracev1.PublishResult) int {
	switch {
	case r.GetPublished() != nil:
		return 0
	case r.GetFailure().GetOutcome() == tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED:
		return 1
	default:
		return 2
	}
}

func attributes(operation string, kind attribute.KeyValue, topic string) []attribute.KeyValue {
	list := []attribute.KeyValue{semconv.MessagingSystemKafka, semconv.MessagingOperationName(operation), kind}
	if topic != "" {
		list = append(list, semconv.MessagingDestinationName(short(topic)))
	}
	return list
}

func place(partition int32, offset int64) []attribute.KeyValue {
	return []attribute.KeyValue{
		semconv.MessagingDestinationPartitionID(strconv.Itoa(int(partition))), semconv.MessagingKafkaOffset(int(offset)),
	}
}

// short is a topic's name as the exporter can encode it.
func short(topic string) string { return clip(topic, maxTopic) }

func clip(text string, most int) string {
	return strings.ToValidUTF8(text[:min(len(text), most)], "")
}
