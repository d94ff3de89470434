package kafka

import (
	"context"
	"log/slog"
	"maps"
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

	outdated atomic.Bool   // a topic that it has met was created anew
	replaced chan struct{} // closed when another has taken over for that

	mu  sync.Mutex // guards met
	met map[string]acquaintance
}

// acquaintance is what an instance knows of a topic.
type acquaintance struct {
	id    string
	at    time.Time // when that was its id
	count int32     // of partitions
}

func (i *instance) await(bound time.Duration) {
	for until := time.Now().Add(bound); i.under.Load() > 0 && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
}

// meet makes sure that the client knows a topic with so many partitions: of one that it does not know it takes no record, and it asks by
// itself only every few minutes. It waits a moment, and then leaves it at that.
//
// Where the topic was created anew, the instance is outdated: librdkafka does not believe in leaders whose epochs are below those that it has
// seen under a name (see topicLogs).
func (i *instance) meet(ctx context.Context, topic string, info *topicInfo) {
	i.mu.Lock()
	known := i.met[topic]
	if known.id != "" && known.id != info.id && info.at.After(known.at) {
		i.outdated.Store(true)
		i.met[topic] = acquaintance{id: info.id, at: info.at}
	}
	i.mu.Unlock()
	if known.count >= info.count || i.outdated.Load() {
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
		known := i.met[topic]
		if info.at.After(known.at) {
			known.id, known.at = info.id, info.at
		}
		known.count = int32(len(m.Topics[topic].Partitions))
		i.met[topic] = known
		return nil, nil
	})
	select {
	case <-answer:
	case <-ctx.Done():
	}
}

// acquaintances are the ids of topics, for the next one: of an older id it may be told yet.
func (i *instance) acquaintances() map[string]acquaintance {
	i.mu.Lock()
	defer i.mu.Unlock()
	met := maps.Clone(i.met)
	for topic, known := range met {
		known.count = 0
		met[topic] = known
	}
	return met
}

func (i *instance) forget(topic string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	known := i.met[topic]
	known.count = 0
	i.met[topic] = known
}

func (i *instance) close(log *slog.Logger) {
	i.gate.Lock()
	i.closed = true
	i.gate.Unlock()
	closeBounded(log, "producer", i.p.Close)
}
