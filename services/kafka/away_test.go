package kafka_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// While all of Kafka is away nothing is handed over, so that all that comes can be refused: after two seconds, and then at once.
func TestNothingIsHandedOverWhileKafkaIsAway(t *testing.T) {
	r := newRoom(t, 16<<20)
	r.enter(entry("c", 0, 100, "before"))
	r.take()
	r.answer(everything)
	r.a.Reach(false, r.now)
	r.enter(entry("c", 0, 100, "first"))
	r.enter(entry("c", 1, 100, "elsewhere"))
	if got := r.take(); len(got) != 0 {
		t.Errorf("handed over: %v", got)
	}
	r.now = r.now.Add(1900 * time.Millisecond)
	r.a.Reach(false, r.now)
	if gone, late, suspects := r.a.Tick(r.now); gone != 0 || late != 0 || !slices.Equal(suspects, []string{"t"}) {
		t.Errorf("before two seconds %d and %d are refused; asked for: %v", gone, late, suspects)
	}
	r.now = r.now.Add(200 * time.Millisecond)
	if gone, _, _ := r.a.Tick(r.now); gone != 2 {
		t.Errorf("%d of 2 are refused after two seconds", gone)
	}
	if _, _, refusal := r.a.Enter(t.Context(), entry("c", 2, 100, "later"), r.now, time.Minute); refusal != "unavailable KAFKA_UNAVAILABLE" {
		t.Errorf("what comes later: refused with %q", refusal)
	}
	r.a.Reach(true, r.now)
	r.enter(entry("c", 0, 100, "after"))
	if got := r.take(); !slices.Equal(got, []string{"after"}) {
		t.Errorf("handed over: %v", got)
	}
	r.answer(everything)
	if waiting, handed, _ := r.a.Held(); waiting != 0 || handed != 0 {
		t.Errorf("%d and %d are left", waiting, handed)
	}
}

// TestPublishWhileTheOnlyBrokerIsAway kills the only broker: what is published from then on is refused within seconds, never unknown, and not in
// the log when the broker is back. What follows then is acknowledged.
func TestPublishWhileTheOnlyBrokerIsAway(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 1)
	topic := cluster.NewTopic(t, 3, nil)
	c := newClient(t, cluster)
	publish(t, c, topic, on(0, value("before")), on(1, value("before"))) // partition 2 was never published to
	cluster.Kill9(t, 1)
	eventually(t, func() bool { return !c.Health().Up }, "health says that Kafka is away")
	if why := c.Health().Error; why != "none of its brokers can be reached" {
		t.Errorf("health says %q", why)
	}
	var all []attempt
	try := func(p int32, v string) (took time.Duration) {
		began := time.Now()
		result := one(t, c, patience, topic, on(p, value("%s", v)))
		took = time.Since(began)
		f := result.GetFailure()
		if f.GetReason() != kafka.ReasonKafkaUnavailable || f.GetOutcome() != tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED || f.GetRetryAfter() == nil {
			t.Errorf("%s: got %v after %v, want a refusal", v, result, took)
		}
		all = append(all, attempt{v, f.GetOutcome(), 0})
		return took
	}
	first := try(0, "first")
	for p := range int32(3) {
		if took := try(p, fmt.Sprint("later ", p)); took > time.Second {
			t.Errorf("refused after %v, want at once", took)
		}
	}
	t.Logf("the first record is refused after %v", first)
	cluster.Restart(t, 1)
	for p := range int32(3) {
		n := 0
		eventually(t, func() bool {
			n++
			v := fmt.Sprintf("after %d %d", p, n)
			result := one(t, c, patience, topic, on(p, value("%s", v)))
			all = append(all, attempt{v, result.GetFailure().GetOutcome(), result.GetPublished().GetOffset()})
			return result.GetPublished() != nil
		}, "partition %d takes records again", p)
	}
	judge(t, cluster, c, topic, func(v []byte) string { return string(v) }, all)
}
