package main

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/stream"
)

const (
	demoTopic      = "demo"
	demoPartitions = 4
	demoInterval   = 250 * time.Millisecond
)

// runDemo keeps the demo topic alive until ctx ends: the gates of a mill, each a key, tell the water's level and flow.
func runDemo(ctx context.Context, publisher stream.Publisher, logger *slog.Logger) {
	ticker := time.NewTicker(demoInterval)
	defer ticker.Stop()
	for n := 0; ; n++ {
		results, err := publisher.Publish(ctx, demoTopic, []*tailracev1.PublishRecord{demoRecord(n)})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			logger.WarnContext(ctx, "demo: publish", slog.Any("error", err))
		case results[0].GetFailure() != nil:
			logger.WarnContext(ctx, "demo: publish", slog.String("error", results[0].GetFailure().GetMessage()))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func demoRecord(n int) *tailracev1.PublishRecord {
	gates := []string{"north", "south", "weir", "wheel", "sluice"}
	gate := gates[n%len(gates)]
	phase := float64(n) / 20
	value := fmt.Sprintf(`{"gate":%q,"level":%.2f,"flow":%.1f,"n":%d}`,
		gate, 2+math.Sin(phase)/2, 14+5*math.Cos(phase/3), n)
	return &tailracev1.PublishRecord{
		Key:     []byte(gate),
		Value:   []byte(value),
		Headers: []*tailracev1.Header{{Name: "unit", Value: []byte("m, m³/s")}},
	}
}
