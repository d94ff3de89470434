package group_test

import (
	"slices"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/group"
)

// All groups share one budget: beyond it the partitions with more than their share wait, in whichever group, and the others go on.
func TestBudgetOfAllGroups(t *testing.T) {
	within(t, group.Config{Budget: 40_000}, func(t *testing.T, x *table) {
		one := x.join(func(s *group.Start) { s.AckTimeout = time.Hour })
		defer one.Close()
		a := x.assigned(50, "k") // about 13,000 bytes
		two := x.join(func(s *group.Start) { s.Group, s.AckTimeout = "h", time.Hour })
		defer two.Close()
		b := x.assigned(120, "") // about 31,000: more than half of the budget
		if got := a.Turn(); len(got.Pause) > 0 {
			t.Errorf("got %+v of the group with less than its share", got)
		}
		if got := b.Turn(); !slices.Equal(got.Pause, []group.Partition{p0}) {
			t.Errorf("got %+v of the group with more", got)
		}
		pull(t, two)
		two.Ack(nil, 100) // 5,200 are left of it, but 13,000 of the other
		if got := b.Turn(); !slices.Equal(got.Resume, []group.Partition{p0}) {
			t.Errorf("got %+v when little is left", got)
		}
		feed(b, 120, 60, "")
		a.Lose([]group.Partition{p0}) // what it held is nobody's any more, and the share of those that stay grows
		feed(b, 180, 60, "")
		if got := b.Turn(); len(got.Pause) > 0 {
			t.Errorf("got %+v with the budget for itself", got)
		}
		feed(b, 240, 60, "")
		if got := b.Turn(); !slices.Equal(got.Pause, []group.Partition{p0}) {
			t.Errorf("got %+v beyond the budget", got)
		}
	})
}
