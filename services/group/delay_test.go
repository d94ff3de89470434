package group_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/group"
)

// full is a DeadLetters that stores nothing.
type full struct{}

func (full) Bury(_ context.Context, _ group.Letter, done func(error)) { done(errors.New("no broker")) }

// What waits for its time is let go with its partition, however that goes, and what waits of others comes at its time.
func TestDelayedRecordsGoWithTheirPartition(t *testing.T) {
	for name, end := range map[string]func(g *group.Group){
		"revoked":       func(g *group.Group) { g.Revoke(context.Background(), []group.Partition{p0}) },
		"lost":          func(g *group.Group) { g.Lose([]group.Partition{p0}) },
		"assigned anew": func(g *group.Group) { g.Assign([]group.Place{{Partition: p0, Offset: 7}}) },
	} {
		t.Run(name, func(t *testing.T) {
			within(t, group.Config{DeadLetters: full{}}, func(t *testing.T, x *table) {
				w := x.join(func(s *group.Start) { s.MaxAttempts, s.AckTimeout = 2, time.Hour })
				defer w.Close()
				g := x.assigned(1)
				nack := func(delay time.Duration) {
					t.Helper()
					p, err := w.Pull(1 << 20)
					if err != nil || len(p.Deliveries) == 0 {
						t.Fatalf("got %+v, %v", p, err)
					}
					var tags []int64
					for _, d := range p.Deliveries {
						tags = append(tags, d.Tag)
					}
					w.Nack(tags, delay, "no")
					synctest.Wait()
				}
				nack(0)
				nack(0) // its letter is tried again and again
				feed(g, 1, 6, "a", "b", "c")
				feed(g, 7, 3)
				nack(time.Hour)
				p1 := group.Partition{Topic: "t", Partition: 1}
				g.Assign([]group.Place{{Partition: p1}})
				g.Append(group.Batch{Partition: p1, Records: []group.Record{{Offset: 40}, {Offset: 41, Key: []byte("a")}, {Offset: 42, Key: []byte("b")}}, Next: 43})
				nack(30 * time.Minute)
				if n := g.Delayed(); n != 1+3+3+3 {
					t.Errorf("%d wait for their time", n)
				}
				end(g)
				if n := g.Delayed(); n != 3 {
					t.Errorf("%d wait for their time once their partition is gone, want 3", n)
				}
				if s := x.groups.Stats()[0]; s.Bytes != 3*256 {
					t.Errorf("got %+v", s)
				}
				time.Sleep(30*time.Minute - time.Second)
				if got := pull(t, w); len(got) != 0 {
					t.Errorf("got %v early", got)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := pull(t, w); len(got) != 3 || g.Delayed() != 0 {
					t.Errorf("got %v at their time, %d still wait", got, g.Delayed())
				}
			})
		})
	}
}
