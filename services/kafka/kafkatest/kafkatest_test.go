package kafkatest_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func TestBrokersServe(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *kafkatest.Cluster{
		"real":     func(t *testing.T) *kafkatest.Cluster { return kafkatest.Start(t) },
		"own":      func(t *testing.T) *kafkatest.Cluster { return kafkatest.StartOwn(t, 1) },
		"embedded": func(t *testing.T) *kafkatest.Cluster { return kafkatest.StartEmbedded(t) },
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t)
			topic := c.NewTopic(t, 3, nil)
			k := c.Client(t)
			if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestBrokerKeepsItsDataOverAKill(t *testing.T) {
	c := kafkatest.StartOwn(t, 1)
	topic := c.NewTopic(t, 1, nil)
	k := c.Client(t, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	c.Kill9(t, 1)
	c.Restart(t, 1)
	fs := k.PollFetches(t.Context())
	if err := fs.Err(); err != nil {
		t.Fatal(err)
	}
	if got := string(fs.Records()[0].Value); got != "v" {
		t.Errorf("got %q, want %q", got, "v")
	}
}
