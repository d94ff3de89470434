package group_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/group"
)

// All groups share one budget: beyond it the partitions with more than their share wait, in whichever group, and the others go on.
func TestBudgetOfAllGroups(t *testing.T) {
	within(t, group.Config{Budget: 80_000}, func(t *testing.T, x *table) {
		one := x.join(func(s *group.Start) { s.AckTimeout = time.Hour })
		defer one.Close()
		a := x.assigned(50, "k") // about 13,000 bytes
		two := x.join(func(s *group.Start) { s.Group, s.AckTimeout = "h", time.Hour })
		defer two.Close()
		b := x.assigned(120, "") // about 31,000: more than its share of half the budget
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

// However many groups come, whose workers hold what they get: beyond the budget each partition has no more than the least.
func TestManyGroupsKeepToTheBudget(t *testing.T) {
	const budget, groups, turn = 32 << 20, 100, 100
	within(t, group.Config{Budget: budget}, func(t *testing.T, x *table) {
		body := make([]byte, 900)
		for i := range groups {
			w := x.join(func(s *group.Start) { s.Group = fmt.Sprint("g", i) })
			defer w.Close()
			g := x.assigned(0)
			paused := false
			for offset := int64(0); !paused; offset += turn {
				b := group.Batch{Partition: p0, Next: offset + turn}
				for j := range int64(turn) {
					b.Records = append(b.Records, group.Record{Offset: offset + j, Body: body})
				}
				g.Append(b)
				paused = len(g.Turn().Pause) > 0
			}
		}
		var all int64
		for _, s := range x.groups.Stats() {
			all += s.Bytes
		}
		if most := int64(budget + groups*(group.LeastShare+turn*1200)); all > most || all < budget/2 {
			t.Errorf("they hold %d bytes, want at most %d", all, most)
		}
	})
}
