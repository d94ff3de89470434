package stream_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/stream"
	"tailrace.dev/tailrace/services/trace"
)

// Contexts of a consumer, of a producer, and of a consumer whose trace is not sampled.
const (
	consumerTrace  = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	producerTrace  = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
	unsampledTrace = "00-2cf7651916cd43dd8448eb211c80319c-d7ad6b7169203331-00"
)

func tracedGroups(t *testing.T) (*service, *oneLog, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	cfg := trace.DefaultConfig()
	cfg.Service, cfg.Logger, cfg.Exporter, cfg.Delay = "test", slog.New(slog.DiscardHandler), spans, time.Millisecond
	tracer, err := trace.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tracer.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	s, l := startGroups(t, func(c *stream.Config) { c.Tracer = tracer })
	return s, l, spans
}

// consumeOf is consume with a context. hangUp ends it, as its caller.
func consumeOf(t *testing.T, s *service, traceparent string, m *tailracev1.ConsumeStart) (w *work, hangUp func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set("traceparent", traceparent)
	opened, err := s.client(connect.WithGRPC()).Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hangUp = func() {
		cancel()
		_ = opened.CloseRequest()
		_ = opened.CloseResponse()
	}
	t.Cleanup(hangUp)
	w = &work{t, opened}
	w.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: m}})
	return w, hangUp
}

func attributesOf(s *tracetest.SpanStub) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// TestConsumesAreTraced: from the request to the first delivery, linked to what the record carries; and those that end without one.
func TestConsumesAreTraced(t *testing.T) {
	s, l, spans := tracedGroups(t)
	unsampled, hangUp := consumeOf(t, s, unsampledTrace, starting())
	unsampled.next()
	body, err := proto.Marshal(&tailracev1.Record{
		Topic: "orders", Value: []byte("v0"), Headers: []*tailracev1.Header{{Name: "traceparent", Value: []byte(producerTrace)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	(<-l.members).Append(group.Batch{Partition: group.Partition{Topic: "orders"}, Next: 1, Records: []group.Record{{Epoch: -1, Body: body}}})
	unsampled.deliveries(1)
	w, _ := consumeOf(t, s, consumerTrace, starting())
	w.next()
	hangUp()
	w.deliveries(1)
	eventually(t, "the span", func() bool { return len(spans.GetSpans()) == 1 })
	span := spans.GetSpans()[0]
	if span.Name != "receive orders" || span.SpanKind != oteltrace.SpanKindConsumer || span.Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("got %q, %v, of %v", span.Name, span.SpanKind, span.Parent)
	}
	if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID().String() != "c7ad6b7169203331" {
		t.Errorf("got the links %v, want the producer's", span.Links)
	}
	attributes := attributesOf(&span)
	for name, want := range map[string]string{
		"messaging.system": "kafka", "messaging.operation.type": "receive", "messaging.destination.name": "orders", "messaging.consumer.group.name": starting().GetGroup(),
		"messaging.destination.partition.id": "0", "messaging.kafka.offset": "0", "tailrace.delivery.attempt": "2",
	} {
		if attributes[name] != want {
			t.Errorf("%s: got %q, want %q", name, attributes[name], want)
		}
	}
}

func TestConsumesWithoutADelivery(t *testing.T) {
	s, l, spans := tracedGroups(t)
	bad := starting()
	bad.Topics = []string{"orders", "nowhere"}
	w, _ := consumeOf(t, s, consumerTrace, bad)
	if _, err := w.Receive(); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("got %v", err)
	}
	w, hangUp := consumeOf(t, s, consumerTrace, starting())
	w.next()
	<-l.members
	hangUp()
	eventually(t, "both spans", func() bool { return len(spans.GetSpans()) == 2 })
	refused, left := spans.GetSpans()[0], spans.GetSpans()[1]
	if got := attributesOf(&refused); refused.Name != "receive" || refused.Status.Code != codes.Error || got["error.type"] != "UNKNOWN_TOPIC" || got["messaging.destination.name"] != "" {
		t.Errorf("refused: got %q, %v, %v", refused.Name, refused.Status, got)
	}
	if left.Name != "receive orders" || left.Status.Code != codes.Unset {
		t.Errorf("its caller left: got %q, %v", left.Name, left.Status)
	}
}
