package group_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/group"
)

// A revocation waits for what is held, and no longer than the grace.
func TestRevocationHasAGrace(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(nil)
		defer w.Close()
		g := x.assigned(2)
		for _, c := range []struct {
			acked bool
			took  time.Duration
			front int64
		}{{true, 400 * time.Millisecond, 2}, {false, 500 * time.Millisecond, 0}} {
			pull(t, w)
			began, done := time.Now(), make(chan []group.Place, 1)
			go func() { done <- g.Revoke(context.Background(), []group.Partition{p0}) }()
			time.Sleep(400 * time.Millisecond)
			if c.acked {
				w.Ack(nil, 1<<40)
			}
			fronts := <-done
			if took := time.Since(began); took != c.took || len(fronts) != 1 || fronts[0].Offset != c.front {
				t.Errorf("acknowledged %v: got %+v after %v", c.acked, fronts, took)
			}
			if w.Held() != 0 {
				t.Errorf("the worker still holds %d", w.Held())
			}
			g.Assign([]group.Place{{Partition: p0}})
			feed(g, 0, 2)
		}
	})
}

func TestFailedCommitIsOfferedAgain(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.AutoAck = true })
		defer w.Close()
		g := x.assigned(2)
		pull(t, w)
		pull(t, w)
		for _, failure := range []error{errors.New("no coordinator"), nil} {
			time.Sleep(time.Second)
			places := g.Turn().Commit
			if len(places) != 1 || places[0].Offset != 2 {
				t.Fatalf("got %v", places)
			}
			time.Sleep(time.Second)
			if again := g.Turn().Commit; len(again) != 0 {
				t.Errorf("got %v while a commit is under way", again)
			}
			g.Committed(places, failure)
		}
		time.Sleep(time.Second)
		if got := g.Turn().Commit; len(got) != 0 {
			t.Errorf("got %v though it is committed", got)
		}
	})
}

// Between the marks a partition stays as it is: to pause throws away what was fetched ahead.
func TestMarksOfTheWindow(t *testing.T) {
	within(t, group.Config{WindowRecords: 20}, func(t *testing.T, x *table) {
		w := x.join(nil)
		defer w.Close()
		g := x.assigned(19)
		if turn := g.Turn(); len(turn.Pause) != 0 {
			t.Fatalf("got %+v", turn)
		}
		feed(g, 19, 1)
		if turn := g.Turn(); !slices.Equal(turn.Pause, []group.Partition{p0}) {
			t.Fatalf("got %+v", turn)
		}
		pull(t, w)
		w.Ack(nil, 9)
		if turn := g.Turn(); len(turn.Resume) != 0 || !turn.Busy {
			t.Errorf("got %+v above the low mark", turn)
		}
		w.Ack(nil, 10)
		if turn := g.Turn(); !slices.Equal(turn.Resume, []group.Partition{p0}) || turn.Busy {
			t.Errorf("got %+v at the low mark", turn)
		}
	})
}

// Who was woken and does not come, since it is busy with sending, keeps no record from others.
func TestOthersAreWokenForOneWhoDoesNotCome(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		stalled, other := x.join(nil), x.join(nil)
		defer stalled.Close()
		defer other.Close()
		pull(t, stalled)
		pull(t, other)
		x.assigned(1)
		time.Sleep(25 * time.Millisecond)
		synctest.Wait()
		if len(stalled.Signal()) != 1 || len(other.Signal()) != 1 {
			t.Errorf("got signals %d and %d", len(stalled.Signal()), len(other.Signal()))
		}
	})
}
