package kafka

import (
	"sync"

	"tailrace.dev/tailrace/services/hub"
)

// countsMost is how many earlier counts of partitions are remembered of a topic.
const countsMost = 8

// misplaced remembers which topics were warned of.
type misplaced struct {
	mu     sync.Mutex
	topics map[string]bool // at most infoTopics, then it begins anew
}

// first says whether a topic is warned of for the first time.
func (m *misplaced) first(topic string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.topics[topic] {
		return false
	}
	if m.topics == nil || len(m.topics) >= infoTopics {
		m.topics = map[string]bool{}
	}
	m.topics[topic] = true
	return true
}

// place checks that pending records with keys lie where the topic's partitioner says: subscriptions by key look for them there alone. After a topic has grown its
// older records lie elsewhere, which is as it should be, so that records are only taken for misplaced if no count of partitions that was seen
// explains them; where the growth was before this process began to follow, they count. It costs about 10 ns a record.
func (f *follower) place(p *followed) {
	if len(p.pending) == 0 {
		return
	}
	set := p.set
	if count := p.topic.Count(); len(set.counts) == 0 || set.counts[0] != count {
		set.counts = append([]int32{count}, set.counts[:min(len(set.counts), countsMost)]...)
	}
	partitioner := f.client.cfg.partitioner(p.key.topic)
	n := 0
	for _, m := range p.pending {
		if m.Key != nil && !lies(partitioner, m.Key, p.key.partition, set.counts) {
			n++
		}
	}
	if n == 0 {
		return
	}
	f.m.misplaced.WithLabelValues(f.m.topics.Of(p.key.topic)).Add(float64(n))
	if f.client.misplaced.first(p.key.topic) {
		f.log.Warn("keys do not lie where the partitioner puts them: set -kafka.partitioner to what the topic's producers do, or let subscriptions by key ask for the scope ALL_PARTITIONS",
			"topic", p.key.topic, "partitioner", partitioner.String(),
			"partition", p.key.partition, "offset", int64(p.pending[0].TopicPartition.Offset), "partitions", set.counts[0])
	}
}

func lies(partitioner hub.Partitioner, key []byte, partition int32, counts []int32) bool {
	for _, count := range counts {
		if count <= 0 {
			return true
		}
		if at := partitioner.Partition(key, count); at < 0 || at == partition {
			return true
		}
	}
	return false
}
