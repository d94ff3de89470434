package kafka_test

import (
	"testing"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestBellRings: the binding hides its queues; where a later one hides them better, followers would fall back to waiting in Poll, unnoticed.
func TestBellRings(t *testing.T) {
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 1, nil)
	c, err := confluent.NewConsumer(&confluent.ConfigMap{"bootstrap.servers": cluster.Bootstrap, "group.id": "none", "enable.auto.commit": false})
	if err != nil {
		t.Fatal(err)
	}
	b, err := kafka.NewBell()
	if err != nil {
		t.Fatal(err)
	}
	if !b.Hang(c) {
		t.Fatal("the consumer cannot ring")
	}
	if err := c.Assign([]confluent.TopicPartition{{Topic: &topic, Offset: 0}}); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Client(t).ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); ; {
		if m, ok := c.Poll(0).(*confluent.Message); ok {
			if string(m.Value) != "v" {
				t.Errorf("got %q", m.Value)
			}
			break
		}
		if !b.Wait(time.Minute) || time.Now().After(until) {
			t.Fatal("no ring and no record within a minute")
		}
	}
	b.TakeDown(c)
	for b.Wait(time.Millisecond) { // it may have rung before
	}
	b.Ring()
	if !b.Wait(time.Minute) {
		t.Error("a ring was not heard")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	b.Close()
	b.Ring()
}
