package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// DemoTopic is the topic that Demo keeps alive.
const DemoTopic = "demo"

// demoPause is the mean time between two records of the demo.
const demoPause = 300 * time.Millisecond

// Publisher appends records; the service's own producer fills it.
type Publisher interface {
	Publish(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error)
}

// Topics creates topics; a Broker fills it.
type Topics interface {
	HasTopic(name string) bool
	CreateTopic(name string, partitions int32, configs map[string]string) error
}

// Demo creates DemoTopic where it is missing and publishes a few records a second to it, through to, until ctx ends: readings of some mills, as
// JSON with the mill as the key. What cannot be published is logged and left out. The error is that of creating the topic.
func Demo(ctx context.Context, b Topics, to Publisher, log *slog.Logger) error {
	if !b.HasTopic(DemoTopic) {
		if err := b.CreateTopic(DemoTopic, Partitions, nil); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	mills := newMills()
	for n := int64(1); ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(demoPause/2 + rand.N(demoPause)):
		}
		m := &mills[rand.IntN(len(mills))]
		if err := publish(ctx, to, m.read(time.Now(), n)); err != nil && ctx.Err() == nil {
			log.Warn("demo record is left out", "error", err)
		}
	}
}

func publish(ctx context.Context, to Publisher, r *tailracev1.PublishRecord) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	results, err := to.Publish(ctx, DemoTopic, []*tailracev1.PublishRecord{r})
	if err != nil {
		return err
	}
	if f := results[0].GetFailure(); f != nil {
		return errors.New(f.GetReason() + ": " + f.GetMessage())
	}
	return nil
}

// mill is a place that sends readings; its wheel follows the water with a whim of its own.
type mill struct {
	name  string
	phase float64
	rpm   float64
}

func newMills() []mill {
	// Two for each of the four partitions.
	names := []string{"alder", "birch", "cedar", "elm", "hazel", "larch", "oak", "rowan"}
	mills := make([]mill, len(names))
	for i, name := range names {
		mills[i] = mill{name: name, phase: float64(i), rpm: 9}
	}
	return mills
}

// reading is the value of a demo record.
type reading struct {
	Mill  string  `json:"mill"`
	RPM   float64 `json:"rpm"`
	Flow  float64 `json:"flow"`
	Power float64 `json:"power"`
	State string  `json:"state"`
	Seq   int64   `json:"seq"`
}

func (m *mill) read(now time.Time, n int64) *tailracev1.PublishRecord {
	flow := 2.4 + math.Sin(float64(now.UnixMilli())/20_000+m.phase) + 0.2*rand.Float64()
	m.rpm += 0.3*(5*flow-m.rpm) + 0.4*(rand.Float64()-0.5)
	state := "grinding"
	switch {
	case m.rpm < 8:
		state = "idle"
	case m.rpm > 16:
		state = "flood"
	}
	round := func(v float64) float64 { return math.Round(v*100) / 100 }
	value, err := json.Marshal(reading{m.name, round(m.rpm), round(flow), round(m.rpm * flow / 4), state, n})
	if err != nil {
		panic(err) // numbers and names only
	}
	return &tailracev1.PublishRecord{
		Key:   []byte(m.name),
		Value: value,
		Headers: []*tailracev1.Header{
			{Name: "source", Value: []byte("demo")},
			{Name: "content-type", Value: []byte("application/json")},
		},
	}
}
