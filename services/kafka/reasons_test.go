package kafka_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// silence makes a broker keep produce requests until the test ends.
func silence(t *testing.T, fake *kfake.Cluster) {
	t.Helper()
	quit := make(chan struct{})
	t.Cleanup(func() { close(quit) })
	fake.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		fake.SleepControl(func() { <-quit })
		return nil, nil, false
	})
}

// TestEveryReasonIsProvoked: each reason of a record's failure can be met.
func TestEveryReasonIsProvoked(t *testing.T) {
	type world struct {
		fake    *kfake.Cluster
		cluster *kafkatest.Cluster
		c       *kafka.Client
		topic   string
	}
	get := func(t *testing.T, w *world, ctx context.Context, topic string, r *tailracev1.PublishRecord) string {
		t.Helper()
		done := make(chan *tailracev1.PublishResult, 1)
		w.c.Begin(ctx, "c", topic, r, func(r *tailracev1.PublishResult) { done <- r })
		select {
		case r := <-done:
			return r.GetFailure().GetReason()
		case <-time.After(patience):
			t.Fatal("no answer")
			return ""
		}
	}
	answered := func(e *kerr.Error) func(t *testing.T, w *world) string {
		return func(t *testing.T, w *world) string {
			t.Helper()
			failProduce(w.fake, 1, e)
			return get(t, w, t.Context(), w.topic, value("v"))
		}
	}
	provoked := map[string]func(t *testing.T, w *world) string{
		kafka.ReasonUnknownTopic: func(t *testing.T, w *world) string { return get(t, w, t.Context(), "nowhere", value("v")) },
		kafka.ReasonUnknownPartition: func(t *testing.T, w *world) string {
			return get(t, w, t.Context(), w.topic, on(7, value("v")))
		},
		kafka.ReasonInvalidRecord: answered(kerr.InvalidRecord),
		kafka.ReasonRecordTooLarge: func(t *testing.T, w *world) string {
			failProduce(w.fake, 1, kerr.MessageTooLarge)
			return get(t, w, t.Context(), w.topic, &tailracev1.PublishRecord{Value: noise(900_000)})
		},
		kafka.ReasonNotAuthorized:  answered(kerr.TopicAuthorizationFailed),
		kafka.ReasonKafkaRefused:   answered(kerr.PolicyViolation),
		kafka.ReasonOutcomeUnknown: answered(kerr.UnknownServerError),
		kafka.ReasonKafkaUnavailable: func(t *testing.T, w *world) string {
			silence(t, w.fake)
			w.c.Begin(t.Context(), "c", w.topic, value("handed over"), func(*tailracev1.PublishResult) {}) // it is unknown, much later
			reason := ""
			eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				results, err := w.c.Publish(ctx, w.topic, []*tailracev1.PublishRecord{value("v")})
				if err != nil {
					return false
				}
				reason = results[0].GetFailure().GetReason()
				return reason == kafka.ReasonKafkaUnavailable
			}, "refused for the leader, not %s", reason)
			return reason
		},
		kafka.ReasonLimit: func(t *testing.T, w *world) string {
			silence(t, w.fake)
			for range 40 { // more than may be with librdkafka of one partition
				go func() { _, _ = w.c.Publish(t.Context(), w.topic, []*tailracev1.PublishRecord{{Value: noise(100_000)}}) }()
			}
			reason := ""
			eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // before the leader is in doubt
				defer cancel()
				results, err := w.c.Publish(ctx, w.topic, []*tailracev1.PublishRecord{value("v")})
				if err == nil {
					reason = results[0].GetFailure().GetReason()
				}
				return reason == kafka.ReasonLimit || reason == kafka.ReasonKafkaUnavailable
			}, "refused for want of room")
			return reason
		},
		kafka.ReasonCanceled: func(t *testing.T, w *world) string {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return get(t, w, ctx, w.topic, value("v"))
		},
	}
	for _, reason := range reasonsOf(t, "reasons.go") {
		if reason == kafka.ReasonDraining {
			continue // below: it ends the client
		}
		t.Run(reason, func(t *testing.T) {
			provoke := provoked[reason]
			if provoke == nil {
				t.Fatal("is not provoked")
			}
			fake, cluster := faulty(t)
			w := &world{fake, cluster, newClient(t, cluster, func(c *kafka.Config) { c.PublishTimeout = 5 * time.Second }), cluster.NewTopic(t, 1, nil)}
			publish(t, w.c, w.topic, value("before"))
			if got := provoke(t, w); got != reason {
				t.Errorf("got %q", got)
			}
		})
	}
	t.Run(kafka.ReasonDraining, func(t *testing.T) {
		fake, cluster := faulty(t)
		c, stop := startClient(t, cluster)
		w := &world{fake, cluster, c, cluster.NewTopic(t, 1, nil)}
		publish(t, c, w.topic, value("before"))
		stop()
		if got := get(t, w, t.Context(), w.topic, value("late")); got != kafka.ReasonDraining {
			t.Errorf("got %q", got)
		}
	})
}

// reasonsOf are the values of the constants Reason… in a file.
func reasonsOf(t *testing.T, path string) (values []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Reason") {
			if literal, ok := spec.Values[0].(*ast.BasicLit); ok {
				if value, err := strconv.Unquote(literal.Value); err == nil {
					values = append(values, value)
				}
			}
		}
		return true
	})
	if len(values) < 10 {
		t.Fatalf("found only %v", values)
	}
	return values
}
