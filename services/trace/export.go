package trace

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporter passes spans on, and keeps to itself what goes wrong: a line in the log when it begins to, and a count. The batch processor's one
// goroutine calls it.
type exporter struct {
	to     sdktrace.SpanExporter
	client *http.Client
	log    *slog.Logger
	ended  prometheus.Counter
	out    *prometheus.CounterVec
	failed atomic.Bool

	life   context.Context //nolint:containedctx // it ends what is being exported when the process has no more time
	giveUp context.CancelFunc
}

// Outcomes of exports.
const (
	exported = "exported"
	failed   = "failed"
)

func newExporter(log *slog.Logger, reg prometheus.Registerer) *exporter {
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxIdleConnsPerHost: 1, IdleConnTimeout: 4 * batchEvery}
	e := &exporter{
		client: &http.Client{
			Transport: transport, Timeout: exportTimeout,
			// Credentials are for the receiver that was named: net/http would pass all headers but its own few on to any other.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		log: log,
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tailrace_trace_spans_ended_total", Help: "Sampled spans that have ended. What is neither exported nor failed waits, at most 2,304, or was dropped.",
		}),
		out: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_trace_spans_exported_total", Help: "Spans that the receiver took (exported), or did not (failed): they are lost.",
		}, []string{"outcome"}),
	}
	e.life, e.giveUp = context.WithCancel(context.Background()) //nolint:forbidigo // until Shutdown: the calls' contexts are the processor's
	e.out.WithLabelValues(exported)
	e.out.WithLabelValues(failed)
	if reg != nil {
		reg.MustRegister(e.ended, e.out)
	}
	return e
}

// ExportSpans never fails as far as the caller can see, whose handler of errors would be the process's only one.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.life, cancel)()
	if e.life.Err() != nil { // AfterFunc calls it a little later
		e.out.WithLabelValues(failed).Add(float64(len(spans)))
		return nil
	}
	err := e.to.ExportSpans(ctx, spans)
	if err == nil {
		e.out.WithLabelValues(exported).Add(float64(len(spans)))
		if e.failed.Swap(false) {
			e.log.InfoContext(ctx, "spans are exported again")
		}
		return nil
	}
	e.out.WithLabelValues(failed).Add(float64(len(spans)))
	if !e.failed.Swap(true) {
		e.log.WarnContext(ctx, "spans can't be exported, and are lost until they can", slog.Any("error", err))
	}
	return nil
}

// Shutdown ends what is below.
func (e *exporter) Shutdown(ctx context.Context) error { return e.to.Shutdown(ctx) }

// counted is a processor whose ended spans are counted.
type counted struct {
	sdktrace.SpanProcessor
	ended prometheus.Counter
}

// OnEnd is called for spans that were recorded.
func (c counted) OnEnd(s sdktrace.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.ended.Inc()
	}
	c.SpanProcessor.OnEnd(s)
}
