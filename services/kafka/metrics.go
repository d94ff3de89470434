package kafka

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/label"
)

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
	historyByte prometheus.Counter
	fetched     *prometheus.CounterVec // by kind of consumer
	rebalances  *prometheus.CounterVec // by what happened to partitions
	outcomes    map[string]outcomeMetrics
	publishing  prometheus.Gauge
	doubtful    prometheus.Gauge
	topics      *label.Set
}

// outcomeMetrics are those of one outcome of a published record.
type outcomeMetrics struct {
	records prometheus.Counter
	latency prometheus.Observer
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
	published := vec("published_records_total", "Records given to publish, by outcome: acknowledged, refused, unknown.", "outcome")
	latency := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "tailrace", Subsystem: "kafka", Name: "publish_seconds",
		Help:    "From a record's coming to its outcome, by outcome.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"outcome"})
	m := &Metrics{
		topics:      label.NewSet(label.Topics),
		outcomes:    map[string]outcomeMetrics{},
		recordsIn:   counter("records_total", "Records read live, each once however many subscribers it has."),
		bytesIn:     counter("bytes_total", "Bytes of the keys, values and headers of records read live."),
		dropped:     counter("dropped_records_total", "Records that arrived for a partition or position that is not followed any more."),
		followed:    gauge("followed_partitions", "Partitions that are fetched live."),
		unavailable: gauge("unavailable_partitions", "Followed partitions that cannot be read at the moment."),
		errors:      counter("client_errors_total", "Error events of the live consumers."),
		held: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "tailrace", Subsystem: "kafka", Name: "held_partition_seconds",
			Help: "For how long an open transaction has held the end of a followed partition; only those held for long."}, []string{"topic", "partition"}),
		misplaced:   vec("misplaced_records_total", "Keyed records read live that lie in another partition than murmur2 of their key says.", "topic"),
		history:     vec("history_chunks_total", "Chunks of history, by how their reader stood: warm (there already) or cold.", "reader"),
		historyIn:   counter("history_records_total", "Records read from history."),
		historyByte: counter("history_bytes_total", "Bytes of the keys, values and headers of records read from history."),
		fetched:     vec("fetched_bytes_total", "Bytes that consumers got from brokers, by kind: follower, history, group; a few seconds old.", "consumer"),
		rebalances:  vec("group_rebalances_total", "Changes of what members of groups have, by what happened to partitions: assigned, revoked, lost.", "change"),
		publishing:  gauge("publishing_bytes", "Bytes handed over to Kafka and not answered yet."),
		doubtful:    gauge("publish_topics_in_doubt", "Topics published to, of which a partition has no leader or one that does not answer."),
	}
	for _, o := range []string{outcomeAcknowledged, outcomeRefused, outcomeUnknown} {
		m.outcomes[o] = outcomeMetrics{published.WithLabelValues(o), latency.WithLabelValues(o)}
	}
	for _, c := range []string{consumerFollower, consumerHistory, consumerGroup} {
		m.fetched.WithLabelValues(c)
	}
	for _, change := range []string{changeAssigned, changeRevoked, changeLost} {
		m.rebalances.WithLabelValues(change)
	}
	for _, how := range []string{readerWarm, readerCold} {
		m.history.WithLabelValues(how)
	}
	if reg != nil {
		reg.MustRegister(m.recordsIn, m.bytesIn, m.dropped, m.followed, m.unavailable, m.errors, m.held, m.misplaced, m.history, m.historyIn, m.historyByte, m.fetched, m.rebalances, published, latency, m.publishing, m.doubtful)
	}
	return m
}

// Outcomes of published records, as labels.
const (
	outcomeAcknowledged = "acknowledged"
	outcomeRefused      = "refused"
	outcomeUnknown      = "unknown"
)

// Kinds of consumers, as labels.
const (
	consumerFollower = "follower"
	consumerHistory  = "history"
	consumerGroup    = "group"
)

// What happens to partitions of a member, as labels.
const (
	changeAssigned = "assigned"
	changeRevoked  = "revoked"
	changeLost     = "lost"
)

// How a history reader stood, as labels.
const (
	readerWarm = "warm"
	readerCold = "cold"
)

// told counts the outcome of a record that came when it began.
func (m *Metrics) told(outcome string, began time.Time) {
	o := m.outcomes[outcome]
	o.records.Inc()
	o.latency.Observe(time.Since(began).Seconds())
}

// hold says for how long an open transaction has held a partition. Topics without a label of their own are left out: two of them would share it.
func (m *Metrics) hold(k key, d time.Duration) {
	if topic := m.topics.Of(k.topic); topic != label.Other {
		m.held.WithLabelValues(topic, strconv.Itoa(int(k.partition))).Set(d.Seconds())
	}
}

func (m *Metrics) letGo(k key) { m.held.DeleteLabelValues(k.topic, strconv.Itoa(int(k.partition))) }
