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

// TestLostBranch has a broker lose the end of a log, twice: under a live reader, and so that other records lie where a reader was when it comes back.
func TestLostBranch(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 1)
	topic := cluster.NewTopic(t, 1, nil)
	c := newClient(t, cluster, watchful, func(cfg *kafka.Config) { cfg.DeletedAfter = time.Hour })
	h := newHub(t, c, 8<<20)
	r := resolve(t, c, topic, hub.Query{})
	write := func(branch string, n int) {
		t.Helper()
		for i := range n {
			eventually(t, func() bool { // a broker that has just come back may not take records at once
				rs, err := c.Publish(t.Context(), topic, []*tailracev1.PublishRecord{value("%s%d", branch, i)})
				return err == nil && rs[0].GetPublished() != nil
			}, "%s%d is written", branch, i)
		}
	}
	write("a", 5)
	// In another topic the same key lies elsewhere on the branch that is lost.
	keyed := cluster.NewTopic(t, 1, nil)
	writeKeyed := func(keys ...string) {
		t.Helper()
		for i, key := range keys {
			r := value("%d", i)
			r.Key = []byte(key)
			eventually(t, func() bool {
				rs, err := c.Publish(t.Context(), keyed, []*tailracev1.PublishRecord{r})
				return err == nil && rs[0].GetPublished() != nil
			}, "%q is written", key)
		}
	}
	lastTwo := func(want int64) {
		t.Helper()
		q := hub.Query{Keys: [][]byte{[]byte("k")}, Start: hub.Start{Kind: hub.Last, Last: 2}}
		if got := resolve(t, c, keyed, q).Partitions[0]; got.Start != want || got.Incomplete {
			t.Errorf("the last two of a key: got %+v, want them from %d", got, want)
		}
	}
	all := subscribe(t, h, hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}})
	cluster.Kill9(t, 1)
	saved, savedKeyed := cluster.SaveLog(t, 1, topic, 0), cluster.SaveLog(t, 1, keyed, 0)
	cluster.Restart(t, 1)
	write("lost", 5)
	writeKeyed("x", "x", "k", "x", "k")
	lastTwo(2)
	eventually(t, func() bool { return all.at(0) >= 10 }, "live to 10")
	lost := all.got(0)
	if last := lost[9]; last.LeaderEpoch == nil || *last.LeaderEpoch <= *lost[0].LeaderEpoch {
		t.Fatalf("got %v after %v: want a later epoch", last, lost[0])
	}
	epoch := *lost[9].LeaderEpoch
	read := hub.ChunkID{Topic: topic, TopicID: r.TopicID, From: 7}
	if got := history(t, c, read, 10, 10); len(got) != 3 {
		t.Errorf("history before: got %d records", len(got))
	}

	cluster.Kill9(t, 1)
	cluster.ReplaceLog(t, 1, topic, 0, saved)
	cluster.ReplaceLog(t, 1, keyed, 0, savedKeyed)
	cluster.Restart(t, 1)
	eventually(t, func() bool { return all.at(0) == 5 }, "the live reader goes back to 5, at %d", all.at(0))
	if told := all.gapsOf(); !slices.Equal(told, []string{"0: 10 to 5"}) || all.gaps[0].Reason != hub.GapTruncation {
		t.Errorf("got gaps %v, want one of truncation from 10 to 5", told)
	}
	write("b", 8)
	writeKeyed("k", "k", "x", "x", "x", "x")
	lastTwo(0)
	eventually(t, func() bool { return all.at(0) >= 13 }, "live to 13")
	want := []string{`0@5 null="b0"`, `0@6 null="b1"`, `0@7 null="b2"`, `0@8 null="b3"`, `0@9 null="b4"`, `0@10 null="b5"`, `0@11 null="b6"`, `0@12 null="b7"`}
	if got := texts(all.got(0), ofOurs); !slices.Equal(got[len(got)-8:], want) {
		t.Errorf("live: got %v, want it to end with %v", got, want)
	}
	read.From = 5
	if got := texts(history(t, c, read, 13, 10), ofOurs); !slices.Equal(got, want) {
		t.Errorf("history after: got %v, want %v", got, want)
	}
	newest := *all.got(0)[len(all.got(0))-1].LeaderEpoch

	// Whoever comes back, to a process that has read on and to one that knows nothing.
	fresh := newClient(t, cluster)
	for name, by := range map[string]*hub.Hub{"live": h, "fresh": newHub(t, fresh, 8<<20)} {
		for _, at := range []struct {
			offset int64
			epoch  int32
			gaps   []string
			first  int64
		}{
			{10, epoch, []string{"0: 10 to 5"}, 5},
			{7, epoch, []string{"0: 7 to 5"}, 5},
			{5, epoch, nil, 5},
			{5, *lost[0].LeaderEpoch, nil, 5},
			{3, *lost[0].LeaderEpoch, nil, 3},
			{10, newest, nil, 10},
			{10, -1, nil, 10}, // nobody can tell
		} {
			start := hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 0, Offset: at.offset, Epoch: at.epoch}}}
			v := subscribe(t, by, hub.Request{Topic: topic, TopicID: r.TopicID, Start: start})
			eventually(t, func() bool { return len(v.got(0)) > 0 }, "%s at %+v: a record", name, at)
			if got := v.got(0)[0].Offset; got != at.first || !slices.Equal(v.gapsOf(), at.gaps) {
				t.Errorf("%s at %+v: got gaps %v, then %d", name, at, v.gapsOf(), got)
			}
			for _, g := range v.gaps {
				if g.Reason != hub.GapTruncation {
					t.Errorf("%s at %+v: got reason %v", name, at, g.Reason)
				}
			}
			v.stop()
		}
		start := hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 0, Offset: 10, Epoch: epoch}}}
		_, err := by.Subscribe(t.Context(), hub.Request{Topic: topic, Start: start, OnOutOfRange: hub.OutOfRangeFail}, make(flag, 1), 0)
		if outside, ok := err.(*hub.OffsetOutOfRangeError); !ok || outside.Offset != 10 || outside.Oldest != 5 { //nolint:errorlint // never wrapped
			t.Errorf("%s, to fail: got %v", name, err)
		}
	}

	all.stop()
	eventually(t, func() bool { return h.Stats().Partitions == 0 }, "nothing is followed any more")

	// A new topic of the same name begins with older epochs: a consumer that knows the later ones cannot read it.
	live := newRecorder(t, r, topic)
	live.follow(c, 0, 0)
	eventually(t, func() bool { return live.position(0) == 13 }, "live to 13")
	// Where a partition has stopped, its log may have lost its end and have grown again since.
	c.StopFetching(topic, 0, epoch)
	eventually(t, func() bool { return len(live.control(hub.Gap)) == 1 && live.position(0) == 13 }, "told of a truncation, and read again")
	if g := live.control(hub.Gap)[0]; g.From != 13 || g.Next != 5 || g.Reason != hub.GapTruncation {
		t.Errorf("got %+v, want a truncation from 13 to 5", g)
	}
	recreate(t, cluster, topic, 1)
	var rs []*kgo.Record
	for i := range 20 {
		rs = append(rs, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "new%d", i)})
	}
	if err := cluster.Client(t).ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return live.position(0) == 20 && len(live.control(hub.Recreated)) == 1 }, "live to the end of the new log")
	if got := texts(live.got(0), ofOurs); len(got) != 13+8+20 || got[21] != `0@0 null="new0"` {
		t.Errorf("got %d records, want 21 of the old log, then 20 of the new: %v", len(got), got)
	}
	read.From, read.TopicID = 0, live.control(hub.Recreated)[0].TopicID
	if got := history(t, c, read, 20, 7); len(got) != 20 {
		t.Errorf("history: got %d records, want 20", len(got))
	}
	publish(t, c, topic, value("more"))
	eventually(t, func() bool { return live.position(0) == 21 }, "live to what was published")

	// So it is where nobody followed it meanwhile, and where it is followed under the new id.
	deleteTopic(t, cluster, topic)
	eventually(t, func() bool {
		_, err := c.Resolve(t.Context(), topic, hub.Query{})
		return errors.Is(err, hub.ErrUnknownTopic)
	}, "it is deleted")
	cluster.CreateTopic(t, topic, 1, nil)
	again := subscribe(t, h, hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}})
	if err := cluster.Client(t).ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("again")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return again.at(0) == 1 }, "the topic that was created again")
}
