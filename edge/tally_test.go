package edge_test

import (
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/edge"
)

// TestTalliesAreHistograms: what workers tally by themselves is, handed over, the histogram that Prometheus would have made of the same values.
func TestTalliesAreHistograms(t *testing.T) {
	const unit = .001
	values := []float64{0, .0005, .001, .0011, .002, .0021, .004, 1, 65.536, 65.537, 3600}
	var bounds []float64
	for b, n := unit, 0; n < 17; n++ {
		bounds = append(bounds, b)
		b *= 2
	}
	want := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tailrace_test_seconds", Help: "H.", Buckets: bounds})
	for _, v := range values {
		want.Observe(v)
	}
	got := edge.Tallied("tailrace_test_seconds", unit, values[:5], values[5:])
	a, b := gatherOne(t, want), gatherOne(t, got)
	if a.count != b.count || math.Abs(a.sum-b.sum) > 1e-9 {
		t.Errorf("count %d, sum %v; want %d, %v", b.count, b.sum, a.count, a.sum)
	}
	for i, below := range a.below {
		if math.Abs(a.bounds[i]-b.bounds[i]) > 1e-9 || below != b.below[i] {
			t.Errorf("bucket up to %v has %d, want up to %v %d", b.bounds[i], b.below[i], a.bounds[i], below)
		}
	}
}

// TestRefusedPublishesAreCounted: those that were refused at once, too, of sockets and of requests.
func TestRefusedPublishesAreCounted(t *testing.T) {
	r := start(t, config())
	ask(t, r.addr, "POST /publish/orders?partition=x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
	ask(t, r.addr, "POST /publish/orders?tombstone=true HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
	c := r.dial(t, "/ws")
	c.say(t, `{"op":"publish","id":"p","topic":"orders"}`) // no value
	c.until(t, "error")
	refused := func() (n uint64) {
		families, err := r.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() != "tailrace_edge_publish_seconds" {
				continue
			}
			for _, m := range f.GetMetric() {
				if m.GetLabel()[0].GetValue() == "refused" {
					n = m.GetHistogram().GetSampleCount()
				}
			}
		}
		return n
	}
	await(t, "three are counted", func() bool { return refused() == 3 })
}

// told is what a histogram tells.
type told struct {
	count  uint64
	sum    float64
	bounds []float64
	below  []uint64
}

func gatherOne(t *testing.T, c prometheus.Collector) told {
	t.Helper()
	reg := prometheus.NewRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	h := families[0].GetMetric()[0].GetHistogram()
	all := told{count: h.GetSampleCount(), sum: h.GetSampleSum()}
	for _, b := range h.GetBucket() {
		all.bounds, all.below = append(all.bounds, b.GetUpperBound()), append(all.below, b.GetCumulativeCount())
	}
	return all
}
