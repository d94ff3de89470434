package trace_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/trace"
	"tailrace.dev/tailrace/services/trace/otlp"
)

// patience is how long anything may take before a test gives up: far more than it needs.
const patience = 30 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start returns a tracer, and what it exports and logs. It is shut down at the end of the test.
func start(t testing.TB, change func(*trace.Config)) (*trace.Tracer, *tracetest.InMemoryExporter) {
	t.Helper()
	spans := tracetest.NewInMemoryExporter()
	cfg := trace.DefaultConfig()
	cfg.Service, cfg.Logger, cfg.Dial, cfg.Exporter, cfg.Delay = "test", slog.New(slog.DiscardHandler), otlp.Dial, spans, time.Millisecond
	if change != nil {
		change(&cfg)
	}
	tracer, err := trace.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tracer.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return tracer, spans
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !ok(); <-time.After(2 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func TestConfigurationsAreRefused(t *testing.T) {
	for _, test := range []struct {
		cfg   trace.Config
		words []string
	}{
		{trace.Config{Endpoint: "127.0.0.1:4318"}, []string{"-trace.endpoint", `"127.0.0.1:4318"`, "http://127.0.0.1:4318"}},
		{trace.Config{Endpoint: "grpc://a:1"}, []string{"-trace.endpoint", "grpc://a:1"}},
		{trace.Config{Endpoint: "http://a:1/?x=y"}, []string{"-trace.endpoint"}},
		{trace.Config{Endpoint: "http://me:secret@a:1"}, []string{"-trace.endpoint", "OTEL_EXPORTER_OTLP_HEADERS"}},
		{trace.Config{Endpoint: "grpc://me:secret@a:1"}, []string{"-trace.endpoint", "OTEL_EXPORTER_OTLP_HEADERS"}},
		{trace.Config{Endpoint: "https://me:secret@a:1/?x=y"}, []string{"-trace.endpoint", "OTEL_EXPORTER_OTLP_HEADERS"}},
		{trace.Config{Endpoint: "http://a:99999"}, []string{"-trace.endpoint", "99999"}},
		{trace.Config{Endpoint: "http://a:"}, []string{"-trace.endpoint"}},
		{trace.Config{Endpoint: "http://:4318"}, []string{"-trace.endpoint"}},
		{trace.Config{Ratio: -0.1}, []string{"-trace.ratio", "-0.1", "0 to 1"}},
		{trace.Config{Ratio: 1.5}, []string{"-trace.ratio", "1.5"}},
	} {
		err := test.cfg.Validate()
		if err == nil {
			t.Errorf("%+v: accepted", test.cfg)
			continue
		}
		for _, word := range test.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("got %q, want %q in it", err, word)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("got %q, which has the password", err)
		}
	}
	for _, endpoint := range []string{"", "http://127.0.0.1:4318", "https://collector.example.org/v1/traces", "http://[::1]:4318"} {
		if err := (&trace.Config{Endpoint: endpoint, Ratio: 0.5}).Validate(); err != nil {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
}

// TestOffCostsNothing: no tracer, and no allocation in what is called without one.
func TestOffCostsNothing(t *testing.T) {
	cfg := trace.DefaultConfig()
	tracer, err := trace.New(t.Context(), cfg)
	if tracer != nil || err != nil {
		t.Fatalf("got %v, %v, want none", tracer, err)
	}
	ctx, record := t.Context(), &tailracev1.PublishRecord{Value: []byte("v")}
	records := []*tailracev1.PublishRecord{record}
	header := http.Header{}
	got := testing.AllocsPerRun(1000, func() {
		traced, span := tracer.Send(ctx, trace.Parent{}, "orders", records)
		span.Results(nil)
		span.Result(nil)
		span.Failed("LIMIT", "text")
		if span.Parent() != nil || traced != ctx {
			t.Fatal("there is a span")
		}
		_, span = tracer.Accept(ctx, trace.Parent{}, "orders", records)
		span.Unknown("OUTCOME_UNKNOWN", "text")
		_, span = tracer.AcceptOn(ctx, nil, "orders", record)
		span.Result(nil)
		first := tracer.Consume(ctx, trace.Parent{}, "billing", "orders")
		first.Delivered(nil, 1)
		first = tracer.Receive(ctx, trace.Parent{}, "orders")
		first.First(1, 2, nil, true)
		first.End("")
		if first.In(ctx) != ctx || trace.Carry(ctx, record, 1<<20, 0) != record {
			t.Fatal("there is a span")
		}
		trace.Inject(ctx, header)
	})
	if got != 0 {
		t.Errorf("got %v allocations, want none", got)
	}
	if err := tracer.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// TestRecordsCarryTheirContext: the headers are added where the span is sampled, the record has none of its own, and there is room.
func TestRecordsCarryTheirContext(t *testing.T) {
	tracer, _ := start(t, nil)
	const from, id = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "0af7651916cd43dd8448eb211c80319c"
	text := func(r *tailracev1.PublishRecord) (text string) {
		for _, h := range r.GetHeaders() {
			text += h.GetName() + "=" + string(h.GetValue()) + ";"
		}
		return text
	}
	header := func(name, value string) []*tailracev1.Header {
		return []*tailracev1.Header{{Name: name, Value: []byte(value)}}
	}
	const parentBytes, stateBytes = 11 + 55 + 10, 10 + 3 + 10 // with a frame of 10
	for name, test := range map[string]struct {
		from    trace.Parent
		headers []*tailracev1.Header
		room    int64
		want    func(got, span string) bool
	}{
		"added":      {trace.Parent{Traceparent: from}, header("a", "b"), 1000, func(got, span string) bool { return got == "a=b;traceparent="+span+";" }},
		"with state": {trace.Parent{Traceparent: from, Tracestate: "a=b"}, nil, parentBytes + stateBytes, func(got, span string) bool { return got == "traceparent="+span+";tracestate=a=b;" }},
		"no room for the state": {
			trace.Parent{Traceparent: from, Tracestate: "a=b"}, nil, parentBytes + stateBytes - 1,
			func(got, span string) bool { return got == "traceparent="+span+";" },
		},
		"just room":          {trace.Parent{Traceparent: from}, nil, parentBytes, func(got, span string) bool { return got == "traceparent="+span+";" }},
		"no room":            {trace.Parent{Traceparent: from}, nil, parentBytes - 1, func(got, _ string) bool { return got == "" }},
		"the client's own":   {trace.Parent{Traceparent: from}, header("traceparent", "mine"), 1000, func(got, _ string) bool { return got == "traceparent=mine;" }},
		"in capitals":        {trace.Parent{Traceparent: from}, header("Traceparent", "mine"), 1000, func(got, _ string) bool { return got == "Traceparent=mine;" }},
		"a state of its own": {trace.Parent{Traceparent: from, Tracestate: "a=b"}, header("tracestate", "c=d"), 1000, func(got, span string) bool { return got == "tracestate=c=d;traceparent="+span+";" }},
		"not sampled":        {trace.Parent{Traceparent: from[:53] + "00"}, nil, 1000, func(got, _ string) bool { return got == "" }},
		"a long state":       {trace.Parent{Traceparent: from, Tracestate: "a=" + strings.Repeat("b", 600)}, nil, 2000, func(got, span string) bool { return got == "traceparent="+span+";" }},
	} {
		record := &tailracev1.PublishRecord{Key: []byte("k"), Value: []byte("v"), Headers: test.headers, Partition: proto.Int32(3)}
		before := proto.Clone(record)
		ctx, span := tracer.Send(t.Context(), test.from, "orders", []*tailracev1.PublishRecord{record})
		got := trace.Carry(ctx, record, test.room, 10)
		if !test.want(text(got), span.Parent().Traceparent) {
			t.Errorf("%s: got headers %s, the span is %s", name, text(got), span.Parent().Traceparent)
		}
		if !strings.Contains(span.Parent().Traceparent, id) {
			t.Errorf("%s: got %s, want the trace of the caller", name, span.Parent().Traceparent)
		}
		if !proto.Equal(before, record) {
			t.Errorf("%s: the caller's record was changed", name)
		}
		if string(got.GetKey()) != "k" || string(got.GetValue()) != "v" || got.GetPartition() != 3 {
			t.Errorf("%s: got %v", name, got)
		}
		span.Result(&tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{}}})
	}
}

// TestTheRatioIsOfRoots: callers decide for their own traces.
func TestTheRatioIsOfRoots(t *testing.T) {
	tracer, spans := start(t, func(c *trace.Config) { c.Ratio = 0 })
	if tracer.Receive(t.Context(), trace.Parent{}, "orders") != nil {
		t.Error("a root was sampled at the ratio 0")
	}
	tracer.Receive(t.Context(), trace.Parent{Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "orders").End("")
	eventually(t, "the caller's trace is sampled", func() bool { return len(spans.GetSpans()) == 1 })
}
