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

// However many groups come, whose workers hold what they get: beyond the budget each partition has no more than the least, and what was read at once.
func TestManyGroupsKeepToTheBudget(t *testing.T) {
	const budget, groups, record = 32 << 20, 100, 1200
	body := make([]byte, record-300)
	type reader struct {
		*group.Group
		next   int64
		paused bool
	}
	// read is what a membership does between two turns.
	read := func(r *reader, turn group.Turn) {
		if r.paused = r.paused || len(turn.Pause) > 0; r.paused {
			return
		}
		b := group.Batch{Partition: p0, Next: r.next}
		for taken := 0; taken < turn.Take; taken += record {
			b.Records = append(b.Records, group.Record{Offset: b.Next, Body: body})
			b.Next++
		}
		r.next = b.Next
		r.Append(b)
	}
	for _, way := range []string{"one after the other", "at once"} {
		t.Run(way, func(t *testing.T) {
			within(t, group.Config{Budget: budget}, func(t *testing.T, x *table) {
				var all []*reader
				for i := range groups {
					w := x.join(func(s *group.Start) { s.Group = fmt.Sprint("g", i) })
					defer w.Close()
					r := &reader{Group: x.assigned(0)}
					all = append(all, r)
					for way != "at once" && !r.paused {
						read(r, r.Turn())
					}
				}
				for left := groups; left > 0; {
					var turns []group.Turn
					for _, r := range all {
						turns = append(turns, r.Turn()) // before any of them reads
					}
					left = 0
					for i, r := range all {
						if read(r, turns[i]); !r.paused {
							left++
						}
					}
				}
				var sum int64
				for _, s := range x.groups.Stats() {
					sum += s.Bytes
				}
				if most := int64(budget + groups*2*group.LeastShare); sum > most || sum < budget/3 {
					t.Errorf("they hold %d bytes, want at most %d", sum, most)
				}
			})
		})
	}
}
