package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// judge is an independent Kafka client: it makes topics, writes, and says what the log holds.
type judge struct {
	t         testing.TB
	bootstrap string
	client    *kgo.Client
	admin     *kadm.Client
}

func newJudge(t testing.TB, bootstrap string) *judge {
	t.Helper()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(1<<20),
		kgo.ProducerLinger(0),
		kgo.MaxBufferedRecords(100_000),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &judge{t: t, bootstrap: bootstrap, client: client, admin: kadm.NewClient(client)}
}

// topic makes a topic with a name of its own and returns the name.
func (j *judge) topic(partitions int, configs ...string) string {
	j.t.Helper()
	name := fmt.Sprintf("%s-%d", strings.ToLower(strings.ReplaceAll(j.t.Name(), "/", "-")), time.Now().UnixNano())
	settings := map[string]*string{}
	for _, config := range configs {
		k, v, _ := strings.Cut(config, "=")
		settings[k] = &v
	}
	resp, err := j.admin.CreateTopic(j.t.Context(), int32(partitions), 1, settings, name)
	if err == nil {
		err = resp.Err
	}
	if err != nil {
		j.t.Fatalf("creating topic %s: %v", name, err)
	}
	await(j.t, time.Minute, "leaders for all partitions", func() bool {
		ends, err := j.admin.ListEndOffsets(j.t.Context(), name)
		return err == nil && ends.Error() == nil && len(ends[name]) == partitions
	})
	return name
}

// ends are the last stable offsets of a topic.
func (j *judge) ends(topic string) map[int32]int64 {
	j.t.Helper()
	listed, err := j.admin.ListCommittedOffsets(j.t.Context(), topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		j.t.Fatalf("listing the ends of %s: %v", topic, err)
	}
	ends := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return ends
}

// read returns all committed records of a topic, from its oldest to the ends of now.
func (j *judge) read(topic string, keep bool) *tape {
	j.t.Helper()
	ends := j.ends(topic)
	starts, err := j.admin.ListStartOffsets(j.t.Context(), topic)
	if err != nil {
		j.t.Fatal(err)
	}
	left := map[int32]int64{}
	from := map[int32]kgo.Offset{}
	for p, end := range ends {
		from[p] = kgo.NewOffset().AtStart()
		if start, ok := starts.Lookup(topic, p); ok && start.Offset < end {
			left[p] = end
		}
	}
	consumer, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(j.bootstrap, ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // the last offsets may be those of a transaction's markers
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		j.t.Fatal(err)
	}
	defer consumer.Close()
	ctx, cancel := context.WithTimeout(j.t.Context(), 2*time.Minute)
	defer cancel()
	out := newTape(keep)
	for len(left) > 0 {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			j.t.Fatalf("reading %s: %v, left %v", topic, err, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, wanted := left[r.Partition]
			if !wanted || r.Offset >= end {
				return
			}
			if !r.Attrs.IsControl() {
				out.add(recordOfKafka(r))
			}
			if r.Offset >= end-1 {
				delete(left, r.Partition)
			}
		})
	}
	return out
}

// recordOfKafka is what any client must get of a record. A header's name that is not UTF-8 cannot travel in protobuf or JSON as it is.
func recordOfKafka(r *kgo.Record) *record {
	rec := &record{partition: r.Partition, offset: r.Offset, time: r.Timestamp.UnixMilli(), key: r.Key, value: r.Value}
	for _, h := range r.Headers {
		rec.headers = append(rec.headers, header{name: strings.ToValidUTF8(h.Key, "\uFFFD"), value: h.Value})
	}
	return rec
}

// write appends records and waits until all are acknowledged.
func (j *judge) write(records ...*kgo.Record) {
	j.t.Helper()
	if err := j.client.ProduceSync(j.t.Context(), records...).FirstErr(); err != nil {
		j.t.Fatalf("writing %d records: %v", len(records), err)
	}
}

// rateFor is how many records a second a topic with so many sockets gets: as many deliveries as a busy machine with two cores has room for,
// the strict clients included.
func rateFor(sockets int) int { return min(50, max(2, 20_000/sockets)) }

// load writes to a topic at a steady rate until stop.
type load struct {
	j          *judge
	topic      string
	partitions int
	cancel     context.CancelFunc
	done       chan struct{}
	sent       atomic.Int64
	failed     atomic.Pointer[error]
}

// startLoad writes records of about valueSize bytes, some with keys, headers, tombstones and values that are not JSON.
func (j *judge) startLoad(topic string, partitions, perSecond, valueSize int) *load {
	ctx, cancel := context.WithCancel(context.WithoutCancel(j.t.Context()))
	l := &load{j: j, topic: topic, partitions: partitions, cancel: cancel, done: make(chan struct{})}
	go l.run(ctx, perSecond, strings.Repeat("x", valueSize))
	j.t.Cleanup(func() { l.stop() })
	return l
}

func (l *load) run(ctx context.Context, perSecond int, pad string) {
	defer close(l.done)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		due := int64(time.Since(began).Seconds() * float64(perSecond))
		for n := l.sent.Load(); n < due; n = l.sent.Add(1) {
			l.j.client.Produce(context.WithoutCancel(ctx), mixed(l.topic, int32(n%int64(l.partitions)), n, pad), func(_ *kgo.Record, err error) {
				if err != nil {
					l.failed.Store(&err)
				}
			})
		}
	}
}

// mixed makes the nth record of a load.
func mixed(topic string, partition int32, n int64, pad string) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: partition}
	switch n % 8 {
	case 0:
		r.Value = []byte("text " + strconv.FormatInt(n, 10) + " " + pad)
	case 1:
		r.Value = append([]byte{0xFF, 0x00}, pad...)
	case 2:
		r.Key = []byte{0xFE, byte(n)}
	default:
		r.Key = []byte("k" + strconv.FormatInt(rand.Int64N(50), 10))
		r.Value = []byte(`{"n":` + strconv.FormatInt(n, 10) + `,"pad":"` + pad + `"}`)
	}
	if n%5 == 0 {
		r.Headers = []kgo.RecordHeader{{Key: "h", Value: []byte("v")}, {Key: "h"}, {Key: "b", Value: []byte{0xC0}}}
	}
	return r
}

// stop ends the load, waits until every record is acknowledged and returns the ends of the log.
func (l *load) stop() map[int32]int64 {
	l.j.t.Helper()
	l.cancel()
	<-l.done
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.j.t.Context()), time.Minute)
	defer cancel()
	if err := l.j.client.Flush(ctx); err != nil {
		l.j.t.Errorf("flushing the load: %v", err)
	}
	if err := l.failed.Load(); err != nil {
		l.j.t.Errorf("load: %v", *err)
	}
	if l.j.t.Context().Err() != nil {
		return nil
	}
	return l.j.ends(l.topic)
}
