package stream

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/label"
)

// ending is the message of a log line.
type ending string

// Calls that succeed are logged at debug: metrics count them. What fails before it has begun can be repeated by a caller as often as it likes, so that it is
// not a session, whose lines are all written.
const (
	callEnded      ending = "call ended"
	callFailed     ending = "call failed"
	sessionRefused ending = "session refused"
	sessionEnded   ending = "session ended"
)

// Who ended a call.
const (
	initiatorClient = "client"
	initiatorServer = "server"
)

// metrics of the RPC face. Procedures, codes, reasons and initiators are closed sets; of topics the first label.Topics have a value of their own.
type metrics struct {
	open     *prometheus.GaugeVec
	ended    *prometheus.CounterVec
	handled  *prometheus.CounterVec
	records  *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	messages prometheus.Counter
	gaps     *prometheus.CounterVec
	delay    prometheus.Histogram
	topics   *label.Set
}

func newMetrics(reg prometheus.Registerer, in *input) *metrics {
	m := &metrics{
		topics: label.NewSet(label.Topics),
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tailrace_stream_open", Help: "Streams that are open.",
		}, []string{"procedure"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_stream_ended_total", Help: "Streams that have ended, once each.",
		}, []string{"procedure", "code", "reason", "initiator"}),
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_rpc_handled_total", Help: "Unary calls that were answered.",
		}, []string{"procedure", "code", "reason"}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_stream_records_sent_total", Help: "Records sent to subscribers.",
		}, []string{"topic"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_stream_record_bytes_sent_total", Help: "Bytes of encoded records sent to subscribers.",
		}, []string{"topic"}),
		messages: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tailrace_stream_messages_sent_total", Help: "Messages with records sent to subscribers.",
		}),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_stream_gaps_sent_total", Help: "Gaps told to subscribers.",
		}, []string{"reason"}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "tailrace_stream_delivery_delay_seconds",
			Help:    "From a live record's own time to its sending; the first record of each message.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
	}
	for n, name := range tailracev1.GapReason_name {
		if n > 0 {
			m.gaps.WithLabelValues(name)
		}
	}
	reg.MustRegister(m.open, m.ended, m.handled, m.records, m.bytes, m.messages, m.gaps, m.delay)
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tailrace_stream_input_bytes", Help: "Bytes of requests that are arriving or being answered, and of published messages that are not handed over yet.",
	}, func() float64 { return float64(in.held.Load()) }))
	return m
}

// observer is the interceptor of all handlers: deadlines, the one translation of errors, one log line and one count for each end.
type observer struct {
	logger  *slog.Logger
	metrics *metrics
}

var _ connect.Interceptor = (*observer)(nil)

// WrapUnary is called around unary handlers, after the request was read.
func (o *observer) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, request connect.AnyRequest) (connect.AnyResponse, error) {
		c := callFrom(ctx)
		c.bodyRead()
		response, err := next(ctx, request)
		c.arm() // for the answer
		v := judge(err)
		procedure := request.Spec().Procedure
		o.metrics.handled.WithLabelValues(procedure, codeName(v), v.reason).Inc()
		level, what := slog.LevelDebug, callEnded
		if v.reason != ReasonDone {
			level, what = slog.LevelInfo, callFailed
		}
		o.log(ctx, level, what, procedure, request.Peer(), c, v, err)
		if err != nil {
			return nil, toConnect(v, c.topic)
		}
		return response, nil
	}
}

// WrapStreamingHandler is called around streaming handlers, before anything was read.
func (o *observer) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		c := callFrom(ctx)
		procedure := conn.Spec().Procedure
		open := o.metrics.open.WithLabelValues(procedure)
		open.Inc()
		defer open.Dec()
		err := next(ctx, &guarded{StreamingHandlerConn: conn, ctx: ctx, call: c})
		c.arm() // for the end of the stream
		v := judge(err)
		initiator := v.initiator()
		o.metrics.ended.WithLabelValues(procedure, codeName(v), v.reason, initiator).Inc()
		level, what := slog.LevelInfo, sessionEnded
		switch {
		case isPlumbing(procedure):
			level, what = slog.LevelDebug, callEnded
		case c.session == "":
			what = sessionRefused
		case c.stretch:
			level = slog.LevelDebug
		}
		o.log(ctx, level, what, procedure, conn.Peer(), c, v, err)
		if v.reason == ReasonDone {
			return nil
		}
		return toConnect(v, c.topic)
	}
}

// WrapStreamingClient is not used: the service calls nobody.
func (o *observer) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// started logs the one line of a stream's start, once it is known what it is for, and gives it the name by which the line of its end is found.
func (o *observer) started(ctx context.Context, procedure string, peer connect.Peer, more ...slog.Attr) {
	c := callFrom(ctx)
	c.session = newName()
	level := slog.LevelInfo
	if c.stretch {
		level = slog.LevelDebug
	}
	o.logger.LogAttrs(ctx, level, "session started", append(identify(procedure, peer, c), more...)...)
}

// newName is chosen by chance, so that names of all replicas and runs differ.
func newName() string {
	var b [9]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// identify returns the attributes that all lines of a call begin with. Their names are those of the edge; the table is in services/README.md.
func identify(procedure string, peer connect.Peer, c *call) []slog.Attr {
	kind := strings.ToLower(procedure[strings.LastIndexByte(procedure, '/')+1:])
	attrs := []slog.Attr{slog.String("kind", kind), slog.String("procedure", procedure), slog.String("protocol", peer.Protocol), slog.String("peer", peer.Addr)}
	if c.session != "" {
		attrs = append([]slog.Attr{slog.String("session", c.session)}, attrs...)
	}
	if c.topic != "" {
		attrs = append(attrs, slog.String("topic", c.topic))
	}
	return attrs
}

// initiator says who ended a call.
func (v verdict) initiator() string {
	if v.client {
		return initiatorClient
	}
	return initiatorServer
}

// slow logs that a slow policy acted: at most once in each time that it takes to become slow.
func (o *observer) slow(ctx context.Context, c *call, policy hub.SlowPolicy) {
	o.logger.LogAttrs(ctx, slog.LevelInfo, "reader is slow", slog.String("session", c.session), slog.String("topic", c.topic), slog.String("action", policy.String()),
		slog.Int64("records", c.records), slog.Duration("duration", time.Since(c.began)))
}

func (o *observer) log(ctx context.Context, level slog.Level, what ending, procedure string, peer connect.Peer, c *call, v verdict, err error) {
	if v.code == connect.CodeInternal || v.code == connect.CodeUnknown {
		level = slog.LevelError // our bug: here is the text that the caller does not get
	}
	attrs := append(identify(procedure, peer, c),
		slog.String("code", codeName(v)), slog.String("reason", v.reason), slog.String("initiator", v.initiator()))
	if v.reason != ReasonDone {
		attrs = append(attrs, slog.Any("cause", err))
	}
	attrs = append(attrs, slog.Duration("duration", time.Since(c.began).Round(time.Microsecond)))
	if c.session != "" || c.records > 0 {
		attrs = append(attrs, slog.Int64("records", c.records), slog.Int64("bytes", c.bytes))
	}
	o.logger.LogAttrs(ctx, level, string(what), attrs...) //nolint:sloglint // one of the constants
}

// codeName is the Connect name of a code, "ok" for none.
func codeName(v verdict) string {
	if v.code == 0 {
		return "ok"
	}
	return v.code.String()
}

// isPlumbing: health watches and reflection, which tools open all day.
func isPlumbing(procedure string) bool { return strings.HasPrefix(procedure, "/grpc.") }

// recovered turns a panic of a handler into an error, so that one stream's bug is not everybody's end.
func (o *observer) recovered(ctx context.Context, spec connect.Spec, problem any) error {
	o.logger.LogAttrs(ctx, slog.LevelError, "panic in a handler", slog.String("procedure", spec.Procedure), slog.Any("panic", problem), slog.String("stack", stack()))
	return errors.New("panic in a handler") //nolint:err113 // becomes INTERNAL
}
