package upstream

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	up     *prometheus.GaugeVec
	feeds  prometheus.Gauge
	losses *prometheus.CounterVec
	reads  prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tailrace_edge_upstream_up", Help: "1 while the service answers.",
		}, []string{"upstream"}),
		feeds: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tailrace_edge_feeds", Help: "Topic partitions that are followed at the services.",
		}),
		losses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tailrace_edge_feed_losses_total", Help: "Feed streams that ended and were resumed, by reason.",
		}, []string{"reason"}),
		reads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tailrace_edge_upstream_history_reads_total", Help: "Chunks of history asked of the services.",
		}),
	}
	if reg != nil {
		reg.MustRegister(m.up, m.feeds, m.losses, m.reads)
	}
	return m
}

// lossReason keeps the label a closed set.
func lossReason(reason string) string {
	switch reason {
	case reasonLost, reasonDraining, reasonUnavailable, reasonUnknownTopic, reasonUnknownPartition, reasonForbidden, reasonLimit:
		return reason
	default:
		return "OTHER"
	}
}
