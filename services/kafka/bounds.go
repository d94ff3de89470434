package kafka

import (
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Bounds of what is remembered of partitions.
const (
	boundsAge  = time.Second // how old bounds may be for a start between them
	boundsMost = 1 << 15     // partitions; all are forgotten then
)

// recentBounds remembers where logs began and ended a moment ago. A start that lies between is not asked for again: an edge that replays a log
// resolves a start for each chunk, and a position that has left the log since is found out when it is read.
type recentBounds struct {
	mu   sync.Mutex
	logs map[logKey]seenBounds
}

type logKey struct {
	topicID   string
	partition int32
}

type seenBounds struct {
	logBounds
	at time.Time
}

// get returns the bounds of the partitions if all positions lie between them.
func (r *recentBounds) get(topicID string, partitions []int32, positions map[int32]hub.Position) (map[int32]logBounds, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[int32]logBounds, len(partitions))
	for _, p := range partitions {
		at, placed := positions[p]
		b, seen := r.logs[logKey{topicID, p}]
		if !placed || !seen || time.Since(b.at) > boundsAge || at.Offset < b.oldest || at.Offset > b.end {
			return nil, false
		}
		out[p] = b.logBounds
	}
	return out, true
}

func (r *recentBounds) put(topicID string, bounds map[int32]logBounds) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logs == nil || len(r.logs)+len(bounds) > boundsMost {
		r.logs = make(map[logKey]seenBounds, len(bounds))
	}
	now := time.Now()
	for p, b := range bounds {
		if b.err == nil {
			r.logs[logKey{topicID, p}] = seenBounds{b, now}
		}
	}
}
