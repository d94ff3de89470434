package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/label"
)

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
	descLagMost       = desc("lag_records_max", "Offsets by which the subscription lies behind the end of its topic that lies most.", "topic")
	descLagSum        = desc("lag_records", "Offsets by which all subscriptions together lie behind the end of their topic.", "topic")
	descSlow          = desc("slow_readers_total", "Times that a slow policy acted: skip, conflate, spill (a conflation beyond its bounds: skipped), fail.", "action")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tailrace_hub_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descTopics, descPartitions, descSubscriptions, descRecords, descAway, descBytes, descBudget, descReads, descChunkHits, descRingHits, descSlow,
		descLagMost, descLagSum,
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
	for name, of := range c.byLabel() {
		gauge(descSubscriptions, float64(of.subscriptions), name)
		gauge(descAway, float64(of.away), name)
		count(descRecords, float64(of.records), name)
		gauge(descLagMost, float64(of.lagMost), name)
		gauge(descLagSum, float64(of.lagSum), name)
	}
}

// topicFigures are those of a topic, or of all that have no label of their own.
type topicFigures struct{ subscriptions, away, records, lagMost, lagSum int64 }

func (c *collector) byLabel() map[string]topicFigures {
	all := map[string]topicFigures{}
	topics, others := c.hub.liveTopics()
	if others > 0 {
		all[label.Other] = topicFigures{records: others}
	}
	for _, t := range topics {
		name := c.hub.labels.Of(t.name)
		of := all[name]
		most, sum := t.lags()
		of.subscriptions += int64(t.watched.Load())
		of.away += int64(t.away.Load())
		of.records += t.records.Load()
		of.lagMost = max(of.lagMost, most)
		of.lagSum += sum
		all[name] = of
	}
	return all
}

// liveTopics leaves out topics that were deleted, whose names may be in use again, and those of which nobody knows yet whether they exist. others is
// how many records those had that are gone, as long as they shared a label: their counter must not go down.
func (h *Hub) liveTopics() (ts []*Topic, others int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.topics {
		if t.Count() > 0 {
			ts = append(ts, t)
		}
	}
	return ts, h.others
}

// takeOut takes a topic out of topics. mu is held.
func (h *Hub) takeOut(t *Topic) {
	delete(h.topics, t.name)
	if n := t.records.Load(); n > 0 && h.labels.Of(t.name) == label.Other {
		h.others += n
	}
}
