package trace

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	oteltrace "go.opentelemetry.io/otel/trace"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Names of W3C Trace Context, in HTTP and in the headers of records.
const (
	Traceparent = "traceparent"
	Tracestate  = "tracestate"
)

// What is taken of a caller's context. A longer tracestate is left out, as the recommendation allows (section 3.3.1.5).
const (
	maxTraceparent = 256
	maxTracestate  = 512
)

// quiet is the context of a trace that is not sampled: what an edge asks for itself, for no single client, is nobody's trace.
const quiet = "00-7461696c726163652d65646765000001-7461696c72616365-00"

// Parent is a trace context as it travels; the zero value is none. One that is malformed counts as none.
type Parent struct{ Traceparent, Tracestate string }

// ParentOf returns what a request's headers, or an RPC's metadata, say.
func ParentOf(h http.Header) Parent {
	return Parent{h.Get(Traceparent), strings.Join(h.Values(Tracestate), ",")}
}

// Keep returns p as it can be kept for long: nil where it names no context, and no longer than what is taken of one.
func (p Parent) Keep() *Parent {
	p.Traceparent, p.Tracestate = p.Get(Traceparent), p.Get(Tracestate)
	if !p.context(context.Background()).IsValid() { //nolint:forbidigo // it only carries
		return nil
	}
	return &p
}

// Get returns a field. With Set and Keys it makes Parent what propagators read and write.
func (p *Parent) Get(key string) string {
	switch {
	case key == Traceparent && len(p.Traceparent) <= maxTraceparent:
		return p.Traceparent
	case key == Tracestate && len(p.Tracestate) <= maxTracestate:
		return p.Tracestate
	}
	return ""
}

// Set takes a field; see Get.
func (p *Parent) Set(key, value string) {
	switch key {
	case Traceparent:
		p.Traceparent = value
	case Tracestate:
		if len(value) <= maxTracestate {
			p.Tracestate = value
		}
	}
}

// Keys lists the fields; see Get.
func (p *Parent) Keys() []string { return []string{Traceparent, Tracestate} }

// context returns the span context that p names; not valid if it names none.
func (p Parent) context(ctx context.Context) oteltrace.SpanContext {
	if p.Traceparent == "" {
		return oteltrace.SpanContext{}
	}
	return oteltrace.SpanContextFromContext(propagation.TraceContext{}.Extract(oteltrace.ContextWithSpanContext(ctx, oteltrace.SpanContext{}), &p))
}

// parentIn is how the span of ctx travels; the zero Parent if there is none.
func parentIn(ctx context.Context) (p Parent) {
	propagation.TraceContext{}.Inject(ctx, &p)
	return p
}

func (p Parent) writeTo(h http.Header) {
	if p.Traceparent != "" {
		h.Set(Traceparent, p.Traceparent)
	}
	if p.Tracestate != "" {
		h.Set(Tracestate, p.Tracestate)
	}
}

// Inject sets the headers of a request to the context of ctx's span, if it has one.
func Inject(ctx context.Context, h http.Header) {
	if oteltrace.SpanContextFromContext(ctx).IsValid() {
		parentIn(ctx).writeTo(h)
	}
}

// Ask sets the headers of a request that an edge makes: the context of ctx's span, or, without one, that of a trace which is not sampled.
func Ask(ctx context.Context, h http.Header) {
	p := parentIn(ctx)
	if p.Traceparent == "" {
		p.Traceparent = quiet
	}
	p.writeTo(h)
}

// has says whether a record has a traceparent of its own, well-formed or not. Names of headers are told apart by case in Kafka, but a client that
// wrote Traceparent meant it.
func has(headers []*tailracev1.Header) bool {
	return slices.ContainsFunc(headers, func(h *tailracev1.Header) bool { return strings.EqualFold(h.GetName(), Traceparent) })
}

// parentOfRecord is what a record's headers say.
func parentOfRecord(headers []*tailracev1.Header) (p Parent) {
	for _, h := range headers {
		switch name := h.GetName(); {
		case p.Traceparent == "" && len(h.GetValue()) <= maxTraceparent && strings.EqualFold(name, Traceparent):
			p.Traceparent = string(h.GetValue())
		case p.Tracestate == "" && len(h.GetValue()) <= maxTracestate && strings.EqualFold(name, Tracestate):
			p.Tracestate = string(h.GetValue())
		}
	}
	return p
}

// Carry returns the record as it is to be appended: r itself, or, where ctx's span is sampled and r has no traceparent of its own, a copy of r with
// the headers traceparent and tracestate, unless they would take more than room bytes, each counted with frame bytes beside its name and
// value. r is not changed.
func Carry(ctx context.Context, r *tailracev1.PublishRecord, room, frame int64) *tailracev1.PublishRecord {
	if !oteltrace.SpanContextFromContext(ctx).IsSampled() || has(r.GetHeaders()) {
		return r
	}
	p := parentIn(ctx)
	headers := slices.Clone(r.GetHeaders())
	for _, h := range []*tailracev1.Header{{Name: Traceparent, Value: []byte(p.Traceparent)}, {Name: Tracestate, Value: []byte(p.Tracestate)}} {
		named := func(other *tailracev1.Header) bool { return strings.EqualFold(other.GetName(), h.Name) }
		if room -= int64(len(h.Name)+len(h.Value)) + frame; len(h.Value) == 0 || room < 0 || slices.ContainsFunc(headers, named) {
			break
		}
		headers = append(headers, h)
	}
	if len(headers) == len(r.GetHeaders()) {
		return r
	}
	return &tailracev1.PublishRecord{Key: r.Key, Value: r.Value, Headers: headers, Partition: r.Partition}
}
