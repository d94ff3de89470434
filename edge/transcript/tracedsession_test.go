package transcript_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// events reads a stream of events with a context until the first records.
func (w *traced) events(t *testing.T, path, traceparent string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.web+path, nil)
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
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), `data: [`) {
			return
		}
	}
	t.Fatal("the stream has ended without a record")
}

// ofTrace are the spans of a trace with a name.
func ofTrace(of *tracetest.InMemoryExporter, trace, name string) (found []tracetest.SpanStub) {
	for _, s := range of.GetSpans() {
		if s.Name == name && s.SpanContext.TraceID().String() == trace {
			found = append(found, s)
		}
	}
	return found
}

// TestASessionsSpansAreOfItsRequest: whoever opened the session is the parent of its subscriptions and publishes; a record's own context comes first.
func TestASessionsSpansAreOfItsRequest(t *testing.T) {
	w := newTraced(t)
	topic := w.cluster.NewTopic(t, 1, nil)
	send, receive := "send "+topic, "receive "+topic
	parent, id := w.newTrace(true)
	own, ownID := w.newTrace(true)
	say, expect := w.socketOf(t, "/ws/"+topic, parent)
	expect("started")
	for i, headers := range []string{"[]", `[["traceparent","mine"]]`, fmt.Sprintf(`[["traceparent",%q]]`, own)} {
		say(fmt.Sprintf(`{"op":"publish","id":"p%d","topic":%q,"text":"v","headers":%s}`, i, topic, headers))
		expect("published")
	}
	await(t, "the session's spans", func() bool {
		return len(ofTrace(w.edge, id, send)) == 2 && len(ofTrace(w.edge, id, receive)) == 1 && len(ofTrace(w.edge, ownID, send)) == 1
	})
	for _, s := range append(ofTrace(w.edge, id, send), ofTrace(w.edge, id, receive)...) {
		if got := traceparentOf(s.Parent); got != parent {
			t.Errorf("the parent of %q is %s, want that of the request %s", s.Name, got, parent)
		}
	}
	if s := ofTrace(w.edge, ownID, send)[0]; traceparentOf(s.Parent) != own || len(s.Links) != 0 {
		t.Errorf("the parent of a record that names one is %s, want %s; links %v", traceparentOf(s.Parent), own, s.Links)
	}
	if s := w.span(t, w.service, id, send); s.Parent.TraceID().String() != id {
		t.Errorf("the service's span has the parent %v", s.Parent)
	}

	parent, id = w.newTrace(true)
	w.events(t, "/sse/"+topic+"?start=earliest", parent)
	if s := w.span(t, w.edge, id, receive); traceparentOf(s.Parent) != parent {
		t.Errorf("the parent of a stream of events is %s, want %s", traceparentOf(s.Parent), parent)
	}

	// Not sampled by the caller; and what counts as none.
	unsampled, unsampledID := w.newTrace(false)
	_, expect = w.socketOf(t, "/ws/"+topic+"?start=earliest", unsampled)
	expect("records")
	before := len(w.edge.GetSpans())
	_, expect = w.socketOf(t, "/ws/"+topic+"?start=earliest", "00-nonsense-"+strings.Repeat("x", 300))
	expect("records")
	await(t, "a trace begins here", func() bool { return len(w.edge.GetSpans()) == before+1 })
	if s := w.edge.GetSpans()[before]; s.Name != receive || s.Parent.IsValid() {
		t.Errorf("got span %q with the parent %v, want one without", s.Name, s.Parent)
	}
	for _, name := range []string{send, receive} {
		if got := append(ofTrace(w.edge, unsampledID, name), ofTrace(w.service, unsampledID, name)...); len(got) > 0 {
			t.Errorf("got %d spans %q of a trace that is not sampled", len(got), name)
		}
	}
}

// TestAConsumeByASocketIsOneTrace: from the request for the socket by the edge to the service, each until the first delivery, which both are linked to.
func TestAConsumeByASocketIsOneTrace(t *testing.T) {
	w := newTraced(t)
	topic := w.cluster.NewTopic(t, 1, nil)
	receive := "receive " + topic
	parent, id := w.newTrace(true)
	own, _ := w.newTrace(true)
	byUnary()(t, w, topic, parent, map[string]string{"traceparent": own})
	say, expect := w.socketOf(t, "/ws", parent)
	say(fmt.Sprintf(`{"op":"consume","id":"q","topics":[%q],"group":"%s-traced"}`, topic, topic))
	expect("records")

	edge, service := w.span(t, w.edge, id, receive), w.span(t, w.service, id, receive)
	if traceparentOf(edge.Parent) != parent || service.Parent.SpanID() != edge.SpanContext.SpanID() {
		t.Errorf("the edge's parent is %s, want %s; the service's is %v, want the edge's %v", traceparentOf(edge.Parent), parent, service.Parent.SpanID(), edge.SpanContext.SpanID())
	}
	for _, s := range []*tracetest.SpanStub{&edge, &service} {
		wantLinks(t, s, own)
		wantAttributes(t, s, map[string]string{
			"messaging.consumer.group.name": topic + "-traced", "messaging.destination.name": topic, "messaging.kafka.offset": "0", "tailrace.delivery.attempt": "1",
		})
	}

	// One that is refused is told by both.
	say(`{"op":"consume","id":"none","topics":["nowhere","neither"],"group":"nowhere"}`)
	say(`{"op":"ping","id":"x"}`)
	for _, of := range []*tracetest.InMemoryExporter{w.edge, w.service} {
		s := w.span(t, of, id, "receive")
		wantAttributes(t, &s, map[string]string{"error.type": "UNKNOWN_TOPIC", "messaging.destination.name": ""})
	}
}
