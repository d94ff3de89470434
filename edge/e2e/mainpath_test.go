package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// written is what somebody was told to have published: a specimen by its place.
type written map[[2]int64]*specimen

// TestMainPath publishes every kind of record in every way and reads it in every way: before, while and after it is written.
func TestMainPath(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(3)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	live := followLive(ctx, t, p, topic)
	published := written{}
	compressions(t, j, topic)
	publishBatch(ctx, t, p, topic, published)
	publishOneByOne(ctx, t, p, topic, published)
	publishBySocket(ctx, t, p, topic, published)
	transactions(t, j, topic)

	log := j.read(topic, true)
	for place, s := range published {
		found := log.only(func(r *record) bool { return int64(r.partition) == place[0] && r.offset == place[1] })
		if found.count() != 1 || !s.equals(&found.whole[int32(place[0])][0]) {
			t.Errorf("published %q at %v, the log has %v", s.name, place, found.whole)
		}
	}
	live.verify(t, log, j.ends(topic))

	ways := 0
	for name, subscribe := range subscribers(t, p.rpc) {
		r := newReader(topic, true)
		req := r.request(earliest())
		req.Stop = &tailracev1.Stop{AtEnd: true}
		receive, err := subscribe(ctx, req)
		if err == nil {
			err = r.follow(receive, forever)
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: the stream ended with %v, want EOF", name, err)
		}
		if err := r.verify(log); err != nil || !r.isCaughtUp() {
			t.Errorf("%s: caught up %v, %v", name, r.isCaughtUp(), err)
		}
		ways++
	}
	for _, as := range []string{"auto", "json", "text", "base64"} {
		r := newReader(topic, true)
		s := dial(ctx, t, p, "/ws/"+topic+"?start=earliest&until=end&as="+as, r)
		if err := s.run(func() bool { return s.ended["0"] != "" }); err != nil {
			t.Errorf("as %s: %v", as, err)
		}
		if err := r.verify(log); err != nil || !r.isCaughtUp() {
			t.Errorf("as %s: caught up %v, %v", as, r.isCaughtUp(), err)
		}
		ways++
		s.abort(false)
	}
	proof(t, "%d records (3 ways to publish, 5 compressions, transactions) read live by %d readers and from the start in %d ways, byte for byte", log.count(), len(live.readers), ways)
}

// dial opens a session or fails the test.
func dial(ctx context.Context, t testing.TB, p *pair, path string, r *reader) *session {
	t.Helper()
	s, err := dialSession(ctx, p.ws, path, r, dialOptions{})
	if err != nil {
		t.Fatalf("dialling %s: %v", path, err)
	}
	context.AfterFunc(ctx, func() { s.conn.Close() })
	return s
}

// followers are readers that follow a topic live, one in each way.
type followers struct {
	readers map[string]*reader
	failed  sync.Map // name → error
	wg      sync.WaitGroup
}

func followLive(ctx context.Context, t *testing.T, p *pair, topic string) *followers {
	t.Helper()
	f := &followers{readers: map[string]*reader{}}
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(func() {
		cancel()
		f.wg.Wait()
	})
	for name, subscribe := range subscribers(t, p.rpc) {
		r := newReader(topic, true)
		f.readers[name] = r
		f.wg.Go(func() {
			receive, err := subscribe(ctx, r.request(nil))
			if err == nil {
				err = r.follow(receive, forever)
			}
			if ctx.Err() == nil {
				f.failed.Store(name, err)
			}
		})
	}
	for _, as := range []string{"auto", "base64"} {
		r := newReader(topic, true)
		s := dial(ctx, t, p, "/ws", nil)
		if err := s.subscribe("live", r, map[string]any{"as": as}); err != nil {
			t.Fatal(err)
		}
		name := "socket " + as
		f.readers[name] = r
		f.wg.Go(func() {
			if err := s.run(forever); ctx.Err() == nil {
				f.failed.Store(name, err)
			}
		})
	}
	for name, r := range f.readers {
		await(t, 20*time.Second, name+" started", r.isStarted)
	}
	return f
}

func (f *followers) verify(t *testing.T, log *tape, ends map[int32]int64) {
	t.Helper()
	for name, r := range f.readers {
		ok := eventually(t.Context(), 30*time.Second, func() bool {
			_, failed := f.failed.Load(name)
			return failed || r.reached(ends)
		})
		if err, failed := f.failed.Load(name); failed {
			t.Errorf("live, %s: %v", name, err)
		} else if !ok {
			next, _ := r.positions()
			t.Errorf("live, %s: at %v, never came to the ends %v", name, next, ends)
		}
		if err := r.verify(log); err != nil {
			t.Errorf("live, %s: %v", name, err)
		}
	}
}

// compressions writes the zoo with the independent client, once for each codec.
func compressions(t *testing.T, j *judge, topic string) {
	t.Helper()
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	} {
		client, err := kgo.NewClient(kgo.SeedBrokers(j.bootstrap), kgo.ProducerBatchCompression(codec), kgo.ProducerBatchMaxBytes(1<<20), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		var records []*kgo.Record
		for i, s := range zoo() {
			if len(s.value) < 100_000 || name == "zstd" {
				records = append(records, s.forKafka(topic, int32(i%3)))
			}
		}
		records = append(records, &kgo.Record{Topic: topic, Headers: []kgo.RecordHeader{{Key: "not \xff UTF-8", Value: []byte("v")}}})
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Errorf("writing with %s: %v", name, err)
		}
		client.Close()
	}
}

// publishBatch publishes the zoo, without the big ones, by one call of Publish over Connect.
func publishBatch(ctx context.Context, t *testing.T, p *pair, topic string, published written) {
	t.Helper()
	var batch []*specimen
	req := &tailracev1.PublishRequest{Topic: topic}
	for _, s := range zoo() {
		if len(s.value) < 100_000 {
			batch = append(batch, &s)
			req.Records = append(req.Records, s.forRPC())
		}
	}
	results, err := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc).Publish(ctx, req)
	if err != nil {
		t.Fatalf("Publish over Connect: %v", err)
	}
	if got, want := len(results.GetResults()), len(batch); got != want {
		t.Fatalf("%d results, want %d", got, want)
	}
	for i, result := range results.GetResults() {
		published.note(t, batch[i], result)
	}
}

func (w written) note(t *testing.T, s *specimen, result *tailracev1.PublishResult) {
	t.Helper()
	at := result.GetPublished()
	if at == nil {
		t.Fatalf("publishing %q failed: %v", s.name, result.GetFailure())
	}
	w.place(t, s, at.GetPartition(), at.GetOffset())
}

func (w written) place(t *testing.T, s *specimen, partition int32, offset int64) {
	t.Helper()
	if s.key != nil {
		// The partition that Kafka's Java client would choose (murmur2 of the key).
		if want := kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: s.key}, 3); int(partition) != want {
			t.Errorf("%q went to partition %d, its key hashes to %d", s.name, partition, want)
		}
	}
	place := [2]int64{int64(partition), offset}
	if w[place] != nil {
		t.Errorf("%q and %q were both published at %v", w[place].name, s.name, place)
	}
	w[place] = s
}

// publishOneByOne publishes the zoo by grpc-go, a call for each, from many goroutines at once.
func publishOneByOne(ctx context.Context, t *testing.T, p *pair, topic string, published written) {
	t.Helper()
	conn := grpcConn(t, p.rpc)
	animals := zoo()
	responses := make([]tailracev1.PublishResponse, len(animals))
	var calls sync.WaitGroup
	for i := range animals {
		calls.Go(func() {
			req := &tailracev1.PublishRequest{Topic: topic, Records: []*tailracev1.PublishRecord{animals[i].forRPC()}}
			if err := conn.Invoke(ctx, tailracev1connect.StreamServicePublishProcedure, req, &responses[i]); err != nil {
				t.Errorf("Publish of %q over grpc-go: %v", animals[i].name, err)
			}
		})
	}
	calls.Wait()
	for i := range responses {
		if results := responses[i].GetResults(); len(results) == 1 {
			published.note(t, &animals[i], results[0])
		} else {
			t.Errorf("%d results for %q", len(results), animals[i].name)
		}
	}
}

// publishBySocket publishes the zoo over one WebSocket.
func publishBySocket(ctx context.Context, t *testing.T, p *pair, topic string, published written) {
	t.Helper()
	s := dial(ctx, t, p, "/ws", nil)
	defer s.abort(false)
	animals := zoo()
	for i := range animals {
		if err := s.write(opText, animals[i].forSocket("p"+strconv.Itoa(i), topic)); err != nil {
			t.Fatal(err)
		}
	}
	s.within(30 * time.Second)
	if err := s.run(func() bool { return s.publishedCount()+len(s.errorFrames()) == len(animals) }); err != nil {
		t.Fatalf("publishing by socket: %v, %d published", err, s.publishedCount())
	}
	for _, f := range s.errorFrames() {
		t.Errorf("publishing by socket: %+v", f)
	}
	for i := range animals {
		if f, ok := s.published["p"+strconv.Itoa(i)]; ok {
			published.place(t, &animals[i], f.Partition, f.Offset)
		}
	}
}

// transactions writes committed and aborted ones, the last of each partition aborted: the log ends with offsets that hold no record.
func transactions(t *testing.T, j *judge, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(j.bootstrap), kgo.TransactionalID(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for round := range 7 {
		commit := kgo.TransactionEndTry(round%2 == 1) // 0, 2, 4, 6 are aborted
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		var records []*kgo.Record
		for i := range 30 {
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % 3), Value: fmt.Appendf(nil, "transaction %d, commit %v, record %d", round, commit, i)})
		}
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
	}
}
