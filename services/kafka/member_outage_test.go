package kafka_test

import (
	"testing"
	"time"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestGroupThroughAnOutage: the broker is killed and comes back: work goes on from where it was. A process that ends while it is away ends in time.
func TestGroupThroughAnOutage(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 1)
	topic := cluster.NewTopic(t, 2, nil)
	writeKeyed(t, cluster, topic, 200)
	gs, leave := newGroups(t, cluster)
	k := newTaken()
	k.work(t, gs, startOf(topic+"-group", topic), nil)
	eventually(t, func() bool { return k.distinct() == 200 }, "the first records")
	cluster.Kill9(t, 1)
	cluster.Restart(t, 1)
	writeKeyed(t, cluster, topic, 200)
	eventually(t, func() bool { return k.distinct() == 400 }, "the records after the outage")
	eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "all is committed")
	writeKeyed(t, cluster, topic, 100)
	eventually(t, func() bool { return k.distinct() == 500 }, "the last records")
	cluster.Kill9(t, 1)
	began := time.Now()
	leave()
	if took := time.Since(began); took > 40*time.Second {
		t.Errorf("it took %v to leave without Kafka", took)
	}
	t.Logf("left in %v", time.Since(began))
	cluster.Restart(t, 1) // a commit that still waits for the coordinator ends with it
}
