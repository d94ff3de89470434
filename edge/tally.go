package edge

import (
	"math/bits"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// buckets of a histogram, each twice as wide as the one before; what is above the last is in none.
const buckets = 17

// tally is a histogram of one worker, which it alone writes.
type tally struct {
	counts [buckets + 1]uint32
	sum    float64
	any    bool
}

// observe takes a value, and how many units of the histogram it is, rounded up.
func (t *tally) observe(value float64, units int64) {
	t.counts[bucket(units)]++
	t.sum += value
	t.any = true
}

// bucket is the first whose bound, a power of two, is not below units.
func bucket(units int64) int {
	if units <= 1 {
		return 0
	}
	return min(bits.Len64(uint64(units-1)), buckets)
}

// histogram gathers what workers have tallied. Its buckets end at unit, 2 unit, 4 unit …
type histogram struct {
	desc   *prometheus.Desc
	unit   float64
	labels []string

	mu     sync.Mutex // guards the rest
	counts [buckets + 1]uint64
	sum    float64
}

// add takes what a worker has tallied, and empties that.
func (h *histogram) add(t *tally) {
	if !t.any {
		return
	}
	h.mu.Lock()
	for i, n := range t.counts {
		h.counts[i] += uint64(n)
	}
	h.sum += t.sum
	h.mu.Unlock()
	*t = tally{}
}

// observe takes one value in seconds, from anybody.
func (h *histogram) observe(seconds float64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[bucket(h.units(seconds))]++
	h.sum += seconds
}

// units is a value in units, rounded up.
func (h *histogram) units(value float64) int64 {
	n := int64(value / h.unit)
	if float64(n)*h.unit < value {
		n++
	}
	return n
}

// histograms is a collector.
type histograms []*histogram

// Describe implements prometheus.Collector.
func (hs histograms) Describe(ch chan<- *prometheus.Desc) {
	for _, h := range hs {
		ch <- h.desc
	}
}

// Collect implements prometheus.Collector.
func (hs histograms) Collect(ch chan<- prometheus.Metric) {
	for _, h := range hs {
		h.mu.Lock()
		below, total, bound := make(map[float64]uint64, buckets), uint64(0), h.unit
		for _, n := range h.counts[:buckets] {
			total += n
			below[bound] = total
			bound *= 2
		}
		ch <- prometheus.MustNewConstHistogram(h.desc, total+h.counts[buckets], h.sum, below, h.labels...)
		h.mu.Unlock()
	}
}

// Outcomes of publishes, as labels.
const (
	outcomeAcknowledged = iota
	outcomeRefused
	outcomeUnknown
	outcomes
)

// outcomeOf is what became of a publish.
func outcomeOf(result *tailracev1.PublishResult, err error) int {
	switch {
	case err != nil:
		return outcomeRefused
	case result.GetPublished() != nil:
		return outcomeAcknowledged
	case result.GetFailure().GetOutcome() == tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN:
		return outcomeUnknown
	default:
		return outcomeRefused
	}
}

// tallies are a worker's.
type tallies struct {
	delay, frame, rest tally
	publishes          [outcomes]tally
}

// measures are the histograms of a Server.
type measures struct {
	delay, frame, rest *histogram
	publishes          [outcomes]*histogram
}

func newMeasures() *measures {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("tailrace_edge_"+name, help, labels, nil)
	}
	publish := desc("publish_seconds", "From a publish's coming to its answer, by outcome: acknowledged, refused, unknown.", "outcome")
	m := &measures{
		delay: &histogram{unit: .001, desc: desc("delivery_delay_seconds",
			"From a live record's own time to its writing; the first record of each write.")},
		frame: &histogram{unit: 1, desc: desc("frame_records", "Records in a frame.")},
		rest:  &histogram{unit: .00025, desc: desc("rest_seconds", "Rests of workers after passes that were long.")},
	}
	for i, outcome := range []string{"acknowledged", "refused", "unknown"} {
		m.publishes[i] = &histogram{unit: .0005, desc: publish, labels: []string{outcome}}
	}
	return m
}

func (m *measures) all() histograms {
	return append(histograms{m.delay, m.frame, m.rest}, m.publishes[:]...)
}

// publish hands over what a worker has tallied.
func (m *measures) publish(t *tallies) {
	m.delay.add(&t.delay)
	m.frame.add(&t.frame)
	m.rest.add(&t.rest)
	for i := range t.publishes {
		m.publishes[i].add(&t.publishes[i])
	}
}
