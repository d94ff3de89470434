package transcript_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// TestOneTraceFromPublisherToConsumer: whichever way a record comes, its trace goes on from the client by edge and service into the record's
// header, and both kinds of readers are linked to it.
func TestOneTraceFromPublisherToConsumer(t *testing.T) {
	w := newTraced(t)
	for name, way := range map[string]struct {
		publish publishWay
		edge    bool
		own     bool // the client's context is in a header of the record
	}{
		"gRPC":          {publish: byUnary(connect.WithGRPC())},
		"Connect":       {publish: byUnary()},
		"PublishStream": {publish: byStream},
		"POST":          {publish: byPost, edge: true},
		"WebSocket":     {publish: bySocket, edge: true, own: true},
	} {
		t.Run(name, func(t *testing.T) {
			topic := w.cluster.NewTopic(t, 1, nil)
			parent, id := w.newTrace(true)
			headers := map[string]string{}
			if way.own {
				headers["traceparent"] = parent
			}
			way.publish(t, w, topic, parent, headers)

			send := w.span(t, w.service, id, "send "+topic)
			if send.SpanKind != oteltrace.SpanKindProducer {
				t.Errorf("got kind %v", send.SpanKind)
			}
			wantAttributes(t, &send, map[string]string{
				"messaging.system": "kafka", "messaging.destination.name": topic, "messaging.operation.type": "send",
				"messaging.destination.partition.id": "0", "messaging.kafka.offset": "0", "tailrace.publish.outcome": "acknowledged",
			})
			caller := send.Parent
			if way.edge {
				accept := w.span(t, w.edge, id, "send "+topic)
				if accept.SpanContext.SpanID() != caller.SpanID() || accept.SpanKind != oteltrace.SpanKindServer {
					t.Errorf("the service's parent is %v, the edge's span %v, %v", caller.SpanID(), accept.SpanContext.SpanID(), accept.SpanKind)
				}
				wantAttributes(t, &accept, map[string]string{"messaging.kafka.offset": "0", "tailrace.publish.outcome": "acknowledged"})
				caller = accept.Parent
			}
			if got := traceparentOf(caller); got != parent {
				t.Errorf("the first span's parent is %s, want the client's %s", got, parent)
			}

			got, receive := w.consumed(t, topic)
			want := traceparentOf(send.SpanContext)
			if way.own {
				want = parent
			}
			if got["traceparent"] != want {
				t.Errorf("got the record's traceparent %q, want %q", got["traceparent"], want)
			}
			wantLinks(t, &receive, want)
			wantAttributes(t, &receive, map[string]string{
				"messaging.system": "kafka", "messaging.destination.name": topic, "messaging.operation.type": "receive",
				"messaging.destination.partition.id": "0", "messaging.kafka.offset": "0", "tailrace.subscription.source": "ring", // nobody was there before
			})
			_, live := w.socket(t, "/ws/"+topic) // its ring begins behind the record
			live("caughtup")
			_, expect := w.socket(t, "/ws/"+topic+"?start=earliest")
			expect("records")
			socket := w.span(t, w.edge, "", "receive "+topic)
			wantLinks(t, &socket, want)
			wantAttributes(t, &socket, map[string]string{"tailrace.subscription.source": "history", "messaging.kafka.offset": "0"})
		})
	}
}

// TestTheEdgeBeginsATrace: of a record that a socket publishes without a context. Its readers that wait are warm.
func TestTheEdgeBeginsATrace(t *testing.T) {
	w := newTraced(t)
	topic := w.cluster.NewTopic(t, 1, nil)
	_, expect := w.socket(t, "/ws/"+topic)
	expect("started")
	_, events := w.socket(t, "/ws/"+topic+"?partition=0") // not shared with others: pulled
	events("started")
	bySocket(t, w, topic, "", nil)
	expect("records")
	events("records")

	accept := w.span(t, w.edge, "", "send "+topic)
	send := w.span(t, w.service, accept.SpanContext.TraceID().String(), "send "+topic)
	if accept.Parent.IsValid() || send.Parent.SpanID() != accept.SpanContext.SpanID() {
		t.Errorf("got the parents %v and %v", accept.Parent, send.Parent)
	}
	var warm []tracetest.SpanStub
	await(t, "both sockets' spans", func() bool {
		warm = slices.DeleteFunc(slices.Clone(w.edge.GetSpans()), func(s tracetest.SpanStub) bool { return s.Name != "receive "+topic })
		return len(warm) == 2
	})
	for i := range warm {
		wantAttributes(t, &warm[i], map[string]string{"tailrace.subscription.source": "ring"})
		wantLinks(t, &warm[i], traceparentOf(send.SpanContext))
	}

	// Later records make no span; neither do the edge's own streams at the service, where only the look-up for a socket is part of its trace.
	bySocket(t, w, topic, "", nil)
	expect("records")
	for _, s := range w.edge.GetSpans() {
		if s.Name == "receive "+topic && attribute(&s, "messaging.kafka.offset") != "0" {
			t.Errorf("got a span for offset %s", attribute(&s, "messaging.kafka.offset"))
		}
	}
	for _, s := range w.service.GetSpans() {
		of := slices.ContainsFunc(warm, func(e tracetest.SpanStub) bool { return e.SpanContext.TraceID() == s.SpanContext.TraceID() })
		if strings.HasPrefix(s.Name, "receive") && !of {
			t.Errorf("got a span of nobody's trace: %+v", s)
		}
	}
}

// TestContextsThatDoNotCount: not sampled, malformed, and beside one of the record's own.
func TestContextsThatDoNotCount(t *testing.T) {
	w := newTraced(t)
	ways := map[string]publishWay{"unary": byUnary(), "stream": byStream, "POST": byPost}
	for name, publish := range ways {
		t.Run(name+", not sampled", func(t *testing.T) {
			topic := w.cluster.NewTopic(t, 1, nil)
			parent, id := w.newTrace(false)
			publish(t, w, topic, parent, nil)
			headers, receive := w.consumed(t, topic) // its span comes after those that there could be
			if len(headers) > 0 {
				t.Errorf("got the headers %q, want none", headers)
			}
			wantLinks(t, &receive)
			for _, s := range append(w.service.GetSpans(), w.edge.GetSpans()...) {
				if s.SpanContext.TraceID().String() == id || s.Name == "send "+topic {
					t.Errorf("got span %q of %v", s.Name, s.SpanContext.TraceID())
				}
			}
		})
		t.Run(name+", malformed", func(t *testing.T) {
			topic := w.cluster.NewTopic(t, 1, nil)
			publish(t, w, topic, "00-nonsense-"+strings.Repeat("x", 300), nil)
			send := w.span(t, w.service, "", "send "+topic)
			headers, _ := w.consumed(t, topic)
			if got, want := headers["traceparent"], traceparentOf(send.SpanContext); got != want {
				t.Errorf("got the header %q, want that of a new trace %q", got, want)
			}
		})
	}
	for name, own := range map[string]string{"well-formed": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "malformed": "mine"} {
		t.Run("a header of the client's, "+name, func(t *testing.T) {
			topic := w.cluster.NewTopic(t, 1, nil)
			parent, id := w.newTrace(true)
			byUnary()(t, w, topic, parent, map[string]string{"traceparent": own, "tracestate": "a=b"})
			if headers, _ := w.consumed(t, topic); headers["traceparent"] != own || headers["tracestate"] != "a=b" || len(headers) != 2 {
				t.Errorf("got the headers %q", headers)
			}
			send := w.span(t, w.service, id, "send "+topic)
			if name == "malformed" {
				wantLinks(t, &send)
			} else {
				wantLinks(t, &send, own)
			}
		})
	}
}

// TestNoRecordIsTooLargeForItsTrace: one that just fits is appended as it is.
func TestNoRecordIsTooLargeForItsTrace(t *testing.T) {
	w := newTraced(t)
	const limit, overhead = 2000, 100 // what a batch and a record need is less than the overhead, and a traceparent more than what is left
	topic := w.cluster.NewTopic(t, 1, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
	for _, size := range []int{limit - overhead, limit / 2} {
		parent, id := w.newTrace(true)
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("traceparent", parent)
		answer, err := w.client(t).Publish(ctx, &tailracev1.PublishRequest{
			Topic: topic, Records: []*tailracev1.PublishRecord{{Value: make([]byte, size)}},
		})
		if err != nil || answer.GetResults()[0].GetPublished() == nil {
			t.Fatalf("%d bytes: got %v, %v", size, answer, err)
		}
		w.span(t, w.service, id, "send "+topic)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := w.client(t).Subscribe(ctx, &tailracev1.SubscribeRequest{
		Topic: topic, Start: &tailracev1.Start{At: &tailracev1.Start_Earliest{}}, Stop: &tailracev1.Stop{Records: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var got []string
	for stream.Receive() {
		for _, b := range stream.Msg().GetRecords().GetBatches() {
			for _, r := range b.GetRecords() {
				text := ""
				for _, h := range r.GetHeaders() {
					text += h.GetName()
				}
				got = append(got, text)
			}
		}
	}
	if want := []string{"", "traceparent"}; !slices.Equal(got, want) {
		t.Errorf("got the headers %q, want %q", got, want)
	}
}

// TestFailedPublishesAreTold: a span says what became of a record that is not in the log.
func TestFailedPublishesAreTold(t *testing.T) {
	w := newTraced(t)
	for _, way := range []string{"POST", "WebSocket"} {
		topic := "nowhere-" + way
		switch way {
		case "POST":
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.web+"/publish/"+topic, strings.NewReader("v"))
			if err != nil {
				t.Fatal(err)
			}
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
		default:
			say, expect := w.socket(t, "/ws")
			say(fmt.Sprintf(`{"op":"publish","id":"p","topic":%q,"text":"v"}`, topic))
			say(`{"op":"ping","id":"x"}`)
			expect("pong")
		}
		for _, of := range []*tracetest.InMemoryExporter{w.edge, w.service} {
			span := w.span(t, of, "", "send "+topic)
			wantAttributes(t, &span, map[string]string{"tailrace.publish.outcome": "refused", "error.type": "UNKNOWN_TOPIC"})
		}
	}
	_, err := w.client(t).Publish(t.Context(), &tailracev1.PublishRequest{Topic: "nowhere-rpc", Records: []*tailracev1.PublishRecord{{}}})
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("got %v", err)
	}
	span := w.span(t, w.service, "", "send nowhere-rpc")
	wantAttributes(t, &span, map[string]string{"tailrace.publish.outcome": "refused", "error.type": "UNKNOWN_TOPIC"})
}
