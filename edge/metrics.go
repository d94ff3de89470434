package edge

import "github.com/prometheus/client_golang/prometheus"

// Kinds of sessions, as a metric label.
const (
	kindSocket = "websocket"
	kindEvents = "sse"
)

// metrics of a Server.
type metrics struct {
	sessions      *prometheus.GaugeVec
	ended         *prometheus.CounterVec
	refused       *prometheus.CounterVec
	subscriptions prometheus.Gauge
	records       prometheus.Counter
	bytes         prometheus.Counter
	writes        prometheus.Counter
	passes        prometheus.Counter
	messages      prometheus.Counter
	stalled       prometheus.Gauge
	held          prometheus.Gauge
	measures      *measures
}

func newMetrics(r prometheus.Registerer, in *input) *metrics {
	m := &metrics{
		measures: newMeasures(),
		sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tailrace_edge_sessions", Help: "Open sessions: sockets, and streams of events.",
		}, []string{"kind"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_edge_sessions_ended_total", Help: "Ended sessions, by kind, by why and by whom.",
		}, []string{"kind", "reason", "initiator"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_edge_upgrades_refused_total", Help: "Sessions refused, by kind and by HTTP status.",
		}, []string{"kind", "status"}),
		subscriptions: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailrace_edge_subscriptions", Help: "Open subscriptions of sockets."}),
		records:       prometheus.NewCounter(prometheus.CounterOpts{Name: "tailrace_edge_records_sent_total", Help: "Records given to sockets."}),
		bytes:         prometheus.NewCounter(prometheus.CounterOpts{Name: "tailrace_edge_sent_bytes_total", Help: "Bytes taken by sockets."}),
		writes:        prometheus.NewCounter(prometheus.CounterOpts{Name: "tailrace_edge_writes_total", Help: "Writes to sockets."}),
		passes:        prometheus.NewCounter(prometheus.CounterOpts{Name: "tailrace_edge_passes_total", Help: "Passes of workers over what is new."}),
		messages:      prometheus.NewCounter(prometheus.CounterOpts{Name: "tailrace_edge_messages_received_total", Help: "Messages, pings and ends from sockets."}),
		stalled:       prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailrace_edge_blocked_sessions", Help: "Sockets that take nothing at the moment."}),
		held:          prometheus.NewGauge(prometheus.GaugeOpts{Name: "tailrace_edge_held_bytes", Help: "Bytes held for sockets that take nothing at the moment."}),
	}
	for _, kind := range []string{kindSocket, kindEvents} {
		m.sessions.WithLabelValues(kind)
		for _, why := range reasons() {
			m.ended.WithLabelValues(kind, why.Name, why.Initiator)
		}
	}
	if r != nil {
		r.MustRegister(m.sessions, m.ended, m.refused, m.subscriptions, m.records, m.bytes, m.writes, m.passes, m.messages, m.stalled, m.held, m.measures.all(),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "tailrace_edge_input_bytes", Help: "Bytes held of what sockets sent, of those that hold more than 4 KiB.",
			}, func() float64 { return float64(in.held.Load()) }))
	}
	return m
}

// counts are what a worker has counted since it last published them: a shared counter for each write would cost more than the counting.
type counts struct {
	subscriptions, records, bytes, writes, passes, messages, blocked, held int
}

func (c *counts) publish(m *metrics) {
	if *c == (counts{}) {
		return
	}
	m.subscriptions.Add(float64(c.subscriptions))
	m.records.Add(float64(c.records))
	m.bytes.Add(float64(c.bytes))
	m.writes.Add(float64(c.writes))
	m.passes.Add(float64(c.passes))
	m.messages.Add(float64(c.messages))
	m.stalled.Add(float64(c.blocked))
	m.held.Add(float64(c.held))
	*c = counts{}
}

// publishCounts hands over what a worker has counted.
func (w *worker) publishCounts() {
	w.count.publish(w.srv.metrics)
	w.srv.metrics.measures.publish(&w.tallies)
}
