package hub

// murmur2 is org.apache.kafka.common.utils.Utils.murmur2: what Kafka's Java client, and murmur2_random of librdkafka, hash keys with.
func murmur2(key []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(key))
	for len(key) >= 4 {
		k := uint32(key[0]) | uint32(key[1])<<8 | uint32(key[2])<<16 | uint32(key[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h = h*m ^ k
		key = key[4:]
	}
	switch len(key) {
	case 3:
		h ^= uint32(key[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(key[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(key[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	h ^= h >> 15
	return h
}

// PartitionOf is the partition that a key hashes to among count, as Kafka's Java client chooses it.
func PartitionOf(key []byte, count int32) int32 { return Murmur2.Partition(key, count) }
