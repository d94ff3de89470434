package stream_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

func TestRecordsComeByteForByteAndCaughtUpOnce(t *testing.T) {
	s := start(t, patience)
	var want [3][]hubtest.Record
	for i := range 3000 {
		p := i % 3
		r := hubtest.Record{Key: fmt.Appendf(nil, "k%d", i%7), Value: bytes.Repeat([]byte{byte(i)}, i%500)}
		want[p] = append(want[p], r)
		s.source.Append("orders", int32(p), r)
	}
	m := earliest(orders())
	m.MaxBatchBytes = 8 << 10
	sub := subscribe(t, s.client(), m)
	sub.started()

	var got [3]int
	caughtUp, live := 0, false
	for got[0]+got[1]+got[2] < 3003 {
		m := sub.next()
		size := 0
		for _, b := range m.GetRecords().GetBatches() {
			p := b.GetPartition()
			for _, r := range b.GetRecords() {
				o := int64(got[p])
				piece := &tailracev1.RecordBatch{}
				if err := proto.Unmarshal(hubtest.Piece("orders", p, o, r.GetLeaderEpoch(), want[p][o]), piece); err != nil {
					t.Fatal(err)
				}
				if !proto.Equal(r, piece.GetRecords()[0]) {
					t.Fatalf("partition %d: got %v, want %v", p, r, piece.GetRecords()[0])
				}
				got[p]++
				size += proto.Size(r)
			}
			if b.GetNext() < int64(got[p]) {
				t.Errorf("partition %d: next is %d after offset %d", p, b.GetNext(), got[p]-1)
			}
		}
		if size > 8<<10+1000 {
			t.Errorf("a message has %d bytes of records, 8 KiB were asked for", size)
		}
		if m.GetCaughtUp() != nil {
			caughtUp++
			if got != [3]int{1000, 1000, 1000} {
				t.Errorf("caught up after %v", got)
			}
		}
		if caughtUp > 0 && !live {
			live = true
			for p := range 3 {
				r := hubtest.Text("live", fmt.Sprint(p))
				want[p] = append(want[p], r)
				s.source.Append("orders", int32(p), r)
			}
		}
	}
	if caughtUp != 1 {
		t.Errorf("caught up %d times", caughtUp)
	}
	eventually(t, "the metric says 3003 records", func() bool { return s.metric("tailrace_stream_records_sent_total", "orders") == 3003 })
}

func TestALargeRecordTravelsAlone(t *testing.T) {
	s := start(t, patience)
	s.source.Append("orders", 0, hubtest.Text("k", "small"), hubtest.Record{Value: make([]byte, 3<<20)}, hubtest.Text("k", "small"))
	m := earliest(orders())
	m.MaxBatchBytes = 1 << 30 // held to 2 MiB
	sub := subscribe(t, s.client(), m)
	for n := 0; n < 3; {
		for _, b := range sub.next().GetRecords().GetBatches() {
			for _, r := range b.GetRecords() {
				if len(r.GetValue()) > 1<<20 && len(b.GetRecords()) > 1 {
					t.Errorf("it came with %d others", len(b.GetRecords())-1)
				}
				n++
			}
		}
	}
}

func TestAStopEndsTheStreamWithoutError(t *testing.T) {
	s := start(t, patience)
	s.source.Append("orders", 0, hubtest.Text("k", "v"))
	m := earliest(orders())
	m.Stop = &tailracev1.Stop{AtEnd: true}
	sub := subscribe(t, s.client(), m)
	sub.started()
	sub.records(1)
	if err := sub.end(); err != nil {
		t.Errorf("got %v", err)
	}
	s.released()
	eventually(t, "an end that is done by the server", func() bool {
		return s.metric("tailrace_stream_ended_total", "ok", "DONE", "server") == 1
	})
}

func TestTopologyGapAndRecreationAreTold(t *testing.T) {
	s := start(t, patience)
	sub := subscribe(t, s.client(), orders())
	sub.started()
	s.source.Grow("orders", 5)
	topology := sub.until(func(m *tailracev1.SubscribeResponse) bool { return m.GetTopology() != nil }).GetTopology()
	if topology.GetPartitions() != 5 {
		t.Errorf("got %v", topology)
	}
	s.source.Append("orders", 4, hubtest.Text("k", "in a new partition"))
	if got := sub.records(1)[4]; len(got) != 1 {
		t.Errorf("got %v", got)
	}
	s.source.CreateTopic("orders", 5)
	gap := sub.until(func(m *tailracev1.SubscribeResponse) bool { return m.GetGap().GetPartition() == 4 && m.GetGap() != nil }).GetGap()
	if gap.GetReason() != tailracev1.GapReason_GAP_REASON_RECREATED || gap.GetFrom() != 1 || gap.GetTo() != 0 {
		t.Errorf("got %v", gap)
	}
	if n := s.metric("tailrace_stream_gaps_sent_total", "GAP_REASON_RECREATED"); n < 1 {
		t.Errorf("the metric says %v gaps", n)
	}
}

func TestADeletedTopicEndsTheStream(t *testing.T) {
	s := start(t, patience)
	sub := subscribe(t, s.client(), orders())
	sub.started()
	s.source.DeleteTopic("orders")
	if told := read(t, sub.end()); told.code != connect.CodeNotFound || told.reason != "TOPIC_DELETED" {
		t.Errorf("got %+v", told)
	}
}

// The edge passes it on to its users at once.
func TestAvailabilityIsToldAtOnce(t *testing.T) {
	s := start(t, patience)
	m := orders()
	m.HeartbeatInterval = durationpb.New(5 * time.Minute)
	sub := subscribe(t, s.client(), m)
	sub.started()
	s.source.SetUnavailable("orders", 1, true)
	lost := sub.until(func(m *tailracev1.SubscribeResponse) bool { return m.GetHeartbeat() != nil }).GetHeartbeat()
	if got := lost.GetUnavailablePartitions(); len(got) != 1 || got[0] != 1 {
		t.Errorf("got %v", got)
	}
	s.source.SetUnavailable("orders", 1, false)
	back := sub.until(func(m *tailracev1.SubscribeResponse) bool { return m.GetHeartbeat() != nil }).GetHeartbeat()
	if got := back.GetUnavailablePartitions(); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestStartAndEndAreOneLineEach(t *testing.T) {
	s := start(t, patience)
	s.source.Append("orders", 0, hubtest.Text("k", "v"))
	sub := subscribe(t, s.client(connect.WithGRPC()), earliest(orders()))
	sub.started()
	sub.records(1)
	if got := s.log.lines("session ended"); len(got) != 0 {
		t.Errorf("got %v of a session that is open", got)
	}
	sub.cancel()
	eventually(t, "the line of the end", func() bool { return len(s.log.lines("session ended", "Subscribe")) == 1 })
	if got := s.log.lines("session started", "topic=orders", "protocol=grpc", "partitions=3"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	if got := s.log.lines("session ended", "topic=orders", "code=canceled", "reason=CANCELED", "initiator=client", "records=1", "bytes=", "duration="); len(got) != 1 {
		t.Errorf("got %v", s.log.lines("session ended"))
	}
	if got := s.log.lines("level=INFO", "session "); len(got) != 2 {
		t.Errorf("got %v, want both lines at info", got)
	}
	// What reads a stretch of the log is a matter of debugging: an edge does so for each start.
	stretch := earliest(orders())
	stretch.Stop = &tailracev1.Stop{Records: 1}
	subscribe(t, s.client(connect.WithGRPC()), stretch).records(1)
	eventually(t, "the line of the end", func() bool { return len(s.log.lines("session ended", "reason=DONE", "level=DEBUG")) == 1 })
	if got := s.log.lines("level=DEBUG", "session started"); len(got) != 1 {
		t.Errorf("got %v, want the line of its start for debugging", got)
	}
	eventually(t, "no stream open", func() bool { return s.metric("tailrace_stream_open") == 0 })
	if n := s.metric("tailrace_stream_ended_total", "canceled", "client"); n != 1 {
		t.Errorf("the metric says %v ends", n)
	}
}
