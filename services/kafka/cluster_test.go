package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestThreeBrokers kills one of three brokers, twice: partitions with replicas move, others wait for it.
func TestThreeBrokers(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 3)
	t.Run("publishing while partitions are added", func(t *testing.T) { testPublishWhileGrowing(t, cluster) })
	t.Run("publishing to a topic created anew", func(t *testing.T) { testPublishAnew(t, cluster) })
	t.Run("a leader moves", func(t *testing.T) { testLeaderMoves(t, cluster) })
	t.Run("publishing while a leader is away", func(t *testing.T) { testPublishLeaderAway(t, cluster) })
	t.Run("a leader is away", func(t *testing.T) { testLeaderAway(t, cluster) })
}

// replicated creates a topic with that many replicas, in a cluster of three, and waits for its leaders.
func replicated(t *testing.T, cluster *kafkatest.Cluster, partitions int32, replicas int16) string {
	t.Helper()
	topic := fmt.Sprintf("replicated-%d", replicas)
	r, err := cluster.Admin(t).CreateTopic(t.Context(), partitions, replicas, nil, topic)
	if err = errors.Join(err, r.Err); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return !slices.Contains(leaders(t, cluster, topic), -1) }, "%s has leaders", topic)
	return topic
}

// leaders returns the leader of each partition, -1 where there is none.
func leaders(t *testing.T, cluster *kafkatest.Cluster, topic string) []int32 {
	t.Helper()
	var out []int32
	k := cluster.Client(t)
	defer k.Close()
	eventually(t, func() bool { // the broker that is asked may have been killed
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		ts, err := kadm.NewClient(k).ListTopics(ctx, topic)
		out = out[:0]
		for _, p := range ts[topic].Partitions.Sorted() {
			out = append(out, max(p.Leader, -1))
		}
		return err == nil && len(out) > 0
	}, "the leaders of %s", topic)
	return out
}

// load is an independent producer that writes to partitions in turn until it is stopped.
type load struct {
	acked [8]atomic.Int64 // by partition
	stop  func()          // returns when all that was written is acknowledged
}

func produce(t *testing.T, cluster *kafkatest.Cluster, topic string, partitions ...int32) *load {
	t.Helper()
	k := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.MaxBufferedRecords(1000))
	l := &load{}
	ctx, cancel := context.WithCancel(context.Background())
	var writing sync.WaitGroup
	writing.Go(func() {
		pace := time.NewTicker(2 * time.Millisecond)
		defer pace.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			p := partitions[i%len(partitions)]
			k.Produce(context.Background(), &kgo.Record{Topic: topic, Partition: p, Value: fmt.Appendf(nil, "%d", i)}, func(_ *kgo.Record, err error) {
				if err != nil {
					t.Errorf("produce to partition %d: %v", p, err)
					return
				}
				l.acked[p].Add(1)
			})
			<-pace.C
		}
	})
	l.stop = sync.OnceFunc(func() {
		cancel()
		writing.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := k.Flush(ctx); err != nil {
			t.Errorf("flush: %v", err)
		}
	})
	t.Cleanup(l.stop)
	return l
}

// exactly compares what a reader of the hub got with the log, in which each acknowledged record is once.
func exactly(t *testing.T, cluster *kafkatest.Cluster, c *kafka.Client, v *reader, topic string, l *load) {
	t.Helper()
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		id := p.Partition
		eventually(t, func() bool { return v.at(id) >= p.End }, "partition %d to %d, at %d", id, p.End, v.at(id))
		truth := texts(readLog(t, cluster, topic, id, p.End), ofTheirs)
		if got := texts(v.got(id), ofOurs); !slices.Equal(got, truth) {
			t.Errorf("partition %d: got %d records, the log has %d others", id, len(got), len(truth))
		}
		if n := l.acked[id].Load(); int64(len(truth)) != n || p.End != n {
			t.Errorf("partition %d: %d records acknowledged, the log has %d up to %d", id, n, len(truth), p.End)
		}
	}
	if len(v.gaps) != 0 {
		t.Errorf("got gaps %+v", v.gaps)
	}
}

// testLeaderMoves: where another replica takes over, subscribers see nothing but a pause.
func testLeaderMoves(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 3
	topic := replicated(t, cluster, partitions, 3)
	c := newClient(t, cluster)
	eventually(t, func() bool { // not every broker has heard of the topic at once
		_, err := c.Resolve(t.Context(), topic, hub.Query{})
		return err == nil
	}, "the topic is known")
	v := subscribe(t, newHub(t, c, 8<<20), hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}})
	l := produce(t, cluster, topic, 0, 1, 2)
	flows := func(what string) {
		t.Helper()
		for p := range int32(partitions) {
			before := v.at(p)
			eventually(t, func() bool { return v.at(p) > before+50 }, "%s: records of partition %d flow", what, p)
		}
	}
	flows("at first")
	victim := leaders(t, cluster, topic)[0]
	cluster.Kill9(t, int(victim))
	killed, at := time.Now(), v.at(0)
	eventually(t, func() bool {
		<-time.After(50 * time.Millisecond)
		ls := leaders(t, cluster, topic)
		return ls[0] >= 0 && ls[0] != victim
	}, "another leader")
	elected := time.Now()
	acked := l.acked[0].Load()
	eventually(t, func() bool { return l.acked[0].Load() > acked || v.at(0) > at+10 }, "records are written to the new leader")
	written := time.Now()
	eventually(t, func() bool { return v.at(0) > at+10 }, "records of the new leader")
	t.Logf("another leader within %v of the kill, written to within %v, its records within %v of that", elected.Sub(killed), written.Sub(elected), time.Since(written))
	flows("with two brokers")
	cluster.Restart(t, int(victim))
	flows("with three brokers again")
	eventually(t, func() bool { return len(v.sub.Unavailable(nil)) == 0 }, "all partitions are available")
	l.stop()
	exactly(t, cluster, c, v, topic, l)
}

// testLeaderAway: partitions whose only replica is away are told as such and wait; others are not concerned, be it live or in history.
func testLeaderAway(t *testing.T, cluster *kafkatest.Cluster) {
	const partitions = 6
	topic := replicated(t, cluster, partitions, 1)
	c := newClient(t, cluster)
	eventually(t, func() bool { // a broker that has just come back may not have heard of the topic
		_, err := c.Resolve(t.Context(), topic, hub.Query{})
		return err == nil
	}, "the topic is known")
	h := newHub(t, c, 8<<20)
	v := subscribe(t, h, hub.Request{Topic: topic, Start: hub.Start{Kind: hub.Earliest}})
	l := produce(t, cluster, topic, 0, 1, 2, 3, 4, 5)
	for p := range int32(partitions) {
		eventually(t, func() bool { return v.at(p) > 50 }, "records of partition %d flow", p)
	}
	l.stop()
	exactly(t, cluster, c, v, topic, l)
	r := resolve(t, c, topic, hub.Query{})
	var dead, healthy []int32
	victim := leaders(t, cluster, topic)[0]
	for p, leader := range leaders(t, cluster, topic) {
		if leader == victim {
			dead = append(dead, int32(p))
		} else {
			healthy = append(healthy, int32(p))
		}
	}
	if len(dead) == 0 || len(healthy) < 2 {
		t.Fatalf("broker %d leads %v, others %v", victim, dead, healthy)
	}
	idle := healthy[0] // nothing is written to it: its being there is not seen by records
	cluster.Kill9(t, int(victim))
	killed := time.Now()
	told := make(chan time.Duration, 1)
	go func() {
		for len(v.sub.Unavailable(nil)) == 0 && t.Context().Err() == nil {
			<-time.After(5 * time.Millisecond)
		}
		told <- time.Since(killed)
	}()

	// Many reads of what cannot be read, at places of their own, so that none is served from what others fetched.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	var failed atomic.Int64
	for n := range 40 {
		waiting.Go(func() {
			p := dead[n%len(dead)]
			for ctx.Err() == nil {
				_, next, err := c.ReadAt(ctx, hub.ChunkID{Topic: topic, TopicID: r.TopicID, Partition: p, From: int64(n)}, 50, 10, nil)
				switch {
				case err == nil: // fetched before the kill
					if next <= int64(n) {
						t.Errorf("partition %d: read from %d to %d", p, n, next)
					}
				case !errors.Is(err, hub.ErrUnavailable) && ctx.Err() == nil:
					t.Errorf("partition %d: %v", p, err)
				default:
					failed.Add(1)
				}
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	eventually(t, func() bool { return failed.Load() > 0 }, "reads fail")
	for range 3 { // before Kafka knows, and after
		for _, p := range healthy {
			truth := texts(readLog(t, cluster, topic, p, v.at(p)), ofTheirs)
			read := time.Now()
			past := history(t, c, hub.ChunkID{Topic: topic, TopicID: r.TopicID, Partition: p}, v.at(p), 20)
			if got := texts(past, ofOurs); !slices.Equal(got, truth) {
				t.Errorf("history of partition %d: got %d records, the log has %d others", p, len(got), len(truth))
			}
			t.Logf("history of partition %d: %d records in %v, %d reads of others have failed", p, len(past), time.Since(read), failed.Load())
		}
		bounded := subscribe(t, h, hub.Request{Topic: topic, Partitions: healthy, Start: hub.Start{Kind: hub.Earliest}})
		for _, p := range healthy {
			eventually(t, func() bool { return bounded.at(p) >= v.at(p) }, "a newcomer gets partition %d", p)
		}
		bounded.stop()
		eventually(t, func() bool { return len(v.sub.Unavailable(nil)) == len(dead) }, "the partitions of the dead broker are unavailable, %v", v.sub.Unavailable(nil))
	}
	t.Logf("told unavailable within %v of the kill", <-told)
	if got := v.sub.Unavailable(nil); !slices.Equal(got, dead) {
		t.Errorf("got unavailable %v, want %v", got, dead)
	}
	more := produce(t, cluster, topic, healthy[1:]...)
	for _, p := range healthy[1:] {
		before := v.at(p)
		eventually(t, func() bool { return v.at(p) > before+50 }, "records of partition %d flow", p)
	}
	for _, p := range dead {
		if at := v.at(p); at != l.acked[p].Load() {
			t.Errorf("partition %d is at %d, want %d as before", p, at, l.acked[p].Load())
		}
	}
	if got := v.sub.Unavailable(nil); slices.Contains(got, idle) || !slices.Equal(got, dead) {
		t.Errorf("got unavailable %v, want %v", got, dead)
	}
	cancel()
	waiting.Wait()
	cluster.Restart(t, int(victim))
	ready := time.Now()
	eventually(t, func() bool { return len(v.sub.Unavailable(nil)) == 0 }, "all partitions are available")
	t.Logf("told available within %v of the broker's being ready", time.Since(ready))
	last := produce(t, cluster, topic, dead...)
	for _, p := range dead {
		before := l.acked[p].Load()
		eventually(t, func() bool { return v.at(p) > before+20 }, "records of partition %d flow again", p)
	}
	more.stop()
	last.stop()
	for p := range l.acked {
		l.acked[p].Add(more.acked[p].Load() + last.acked[p].Load())
	}
	exactly(t, cluster, c, v, topic, l)
	for _, p := range resolve(t, c, topic, hub.Query{}).Partitions {
		past := history(t, c, hub.ChunkID{Topic: topic, TopicID: r.TopicID, Partition: p.Partition}, p.End, 100)
		if len(past) != int(p.End) {
			t.Errorf("history of partition %d: got %d records, want %d", p.Partition, len(past), p.End)
		}
	}
}
