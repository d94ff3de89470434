package kafka_test

import (
	"context"
	"errors"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka"
)

// TestEveryRecordGivenToPublishIsCounted: also those of a call that fails as a whole, however it was made.
func TestEveryRecordGivenToPublishIsCounted(t *testing.T) {
	cfg, reg := kafka.DefaultConfig(), prometheus.NewRegistry()
	cfg.Bootstrap = "127.0.0.1:1"
	c, err := kafka.New(cfg, discard, reg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // and Kafka was never reached
	if _, err := c.Publish(ctx, "orders", []*tailracev1.PublishRecord{value("a"), value("b")}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	c.Begin(ctx, "caller", "orders", value("c"), func(*tailracev1.PublishResult) {})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "outcome" && l.GetValue() == "refused" {
					got[f.GetName()] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	for _, name := range []string{"tailrace_kafka_published_records_total", "tailrace_kafka_publish_seconds"} {
		if got[name] != 3 {
			t.Errorf("%s: %v refused, want 3", name, got[name])
		}
	}
}
