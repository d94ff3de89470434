package kafka_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/kafka"
)

// room is an admission whose records the test hands over and answers.
type room struct {
	t   *testing.T
	a   *kafka.Admission
	now time.Time
	out []*kafka.Waiting // handed over, not answered
}

func newRoom(t *testing.T, bytes int64) *room {
	return &room{t: t, a: kafka.NewAdmission(bytes), now: time.Unix(1_000_000, 0)}
}

// enter lets a record in that must not be refused.
func (r *room) enter(e kafka.Entry) (w *kafka.Waiting, inside bool) {
	r.t.Helper()
	w, inside, refusal := r.a.Enter(r.t.Context(), e, r.now, time.Minute)
	if refusal != "" {
		r.t.Fatalf("%+v is refused: %s", e, refusal)
	}
	return w, inside
}

// take hands over what may be, and returns its names.
func (r *room) take() (names []string) {
	for {
		records, late := r.a.Take(r.now)
		if len(records) == 0 && late == 0 {
			return names
		}
		for _, w := range records {
			names = append(names, w.Name)
		}
		r.out = append(r.out, records...)
	}
}

// answer acknowledges what was handed over and passes.
func (r *room) answer(pass func(w *kafka.Waiting) bool) {
	r.out = slices.DeleteFunc(r.out, func(w *kafka.Waiting) bool {
		if !pass(w) {
			return false
		}
		r.a.Answer(w, true, true, r.now)
		return true
	})
}

func everything(*kafka.Waiting) bool { return true }

func entry(caller string, partition int32, bytes int64, name string) kafka.Entry {
	return kafka.Entry{Caller: caller, Topic: "t", Partition: partition, Leader: 1, Bytes: bytes, Name: name}
}

// A caller that hands over far more than the others gets its turns, not theirs.
func TestCallersHaveTurns(t *testing.T) {
	r := newRoom(t, 1<<20)
	r.enter(entry("flood", 0, 100, "first"))
	r.take() // the partition is busy: one at a time until something is said
	for range 5000 {
		r.enter(entry("flood", 0, 1000, "flood"))
	}
	for i := range 5 {
		r.enter(entry("other", 0, 1000, fmt.Sprint(i)))
	}
	r.answer(everything)
	names := r.take()
	last := slices.Index(names, "4")
	if last < 0 || last > 100 {
		t.Errorf("the last record of the other caller is at %d of %d that were handed over", last, len(names))
	}
	if i := slices.IndexFunc(names, func(n string) bool { return n != "flood" }); names[i] != "0" {
		t.Errorf("the order of a caller's records is lost: %s is first", names[i])
	}
}

// Partitions that do not move leave room to those that do, in the queue and with librdkafka.
func TestPartitionsThatDoNotMoveLeaveRoom(t *testing.T) {
	r := newRoom(t, 16<<20)
	for dead := range int32(20) {
		for caller := range 3 {
			for range 5000 {
				if _, inside := r.enter(entry(fmt.Sprint(caller), 1+dead, 1000, "dead")); !inside {
					break // it waits
				}
			}
		}
	}
	r.take()
	waiting, handed, _ := r.a.Held()
	if waiting > 24<<20 || handed > 24<<20 {
		t.Errorf("%d bytes wait, %d are handed over; the bound is 16 MiB each, and a little for everybody", waiting, handed)
	}
	for n := range 1000 {
		if _, inside := r.enter(entry("alive", 0, 1000, "alive")); !inside {
			t.Fatalf("the record %d for a partition that moves has to wait", n)
		}
		if got := r.take(); !slices.Equal(got, []string{"alive"}) {
			t.Fatalf("handed over: %v", got)
		}
		r.answer(func(w *kafka.Waiting) bool { return w.Name == "alive" })
	}
}

// The caller that exceeds its share waits, and only for its own.
func TestACallerWaitsForItsOwn(t *testing.T) {
	r := newRoom(t, 1<<20)
	r.enter(kafka.Entry{Caller: "flood", Topic: "t", Leader: -1, Bytes: 10, Name: "held"})
	var waits []*kafka.Waiting
	for range 1000 {
		if w, inside := r.enter(kafka.Entry{Caller: "flood", Topic: "t", Leader: -1, Bytes: 1000, Name: "held"}); !inside {
			waits = append(waits, w)
		}
	}
	if waiting, _, _ := r.a.Held(); waiting > 512<<10 || len(waits) < 500 {
		t.Fatalf("%d bytes wait inside, %d records outside", waiting, len(waits))
	}
	r.a.Learn("t", r.now, 1)
	r.take()
	for range 2000 {
		r.answer(everything)
		r.take()
	}
	for _, w := range waits {
		if !w.Inside() {
			t.Fatal("a caller waits though its records have left")
		}
	}
	if waiting, handed, _ := r.a.Held(); waiting != 0 || handed != 0 {
		t.Errorf("%d and %d are left", waiting, handed)
	}
}

// The broker refuses a batch whole. So a batch never exceeds what the topic takes, and a record that does goes alone.
func TestARecordTooLargeGoesAlone(t *testing.T) {
	r := newRoom(t, 16<<20)
	limited := func(bytes int64, name string) {
		e := entry("c", 0, bytes, name)
		e.Limit = 10_000
		r.enter(e)
	}
	limited(100, "before")
	limited(20_000, "large")
	for range 20 {
		limited(1000, "after")
	}
	for _, want := range [][]string{{"before"}, {"large"}} {
		if got := r.take(); !slices.Equal(got, want) {
			t.Fatalf("handed over: %v, want %v", got, want)
		}
		r.answer(everything)
	}
	total := 0
	for total < 20 {
		got := len(r.take())
		if got == 0 || got > 9 {
			t.Fatalf("%d records of 1000 bytes under way, the topic takes 10000", got)
		}
		total += got
		r.answer(everything)
	}
}

// A leader that is gone is waited for, for two seconds; then all is refused, at once, until it is there again.
func TestALeaderThatIsGone(t *testing.T) {
	for name, there := range map[string]int32{"no leader": -1, "a silent leader": 1} {
		t.Run(name, func(t *testing.T) {
			r := newRoom(t, 16<<20)
			put := func(n int) (refusals int) {
				for range n {
					_, _, refusal := r.a.Enter(t.Context(), kafka.Entry{Caller: "c", Topic: "t", Leader: there, Bytes: 100_000, Name: "r"}, r.now, time.Minute)
					if refusal != "" {
						if refusal != "unavailable KAFKA_UNAVAILABLE" {
							t.Fatal(refusal)
						}
						refusals++
						continue
					}
				}
				return refusals
			}
			if put(20) != 0 {
				t.Error("refused at once")
			}
			handed := len(r.take())
			if (there < 0) != (handed == 0) {
				t.Errorf("%d handed over", handed)
			}
			r.now = r.now.Add(1900 * time.Millisecond)
			if gone, _, suspects := r.a.Tick(r.now); gone != 0 || !slices.Equal(suspects, []string{"t"}) || put(1) != 0 {
				t.Errorf("before two seconds: %d are refused, suspects %v", gone, suspects)
			}
			r.now = r.now.Add(200 * time.Millisecond)
			if gone, _, _ := r.a.Tick(r.now); gone != 21-handed {
				t.Errorf("%d are refused after two seconds, of 21 of which %d were handed over", gone, handed)
			}
			if put(10) != 10 {
				t.Error("not refused at once")
			}
			there = 2 // another takes over
			r.a.Learn("t", r.now, there)
			if put(5) != 0 {
				t.Error("refused though there is a leader")
			}
			r.take()
			r.answer(everything)
			r.take()
			r.answer(everything)
			if waiting, handed, _ := r.a.Held(); waiting != 0 || handed != 0 {
				t.Errorf("%d and %d are left", waiting, handed)
			}
		})
	}
}

// What a publisher knows of a topic may be a second old: it undoes nothing that Kafka has said since.
func TestANewerLeaderStays(t *testing.T) {
	r := newRoom(t, 16<<20)
	put := func(leader int32, old time.Duration) string {
		e := kafka.Entry{Caller: "c", Topic: "t", Leader: leader, Bytes: 100, Name: "r", Old: old}
		_, _, refusal := r.a.Enter(t.Context(), e, r.now, time.Minute)
		return refusal
	}
	put(-1, 0)
	r.now = r.now.Add(time.Second)
	r.a.Learn("t", r.now, 1)
	r.now = r.now.Add(500 * time.Millisecond)
	put(-1, 900*time.Millisecond)
	if got := r.take(); len(got) != 2 {
		t.Errorf("%d records are handed over to the leader that is there, want 2", len(got))
	}
	r.answer(everything)
	r.a.Learn("t", r.now) // the topic is gone
	r.now = r.now.Add(100 * time.Millisecond)
	if got := put(1, 200*time.Millisecond); got != "not_found UNKNOWN_TOPIC" {
		t.Errorf("a topic that is gone: refused with %q", got)
	}
	if got := put(1, 0); got != "" {
		t.Errorf("a topic that has come back: refused with %q", got)
	}
}

// A partition that was added just now has more time than one whose leader is gone.
func TestAPartitionThatIsNewIsWaitedFor(t *testing.T) {
	r := newRoom(t, 1<<20)
	at := func(partition, leader, count int32) kafka.Entry {
		return kafka.Entry{Caller: "c", Topic: "t", Partition: partition, Leader: leader, Count: count, Bytes: 100}
	}
	r.enter(at(0, 1, 1))
	r.take()
	r.answer(everything)
	r.enter(at(1, 1, 3)) // librdkafka has not heard of its leader
	r.enter(at(2, -1, 3))
	r.take()
	r.now = r.now.Add(10 * time.Second)
	for p, leader := range []int32{1: 1, 2: -1} {
		if p > 0 {
			r.enter(at(int32(p), leader, 3)) // neither is refused
		}
	}
	r.now = r.now.Add(10 * time.Second)
	for p, leader := range []int32{1: 1, 2: -1} {
		if p == 0 {
			continue
		}
		if _, _, refusal := r.a.Enter(t.Context(), at(int32(p), leader, 3), r.now, time.Minute); refusal == "" {
			t.Errorf("partition %d is not refused, though it had its time", p)
		}
	}
}

// After a time in which nothing was answered one record tries, for all.
func TestOneRecordTriesForAll(t *testing.T) {
	r := newRoom(t, 16<<20)
	r.enter(entry("c", 0, 100, "lost"))
	r.take()
	r.now = r.now.Add(30 * time.Second)
	r.a.Answer(r.out[0], false, false, r.now) // it timed out
	r.out = nil
	for _, n := range []string{"a", "b", "c"} {
		r.enter(entry("c", 0, 100, n))
	}
	if got := r.take(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("handed over: %v", got)
	}
	r.answer(everything)
	if got := r.take(); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("handed over: %v", got)
	}
}

// Whoever leaves, or has no time left, takes no turn; and what is forgotten costs nothing.
func TestThoseWhoLeave(t *testing.T) {
	r := newRoom(t, 16<<20)
	ctx, cancel := context.WithCancel(t.Context())
	held := kafka.Entry{Caller: "c", Topic: "t", Leader: -1, Bytes: 100, Name: "r"}
	for range 10 {
		r.a.Enter(ctx, held, r.now, time.Minute)
	}
	for range 10 {
		r.a.Enter(t.Context(), held, r.now, time.Second)
	}
	cancel()
	r.now = r.now.Add(1500 * time.Millisecond)
	if gone, late, _ := r.a.Tick(r.now); gone != 0 || late != 20 {
		t.Errorf("%d and %d are refused", gone, late)
	}
	r.a.Learn("t", r.now, 1)
	r.now = r.now.Add(2 * time.Minute)
	r.a.Tick(r.now)
	if waiting, handed, lanes := r.a.Held(); waiting != 0 || handed != 0 || lanes != 0 {
		t.Errorf("%d, %d and %d lanes are left", waiting, handed, lanes)
	}
}

// Whatever comes: each caller's records of a partition keep their order, each comes out once, and all comes to an end.
func TestAdmissionKeepsOrder(t *testing.T) {
	for seed := range uint64(15) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		r := newRoom(t, 1<<20)
		sent, next := map[string]int{}, map[string]int{}
		check := func() {
			before := len(r.out)
			r.take()
			for _, w := range r.out[before:] {
				var flow string
				var n int
				_, _ = fmt.Sscanf(w.Name, "%s %d", &flow, &n)
				if n != next[flow] {
					t.Fatalf("seed %d, flow %s: got %d, want %d", seed, flow, n, next[flow])
				}
				next[flow]++
			}
		}
		for range 2000 {
			switch rnd.IntN(4) {
			case 0, 1:
				caller, partition := fmt.Sprint(rnd.IntN(5)), rnd.Int32N(4)
				flow := fmt.Sprintf("%s/%d", caller, partition)
				e := entry(caller, partition, rnd.Int64N(20_000), fmt.Sprintf("%s %d", flow, sent[flow]))
				e.Limit = []int64{0, 15_000, 1 << 20}[partition%3]
				r.enter(e)
				sent[flow]++
			case 2:
				check()
			case 3:
				r.answer(func(*kafka.Waiting) bool { return rnd.IntN(2) == 0 })
			}
		}
		for range 20_000 {
			if check(); len(r.out) == 0 {
				break
			}
			r.answer(everything)
		}
		if fmt.Sprint(sent) != fmt.Sprint(next) {
			t.Fatalf("seed %d: sent %v, handed over %v", seed, sent, next)
		}
	}
}
