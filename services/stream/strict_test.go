package stream_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoreflect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/stream"
)

// methods are all that the service serves, but reflection.
func methods() (all []protoreflect.MethodDescriptor) {
	for _, file := range []protoreflect.FileDescriptor{
		tailracev1.File_tailrace_v1_stream_service_proto, tailracev1.File_tailrace_v1_topic_service_proto, tailracev1.File_tailrace_v1_group_service_proto,
		healthv1.File_grpc_health_v1_health_proto,
	} {
		for i := range file.Services().Len() {
			ms := file.Services().Get(i).Methods()
			for k := range ms.Len() {
				if m := ms.Get(k); procedure(m) != "/grpc.health.v1.Health/List" { // grpchealth has none
					all = append(all, m)
				}
			}
		}
	}
	return all
}

func procedure(m protoreflect.MethodDescriptor) string {
	return fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
}

func isStream(m protoreflect.MethodDescriptor) bool {
	return m.IsStreamingClient() || m.IsStreamingServer()
}

// envelope is a message of a Connect stream.
func envelope(body string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))) + body
}

// ask posts a body to a method over HTTP/2 and returns the answer's status and text.
func ask(t *testing.T, s *service, m protoreflect.MethodDescriptor, header http.Header, body io.Reader) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+procedure(m), body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	res, err := h2c(t, nil).Do(r)
	if err != nil {
		t.Fatalf("%s: %v", procedure(m), err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body) // a reset ends it too
	return res.StatusCode, string(text)
}

// TestEveryMethodRefusesUnknownFields: in JSON, under both names of the codec, alone and in a stream: a mistyped field must not be taken for its
// absence.
func TestEveryMethodRefusesUnknownFields(t *testing.T) {
	s, q := startQueue(t, false)
	s.kafka.publish = echo
	for _, m := range methods() {
		for _, charset := range []string{"", "; charset=utf-8"} {
			kind, body := "application/json"+charset, `{"nosuch":1}`
			if isStream(m) {
				kind, body = "application/connect+json"+charset, envelope(body)
			}
			status, text := ask(t, s, m, http.Header{"Content-Type": {kind}}, strings.NewReader(body))
			built := m.Name() != "Consume" // it answers before it has read anything
			if built && (!strings.Contains(text, "nosuch") || !strings.Contains(text, "invalid_argument") || status != http.StatusBadRequest && !isStream(m)) {
				t.Errorf("%s as %s: got %d %q", procedure(m), kind, status, text)
			}
			if !built && !strings.Contains(text, "unimplemented") {
				t.Errorf("%s: got %q", procedure(m), text)
			}
		}
	}
	if q.handed() != 0 {
		t.Errorf("%d records were handed over", q.handed())
	}
}

// TestEveryRequestHasToArrive: the body of a unary or server-stream call that does not come ends the call.
func TestEveryRequestHasToArrive(t *testing.T) {
	s := start(t, patience, func(c *stream.Config) { c.BodyTimeout = 300 * time.Millisecond })
	for _, m := range methods() {
		if m.IsStreamingClient() {
			continue
		}
		t.Run(string(m.Name()), func(t *testing.T) {
			t.Parallel()
			kind, body := "application/json", `{"topic":`
			if isStream(m) {
				kind, body = "application/connect+json", envelope(strings.Repeat(" ", 100))[:20]
			}
			stalled, end := io.Pipe()
			defer end.Close()
			go func() { _, _ = end.Write([]byte(body)) }()
			status, text := ask(t, s, m, http.Header{"Content-Type": {kind}}, stalled)
			if status == http.StatusOK && !strings.Contains(text, `"error"`) {
				t.Errorf("got %d %q", status, text)
			}
		})
	}
}

// TestDeadlinesOfCallers: they are obeyed by what waits; those that are no deadlines are refused; those beyond all measure are as good as none.
func TestDeadlinesOfCallers(t *testing.T) {
	s, _ := startQueue(t, true)
	s.kafka.publish = func(ctx context.Context, _ string, _ []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	answer := func(records int) {
		s.kafka.publish = func(ctx context.Context, _ string, _ []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
			return make([]*tailracev1.PublishResult, records), ctx.Err()
		}
	}
	publish := methods()[2]
	if publish.Name() != "Publish" {
		t.Fatalf("got %s", publish.Name())
	}
	const body = `{"topic":"orders","records":[{}]}`
	for _, wait := range []string{"1", "200"} {
		if status, text := ask(t, s, publish, http.Header{"Content-Type": {"application/json"}, "Connect-Timeout-Ms": {wait}}, strings.NewReader(body)); status != http.StatusGatewayTimeout || !strings.Contains(text, "deadline_exceeded") {
			t.Errorf("%s ms: got %d %s", wait, status, text)
		}
	}
	answer(0)
	for _, bad := range []string{"x", "-1", "1.5", "99999999999", "1e3", " "} {
		if status, text := ask(t, s, publish, http.Header{"Content-Type": {"application/json"}, "Connect-Timeout-Ms": {bad}}, strings.NewReader(body)); status != http.StatusBadRequest || !strings.Contains(text, "invalid_argument") {
			t.Errorf("Connect-Timeout-Ms %q: got %d %s", bad, status, text)
		}
	}
	if status, text := ask(t, s, publish, http.Header{"Content-Type": {"application/json"}, "Connect-Timeout-Ms": {"9999999999"}}, strings.NewReader(body)); status != http.StatusOK {
		t.Errorf("115 days: got %d %s", status, text)
	}
	grpc := func(timeout string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+procedure(publish), bytes.NewReader([]byte(envelope(body))))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Content-Type": {"application/grpc+json"}, "Te": {"trailers"}, "Grpc-Timeout": {timeout}}
		res, err := h2c(t, nil).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.Header.Get("Grpc-Status") + res.Trailer.Get("Grpc-Status")
	}
	for timeout, want := range map[string]string{"1x": "3", "x": "3", "-1S": "3", "999999999S": "3", "99999999H": "0", "1n": "4"} {
		if got := grpc(timeout); got != want {
			t.Errorf("Grpc-Timeout %q: status %s, want %s", timeout, got, want)
		}
	}
}
