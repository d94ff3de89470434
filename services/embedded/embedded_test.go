package embedded_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, cfg embedded.Config) *embedded.Broker {
	t.Helper()
	b, err := embedded.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func client(t *testing.T, b *embedded.Broker, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	k, err := kgo.NewClient(append(opts, kgo.SeedBrokers(b.Addr()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func TestTopicsAreNotCreatedByMention(t *testing.T) {
	b := start(t, embedded.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := client(t, b, kgo.UnknownTopicRetries(0)).ProduceSync(ctx, &kgo.Record{Topic: "nowhere"}).FirstErr(); err == nil {
		t.Error("a record was taken for a topic that does not exist")
	}
	if b.HasTopic("nowhere") {
		t.Error("the topic was created")
	}
}

func TestTopicsSurviveARestartWithADataDirectory(t *testing.T) {
	cfg := embedded.Config{DataDir: t.TempDir()}
	b := start(t, cfg)
	if err := b.CreateTopic("kept", 1, nil); err != nil {
		t.Fatal(err)
	}
	if err := client(t, b).ProduceSync(t.Context(), &kgo.Record{Topic: "kept", Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.Close()
	b = start(t, cfg)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	fs := client(t, b, kgo.ConsumeTopics("kept"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())).PollFetches(ctx)
	if err := fs.Err(); err != nil {
		t.Fatal(err)
	}
	if got := string(fs.Records()[0].Value); got != "v" {
		t.Errorf("got %q, want %q", got, "v")
	}
}

func TestAPortOutOfRangeIsRefused(t *testing.T) {
	if _, err := embedded.Start(embedded.Config{Port: 70_000}); err == nil {
		t.Error("no error")
	}
}

// publisher keeps what it is given.
type publisher struct {
	do func(topic string, r *tailracev1.PublishRecord)
}

func (p publisher) Publish(_ context.Context, topic string, rs []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	out := make([]*tailracev1.PublishResult, len(rs))
	for i, r := range rs {
		p.do(topic, r)
		out[i] = &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{}}}
	}
	return out, nil
}

type topics map[string]int32

func (s topics) HasTopic(name string) bool { return s[name] > 0 }

func (s topics) CreateTopic(name string, partitions int32, _ map[string]string) error {
	s[name] = partitions
	return nil
}

func TestDemoIsLively(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var records []*tailracev1.PublishRecord
		to := publisher{func(topic string, r *tailracev1.PublishRecord) {
			if topic != embedded.DemoTopic {
				t.Errorf("got topic %q", topic)
			}
			records = append(records, r)
		}}
		topics := topics{}
		if err := embedded.Demo(ctx, topics, to, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		if !topics.HasTopic(embedded.DemoTopic) {
			t.Error("the topic was not created")
		}
		if len(records) < 100 || len(records) > 600 {
			t.Errorf("got %d records in a minute, want a few a second", len(records))
		}
		hash, used := kgo.StickyKeyPartitioner(nil).ForTopic(embedded.DemoTopic), map[int]bool{}
		for _, r := range records {
			used[hash.Partition(&kgo.Record{Key: r.Key}, embedded.Partitions)] = true
			var v map[string]any
			if err := json.Unmarshal(r.Value, &v); err != nil || v["mill"] != string(r.Key) || len(r.Headers) == 0 {
				t.Fatalf("got value %s for key %q with %d headers: %v", r.Value, r.Key, len(r.Headers), err)
			}
		}
		if len(used) != embedded.Partitions {
			t.Errorf("keys lie in %d partitions, want all %d", len(used), embedded.Partitions)
		}
	})
}
