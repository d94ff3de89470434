package trace

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// sourceKey is where a subscription's first record came from: ring (warm) or history (cold).
const sourceKey = attribute.Key("tailrace.subscription.source")

// attemptKey is how often a consume's first delivery has been delivered, from 1.
const attemptKey = attribute.Key("tailrace.delivery.attempt")

// Receive is the span of a subscription, from the request to its first record, or of a consume, to its first delivery. nil: there is none. It belongs
// to the owner of that; First, Delivered or End must be called, the first call counts.
type Receive struct{ span oteltrace.Span }

// Receive begins the span of a subscription, a child of what the caller gave. nil: it is not sampled, and nothing more is to be done.
func (t *Tracer) Receive(ctx context.Context, from Parent, topic string) *Receive {
	if t == nil {
		return nil
	}
	return t.receive(ctx, from, "receive "+short(topic), attributes("receive", semconv.MessagingOperationTypeReceive, topic))
}

// Consume begins the span of a consume in a group, as Receive does. topic is empty where it has several: then the span is named without one, and
// Delivered says which it was.
func (t *Tracer) Consume(ctx context.Context, from Parent, group, topic string) *Receive {
	if t == nil {
		return nil
	}
	more := append(attributes("receive", semconv.MessagingOperationTypeReceive, topic), semconv.MessagingConsumerGroupName(clip(group, maxTopic)))
	return t.receive(ctx, from, strings.TrimSuffix("receive "+short(topic), " "), more)
}

func (t *Tracer) receive(ctx context.Context, from Parent, name string, more []attribute.KeyValue) *Receive {
	_, span := t.tracer.Start(oteltrace.ContextWithRemoteSpanContext(ctx, from.context(ctx)), name,
		oteltrace.WithSpanKind(oteltrace.SpanKindConsumer), oteltrace.WithAttributes(more...))
	if !span.IsRecording() {
		return nil
	}
	return &Receive{span}
}

// In returns ctx with the span, for what is asked in its course.
func (r *Receive) In(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return oteltrace.ContextWithSpan(ctx, r.span)
}

// First ends the span: the first record has been written. piece is the record as a hub.Entry has it; the span is linked to the context in its
// headers. history: the record did not come from the ring.
func (r *Receive) First(partition int32, offset int64, piece []byte, history bool) {
	if r == nil {
		return
	}
	source := "ring"
	if history {
		source = "history"
	}
	r.span.SetAttributes(append(place(partition, offset), sourceKey.String(source))...)
	var batch tailracev1.RecordBatch
	if err := proto.Unmarshal(piece, &batch); err == nil && len(batch.GetRecords()) > 0 {
		r.link(batch.GetRecords()[0])
	}
	r.span.End()
}

// Delivered ends the span of a consume: the first delivery, which is this attempt of a record, has been sent. The span is linked to the context in
// the record's headers.
func (r *Receive) Delivered(m *tailracev1.Record, attempt int) {
	if r == nil {
		return
	}
	r.span.SetAttributes(append(place(m.GetPartition(), m.GetOffset()),
		semconv.MessagingDestinationName(short(m.GetTopic())), attemptKey.Int(attempt))...)
	r.link(m)
	r.span.End()
}

func (r *Receive) link(m *tailracev1.Record) {
	of := parentOfRecord(m.GetHeaders()).context(context.Background()) //nolint:forbidigo // it only carries
	if of.IsValid() {
		r.span.AddLink(oteltrace.Link{SpanContext: of})
	}
}

// End ends the span of a subscription that has ended before a record came, for a reason; empty: because it was to.
func (r *Receive) End(reason string) {
	if r == nil {
		return
	}
	if reason != "" {
		r.span.SetAttributes(semconv.ErrorTypeKey.String(reason))
		r.span.SetStatus(codes.Error, "ended before the first record")
	}
	r.span.End()
}
