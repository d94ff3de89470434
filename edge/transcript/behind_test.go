package transcript_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// store is a backend in memory. Its log can be cut, its partitions taken away, its publishes held up and failed.
type store struct {
	*hubtest.Source
	publishing gate

	mu    sync.Mutex
	fail  []*tailracev1.PublishFailure // for the next records, in order
	names map[string]int32
}

func newStore(t testing.TB) *store {
	s := &store{Source: hubtest.New(), names: map[string]int32{}}
	t.Cleanup(func() {
		for _, v := range s.Violations() {
			t.Errorf("the hub broke its contract with the source: %s", v)
		}
	})
	return s
}

func (s *store) PublishAs(ctx context.Context, _, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	if err := s.publishing.pass(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	count, known := s.names[topic]
	if !known {
		return nil, hub.ErrUnknownTopic
	}
	results := make([]*tailracev1.PublishResult, len(records))
	for i, r := range records {
		if len(s.fail) > 0 {
			results[i] = &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: s.fail[0]}}
			s.fail = s.fail[1:]
			continue
		}
		p := r.GetPartition() % count
		offset := s.Append(topic, p, hubtest.Record{Key: r.Key, Value: r.Value, Headers: r.GetHeaders()})
		results[i] = &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{Partition: p, Offset: offset}}}
	}
	return results, nil
}

func (s *store) Begin(ctx context.Context, caller, topic string, r *tailracev1.PublishRecord, done func(*tailracev1.PublishResult)) {
	results, err := s.PublishAs(ctx, caller, topic, []*tailracev1.PublishRecord{r})
	switch {
	case errors.Is(err, hub.ErrUnknownTopic):
		done(refused("not_found", "UNKNOWN_TOPIC", err))
	case err != nil:
		done(refused("unavailable", "KAFKA_UNAVAILABLE", err))
	default:
		done(results[0])
	}
}

func refused(code, reason string, err error) *tailracev1.PublishResult {
	return &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: &tailracev1.PublishFailure{
		Code: code, Reason: reason, Message: err.Error(), Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED,
	}}}
}

func (s *store) failNext(f *tailracev1.PublishFailure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = append(s.fail, f)
}

func (s *store) ListTopics(context.Context) ([]*tailracev1.TopicSummary, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*tailracev1.TopicSummary
	for name, count := range s.names {
		list = append(list, &tailracev1.TopicSummary{Name: name, Partitions: count})
	}
	return list, nil
}

func (s *store) GetTopic(ctx context.Context, topic string) (*tailracev1.Topic, error) {
	r, err := s.Resolve(ctx, topic, hub.Query{Start: hub.Start{Kind: hub.Earliest}})
	if err != nil {
		return nil, err
	}
	m := &tailracev1.Topic{Name: topic, TopicId: r.TopicID}
	for _, p := range r.Partitions {
		m.Partitions = append(m.Partitions, &tailracev1.Partition{Partition: p.Partition, Start: p.Oldest, End: p.End})
	}
	return m, nil
}

// kafkaSide is an independent client of the Kafka behind a service.
type kafkaSide struct {
	cluster *kafkatest.Cluster
	client  *kgo.Client
	admin   *kadm.Client

	mu     sync.Mutex
	counts map[string]int64 // records appended, by topic and partition
}

func newKafkaSide(t testing.TB, cluster *kafkatest.Cluster) *kafkaSide {
	client := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0), kgo.MetadataMinAge(20*time.Millisecond))
	return &kafkaSide{cluster: cluster, client: client, admin: kadm.NewClient(client), counts: map[string]int64{}}
}

// append appends records. Their times are those that the store gives: one millisecond for each record.
func (k *kafkaSide) append(ctx context.Context, topic string, partition int32, records ...hubtest.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := fmt.Sprintf("%s/%d", topic, partition)
	out := make([]*kgo.Record, len(records))
	for i, r := range records {
		out[i] = &kgo.Record{Topic: topic, Partition: partition, Key: r.Key, Value: r.Value, Timestamp: hubtestTime(k.counts[name])}
		if r.Time != 0 {
			out[i].Timestamp = time.UnixMilli(r.Time)
		}
		for _, h := range r.Headers {
			out[i].Headers = append(out[i].Headers, kgo.RecordHeader{Key: h.GetName(), Value: h.Value})
		}
		k.counts[name]++
	}
	return k.client.ProduceSync(ctx, out...).FirstErr()
}

func (k *kafkaSide) grow(ctx context.Context, topic string, partitions int) error {
	r, err := k.admin.UpdatePartitions(ctx, partitions, topic)
	return errors.Join(err, r.Error())
}

func (k *kafkaSide) deleteTopic(ctx context.Context, topic string) error {
	r, err := k.admin.DeleteTopics(ctx, topic)
	return errors.Join(err, r.Error())
}

// retain deletes what is below an offset.
func (k *kafkaSide) retain(ctx context.Context, topic string, partition int32, oldest int64) error {
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, oldest, -1)
	r, err := k.admin.DeleteRecords(ctx, offsets)
	return errors.Join(err, r.Error())
}
