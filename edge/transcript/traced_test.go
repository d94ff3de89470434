package transcript_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/coder/websocket"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/trace"
)

// traced is a world whose service and edge make spans.
type traced struct {
	*world
	t             *testing.T
	service, edge *tracetest.InMemoryExporter
	traces        int
}

func newTraced(t *testing.T) *traced {
	t.Helper()
	set := defaultSettings()
	w := &traced{t: t}
	w.service, set.serviceTraces = newTracer(t, "service")
	w.edge, set.edgeTraces = newTracer(t, "edge")
	w.world = newWorld(t, set)
	return w
}

func newTracer(t *testing.T, name string) (*tracetest.InMemoryExporter, *trace.Tracer) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	cfg := trace.DefaultConfig()
	cfg.Service, cfg.Logger, cfg.Exporter, cfg.Delay = name, slog.New(slog.DiscardHandler), spans, time.Millisecond
	tracer, err := trace.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tracer.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return spans, tracer
}

// newTrace returns the traceparent of a client, of a trace that no other has.
func (w *traced) newTrace(sampled bool) (traceparent, id string) {
	w.traces++
	id, flags := fmt.Sprintf("%032x", 0xabc000+w.traces), 0
	if sampled {
		flags = 1
	}
	return fmt.Sprintf("00-%s-00000000000000c1-%02x", id, flags), id
}

// span waits for the span of a trace with a name.
func (w *traced) span(t *testing.T, of *tracetest.InMemoryExporter, trace, name string) (found tracetest.SpanStub) {
	t.Helper()
	await(t, "span "+name, func() bool {
		all := of.GetSpans()
		i := slices.IndexFunc(all, func(s tracetest.SpanStub) bool {
			return s.Name == name && (trace == "" || s.SpanContext.TraceID().String() == trace)
		})
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// attribute is the text of an attribute, empty if there is none.
func attribute(s *tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

func wantAttributes(t *testing.T, s *tracetest.SpanStub, want map[string]string) {
	t.Helper()
	for key, value := range want {
		if got := attribute(s, key); got != value {
			t.Errorf("%s of %q: got %q, want %q", key, s.Name, got, value)
		}
	}
}

func traceparentOf(s oteltrace.SpanContext) string {
	return fmt.Sprintf("00-%s-%s-%s", s.TraceID(), s.SpanID(), s.TraceFlags())
}

func (w *traced) client(t *testing.T, options ...connect.ClientOption) tailracev1connect.StreamServiceClient {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return tailracev1connect.NewStreamServiceClient(&http.Client{Transport: transport}, "http://"+w.rpc, options...)
}

func headersOf(headers map[string]string) (list []*tailracev1.Header) {
	for name, value := range headers {
		list = append(list, &tailracev1.Header{Name: name, Value: []byte(value)})
	}
	return list
}

// A way to publish the value "v", with headers and the client's context.
type publishWay func(t *testing.T, w *traced, topic, traceparent string, headers map[string]string)

func byUnary(options ...connect.ClientOption) publishWay {
	return func(t *testing.T, w *traced, topic, traceparent string, headers map[string]string) {
		t.Helper()
		ctx, info := connect.NewClientContext(t.Context())
		info.RequestHeader().Set("traceparent", traceparent)
		answer, err := w.client(t, options...).Publish(ctx, &tailracev1.PublishRequest{
			Topic: topic, Records: []*tailracev1.PublishRecord{{Value: []byte("v"), Headers: headersOf(headers)}},
		})
		if err != nil || answer.GetResults()[0].GetPublished() == nil {
			t.Fatalf("got %v, %v", answer, err)
		}
	}
}

func byStream(t *testing.T, w *traced, topic, traceparent string, headers map[string]string) {
	t.Helper()
	ctx, info := connect.NewClientContext(t.Context())
	info.RequestHeader().Set("traceparent", traceparent)
	stream, err := w.client(t, connect.WithGRPC()).PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&tailracev1.PublishStreamRequest{Event: &tailracev1.PublishStreamRequest_Publish{Publish: &tailracev1.PublishOne{
		Id: "a", Topic: topic, Record: &tailracev1.PublishRecord{Value: []byte("v"), Headers: headersOf(headers)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Receive(); err != nil || m.GetResult().GetPublished() == nil {
		t.Fatalf("got %v, %v", m, err)
	}
	_ = stream.CloseRequest()
	_ = stream.CloseResponse()
}

func byPost(t *testing.T, w *traced, topic, traceparent string, _ map[string]string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.web+"/publish/"+topic, strings.NewReader("v"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("traceparent", traceparent)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("got %s", resp.Status)
	}
}

func (w *traced) socket(t *testing.T, path string) (say func(string), expect func(op string) string) {
	t.Helper()
	return w.socketOf(t, path, "")
}

// socketOf opens a socket with a context, as proxies and programs can.
func (w *traced) socketOf(t *testing.T, path, traceparent string) (say func(string), expect func(op string) string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	header := http.Header{}
	if traceparent != "" {
		header.Set("traceparent", traceparent)
	}
	c, _, err := websocket.Dial(ctx, "ws://"+w.web+path, &websocket.DialOptions{HTTPHeader: header})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.CloseNow()
		cancel()
	})
	say = func(text string) {
		if err := c.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return say, func(op string) string {
		t.Helper()
		for {
			_, m, err := c.Read(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var frame struct{ Op string }
			if err := json.Unmarshal(m, &frame); err != nil {
				t.Fatal(err)
			}
			if frame.Op == "error" {
				t.Fatalf("got %s", m)
			}
			if frame.Op == op {
				return string(m)
			}
		}
	}
}

// bySocket has no place for a context but the record's headers.
func bySocket(t *testing.T, w *traced, topic, _ string, headers map[string]string) {
	t.Helper()
	list := [][2]string{}
	for name, value := range headers {
		list = append(list, [2]string{name, value})
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	say, expect := w.socket(t, "/ws")
	say(fmt.Sprintf(`{"op":"publish","id":"p","topic":%q,"text":"v","headers":%s}`, topic, text))
	expect("published")
}

// consumed reads the first record of a topic and returns its headers, and the span of the reading.
func (w *traced) consumed(t *testing.T, topic string) (headers map[string]string, receive tracetest.SpanStub) {
	t.Helper()
	traceparent, id := w.newTrace(true)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set("traceparent", traceparent)
	stream, err := w.client(t, connect.WithGRPC()).Subscribe(ctx, &tailracev1.SubscribeRequest{
		Topic: topic, Start: &tailracev1.Start{At: &tailracev1.Start_Earliest{}}, Stop: &tailracev1.Stop{Records: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	headers = map[string]string{}
	for stream.Receive() {
		for _, b := range stream.Msg().GetRecords().GetBatches() {
			for _, h := range b.GetRecords()[0].GetHeaders() {
				headers[h.GetName()] += string(h.GetValue())
			}
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	return headers, w.span(t, w.service, id, "receive "+topic)
}

// wantLinks says that a span is linked to what a record carries, and to nothing else.
func wantLinks(t *testing.T, s *tracetest.SpanStub, want ...string) {
	t.Helper()
	got := []string{}
	for _, l := range s.Links {
		got = append(got, traceparentOf(l.SpanContext))
	}
	if !slices.Equal(got, want) {
		t.Errorf("links of %q: got %q, want %q", s.Name, got, want)
	}
}
