package hub

import "github.com/prometheus/client_golang/prometheus"

// collector reads the hub's counters when metrics are asked for, so that the path of a record has none of its own.
type collector struct{ hub *Hub }

var (
	descTopics        = desc("topics", "Topics with a subscription, or lingering.")
	descPartitions    = desc("partitions_followed", "Partitions that are fetched.")
	descSubscriptions = desc("subscriptions", "Open subscriptions.", "topic")
	descRecords       = desc("records_total", "Records that were appended to a topic's ring.", "topic")
	descAway          = desc("partitions_unavailable", "Partitions that cannot be read at the moment.", "topic")
	descBytes         = desc("bytes", "Memory under the budget.", "holder")
	descBudget        = desc("budget_bytes", "The budget.")
	descReads         = desc("history_reads_total", "Chunks that were read from the source.")
	descChunkHits     = desc("history_hits_total", "Chunks that were found in memory.")
	descRingHits      = desc("resumes_from_ring_total", "Starts at positions that the ring could serve.")
	descSlow          = desc("slow_readers_total", "Times that a slow policy acted: skip, conflate, spill (a conflation beyond its bounds: skipped), fail.", "action")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tailrace_hub_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descTopics, descPartitions, descSubscriptions, descRecords, descAway, descBytes, descBudget, descReads, descChunkHits, descRingHits, descSlow,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	st := c.hub.Stats()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge(descTopics, float64(st.Topics))
	gauge(descPartitions, float64(st.Partitions))
	gauge(descBytes, float64(st.RingBytes), "ring")
	gauge(descBytes, float64(st.ChunkBytes), "chunks")
	gauge(descBytes, float64(st.FormBytes), "forms")
	gauge(descBytes, float64(st.ConflatedBytes), "conflated")
	gauge(descBudget, float64(c.hub.cfg.MemoryBudget))
	count(descReads, float64(st.HistoryReads))
	count(descChunkHits, float64(st.ChunkHits))
	count(descRingHits, float64(st.RingHits))
	count(descSlow, float64(st.Skipped), "skip")
	count(descSlow, float64(st.Conflated), "conflate")
	count(descSlow, float64(st.Spilled), "spill")
	count(descSlow, float64(st.Failed), "fail")
	for _, t := range c.hub.liveTopics() {
		gauge(descSubscriptions, float64(t.watched.Load()), t.name)
		gauge(descAway, float64(t.away.Load()), t.name)
		count(descRecords, float64(t.records.Load()), t.name)
	}
}

// liveTopics leaves out topics that were deleted, whose names may be in use again.
func (h *Hub) liveTopics() []*Topic {
	h.mu.Lock()
	defer h.mu.Unlock()
	ts := make([]*Topic, 0, len(h.topics))
	for _, t := range h.topics {
		ts = append(ts, t)
	}
	return ts
}
