package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// testPublishWhileGrowing: keyed publishes are acknowledged, all of them, while partitions are added to their topic, whose leaders come by and by.
func testPublishWhileGrowing(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, value("before"))
	ctx, cancel := context.WithCancel(t.Context())
	var publishers sync.WaitGroup
	var mu sync.Mutex
	acked, told := map[int32]int{}, map[string]int{}
	for caller := range 4 {
		publishers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Appendf(nil, "%d-%d", caller, n)
				rs, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{{Key: key, Value: key}})
				mu.Lock()
				switch {
				case err != nil:
					told[err.Error()]++
				case rs[0].GetPublished() != nil:
					acked[rs[0].GetPublished().GetPartition()]++
				default:
					told[rs[0].GetFailure().GetReason()+": "+rs[0].GetFailure().GetMessage()]++
				}
				mu.Unlock()
			}
		})
	}
	everywhere := func(count int32) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			for p := range count {
				if acked[p] < 20 {
					return false
				}
			}
			return true
		}
	}
	for count := int32(1); count < 13; count += 4 {
		if count > 1 {
			r, err := cluster.Admin(t).UpdatePartitions(t.Context(), int(count), topic)
			if err = errors.Join(err, r.Error()); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, everywhere(count), "records in %d partitions", count)
	}
	cancel()
	publishers.Wait()
	if len(told) > 0 {
		t.Errorf("refused: %v; acknowledged, by partition: %v", told, acked)
	}
}

// testPublishAnew: a topic that was created anew takes records in all its partitions, though its leaders have earlier epochs than those of before.
func testPublishAnew(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	other := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster, patient)
	acknowledged := func(topic string, partition int32) func() bool {
		return func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			rs, err := c.Publish(ctx, topic, []*tailracev1.PublishRecord{on(partition, value("v"))})
			return err == nil && rs[0].GetPublished() != nil
		}
	}
	for round := range int32(3) { // each raises the epochs
		to := round%3 + 1
		assign(t, cluster, topic, 2, to)
		eventually(t, func() bool { return slices.Equal(leaders(t, cluster, topic), []int32{to, to}) }, "broker %d leads", to)
		for p := range int32(2) {
			eventually(t, acknowledged(topic, p), "partition %d takes records from broker %d", p, to)
		}
	}
	eventually(t, acknowledged(other, 0), "another topic takes records")
	recreate(t, cluster, topic, 4)
	for p := range int32(4) {
		eventually(t, acknowledged(topic, p), "partition %d of the new topic takes records", p)
	}
	eventually(t, acknowledged(other, 0), "another topic goes on taking records")
}

// assign has one broker hold a topic's partitions.
func assign(t *testing.T, cluster *kafkatest.Cluster, topic string, partitions, broker int32) {
	t.Helper()
	var req kadm.AlterPartitionAssignmentsReq
	for p := range partitions {
		req.Assign(topic, p, []int32{broker})
	}
	rs, err := cluster.Admin(t).AlterPartitionAssignments(t.Context(), req)
	if err = errors.Join(err, rs.Error()); err != nil {
		t.Fatal(err)
	}
}
