package kafka_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// refuseProduce answers produce requests for a partition with an error, without appending, until allow.
func refuseProduce(t *testing.T, fake *kfake.Cluster, cluster *kafkatest.Cluster, topic string, partition int32, e *kerr.Error) (allow func()) {
	t.Helper()
	details, err := cluster.Admin(t).ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	id := details[topic].ID
	var allowed atomic.Bool
	fake.ControlKey(int16(kmsg.Produce), func(q kmsg.Request) (kmsg.Response, error, bool) {
		if allowed.Load() {
			return nil, nil, false
		}
		fake.KeepControl()
		req, _ := q.(*kmsg.ProduceRequest)
		res, _ := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.Topics {
			if len(req.Topics) > 1 || len(rt.Partitions) > 1 {
				t.Errorf("a produce request is for several partitions: %v", req.Topics)
			}
			if rt.Topic != topic && rt.TopicID != [16]byte(id) || rt.Partitions[0].Partition != partition {
				return nil, nil, false
			}
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition, p.ErrorCode, p.BaseOffset = partition, e.Code, -1
			to := kmsg.NewProduceResponseTopic()
			to.Topic, to.TopicID, to.Partitions = rt.Topic, rt.TopicID, append(to.Partitions, p)
			res.Topics = append(res.Topics, to)
		}
		return res, nil, true
	})
	return func() { allowed.Store(true) }
}

// values are what a partition holds, in order.
func values(t *testing.T, c *kafka.Client, cluster *kafkatest.Cluster, topic string, partition int32) (all []string) {
	t.Helper()
	for _, r := range readLog(t, cluster, topic, partition, readEnds(t, c, topic)[partition]) {
		if len(r.Headers) > 0 {
			t.Errorf("%s has headers %v", r.Value, r.Headers)
		}
		all = append(all, string(r.Value))
	}
	return all
}

// TestRedriveIsHeldByOneLetter: a dead letter that cannot be published at the moment holds its partition of the topic of dead letters. However often
// it is tried, nothing behind it is published meanwhile; the other partition goes on. When it works, the row of calls redrives each letter once.
func TestRedriveIsHeldByOneLetter(t *testing.T) {
	const before, behind = 7, 99
	fake, cluster := faulty(t)
	c := newClient(t, cluster)
	stuck, well, letters := cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 2, nil)
	name := stuck + "-group"
	var rs []*kgo.Record
	put := func(in int32, topic, format string, a ...any) {
		r := letterOf(letters, topic, 0, name, fmt.Sprintf(format, a...))
		r.Partition = in
		rs = append(rs, r)
	}
	var wantWell, wantStuck []string
	for i := range before {
		put(0, well, "before %d", i)
		wantWell = append(wantWell, fmt.Sprintf("before %d", i))
	}
	other := letterOf(letters, well, 0, "another-group", "skipped")
	rs = append(rs, other)
	for i := range 5 {
		put(0, stuck, "stuck %d", i)
		wantStuck = append(wantStuck, fmt.Sprintf("stuck %d", i))
	}
	wantWell = append(wantWell, "beside") // it does not wait
	for i := range behind {
		put(0, well, "behind %d", i)
		wantWell = append(wantWell, fmt.Sprintf("behind %d", i))
	}
	put(1, well, "beside")
	if err := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner())).ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}

	allow := refuseProduce(t, fake, cluster, stuck, 0, kerr.UnknownServerError)
	m := &tailracev1.RedriveDeadLettersRequest{DeadLetterTopic: letters, Group: name, MaxRecords: 1000}
	skipped, redriven := int64(0), int64(0)
	call := func() *tailracev1.RedriveDeadLettersResponse {
		t.Helper()
		r, err := c.RedriveDeadLetters(t.Context(), m, anyTopic)
		if err != nil {
			t.Fatal(err)
		}
		m.Positions = r.GetPositions()
		skipped += r.GetSkipped()
		for _, o := range r.GetRedriven() {
			redriven += o.GetRecords()
		}
		return r
	}
	for n := range 6 {
		r := call()
		f := r.GetFailures()
		if len(f) != 1 || f[0].GetPartition() != 0 || f[0].GetOffset() != before+1 || f[0].GetReason() != kafka.ReasonOutcomeUnknown || !f[0].GetRetryable() {
			t.Errorf("call %d: got failures %v, want one at %d", n, f, before+1)
		}
		if at := r.GetPositions(); r.GetDone() || at[0].GetOffset() != before+1 || at[1].GetOffset() != 1 {
			t.Errorf("call %d: got %v, want the positions %d and 1", n, r, before+1)
		}
		if got := values(t, c, cluster, well, 0); len(got) != before+1 || redriven != before+1 || skipped != 1 {
			t.Errorf("call %d: published are %q, told are %d, and %d skipped", n, got, redriven, skipped)
		}
	}
	allow()
	eventually(t, func() bool { return call().GetDone() }, "all letters are redriven")
	if got := values(t, c, cluster, well, 0); fmt.Sprint(got) != fmt.Sprint(wantWell) {
		t.Errorf("got %q, want %q", got, wantWell)
	}
	if got := values(t, c, cluster, stuck, 0); fmt.Sprint(got) != fmt.Sprint(wantStuck) {
		t.Errorf("got %q, want %q", got, wantStuck)
	}
	if want := int64(len(wantWell) + len(wantStuck)); redriven != want || skipped != 1 {
		t.Errorf("told are %d, and %d skipped, want %d and 1", redriven, skipped, want)
	}
}

// TestRedriveBesideAStuckPartition: of a topic of which one partition takes nothing, a few neighbours of the letter that goes there are published with
// it, once; calls that get no further publish nothing.
func TestRedriveBesideAStuckPartition(t *testing.T) {
	const before, behind, beyond = 20, 60, 15
	fake, cluster := faulty(t)
	c := newClient(t, cluster)
	topic, letters := cluster.NewTopic(t, 2, nil), cluster.NewTopic(t, 1, nil)
	name := topic + "-group"
	var rs []*kgo.Record
	for i := range before + 1 + behind {
		to := int32(1)
		if i == before {
			to = 0
		}
		rs = append(rs, letterOf(letters, topic, to, name, fmt.Sprintf("%d", i)))
	}
	if err := cluster.Client(t).ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	allow := refuseProduce(t, fake, cluster, topic, 0, kerr.UnknownServerError)
	m := &tailracev1.RedriveDeadLettersRequest{DeadLetterTopic: letters, Group: name, MaxRecords: 1000}
	call := func() *tailracev1.RedriveDeadLettersResponse {
		t.Helper()
		r, err := c.RedriveDeadLetters(t.Context(), m, anyTopic)
		if err != nil {
			t.Fatal(err)
		}
		m.Positions = r.GetPositions()
		return r
	}
	call()
	end := readEnds(t, c, topic)[1]
	if end < before || end > before+beyond {
		t.Errorf("%d are published, want %d to %d", end, before, before+beyond)
	}
	for range 5 {
		if r := call(); r.GetDone() || r.GetPositions()[0].GetOffset() != before || len(r.GetRedriven()) > 0 {
			t.Errorf("got %v, want the position %d and nothing redriven", r, before)
		}
	}
	if now := readEnds(t, c, topic)[1]; now != end {
		t.Errorf("calls that got no further published %d", now-end)
	}
	allow()
	eventually(t, func() bool { return call().GetDone() }, "all letters are redriven")
	if got := values(t, c, cluster, topic, 0); len(got) != 1 || got[0] != fmt.Sprint(before) {
		t.Errorf("got %q", got)
	}
	times := map[string]int{}
	all := values(t, c, cluster, topic, 1)
	for _, v := range all {
		times[v]++
	}
	if len(times) != before+behind || len(all) > before+behind+beyond {
		t.Errorf("got %d letters, %d different, want %d and at most %d twice", len(all), len(times), before+behind, beyond)
	}
	for v, n := range times {
		if n > 2 {
			t.Errorf("%s was redriven %d times", v, n)
		}
	}
}
