package hub_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// live subscribes, and reads until nothing is left: from then on the subscription is one that can be slow.
func live(t *testing.T, h *hub.Hub, r hub.Request) *hub.Subscription {
	t.Helper()
	s := subscribe(t, h, r, newSignal())
	pullAll(t, s)
	return s
}

// pullAll pulls, with time for the hub between, until nothing comes, and returns what came.
func pullAll(t *testing.T, s *hub.Subscription) (parts []hub.Part) {
	t.Helper()
	for idle := 0; idle < 3; {
		b, err := s.Pull(64 << 10)
		if err != nil {
			t.Fatalf("pull: %v", err)
		}
		parts = append(parts, b.Parts...)
		if idle++; len(b.Parts) > 0 || b.CaughtUp {
			idle = 0
		}
		synctest.Wait()
	}
	return parts
}

// tell describes what parts tell, holes aside.
func tell(parts []hub.Part) (lines []string) {
	for i := range parts {
		p := &parts[i]
		switch p.Kind {
		case hub.Records:
			for r := p.Lo; r < p.Hi; r++ {
				lines = append(lines, fmt.Sprintf("%d/%d %s", p.Partition, p.Meta[r].Offset, p.KeyOf(r)))
			}
		case hub.Gap:
			lines = append(lines, fmt.Sprintf("%d [%d, %d) reason %d, %d left out", p.Partition, p.From, p.Next, p.Reason, p.Left))
		}
	}
	return lines
}

func wantTold(t *testing.T, parts []hub.Part, want ...string) {
	t.Helper()
	if got := tell(parts); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("told\n%q, want\n%q", got, want)
	}
}

// stall appends rounds of a record each to the partitions, a second apart.
func stall(src *hubtest.Source, rounds int, partitions ...int32) {
	for i := range rounds {
		for _, p := range partitions {
			src.Append("a", p, hubtest.Text(fmt.Sprintf("key-%d", i%3), "value"))
			synctest.Wait()
		}
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

// TestSlowReaderIsSkipped: beyond ten seconds of traffic it jumps to the head; a gap says over what in each partition where there is something.
func TestSlowReaderIsSkipped(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 3)
		s := live(t, h, hub.Request{Topic: "a", Slow: hub.SlowSkip})
		patient := live(t, h, hub.Request{Topic: "a"})
		stall(src, 15, 0, 2)
		wantTold(t, pullAll(t, s), "0 [0, 15) reason 4, 0 left out", "2 [0, 15) reason 4, 0 left out")
		stall(src, 1, 1, 0)
		wantTold(t, pullAll(t, s), "1/0 key-0", "0/15 key-0")
		if got := len(tell(pullAll(t, patient))); got != 32 {
			t.Errorf("the patient reader got %d, want all 32", got)
		}
		if st := h.Stats(); st.Skipped != 1 {
			t.Errorf("skipped %d times, want once", st.Skipped)
		}
	})
}

// TestReaderWithinTheBoundIsNotSlow: neither what the ring has given up nor time without traffic makes it slow.
func TestReaderWithinTheBoundIsNotSlow(t *testing.T) {
	for _, policy := range []hub.SlowPolicy{hub.SlowSkip, hub.SlowConflate, hub.SlowFail} {
		bubble(t, hub.Config{MemoryBudget: 16 << 10}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
			src.CreateTopic("a", 1)
			whole := live(t, h, hub.Request{Topic: "a", Slow: policy})
			keyed := live(t, h, hub.Request{Topic: "a", Slow: policy, Keys: [][]byte{[]byte("key-1")}})
			for range 9 {
				records(src, "a", 0, 100)
				time.Sleep(time.Second)
			}
			time.Sleep(time.Minute) // nobody writes
			if got := len(tell(pullAll(t, whole))); got != 900 {
				t.Errorf("policy %d: got %d records, want all 900", policy, got)
			}
			if got := len(tell(pullAll(t, keyed))); got != 90 {
				t.Errorf("policy %d: got %d records of a key, want all 90", policy, got)
			}
			if src.Counts().Reads == 0 {
				t.Error("the ring has given up nothing")
			}
		})
	}
}

// TestOthersTrafficMakesNobodySlow: a reader of a key to which nothing happens is where it should be.
func TestOthersTrafficMakesNobodySlow(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 2)
		s := live(t, h, hub.Request{Topic: "a", Slow: hub.SlowFail, Keys: [][]byte{[]byte("mine")}, KeyScope: hub.KeyScopeAll})
		one := live(t, h, hub.Request{Topic: "a", Slow: hub.SlowFail, Partitions: []int32{1}})
		stall(src, 30, 0)
		src.Append("a", 0, hubtest.Text("mine", "v"))
		src.Append("a", 1, hubtest.Text("other", "v"))
		synctest.Wait()
		wantTold(t, pullAll(t, s), "0/30 mine")
		wantTold(t, pullAll(t, one), "1/0 other")
	})
}

// TestReaderIsNotSlowBeforeItWasLive: who starts in the past may take as long as it takes, also beyond the end that Started told.
func TestReaderIsNotSlowBeforeItWasLive(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		records(src, "a", 0, 400)
		r := earliest("a")
		r.Slow = hub.SlowFail
		s := subscribe(t, h, r, newSignal())
		got := 0
		for range 20 { // a few records a second
			b, err := s.Pull(256)
			if err != nil {
				t.Fatalf("after %d records: %v", got, err)
			}
			got += b.Records
			stall(src, 1, 0)
		}
		if got >= 400 {
			t.Errorf("%d records came at once, the test shows nothing", got)
		}
		pullAll(t, s)
		stall(src, 15, 0)
		_, err := s.Pull(256)
		var lagged *hub.LaggedError
		if !errors.As(err, &lagged) || lagged.Records != 15 {
			t.Errorf("pull = %v, want a LaggedError of 15 records", err)
		}
		if st := h.Stats(); st.Failed != 1 {
			t.Errorf("failed %d times, want once", st.Failed)
		}
	})
}

// TestSlowReaderIsConflated: the latest record of each key comes, each one without a key, and gaps count the others; what came meanwhile follows.
func TestSlowReaderIsConflated(t *testing.T) {
	for _, retain := range []time.Duration{30 * time.Second, 2 * time.Second} { // from the ring, and from history
		bubble(t, hub.Config{Retain: retain}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
			src.CreateTopic("a", 2)
			s := live(t, h, hub.Request{Topic: "a", Slow: hub.SlowConflate})
			src.Append("a", 0, hubtest.Record{Value: []byte("without a key")}, hubtest.Text("gone", "1"), hubtest.Record{Key: []byte("gone")})
			src.AppendHoles("a", 0, 2)
			stall(src, 13, 0)
			src.Append("a", 1, hubtest.Text("k", "1"))
			synctest.Wait()
			var parts []hub.Part
			for acted := hub.SlowCatchUp; acted != hub.SlowConflate; {
				b, err := s.Pull(1)
				if err != nil {
					t.Fatal(err)
				}
				parts, acted = append(parts, b.Parts...), b.Slow
				synctest.Wait()
			}
			src.Append("a", 0, hubtest.Text("key-0", "later"))
			synctest.Wait()
			parts = append(parts, pullAll(t, s)...)
			var zero, one []hub.Part
			for _, p := range parts {
				if p.Partition == 0 {
					zero = append(zero, p)
				} else {
					one = append(one, p)
				}
			}
			wantTold(t, zero, "0/0 ", "0 [1, 2) reason 5, 1 left out", "0/2 gone", "0 [3, 15) reason 5, 10 left out",
				"0/15 key-1", "0/16 key-2", "0/17 key-0", "0/18 key-0")
			wantTold(t, one, "1/0 k")
			if st := h.Stats(); st.Conflated != 1 || st.ConflatedBytes != 0 {
				t.Errorf("conflated %d times, %d bytes kept; want once, 0", st.Conflated, st.ConflatedBytes)
			}
		})
	}
}

// TestConflationIsBounded: with too many keys the reader is skipped to the head, and nothing stays behind.
func TestConflationIsBounded(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		s := live(t, h, hub.Request{Topic: "a", Slow: hub.SlowConflate})
		for i := range hub.MaxConflatedRecords + 1 {
			src.Append("a", 0, hubtest.Text(fmt.Sprint(i), ""))
		}
		stall(src, 13, 0)
		wantTold(t, pullAll(t, s), fmt.Sprintf("0 [0, %d) reason 4, 0 left out", hub.MaxConflatedRecords+14))
		if st := h.Stats(); st.Spilled != 1 || st.Skipped != 0 || st.ConflatedBytes != 0 {
			t.Errorf("%+v, want one spill and no bytes", st)
		}
	})
}

// TestConflationLeavesNothingCharged: neither a reader that leaves in the middle nor one that is told in small pieces does.
func TestConflationLeavesNothingCharged(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		for _, leaves := range []bool{true, false} {
			s := live(t, h, hub.Request{Topic: "a", Slow: hub.SlowConflate})
			stall(src, 13, 0)
			b, err := s.Pull(1)
			if err != nil || b.Slow != hub.SlowConflate {
				t.Fatalf("pull = %v, acted by %d", err, b.Slow)
			}
			if h.Stats().ConflatedBytes == 0 {
				t.Error("nothing is charged")
			}
			for !leaves {
				if b, err := s.Pull(1); err != nil || len(b.Parts) == 0 {
					break
				}
			}
			if leaves {
				s.Close()
			}
			if got := h.Stats().ConflatedBytes; got != 0 {
				t.Errorf("%d bytes stay charged", got)
			}
		}
	})
}
