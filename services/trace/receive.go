package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// sourceKey is where a subscription's first record came from: ring (warm) or history (cold).
const sourceKey = attribute.Key("tailrace.subscription.source")

// Receive is the span of a subscription, from the request to its first record. nil: there is none. It belongs to the subscription's owner; First or
// End must be called, the first call counts.
type Receive struct{ span oteltrace.Span }

// Receive begins the span of a subscription, a child of what the caller gave. nil: it is not sampled, and nothing more is to be done.
func (t *Tracer) Receive(ctx context.Context, from Parent, topic string) *Receive {
	if t == nil {
		return nil
	}
	_, span := t.tracer.Start(oteltrace.ContextWithRemoteSpanContext(ctx, from.context(ctx)), "receive "+short(topic),
		oteltrace.WithSpanKind(oteltrace.SpanKindConsumer),
		oteltrace.WithAttributes(attributes("receive", semconv.MessagingOperationTypeReceive, topic)...))
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
		of := parentOfRecord(batch.GetRecords()[0].GetHeaders()).context(context.Background()) //nolint:forbidigo // it only carries
		if of.IsValid() {
			r.span.AddLink(oteltrace.Link{SpanContext: of})
		}
	}
	r.span.End()
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
