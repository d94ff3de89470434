package kafka_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// faulty starts a broker whose answers a test can change.
func faulty(t *testing.T) (*kfake.Cluster, *kafkatest.Cluster) {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return fake, &kafkatest.Cluster{Bootstrap: fake.ListenAddrs()[0]}
}

// failProduce answers the next n produce requests with an error, without appending.
func failProduce(fake *kfake.Cluster, n int, e *kerr.Error) {
	fake.ControlKey(int16(kmsg.Produce), func(q kmsg.Request) (kmsg.Response, error, bool) {
		if n--; n > 0 {
			fake.KeepControl()
		}
		req, _ := q.(*kmsg.ProduceRequest)
		res, _ := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.Topics {
			t := kmsg.NewProduceResponseTopic()
			t.Topic, t.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				p := kmsg.NewProduceResponseTopicPartition()
				p.Partition, p.ErrorCode, p.BaseOffset = rp.Partition, e.Code, -1
				t.Partitions = append(t.Partitions, p)
			}
			res.Topics = append(res.Topics, t)
		}
		return res, nil, true
	})
}

// TestOutcomesOfBrokerErrors: what a broker refuses is certainly not in the log; what it leaves open is unknown.
func TestOutcomesOfBrokerErrors(t *testing.T) {
	const refused, unknown = tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED, tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN
	for _, test := range []struct {
		err     *kerr.Error
		outcome tailracev1.PublishOutcome
		code    string
		reason  string
	}{
		{kerr.InvalidRecord, refused, "invalid_argument", kafka.ReasonInvalidRecord},
		{kerr.TopicAuthorizationFailed, refused, "permission_denied", kafka.ReasonNotAuthorized},
		{kerr.PolicyViolation, refused, "failed_precondition", kafka.ReasonKafkaRefused},
		{kerr.UnknownServerError, unknown, "unavailable", kafka.ReasonOutcomeUnknown},
	} {
		t.Run(test.err.Message, func(t *testing.T) {
			fake, cluster := faulty(t)
			topic := cluster.NewTopic(t, 1, nil)
			c := newClient(t, cluster)
			publish(t, c, topic, value("before"))
			failProduce(fake, 1, test.err)
			results, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("v")})
			if err != nil {
				t.Fatal(err)
			}
			f := results[0].GetFailure()
			if f.GetOutcome() != test.outcome || f.GetCode() != test.code || f.GetReason() != test.reason {
				t.Errorf("got %v, want %v, %s, %s", results[0], test.outcome, test.code, test.reason)
			}
			eventually(t, func() bool { // not at once: librdkafka remembers for a moment that it may not write there
				results, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("after")})
				return err == nil && results[0].GetPublished() != nil
			}, "publishing goes on")
		})
	}
}

// TestFatalErrorReplacesTheProducer: a sequence that broke ends a librdkafka producer for good; publishing goes on with another.
func TestFatalErrorReplacesTheProducer(t *testing.T) {
	fake, cluster := faulty(t)
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster)
	for i := range 3 {
		publish(t, c, topic, value("%d", i))
		failProduce(fake, 1, kerr.OutOfOrderSequenceNumber)
		results, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("lost")})
		if err != nil {
			t.Fatal(err)
		}
		if f := results[0].GetFailure(); f.GetOutcome() != tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN {
			t.Errorf("got %v, want an unknown outcome", results[0])
		}
		eventually(t, func() bool {
			results, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("again")})
			return err == nil && results[0].GetPublished() != nil
		}, "publishing goes on")
	}
	if got := history(t, c, hub.ChunkID{Topic: topic}, 6, 100); len(got) != 6 {
		t.Errorf("got %d records, want 6", len(got))
	}
}

// attempts counts a client's attempts to connect, in the log of librdkafka's own doings.
type attempts struct{ n atomic.Int64 }

func (a *attempts) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("client=tailrace-admin")) && bytes.Contains(p, []byte("broker in state TRY_CONNECT connecting")) {
		a.n.Add(1)
	}
	return len(p), nil
}

// TestADeadBrokerIsNotFlooded: librdkafka pauses between attempts to connect, also while it is asked what only a broker can answer.
func TestADeadBrokerIsNotFlooded(t *testing.T) {
	fake, cluster := faulty(t)
	topic := cluster.NewTopic(t, 1, nil)
	tried := &attempts{}
	c, stop := startLogging(t, cluster, tried, func(c *kafka.Config) { c.Properties = map[string]string{"debug": "broker"} })
	t.Cleanup(stop)
	publish(t, c, topic, value("v"))
	fake.Close()
	eventually(t, func() bool { return !c.Health().Up }, "the loss is noticed")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	tried.n.Store(0)
	for ctx.Err() == nil {
		if _, err := c.GetTopic(ctx, topic); err == nil {
			t.Fatal("a dead broker has answered")
		}
	}
	if n := tried.n.Load(); n == 0 || n > 500 {
		t.Errorf("got %d attempts to connect in 3 s, want some, and at most 500", n)
	}
}
