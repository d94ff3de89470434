package stream_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// stalled opens a stream with a slow policy whose windows are small, lets it stall while records come for longer than it may be behind, and
// returns it with the number of records.
func stalled(t *testing.T, s *service, policy tailracev1.SlowPolicy) (*subscription, int64) {
	t.Helper()
	m := orders()
	m.SlowPolicy, m.MaxBatchBytes = policy, 64<<10
	config := &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 64 << 10}
	sub := subscribe(t, s.clientOn(config), m)
	sub.started()
	sub.until(func(m *tailracev1.SubscribeResponse) bool { return m.GetCaughtUp() != nil })
	n := int64(0)
	noise := rand.NewChaCha8([32]byte{}) // which compression makes no smaller
	for range 200 {                      // more than the kernel and the windows take
		value := make([]byte, 50_000)
		_, _ = noise.Read(value)
		s.source.Append("orders", 0, hubtest.Record{Key: []byte("big"), Value: value})
		n++
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i, began := 0, time.Now(); time.Since(began) < 4*slowly; i++ {
		<-tick.C
		s.source.Append("orders", 0, hubtest.Text(fmt.Sprintf("k%d", i%3), "v"))
		n++
	}
	return sub, n
}

// toEnd reads partition 0 up to an offset, and checks that every position is exact.
func (s *subscription) toEnd(end int64) (records, left int64, gaps []*tailracev1.Gap) {
	s.t.Helper()
	for at := int64(0); at < end; {
		m := s.next()
		for _, b := range m.GetRecords().GetBatches() {
			for _, r := range b.GetRecords() {
				if r.GetOffset() != at {
					s.t.Fatalf("got offset %d at %d", r.GetOffset(), at)
				}
				at++
				records++
			}
		}
		if gap := m.GetGap(); gap != nil {
			if gap.GetFrom() != at || gap.GetTo() <= at {
				s.t.Fatalf("got %v at %d", gap, at)
			}
			at = gap.GetTo()
			left += gap.GetRecords()
			gaps = append(gaps, gap)
		}
	}
	return records, left, gaps
}

func TestASlowStreamIsSkipped(t *testing.T) {
	s := startSlow(t)
	sub, n := stalled(t, s, tailracev1.SlowPolicy_SLOW_POLICY_SKIP)
	_, _, gaps := sub.toEnd(n)
	if len(gaps) == 0 {
		t.Error("got no gap")
	}
	for _, gap := range gaps { // more than one, if buffers took a little more meanwhile
		if gap.GetReason() != tailracev1.GapReason_GAP_REASON_SLOW {
			t.Errorf("got %v", gap)
		}
	}
	s.source.Append("orders", 0, hubtest.Text("k", "later"))
	if got := sub.records(1)[0][0].GetOffset(); got != n {
		t.Errorf("then came offset %d, want %d", got, n)
	}
	if got := s.log.lines("reader is slow", "action=skip", "topic=orders"); len(got) != len(gaps) {
		t.Errorf("the log says %v, want a line for each of %d gaps", got, len(gaps))
	}
	if got := s.metric("tailrace_hub_slow_readers_total", "skip"); got != float64(len(gaps)) {
		t.Errorf("the metric says %v", got)
	}
}

func TestASlowStreamIsConflated(t *testing.T) {
	s := startSlow(t)
	sub, n := stalled(t, s, tailracev1.SlowPolicy_SLOW_POLICY_CONFLATE)
	records, left, gaps := sub.toEnd(n)
	if len(gaps) == 0 || records+left != n {
		t.Errorf("%d records and %d left out by %d gaps, want %d in all", records, left, len(gaps), n)
	}
	for _, gap := range gaps {
		if gap.GetReason() != tailracev1.GapReason_GAP_REASON_CONFLATED || gap.GetRecords() != gap.GetTo()-gap.GetFrom() {
			t.Errorf("got %v", gap)
		}
	}
	if got := s.metric("tailrace_stream_gaps_sent_total", "GAP_REASON_CONFLATED"); got != float64(len(gaps)) {
		t.Errorf("the metric says %v gaps, want %d", got, len(gaps))
	}
}

func TestASlowStreamFails(t *testing.T) {
	s := startSlow(t)
	sub, _ := stalled(t, s, tailracev1.SlowPolicy_SLOW_POLICY_FAIL)
	if told := read(t, sub.end()); told.code != connect.CodeResourceExhausted || told.reason != "LAGGED" {
		t.Errorf("got %+v", told)
	}
	eventually(t, "the end is counted", func() bool { return s.metric("tailrace_stream_ended_total", "LAGGED", "server") == 1 })
}
