package hub_test

import (
	"slices"

	"tailrace.dev/tailrace/services/hub"
)

// snapshot is how a topic was when a Subscribe was called.
type snapshot struct {
	ids      int  // it had had
	followed bool // so that the hub knows what it was told of the topic
	count    int32
	counts   int // numbers of partitions that it had had
	ends     []int64
	idle     []int32 // partitions that were not followed
	lives    []int
}

// after makes a snapshot not expect more than an earlier one.
func (s *snapshot) after(earlier *snapshot) {
	for i := range min(len(s.ends), len(earlier.ends)) {
		s.ends[i] = min(s.ends[i], earlier.ends[i])
	}
	s.counts = min(s.counts, earlier.counts)
	s.ids, s.count, s.followed = min(s.ids, earlier.ids), min(s.count, earlier.count), s.followed || earlier.followed
}

// had says whether the topic may be thought to have a number of partitions.
func (s *snapshot) had(t *plainTopic, count int32) bool {
	counts := t.counts
	if !s.followed {
		counts = counts[s.counts-1:]
	}
	return slices.Contains(counts, count)
}

// bounds returns between what a partition's end was since the snapshot.
func (s *snapshot) bounds(p *plainPartition, id string) (low, high int64) {
	now := p.now()
	switch {
	case now.id != id:
		return 0, 1 << 62
	case int(p.number) >= len(s.lives):
		return 0, now.end()
	}
	low = s.ends[p.number]
	for _, v := range p.lives[s.lives[p.number]:] {
		if low = min(low, v.fork); v.recreated {
			low = 0
		}
	}
	return low, now.end() // who is started after a truncation knows of it: it is told at once
}

// partitions returns what a request reads of a topic with count partitions, in order.
func (r *reader) partitions(count int32) []int32 {
	var partitions []int32
	for i := range count {
		named := slices.ContainsFunc(r.request.Start.Positions, func(p hub.Position) bool { return p.Partition == i })
		named = named && r.request.Start.Kind == hub.AtPositions
		switch {
		case r.request.Partitions != nil && !slices.Contains(r.request.Partitions, i):
		case named:
			partitions = append(partitions, i)
		case r.request.Start.Kind == hub.AtPositions && r.request.Start.Missing == hub.MissingSkip:
		case r.keys != nil && r.scope() == hub.KeyScopeHashed && !hashesTo(r.keys, i, count):
		default:
			partitions = append(partitions, i)
		}
	}
	return partitions
}

// added returns what is read of partitions that were not there when the subscription began, where positions say nothing of them.
func (r *reader) added(count int32) []int32 {
	later := *r
	later.request.Start = hub.Start{Kind: r.request.Start.Kind}
	if r.request.Start.Missing == hub.MissingSkip {
		return nil
	}
	return later.partitions(count)
}

// hashesTo says whether one of the keys belongs to a partition, as Kafka's Java client has it.
func hashesTo(keys map[string]struct{}, partition, count int32) bool {
	for key := range keys {
		if int32(murmur2([]byte(key))&0x7fffffff)%count == partition {
			return true
		}
	}
	return false
}

// murmur2 is org.apache.kafka.common.utils.Utils.murmur2, written down a second time.
func murmur2(data []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k = (k ^ k>>24) * m
		h = h*m ^ k
	}
	if len(data) > 2 {
		h ^= uint32(data[2]) << 16
	}
	if len(data) > 1 {
		h ^= uint32(data[1]) << 8
	}
	if len(data) > 0 {
		h = (h ^ uint32(data[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}
