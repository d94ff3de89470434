package kafka

import "github.com/prometheus/client_golang/prometheus"

// Metrics of a Client.
type Metrics struct {
	recordsIn   prometheus.Counter
	bytesIn     prometheus.Counter
	dropped     prometheus.Counter
	followed    prometheus.Gauge
	unavailable prometheus.Gauge
	errors      prometheus.Counter
	held        *prometheus.GaugeVec   // by topic and partition
	misplaced   *prometheus.CounterVec // by topic
	history     *prometheus.CounterVec // by how a chunk was found
	historyIn   prometheus.Counter
	published   *prometheus.CounterVec // by outcome
	publishing  prometheus.Gauge
	doubtful    prometheus.Gauge
}

// NewMetrics makes the metrics and registers them; a nil Registerer registers nothing.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "tailrace", Subsystem: "kafka", Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "tailrace", Subsystem: "kafka", Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "tailrace", Subsystem: "kafka", Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		recordsIn:   counter("records_total", "Records read live, each once however many subscribers it has."),
		bytesIn:     counter("bytes_total", "Bytes of the keys, values and headers of records read live."),
		dropped:     counter("dropped_records_total", "Records that arrived for a partition or position that is not followed any more."),
		followed:    gauge("followed_partitions", "Partitions that are fetched live."),
		unavailable: gauge("unavailable_partitions", "Followed partitions that cannot be read at the moment."),
		errors:      counter("client_errors_total", "Error events of the live consumers."),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tailrace", Subsystem: "kafka", Name: "held_partition_seconds",
			Help: "For how long an open transaction has held the end of a followed partition; only those held for long."}, []string{"topic", "partition"}),
		misplaced:  vec("misplaced_records_total", "Keyed records read live that lie in another partition than murmur2 of their key says.", "topic"),
		history:    vec("history_chunks_total", "Chunks of history, by how their reader stood: warm (there already) or cold.", "reader"),
		historyIn:  counter("history_records_total", "Records read from history."),
		published:  vec("published_records_total", "Records given to publish, by outcome: acknowledged, refused, unknown.", "outcome"),
		publishing: gauge("publishing_bytes", "Bytes handed over to Kafka and not answered yet."),
		doubtful:   gauge("publish_topics_in_doubt", "Topics published to, of which a partition has no leader or one that does not answer."),
	}
	for _, o := range []string{outcomeAcknowledged, outcomeRefused, outcomeUnknown} {
		m.published.WithLabelValues(o)
	}
	if reg != nil {
		reg.MustRegister(m.recordsIn, m.bytesIn, m.dropped, m.followed, m.unavailable, m.errors, m.held, m.misplaced, m.history, m.historyIn, m.published, m.publishing, m.doubtful)
	}
	return m
}

// Outcomes of published records, as labels.
const (
	outcomeAcknowledged = "acknowledged"
	outcomeRefused      = "refused"
	outcomeUnknown      = "unknown"
)
