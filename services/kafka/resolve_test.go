package kafka_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

func testResolve(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 3, nil)
	c := newClient(t, cluster)
	base := time.UnixMilli(1_700_000_000_000)
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range 10 {
		if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: 1, Value: []byte("v"), Timestamp: base.Add(time.Duration(i) * time.Second)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	deleteBefore(t, cluster, topic, 1, 2)
	start := func(q hub.Query) string {
		t.Helper()
		r := resolve(t, c, topic, q)
		if r.Count != 3 || r.TopicID == "" {
			t.Errorf("got count %d, id %q", r.Count, r.TopicID)
		}
		var s []string
		for _, p := range r.Partitions {
			s = append(s, fmt.Sprintf("%d:%d[%d,%d)", p.Partition, p.Start, p.Oldest, p.End))
		}
		return strings.Join(s, " ")
	}
	positions := []hub.Position{{Partition: 1, Offset: 5, Epoch: -1}, {Partition: 2, Offset: 77, Epoch: -1}}
	for _, test := range []struct {
		q    hub.Query
		want string
	}{
		{hub.Query{}, "0:0[0,0) 1:10[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.Earliest}}, "0:0[0,0) 1:2[2,10) 2:0[0,0)"},
		{hub.Query{Partitions: []int32{1}, Start: hub.Start{Kind: hub.Earliest}}, "1:2[2,10)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: positions}}, "0:0[0,0) 1:5[2,10) 2:77[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: positions[1:], Missing: hub.MissingLatest}}, "0:0[0,0) 1:10[2,10) 2:77[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: positions, Missing: hub.MissingSkip}}, "1:5[2,10) 2:77[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.Last, Last: 3}}, "0:0[0,0) 1:7[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.Last, Last: 9}}, "0:0[0,0) 1:2[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(6*time.Second - time.Millisecond)}}, "0:0[0,0) 1:6[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(time.Hour)}}, "0:0[0,0) 1:10[2,10) 2:0[0,0)"},
		{hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: base.Add(-time.Hour)}}, "0:0[0,0) 1:2[2,10) 2:0[0,0)"},
	} {
		if got := start(test.q); got != test.want {
			t.Errorf("%+v:\n got %s\nwant %s", test.q, got, test.want)
		}
	}
	_, err := c.Resolve(t.Context(), topic, hub.Query{Partitions: []int32{3}})
	if e, ok := errors.AsType[*hub.UnknownPartitionError](err); !ok || e.Partition != 3 || e.Count != 3 {
		t.Errorf("partition 3: got %v", err)
	}
}

func testUnknownTopics(t *testing.T, cluster *kafkatest.Cluster) {
	c := newClient(t, cluster)
	for _, topic := range []string{"no-such-topic", "", "..", "not legal", strings.Repeat("x", 250), "umläut"} {
		if _, err := c.Resolve(t.Context(), topic, hub.Query{}); !errors.Is(err, hub.ErrUnknownTopic) {
			t.Errorf("resolve %q: got %v", topic, err)
		}
		if _, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("v")}); !errors.Is(err, hub.ErrUnknownTopic) {
			t.Errorf("publish to %q: got %v", topic, err)
		}
		if _, err := c.GetTopic(t.Context(), topic); !errors.Is(err, hub.ErrUnknownTopic) {
			t.Errorf("get %q: got %v", topic, err)
		}
	}
	// A topic that has just been created is no longer unknown.
	cluster.CreateTopic(t, "no-such-topic", 1, nil)
	t.Cleanup(func() { deleteTopic(t, cluster, "no-such-topic") })
	resolve(t, c, "no-such-topic", hub.Query{})
}

func testTopics(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 3, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, on(2, value("v")))
	list, err := c.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var found *tailracev1.TopicSummary
	for i, s := range list {
		if i > 0 && list[i-1].Name >= s.Name {
			t.Errorf("%q after %q", s.Name, list[i-1].Name)
		}
		if strings.HasPrefix(s.Name, "__") {
			t.Errorf("internal topic %q is listed", s.Name)
		}
		if s.Name == topic {
			found = s
		}
	}
	d, err := c.GetTopic(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	if found == nil || found.Partitions != 3 || found.TopicId != d.TopicId || d.TopicId == "" {
		t.Errorf("listed %v, described id %q", found, d.TopicId)
	}
	if len(d.Partitions) != 3 || d.Partitions[2].End != 1 || d.Partitions[2].HighWatermark != 1 || d.Partitions[2].Start != 0 || d.Partitions[0].End != 0 {
		t.Errorf("got %v", d)
	}
	for _, p := range d.Partitions {
		if p.Leader < 0 {
			t.Errorf("partition %d has no leader", p.Partition)
		}
	}
}
