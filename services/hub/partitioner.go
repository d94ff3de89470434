package hub

import (
	"fmt"
	"hash/crc32"
	"hash/fnv"
)

// Partitioner is how the producers of a topic choose the partition of a key.
type Partitioner uint8

// The partitioners that there are.
const (
	// Murmur2 is what Kafka's Java client does, and murmur2_random of librdkafka.
	Murmur2 Partitioner = iota
	// CRC32 is consistent_random, the default of librdkafka. The empty key lies anywhere.
	CRC32
	// FNV1a is the default of Sarama, and fnv1a_random of librdkafka.
	FNV1a
	// Anywhere is something else: a key may lie in any partition.
	Anywhere
)

var partitionerNames = [...]string{"murmur2", "crc32", "fnv1a", "any"}

// ParsePartitioner reads the name of a partitioner: murmur2, crc32, fnv1a or any.
func ParsePartitioner(name string) (Partitioner, error) {
	for i, n := range partitionerNames {
		if n == name {
			return Partitioner(i), nil
		}
	}
	return 0, fmt.Errorf("partitioner %q: want murmur2 (Java clients), crc32 (librdkafka's default), fnv1a (Sarama) or any (something else: keys are looked for in all partitions)", name)
}

// String is its name.
func (p Partitioner) String() string {
	if int(p) >= len(partitionerNames) {
		return fmt.Sprintf("partitioner %d", uint8(p))
	}
	return partitionerNames[p]
}

// Partition is where a key lies among count partitions; -1 is anywhere.
func (p Partitioner) Partition(key []byte, count int32) int32 {
	switch p {
	case CRC32:
		if len(key) == 0 {
			return -1
		}
		return int32(crc32.ChecksumIEEE(key) % uint32(count))
	case FNV1a:
		h := fnv.New32a()
		_, _ = h.Write(key) // it never fails
		sum := int64(int32(h.Sum32()))
		return int32(max(sum, -sum) % int64(count))
	case Anywhere:
		return -1
	default:
		return int32(murmur2(key)&0x7fffffff) % count
	}
}

// hashed marks the partitions that keys hash to; all is true if one of them may be in any.
func (p Partitioner) hashed(keys [][]byte, count int32) (hit map[int32]struct{}, all bool) {
	hit = make(map[int32]struct{}, len(keys))
	for _, key := range keys {
		at := p.Partition(key, count)
		if at < 0 {
			return nil, true
		}
		hit[at] = struct{}{}
	}
	return hit, false
}

// Among are those of the partitions in which one of the keys may lie.
func (p Partitioner) Among(partitions []int32, keys [][]byte, count int32) []int32 {
	hit, all := p.hashed(keys, count)
	var in []int32
	for _, id := range partitions {
		if _, ok := hit[id]; ok || all {
			in = append(in, id)
		}
	}
	return in
}
