package stream_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// tell reads a stream to its end and describes it, started, batches without records and heartbeats aside.
func (s *subscription) tell() (lines []string) {
	s.t.Helper()
	for s.stream.Receive() {
		m := s.stream.Msg()
		for _, b := range m.GetRecords().GetBatches() {
			for _, r := range b.GetRecords() {
				lines = append(lines, fmt.Sprintf("%d/%d", b.GetPartition(), r.GetOffset()))
			}
		}
		switch gap := m.GetGap(); {
		case gap != nil:
			lines = append(lines, fmt.Sprintf("%d [%d, %d) %s", gap.GetPartition(), gap.GetFrom(), gap.GetTo(), gap.GetReason().String()[len("GAP_REASON_"):]))
		case m.GetCaughtUp() != nil:
			lines = append(lines, "caught up")
		}
	}
	if err := s.stream.Err(); err != nil {
		s.t.Errorf("the stream ends with %v", err)
	}
	return lines
}

func upTo(ps ...int64) *tailracev1.Stop {
	stop := &tailracev1.Stop{}
	for p, o := range ps {
		stop.Positions = append(stop.Positions, &tailracev1.Position{Partition: int32(p), Offset: o})
	}
	return stop
}

// Every form of a stop, and what is left out or chosen before it.
func TestStopsAndChoices(t *testing.T) {
	s := start(t, patience)
	for i := range 4 {
		s.source.Append("orders", 0, hubtest.Text("k", fmt.Sprint(i)))
	}
	s.source.Append("orders", 1, hubtest.Text("k", "a"), hubtest.Text("k", string(make([]byte, 500))), hubtest.Text("k", "b"))
	s.source.AppendOpen("orders", 1, hubtest.Text("k", "of an open transaction"))
	zero := []int32{0}
	size := int64(0)
	{
		m := earliest(orders())
		m.Partitions, m.Stop = zero, &tailracev1.Stop{Records: 1}
		sub := subscribe(t, s.client(), m)
		sub.started()
		size = int64(len(sub.records(1)[0][0].GetValue())) // the least that a record has
	}
	for name, test := range map[string]struct {
		change func(m *tailracev1.SubscribeRequest)
		want   []string
	}{
		"positions": {func(m *tailracev1.SubscribeRequest) { m.Partitions, m.Stop = zero, upTo(2) }, []string{"0/0", "0/1"}},
		"the end, which is before an open transaction": {func(m *tailracev1.SubscribeRequest) {
			m.Partitions, m.Stop = []int32{1}, &tailracev1.Stop{AtEnd: true}
		}, []string{"1/0", "1/1", "1/2", "caught up"}},
		"records": {func(m *tailracev1.SubscribeRequest) { m.Partitions, m.Stop = zero, &tailracev1.Stop{Records: 3} }, []string{"0/0", "0/1", "0/2"}},
		"bytes":   {func(m *tailracev1.SubscribeRequest) { m.Partitions, m.Stop = zero, &tailracev1.Stop{Bytes: size} }, []string{"0/0"}},
		"what comes first": {func(m *tailracev1.SubscribeRequest) {
			m.Partitions, m.Stop = zero, upTo(2)
			m.Stop.Records = 1
		}, []string{"0/0"}},
		"a record that is too large": {func(m *tailracev1.SubscribeRequest) {
			m.Partitions, m.Stop, m.MaxRecordBytes = []int32{1}, &tailracev1.Stop{AtEnd: true}, 300
		}, []string{"1/0", "1 [1, 2) TOO_LARGE", "1/2", "caught up"}},
		"positions that skip the others": {func(m *tailracev1.SubscribeRequest) {
			m.Start = at(&tailracev1.Position{Partition: 0, Offset: 3})
			m.Start.GetPositions().Missing = tailracev1.MissingPosition_MISSING_POSITION_SKIP
			m.Stop = &tailracev1.Stop{AtEnd: true}
		}, []string{"0/3", "caught up"}},
		"positions that take the others from the end": {func(m *tailracev1.SubscribeRequest) {
			m.Start = at(&tailracev1.Position{Partition: 0, Offset: 3})
			m.Start.GetPositions().Missing = tailracev1.MissingPosition_MISSING_POSITION_LATEST
			m.Stop = &tailracev1.Stop{AtEnd: true}
		}, []string{"0/3", "caught up"}},
		"another log's positions": {func(m *tailracev1.SubscribeRequest) {
			m.Partitions, m.TopicId, m.Stop = zero, "of long ago", &tailracev1.Stop{AtEnd: true}
			m.Start = at(&tailracev1.Position{Partition: 0, Offset: 2})
		}, []string{"0 [2, 0) RECREATED", "0/0", "0/1", "0/2", "0/3", "caught up"}},
	} {
		m := earliest(orders())
		test.change(m)
		sub := subscribe(t, s.client(), m)
		sub.started()
		if got := sub.tell(); !slices.Equal(slices.DeleteFunc(got, func(l string) bool { return l == "caught up" && !slices.Contains(test.want, l) }), test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// Keys are looked for where they hash to, or everywhere.
func TestKeyScopes(t *testing.T) {
	s := start(t, patience)
	for p := range int32(3) {
		s.source.Append("orders", p, hubtest.Text("k", "v"))
	}
	for scope, want := range map[tailracev1.KeyScope]int{
		tailracev1.KeyScope_KEY_SCOPE_UNSPECIFIED: 3, tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS: 3, tailracev1.KeyScope_KEY_SCOPE_HASHED: 1,
	} {
		m := earliest(orders())
		m.Keys, m.KeyScope, m.Stop = [][]byte{[]byte("k")}, scope, &tailracev1.Stop{AtEnd: true}
		sub := subscribe(t, s.client(), m)
		if got := len(sub.started().GetPartitions()); got != want {
			t.Errorf("%v: %d partitions are read, want %d", scope, got, want)
		}
		records := slices.DeleteFunc(sub.tell(), func(l string) bool { return l == "caught up" })
		if len(records) != want {
			t.Errorf("%v: got %q, want %d records", scope, records, want)
		}
	}
}

// An open transaction is beyond the end: nobody waits for it to have caught up, and nobody lags behind it.
func TestTheEndIsTheLastStableOffset(t *testing.T) {
	s := start(t, patience)
	s.source.Append("orders", 0, hubtest.Text("k", "v"))
	s.source.AppendOpen("orders", 0, hubtest.Text("k", "open"), hubtest.Text("k", "open"))
	m := earliest(orders())
	m.HeartbeatInterval = durationpb.New(time.Second)
	sub := subscribe(t, s.client(), m)
	for _, p := range sub.started().GetPartitions() {
		if p.GetPartition() == 0 && p.GetEnd() != 1 {
			t.Errorf("the end is %d, want 1", p.GetEnd())
		}
	}
	sub.records(1)
	sub.until(func(m *tailracev1.SubscribeResponse) bool { return m.GetCaughtUp() != nil })
	beat := sub.until(func(m *tailracev1.SubscribeResponse) bool { return m.GetHeartbeat() != nil }).GetHeartbeat()
	if beat.GetLag() != 0 {
		t.Errorf("the lag is %d, want 0", beat.GetLag())
	}
	s.source.Commit("orders", 0)
	if got := sub.records(2)[0]; got[0].GetOffset() != 1 || got[1].GetOffset() != 2 {
		t.Errorf("after the commit came %v", got)
	}
}
