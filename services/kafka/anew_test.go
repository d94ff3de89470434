package kafka_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// recreate deletes a topic and creates it again at once.
func recreate(t *testing.T, cluster *kafkatest.Cluster, topic string, partitions int32) {
	t.Helper()
	deleteTopic(t, cluster, topic)
	eventually(t, func() bool { // deletion takes a moment
		re, err := cluster.Admin(t).CreateTopic(t.Context(), partitions, -1, nil, topic)
		return errors.Join(err, re.Err) == nil
	}, "%q is created again", topic)
}

// patient is for tests in which a topic is away for a moment.
func patient(cfg *kafka.Config) { cfg.DeletedAfter = 20 * time.Second }

// testRecreation: librdkafka reads on at the old offset in the new log, without any error; only the topic's id tells. Where the new log is shorter,
// the error that there is names no cause.
func testRecreation(t *testing.T, cluster *kafkatest.Cluster) {
	for name, records := range map[string]int{"with more records": 4, "with as many": 2, "with fewer": 1, "empty": 0} {
		t.Run(name, func(t *testing.T) {
			topic := cluster.NewTopic(t, 1, nil)
			c := newClient(t, cluster, patient)
			r := resolve(t, c, topic, hub.Query{})
			live := newRecorder(t, r, topic)
			live.follow(c, 0, 0)
			publish(t, c, topic, value("old 0"), value("old 1"))
			eventually(t, func() bool { return live.position(0) == 2 }, "live to 2")
			recreate(t, cluster, topic, 1)
			k := cluster.Client(t)
			for i := range records {
				if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "new %d", i)}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			eventually(t, func() bool { return len(live.control(hub.Recreated)) > 0 }, "told of the re-creation")
			es := live.control(hub.Recreated)
			if len(es) != 1 || es[0].Next != 0 || es[0].TopicID == "" || es[0].TopicID == r.TopicID || len(live.control(hub.Gap)) != 0 {
				t.Errorf("got %+v and gaps %+v, want one entry that goes on at 0 of another id than %s", es, live.control(hub.Gap), r.TopicID)
			}
			if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("last")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			eventually(t, func() bool { return live.position(0) == int64(records)+1 }, "live to the end of the new log")
			var want []string
			for i := range records {
				want = append(want, fmt.Sprintf("0@%d null=%q", i, fmt.Sprintf("new %d", i)))
			}
			want = append(want, fmt.Sprintf("0@%d null=%q", records, "last"))
			if got := texts(live.got(0), ofOurs); len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
				t.Errorf("got %v, want it to end with %v", got, want)
			}
			// History of the old log is refused, that of the new one is there.
			id := hub.ChunkID{Topic: topic, TopicID: r.TopicID}
			if es, _, err := c.ReadAt(t.Context(), id, 1, 10, nil); !errors.Is(err, hub.ErrUnavailable) {
				t.Errorf("history of the old log: got %d entries, %v", len(es), err)
			}
			id.TopicID = es[0].TopicID
			if got := texts(history(t, c, id, int64(records)+1, 10), ofOurs); !slices.Equal(got, want) {
				t.Errorf("history of the new log: got %v, want %v", got, want)
			}
		})
	}
}

// testRecreationWithoutAConsumer: where no other consumer can be opened for the new log, its partitions are unavailable, those of other topics are read
// on, and once one can be opened nothing of the new log is missing.
func testRecreationWithoutAConsumer(t *testing.T, cluster *kafkatest.Cluster) {
	topic, other := cluster.NewTopic(t, 2, nil), cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster, patient)
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	neighbour := newRecorder(t, resolve(t, c, other, hub.Query{}), other)
	neighbour.follow(c, 0, 0)
	publish(t, c, topic, on(0, value("old")))
	eventually(t, func() bool { return live.position(0) == 1 }, "live to 1")
	refused, allow := c.RefuseConsumers(errors.New("no more threads"))
	recreate(t, cluster, topic, 2)
	eventually(t, func() bool { return len(live.control(hub.Unavailable)) == 1 }, "told that it cannot be read")
	if n := len(live.control(hub.Recreated)); n != 1 {
		t.Errorf("told %d times of the re-creation, want once, before", n)
	}
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(2) {
		if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: p, Value: []byte("new")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	late := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic) // a partition that is followed meanwhile
	late.follow(c, 1, 0)
	eventually(t, func() bool { return len(late.control(hub.Unavailable)) == 1 }, "the other partition cannot be read either")
	tried := refused()
	publish(t, c, other, value("neighbour"))
	eventually(t, func() bool { return neighbour.position(0) == 1 }, "another topic is read on")
	eventually(t, func() bool { return refused() >= tried+2 }, "it is tried again")
	if live.position(0) != 0 || len(live.control(hub.Available)) != 0 || late.position(1) != 0 || len(late.control(hub.Available)) != 0 {
		t.Errorf("at %d and %d, told %d and %d times that it can be read, without a consumer that could", live.position(0), late.position(1),
			len(live.control(hub.Available)), len(late.control(hub.Available)))
	}
	allow()
	eventually(t, func() bool { return live.position(0) == 1 && late.position(1) == 1 }, "the new log is read")
	got := append(texts(live.got(0), ofOurs), texts(late.got(1), ofOurs)...)
	if want := []string{`0@0 null="old"`, `0@0 null="new"`, `1@0 null="new"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n, m := len(live.control(hub.Available)), len(late.control(hub.Available)); n != 1 || m != 1 {
		t.Errorf("told %d and %d times that it can be read, want once each", n, m)
	}
}

// testRecreationInAHub: all readers go on, at the beginning, with more partitions and with fewer; who comes back with positions of the old log is
// told the same. Who named a partition that is over ends.
func testRecreationInAHub(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 2, nil)
	c := newClient(t, cluster, patient)
	h := newHub(t, c, 8<<20)
	all := subscribe(t, h, hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}})
	publish(t, c, topic, on(0, value("old")), on(1, value("old")))
	eventually(t, func() bool { return all.at(0) == 1 && all.at(1) == 1 }, "the old log")
	recreate(t, cluster, topic, 4)
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for p := range int32(4) {
		if err := k.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "more %d", p)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for p := range int32(4) {
		want := fmt.Sprintf("%d@0 null=%q", p, fmt.Sprintf("more %d", p))
		eventually(t, func() bool { got := texts(all.got(p), ofOurs); return len(got) > 0 && got[len(got)-1] == want }, "%s", want)
	}
	told := all.gapsOf()
	slices.Sort(told)
	if want := []string{"0: 1 to 0", "1: 1 to 0"}; !slices.Equal(told, want) {
		t.Errorf("got gaps %v, want %v", told, want)
	}
	id := resolve(t, c, topic, hub.Query{}).TopicID
	named := subscribe(t, h, hub.Request{Topic: topic, Partitions: []int32{1, 3}})
	recreate(t, cluster, topic, 1)
	eventually(t, func() bool { return len(all.gapsOf()) == 6 && len(all.counts()) == 2 }, "the reader is told of the new log")
	told = all.gapsOf()[2:]
	slices.Sort(told)
	if want := []string{"0: 1 to 0", "1: 1 to 0", "2: 1 to 0", "3: 1 to 0"}; !slices.Equal(told, want) {
		t.Errorf("got gaps %v, want %v", told, want)
	}
	if got := all.counts(); !slices.Equal(got, []int32{4, 1}) {
		t.Errorf("told of %v partitions", got)
	}
	var over *hub.UnknownPartitionError
	eventually(t, func() bool { return errors.As(named.failed(), &over) }, "who named a partition ends")
	if over.Partition != 1 || over.Count != 1 {
		t.Errorf("got %v", over)
	}
	at := hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 0, Offset: 1, Epoch: 0}, {Partition: 3, Offset: 1, Epoch: 0}}}
	again := subscribe(t, h, hub.Request{Topic: topic, TopicID: id, Start: at})
	if err := cluster.Client(t).ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("fewer")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return again.at(0) == 1 && all.at(0) == 1 }, "the new log")
	if got := texts(all.got(0), ofOurs); got[len(got)-1] != `0@0 null="fewer"` {
		t.Errorf("who went on got %v", got)
	}
	if got := texts(again.got(0), ofOurs); !slices.Equal(got, []string{`0@0 null="fewer"`}) {
		t.Errorf("got %v", got)
	}
	if told := again.gapsOf(); !slices.Equal(told, []string{"0: 1 to 0"}) {
		t.Errorf("got gaps %v", told)
	}
}

// testBackInTime: a topic that comes back before it counts as deleted was created anew; one that does not is deleted.
func testBackInTime(t *testing.T, cluster *kafkatest.Cluster) {
	topic := cluster.NewTopic(t, 1, nil)
	c, log := newLogged(t, cluster, func(cfg *kafka.Config) { cfg.DeletedAfter = 5 * time.Second })
	live := newRecorder(t, resolve(t, c, topic, hub.Query{}), topic)
	live.follow(c, 0, 0)
	publish(t, c, topic, value("old"))
	eventually(t, func() bool { return live.position(0) == 1 }, "live to 1")
	deleteTopic(t, cluster, topic)
	eventually(t, func() bool { return log.with("topic is gone", "topic="+topic+" ") == 1 }, "it is missed")
	cluster.CreateTopic(t, topic, 1, nil)
	eventually(t, func() bool { return len(live.control(hub.Recreated)) == 1 }, "told of the re-creation")
	eventually(t, func() bool {
		rs, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("new")})
		return err == nil && rs[0].GetPublished() != nil
	}, "publishing works")
	eventually(t, func() bool { return live.position(0) == 1 }, "live in the new log")
	deleteTopic(t, cluster, topic)
	eventually(t, func() bool { return len(live.control(hub.Deleted)) == 1 }, "told of the deletion")
	if n := len(live.control(hub.Recreated)); n != 1 {
		t.Errorf("told %d times of a re-creation", n)
	}
}
