package trace_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"tailrace.dev/tailrace/services/trace"
)

// stuck is an exporter whose receiver never answers.
type stuck struct{}

func (stuck) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	<-ctx.Done()
	return ctx.Err()
}

func (stuck) Shutdown(context.Context) error { return nil }

// TestADeadReceiverHoldsNothingUp: spans end at once, what waits is bounded, what is lost is counted, and the end comes when it is to.
func TestADeadReceiverHoldsNothingUp(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + closed.Addr().String()
	closed.Close()
	for name, change := range map[string]func(*trace.Config){
		"never answers": func(c *trace.Config) { c.Exporter = stuck{} },
		"not there":     func(c *trace.Config) { c.Exporter, c.Endpoint = nil, nobody },
	} {
		t.Run(name, func(t *testing.T) {
			registry, log := prometheus.NewRegistry(), &logBook{}
			tracer, _ := start(t, func(c *trace.Config) {
				change(c)
				c.Registerer, c.Logger = registry, slog.New(slog.NewTextHandler(log, nil))
			})
			const n = 20_000 // far more than may wait: if anything waited for the receiver, this would not end
			for range n {
				_, span := tracer.Send(t.Context(), trace.Parent{}, "orders", nil)
				span.Failed("LIMIT", "no room")
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := tracer.Shutdown(ctx); err != nil {
				t.Error(err)
			}
			ended, lost := total(t, registry, "tailrace_trace_spans_ended_total", ""), total(t, registry, "tailrace_trace_spans_exported_total", "failed")
			if ended != n || lost == 0 || lost > n || total(t, registry, "tailrace_trace_spans_exported_total", "exported") != 0 {
				t.Errorf("%v ended, %v failed", ended, lost)
			}
			if name == "never answers" && lost > 2048+2*256 {
				t.Errorf("%v spans had waited, want at most the queue and a batch", lost)
			}
			if got := strings.Count(log.String(), "level=WARN"); got != 1 {
				t.Errorf("%d warnings, want one:\n%s", got, log)
			}
		})
	}
}

// TestSpansArriveByOTLP: at a receiver that speaks OTLP over HTTP, by the last moment.
func TestSpansArriveByOTLP(t *testing.T) {
	var mu sync.Mutex
	var got []string
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m := &collector.ExportTraceServiceRequest{}
		if err == nil {
			err = proto.Unmarshal(body, m)
		}
		if err != nil || r.URL.Path != "/v1/traces" || r.Method != http.MethodPost {
			http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range m.GetResourceSpans() {
			for _, a := range of.GetResource().GetAttributes() {
				if a.GetKey() == "service.name" {
					got = append(got, a.GetValue().GetStringValue())
				}
			}
			for _, s := range of.GetScopeSpans() {
				for _, span := range s.GetSpans() {
					got = append(got, span.GetName(), span.GetKind().String())
				}
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer receiver.Close()
	registry := prometheus.NewRegistry()
	tracer, _ := start(t, func(c *trace.Config) {
		c.Exporter, c.Endpoint, c.Registerer, c.Delay = nil, receiver.URL, registry, time.Hour
	})
	// A name that is no UTF-8, or too long, does not cost the others their export.
	for _, topic := range []string{"orders", "or\xffders", strings.Repeat("ü", 300)} {
		_, span := tracer.Send(t.Context(), trace.Parent{}, topic, nil)
		span.Failed("UNKNOWN_TOPIC", "no topic "+topic)
	}
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	const producer = " SPAN_KIND_PRODUCER"
	want := "test send orders" + producer + " send orders" + producer + " send " + strings.Repeat("ü", 124) + producer
	if text := strings.Join(got, " "); text != want {
		t.Errorf("got %s, want %s", text, want)
	}
	if n := total(t, registry, "tailrace_trace_spans_exported_total", "exported"); n != 3 {
		t.Errorf("%v counted, want 3", n)
	}
}

// TestCredentialsStayWithTheReceiver: one that redirects is told in the log, and not followed.
func TestCredentialsStayWithTheReceiver(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=hunter2")
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the redirect was followed, with the headers %v", r.Header)
	}))
	defer elsewhere.Close()
	var key atomic.Value
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key.Store(r.Header.Get("X-Api-Key"))
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer receiver.Close()
	registry, log := prometheus.NewRegistry(), &logBook{}
	tracer, _ := start(t, func(c *trace.Config) {
		c.Exporter, c.Endpoint, c.Registerer, c.Logger = nil, receiver.URL, registry, slog.New(slog.NewTextHandler(log, nil))
	})
	_, span := tracer.Send(t.Context(), trace.Parent{}, "orders", nil)
	span.Failed("LIMIT", "no room")
	if err := tracer.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if key.Load() != "hunter2" || total(t, registry, "tailrace_trace_spans_exported_total", "failed") != 1 || !strings.Contains(log.String(), "307") {
		t.Errorf("got the key %v, log:\n%s", key.Load(), log)
	}
	if strings.Contains(log.String(), "hunter2") {
		t.Errorf("a secret is in %s", log)
	}
}

// total sums a metric over its labels, or of those with a label value.
func total(t testing.TB, registry *prometheus.Registry, name, value string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (value == "" || m.GetLabel()[0].GetValue() == value) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// logBook is a log that tests read.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
