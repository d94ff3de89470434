package hub_test

import (
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestAvailabilityWakes: readers are told at once that a partition cannot be read, and that it can.
func TestAvailabilityWakes(t *testing.T) {
	for name, request := range map[string]hub.Request{
		"whole":     {Topic: "a"},
		"keyed":     {Topic: "a", Keys: [][]byte{[]byte("key-1")}},
		"partition": {Topic: "a", Partitions: []int32{0}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
				src.CreateTopic("a", 1)
				w := newSignal()
				s := subscribe(t, h, request, w)
				for _, away := range []bool{true, false, true} {
					rest(t, s, w)
					src.SetUnavailable("a", 0, away)
					synctest.Wait()
					select {
					case <-w:
					default:
						t.Errorf("not woken at unavailable = %v", away)
					}
					if got := len(s.Unavailable(nil)); got == 0 == away {
						t.Errorf("%d partitions are unavailable", got)
					}
				}
			})
		})
	}
}

// rest pulls until nothing is left, and hears what it was woken for.
func rest(t *testing.T, s *hub.Subscription, w signal) {
	t.Helper()
	synctest.Wait()
	for {
		b, err := s.Pull(1 << 20)
		if err != nil {
			t.Fatalf("pull: %v", err)
		}
		if len(b.Parts) == 0 && !b.CaughtUp {
			break
		}
	}
	select {
	case <-w:
	default:
	}
}

// TestAvailableEndsTheRest: history is read on at once when its partition can be read again, however long the outage was.
func TestAvailableEndsTheRest(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		records(src, "a", 0, 10)
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a", Start: hub.Start{Kind: hub.Earliest}}, w)
		src.SetUnavailable("a", 0, true)
		if b, err := s.Pull(1 << 20); err != nil || len(b.Parts) > 0 {
			t.Fatalf("pull = %d parts, %v; want none", len(b.Parts), err)
		}
		time.Sleep(20 * time.Second) //nolint:forbidigo // the bubble's clock
		reads := src.Counts().Reads
		src.SetUnavailable("a", 0, false)
		began := time.Now()
		drainTo(t, s, w, 10)
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("the records came %v after the outage, %d reads during it", took, reads)
		}
	})
}

// TestAvailabilityIsForgotten: who follows a partition anew is told anew.
func TestAvailabilityIsForgotten(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 2)
		subscribe(t, h, hub.Request{Topic: "a", Partitions: []int32{1}}, newSignal())
		s := subscribe(t, h, hub.Request{Topic: "a", Partitions: []int32{0}}, newSignal())
		src.SetUnavailable("a", 0, true)
		synctest.Wait()
		s.Close()
		time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble's clock
		src.SetUnavailable("a", 0, false)
		s = subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		if got := s.Unavailable(nil); len(got) > 0 {
			t.Errorf("unavailable: %v, want none", got)
		}
	})
}
