package kafka_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// testPartitioners: with the partitioner of a topic's producers configured, keys are found and published where those put them, and nothing counts as
// misplaced; also after the topic has grown.
func testPartitioners(t *testing.T, cluster *kafkatest.Cluster) {
	const before, after, keys = 7, 11, 100
	key := func(i int) []byte { return bytes.Repeat(fmt.Append(nil, i), 1+i%5) }
	for name, c := range map[string]struct {
		theirs string
		ours   hub.Partitioner
	}{
		"murmur2": {"murmur2_random", hub.Murmur2},
		"crc32":   {"consistent_random", hub.CRC32},
		"fnv1a":   {"fnv1a_random", hub.FNV1a},
		"any":     {"fnv1a_random", hub.Anywhere},
	} {
		t.Run(name, func(t *testing.T) {
			topic := cluster.NewTopic(t, before, nil)
			client := newClient(t, cluster, func(cfg *kafka.Config) {
				cfg.Partitioners = map[string]hub.Partitioner{topic: c.ours, "*": hub.FNV1a}
			})
			h := newHub(t, client, 8<<20)
			whole := subscribe(t, h, hub.Request{Topic: topic})
			keyed := subscribe(t, h, hub.Request{Topic: topic, Keys: [][]byte{key(1), key(2), key(3)}, KeyScope: hub.KeyScopeHashed})
			keyed.mu.Lock()
			in := len(keyed.next)
			keyed.mu.Unlock()
			if c.ours == hub.Anywhere != (in == before) || c.ours != hub.Anywhere && in > 3 {
				t.Errorf("three keys are looked for in %d partitions", in)
			}
			produce := func(count int32) {
				t.Helper()
				at := theirs(t, cluster, topic, c.theirs, keys, key)
				for i, theirs := range at {
					want := c.ours.Partition(key(i), count)
					if want >= 0 && theirs != want {
						t.Errorf("key %q of %d partitions: %s puts it in %d, we look in %d", key(i), count, c.theirs, theirs, want)
					}
					if want < 0 || i%10 > 0 {
						continue
					}
					// For a moment after a growth the old number of partitions may be known.
					eventually(t, func() bool {
						return publish(t, client, topic, &tailracev1.PublishRecord{Key: key(i)})[0].Partition == theirs
					},
						"key %q of %d partitions is published to %d, where %s puts it", key(i), count, theirs, c.theirs)
				}
			}
			produce(before)
			r, err := cluster.Admin(t).UpdatePartitions(t.Context(), after, topic)
			if err = errors.Join(err, r.Error()); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return slices.Contains(whole.counts(), after) }, "the growth is told")
			produce(after)
			eventually(t, func() bool { return total(keyed, after) == 6 }, "each key comes twice")
			if n := client.Misplaced(); n != 0 {
				t.Errorf("%d records count as misplaced", n)
			}
		})
	}
}

// theirs publishes keys with a producer of librdkafka that has a partitioner of its own, and says where they went.
func theirs(t *testing.T, cluster *kafkatest.Cluster, topic, partitioner string, keys int, key func(int) []byte) []int32 {
	t.Helper()
	p, err := confluent.NewProducer(&confluent.ConfigMap{"bootstrap.servers": cluster.Bootstrap, "partitioner": partitioner})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	done := make(chan confluent.Event, keys)
	for i := range keys {
		m := &confluent.Message{TopicPartition: confluent.TopicPartition{Topic: &topic, Partition: confluent.PartitionAny}, Key: key(i), Opaque: i}
		if err := p.Produce(m, done); err != nil {
			t.Fatal(err)
		}
	}
	at := make([]int32, keys)
	for range keys {
		m, ok := (<-done).(*confluent.Message)
		if !ok || m.TopicPartition.Error != nil {
			t.Fatalf("produce: %v", m)
		}
		i, _ := m.Opaque.(int)
		at[i] = m.TopicPartition.Partition
	}
	return at
}

func total(v *reader, partitions int32) (n int) {
	for p := range partitions {
		n += len(v.got(p))
	}
	return n
}
