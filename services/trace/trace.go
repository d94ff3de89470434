// Package trace makes OpenTelemetry spans of publishes and of the beginnings of subscriptions, for both processes. It is off unless an endpoint
// is configured: then there is no Tracer, and the nil Tracer, Publish and Receive cost nothing and do nothing.
//
// Contexts travel as W3C Trace Context, in the metadata of RPCs, in the fields of PublishOne, and in the headers of records. Spans follow
// OpenTelemetry's conventions for messaging. Nothing here is global: no provider, propagator or error handler is registered.
package trace

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Bounds of what waits to be exported. A span that does not fit is dropped; nobody waits for it.
const (
	maxQueue      = 2048 // ended spans
	maxBatch      = 256  // of them in one request
	batchEvery    = 2 * time.Second
	exportTimeout = 10 * time.Second // of one batch, with its retries
	maxValue      = 256              // characters of an attribute: topics have 249 at most, what callers ask for may have more
	maxLinks      = 32
)

// Config of a Tracer.
type Config struct {
	// Endpoint of an OTLP receiver over HTTP, such as http://127.0.0.1:4318; without a path, /v1/traces. Empty: off.
	Endpoint string
	// Dial returns the exporter to Endpoint, which it is required with: otlp.Dial. The client is the only one that it may use, and its Timeout is for
	// one batch, with its retries. A field, so that only commands import that package, and what comes with it.
	Dial func(ctx context.Context, endpoint string, client *http.Client) (sdktrace.SpanExporter, error)
	// Ratio of the traces that begin here and are sampled, from 0 to 1. A caller's trace is sampled if it says so, whatever the ratio.
	Ratio float64

	Service string       // service.name
	Logger  *slog.Logger // gets a line when exporting begins to fail, and when it works again
	// Registerer gets the metrics tailrace_trace_…; nil: none.
	Registerer prometheus.Registerer
	// Delay is how long an ended span waits for others, to be exported with them; default 2 s.
	Delay time.Duration
	// Exporter takes the spans, in the place of Endpoint; for tests.
	Exporter sdktrace.SpanExporter
}

// DefaultConfig is off; turned on, it samples everything.
func DefaultConfig() Config { return Config{Ratio: 1} }

// Validate says which flag cannot be as it is, and what to do.
func (c *Config) Validate() error {
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		switch {
		case err == nil && u.User != nil:
			return fmt.Errorf("-trace.endpoint %q: it is printed, so it may have no password; put credentials into OTEL_EXPORTER_OTLP_HEADERS", u.Redacted())
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || !dialable(u) || u.RawQuery != "" || u.Fragment != "":
			return fmt.Errorf("-trace.endpoint %q: want the address of an OTLP receiver over HTTP, such as http://127.0.0.1:4318", c.Endpoint)
		}
	}
	if !(c.Ratio >= 0 && c.Ratio <= 1) { // not a number is neither
		return fmt.Errorf("-trace.ratio %v: want from 0 to 1, such as 0.01 for one trace in a hundred", c.Ratio)
	}
	return nil
}

// dialable says whether a URL has a host, and a port or none.
func dialable(u *url.URL) bool {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return u.Hostname() != "" && (u.Port() == "" && !strings.HasSuffix(u.Host, ":") || err == nil && port > 0)
}

// On says whether there is to be a Tracer.
func (c *Config) On() bool { return c.Endpoint != "" || c.Exporter != nil }

// Tracer begins spans. Its methods may be called concurrently; those of a nil Tracer do nothing.
type Tracer struct {
	tracer   oteltrace.Tracer
	provider *sdktrace.TracerProvider
	exporter *exporter
}

// New returns a Tracer, nil if the configuration is off. Its goroutine exports what has ended, until Shutdown.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	if !cfg.On() {
		return nil, nil //nolint:nilnil // it is off
	}
	if cfg.Delay <= 0 {
		cfg.Delay = batchEvery
	}
	e := newExporter(cfg.Logger, cfg.Registerer)
	if e.to = cfg.Exporter; e.to == nil {
		to, err := cfg.Dial(ctx, cfg.Endpoint, e.client)
		if err != nil {
			return nil, fmt.Errorf("trace: %w", err)
		}
		e.to = to
	}
	attributes, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(semconv.ServiceName(cfg.Service)))
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit, limits.LinkCountLimit = maxValue, maxLinks
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(attributes),
		sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(cfg.Ratio))),
		sdktrace.WithSpanProcessor(counted{sdktrace.NewBatchSpanProcessor(e,
			sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithMaxExportBatchSize(maxBatch),
			sdktrace.WithBatchTimeout(cfg.Delay), sdktrace.WithExportTimeout(exportTimeout),
		), e.ended}),
	)
	return &Tracer{tracer: provider.Tracer("tailrace.dev/tailrace"), provider: provider, exporter: e}, nil
}

// Shutdown exports what has ended, until ctx ends: what is left then is given up. It returns when nothing of the Tracer runs any more. Spans that
// end later are dropped.
func (t *Tracer) Shutdown(ctx context.Context) error {
	if t == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, t.exporter.giveUp)
	defer stop()
	err := t.provider.Shutdown(context.WithoutCancel(ctx))
	t.exporter.giveUp()
	t.exporter.client.CloseIdleConnections()
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}
