package upstream

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	up     *prometheus.GaugeVec
	feeds  prometheus.Gauge
	losses *prometheus.CounterVec
	reads  prometheus.Counter

	records, bytes               prometheus.Counter // of feeds
	historyRecords, historyBytes prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, lines, works *atomic.Int64) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tailrace_edge_" + name, Help: help})
	}
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
		records:        counter("feed_records_total", "Records that feeds brought, each once however many sockets it is for."),
		bytes:          counter("feed_bytes_total", "Bytes of the messages with records that feeds brought."),
		historyRecords: counter("upstream_history_records_total", "Records read from history at the services."),
		historyBytes:   counter("upstream_history_bytes_total", "Bytes of the records read from history at the services."),
		reads: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tailrace_edge_upstream_history_reads_total", Help: "Chunks of history asked of the services.",
		}),
	}
	for _, r := range lossReasons {
		m.losses.WithLabelValues(lossReason(r))
	}
	if reg != nil {
		reg.MustRegister(m.up, m.feeds, m.losses, m.reads, m.records, m.bytes, m.historyRecords, m.historyBytes,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "tailrace_edge_publish_streams", Help: "Sockets with a publish stream to a service, or waiting for one.",
			}, func() float64 { return float64(lines.Load()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "tailrace_edge_consume_streams", Help: "Consumes of sockets, each with a stream to a service, or waiting for one.",
			}, func() float64 { return float64(works.Load()) }))
	}
	return m
}

// lossOther is the label of all reasons without one of their own.
const lossOther = "OTHER"

// lossReasons are all labels.
var lossReasons = [...]string{
	reasonLost, reasonDraining, reasonUnavailable, reasonUnknownTopic, reasonUnknownPartition, reasonForbidden, reasonLimit, lossOther,
}

// lossReason keeps the label a closed set.
func lossReason(reason string) string {
	if slices.Contains(lossReasons[:], reason) {
		return reason
	}
	return lossOther
}
