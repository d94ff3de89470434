package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// TestCompactedTopic reads a log with holes, while it is compacted and afterwards.
func TestCompactedTopic(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(2, "cleanup.policy=compact", "segment.ms=100", "segment.bytes=1048576", "min.cleanable.dirty.ratio=0.001", "min.compaction.lag.ms=0", "max.compaction.lag.ms=100")
	p := startPair(t, pairOptions{kafka: kafka})
	c := newCrowd(t.Context(), t, p, topic, 3, map[string]any{"start": "earliest"})
	pad := strings.Repeat("z", 2000)
	written := 0
	write := func() {
		var records []*kgo.Record
		for range 200 {
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(written % 2), Key: fmt.Appendf(nil, "k%d", written%10), Value: fmt.Appendf(nil, "%d %s", written, pad)})
			written++
		}
		j.write(records...)
	}
	var log *tape
	await(t, 2*time.Minute, "compaction", func() bool {
		write()
		log = j.read(topic, false)
		return log.count() < written*3/4
	})
	ends := j.ends(topic)
	c.awaitEnds(time.Minute, ends)
	for i, r := range c.readers {
		// They read while it was compacted: they have at least what is left, and everything in order (the reader sees to that).
		if r.count() < log.count() || len(r.gaps) > 0 {
			t.Errorf("socket %d got %d records and %d gaps, the log has %d", i, r.count(), len(r.gaps), log.count())
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// Afterwards, by processes that remember nothing of it; until it holds still, for the cleaner may be at work.
	c.leave()
	ok := eventually(ctx, 30*time.Second, func() bool {
		p.again()
		before := j.read(topic, false)
		overSocket, overRPC := newReader(topic, false), newReader(topic, false)
		s := dial(ctx, t, p, "/ws/"+topic+"?start=earliest&until=end", overSocket)
		defer s.abort(false)
		if err := s.run(func() bool { return s.ended["0"] != "" }); err != nil {
			t.Fatal(err)
		}
		receive, err := grpcSubscriber(t, p.rpc)(ctx, stopAtEnd(overRPC.request(earliest())))
		if err == nil {
			err = overRPC.follow(receive, forever)
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		log = j.read(topic, false)
		if before.count() != log.count() {
			return false
		}
		if err := errors.Join(overSocket.verify(log), overRPC.verify(log)); err != nil {
			t.Error(err)
		}
		return true
	})
	if !ok {
		t.Error("a compacted log never read as it is")
	}
	proof(t, "%d records written, %d left by compaction: read with holes over WebSocket and gRPC, none stalled", written, log.count())
}

func stopAtEnd(req *tailracev1.SubscribeRequest) *tailracev1.SubscribeRequest {
	req.Stop = &tailracev1.Stop{AtEnd: true}
	return req
}

// TestManyPartitions follows 400 partitions with sockets and streams.
func TestManyPartitions(t *testing.T) {
	const partitions = 400
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	began := time.Now()
	live := followLive(ctx, t, p, topic)
	started := time.Since(began)
	l := j.startLoad(topic, partitions, 2000, 100)
	pause(ctx, 3*time.Second)
	ends := l.stop()
	log := j.read(topic, true)
	live.verify(t, log, ends)
	r := newReader(topic, true)
	s := dial(ctx, t, p, "/ws/"+topic+"?start=earliest&until=end", r)
	if err := s.run(func() bool { return s.ended["0"] != "" }); err != nil {
		t.Error(err)
	}
	if err := r.verify(log); err != nil {
		t.Error(err)
	}
	proof(t, "%d partitions, %d readers started within %v; each got the %d records, live and from the start", partitions, len(live.readers), started.Round(time.Millisecond), log.count())
}
