package group_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/group"
)

// A record whose workers are lost one after the other is dealt again at once, then less and less soon, and is a dead letter in the end.
func TestRecordsOfLostWorkersWait(t *testing.T) {
	for _, ordering := range []group.Ordering{group.OrderByKey, group.OrderNone} {
		t.Run(ordering.String(), func(t *testing.T) {
			within(t, group.Config{}, func(t *testing.T, x *table) {
				start := func(s *group.Start) { s.Ordering = ordering }
				stays := x.join(start)
				defer stays.Close()
				g := x.assigned(1, "k")
				var waits []time.Duration
				for range 5 {
					w := x.join(start)
					began := time.Now()
					for len(pull(t, w)) == 0 {
						<-w.Signal()
					}
					waits = append(waits, time.Since(began))
					w.Close()
				}
				want := []time.Duration{0, 0, 500 * time.Millisecond, time.Second, 2 * time.Second}
				if !slices.Equal(waits, want) {
					t.Errorf("waited %v, want %v", waits, want)
				}
				time.Sleep(time.Minute)
				if got := pull(t, stays); len(got) != 0 {
					t.Errorf("got %v, want nothing: it is a dead letter", got)
				}
				if commits := g.Turn().Commit; len(commits) != 1 || commits[0].Offset != 1 {
					t.Errorf("got commits %v", commits)
				}
			})
		})
	}
}

// A crowd of workers that is lost within a second takes no record with it.
func TestLostCrowdBuriesNothing(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		const crowd, records = 1000, 50
		var workers []*group.Worker
		for range crowd {
			workers = append(workers, x.join(nil))
		}
		keys := make([]string, records)
		for i := range keys {
			keys[i] = string(rune('A' + i))
		}
		x.assigned(records, keys...)
		for _, w := range workers {
			pull(t, w)
		}
		for i, w := range workers { // whoever is left takes what comes, and is lost next
			w.Close()
			time.Sleep(time.Millisecond)
			synctest.Wait()
			for _, other := range workers[i+1:] {
				if len(other.Signal()) > 0 {
					<-other.Signal()
					pull(t, other)
				}
			}
		}
		last := x.join(nil)
		defer last.Close()
		got := map[int64]bool{}
		for len(got) < records {
			offsets := pull(t, last)
			for _, offset := range offsets {
				got[offset] = true
			}
			last.Ack(nil, 1<<40)
			if len(offsets) > 0 {
				continue
			}
			select {
			case <-last.Signal():
			case <-time.After(time.Minute):
				t.Fatalf("%d of %d records came", len(got), records)
			}
		}
		if s := x.groups.Stats()[0]; s.Waiting+s.InFlight != 0 {
			t.Errorf("got %+v", s)
		}
	})
}
