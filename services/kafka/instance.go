package kafka

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"golang.org/x/sync/singleflight"
)

// instance is one librdkafka producer. A fatal error (an idempotent sequence that broke) ends it, and the next takes over.
type instance struct {
	p      *confluent.Producer
	events chan struct{} // closed when the last report was taken
	once   singleflight.Group

	gate   sync.RWMutex // held for reading during questions: the client must not be closed meanwhile
	closed bool

	under atomic.Int64 // records without a delivery report

	mu  sync.Mutex       // guards met
	met map[string]int32 // partitions that it knows of topics
}

func (i *instance) await(bound time.Duration) {
	for until := time.Now().Add(bound); i.under.Load() > 0 && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
}

// meet makes sure that the client knows a topic with so many partitions: of one that it does not know it takes no record, and it asks by
// itself only every few minutes. It waits a moment, and then leaves it at that.
func (i *instance) meet(ctx context.Context, topic string, count int32) {
	i.mu.Lock()
	known := i.met[topic]
	i.mu.Unlock()
	if known >= count {
		return
	}
	answer := i.once.DoChan(topic, func() (any, error) {
		i.gate.RLock()
		defer i.gate.RUnlock()
		if i.closed {
			return nil, nil
		}
		m, err := i.p.GetMetadata(&topic, false, int(topicTimeout/time.Millisecond))
		if err != nil {
			return nil, err
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		if len(i.met) >= infoTopics {
			clear(i.met)
		}
		i.met[topic] = int32(len(m.Topics[topic].Partitions))
		return nil, nil
	})
	select {
	case <-answer:
	case <-ctx.Done():
	}
}

func (i *instance) forget(topic string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.met, topic)
}

func (i *instance) close(log *slog.Logger) {
	i.gate.Lock()
	i.closed = true
	i.gate.Unlock()
	closeBounded(log, "producer", i.p.Close)
}
