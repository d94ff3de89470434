package group_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/group"
)

// Partitions have turns, whatever their backlogs.
func TestPartitionsHaveTurns(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.MaxInFlight = 30 })
		defer w.Close()
		g := x.assigned(0)
		for p, backlog := range []int{1000, 100, 20} {
			id := group.Partition{Topic: "t", Partition: int32(p)}
			g.Assign([]group.Place{{Partition: id}})
			b := group.Batch{Partition: id, Next: int64(backlog)}
			for i := range backlog {
				b.Records = append(b.Records, group.Record{Offset: int64(i), Key: fmt.Appendf(nil, "%d", i), Body: fmt.Appendf(nil, "%d", p)})
			}
			g.Append(b)
		}
		for range 2 { // the smallest is done after these
			got := map[string]int{}
			p, err := w.Pull(1 << 20)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range p.Deliveries {
				got[string(d.Record.Body)]++
			}
			if got["0"] != 10 || got["1"] != 10 || got["2"] != 10 {
				t.Errorf("got %v of the partitions, want 10 of each", got)
			}
			w.Ack(nil, 1<<40)
		}
	})
}

// Who holds something leaves what is new to those who hold nothing and were woken for it, for a while.
func TestHoldersLeaveWhatIsNewToTheIdle(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		busy := x.join(nil)
		defer busy.Close()
		g := x.assigned(1, "hot")
		if got := pull(t, busy); len(got) != 1 {
			t.Fatalf("got %v", got)
		}
		idle := x.join(nil)
		defer idle.Close()
		for _, w := range []*group.Worker{busy, idle} { // both wait now
			if got := pull(t, w); len(got) != 0 {
				t.Fatalf("got %v", got)
			}
		}
		feed(g, 1, 1, "b")
		if got := pull(t, busy); len(got) != 0 {
			t.Errorf("got %v, want nothing: another was woken, and has nothing to do", got)
		}
		if got := pull(t, idle); !slices.Equal(got, []int64{1}) {
			t.Errorf("got %v, want what it was woken for", got)
		}
		idle.Ack(nil, 1<<40)
		if got := pull(t, idle); len(got) != 0 {
			t.Fatalf("got %v", got)
		}
		feed(g, 2, 1, "c")
		if got := pull(t, busy); len(got) != 0 {
			t.Errorf("got %v, want nothing", got)
		}
		time.Sleep(time.Second) // the other does not come
		select {
		case <-busy.Signal():
		default:
			t.Error("nobody was woken for what the other did not take")
		}
		if got := pull(t, busy); !slices.Equal(got, []int64{2}) {
			t.Errorf("got %v, want what nobody came for", got)
		}
	})
}

// A key with nine tenths of the records, which takes longer than they come, delays none of the others while its backlog is below the window: each is
// worked on as soon as it would be without. That goes for workers that take what they may hold, and work on it one after the other, too.
func TestHotKeyLeavesTheOthersDelay(t *testing.T) {
	for name, ahead := range map[string]bool{"as it comes": false, "ahead": true} {
		t.Run(name, func(t *testing.T) {
			alone, backlog := delays(t, false, ahead)
			if backlog != 0 {
				t.Errorf("without the hot key %d records are left", backlog)
			}
			beside, backlog := delays(t, true, ahead)
			p99 := func(ds []time.Duration) time.Duration { return ds[len(ds)*99/100] }
			t.Logf("p99 of the others: %v alone, %v beside a hot key with a backlog of %d records; the longest: %v, %v",
				p99(alone), p99(beside), backlog, alone[len(alone)-1], beside[len(beside)-1])
			if len(alone) != len(beside) || backlog < 1000 {
				t.Fatalf("got %d and %d records, a backlog of %d", len(alone), len(beside), backlog)
			}
			if got, want := p99(beside), p99(alone); got != want {
				t.Errorf("the p99 of the others is %v, want %v as without the hot key", got, want)
			}
			if got := beside[len(beside)-1]; got > 20*time.Millisecond {
				t.Errorf("one of the others waited %v, behind the work of a worker that has some", got)
			}
		})
	}
}

// delays are those from the append of each record of the other keys to the work on it, in order; backlog is what is left of the hot key. Five seconds, twenty
// records each twenty milliseconds, four workers, two milliseconds of work for a record. ahead: a worker pulls while it works.
func delays(t *testing.T, hot, ahead bool) (ds []time.Duration, backlog int) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		const workers, work, records, together = 4, 2 * time.Millisecond, 5000, 20
		var mu sync.Mutex
		came := map[int64]time.Time{} // by offset, of the others
		quit := make(chan struct{})
		var working sync.WaitGroup
		do := func(w *group.Worker, d group.Delivery) {
			mu.Lock()
			if at, ok := came[d.Record.Offset]; ok {
				ds = append(ds, time.Since(at))
			}
			mu.Unlock()
			time.Sleep(work)
			w.Ack([]int64{d.Tag}, 0)
		}
		for range workers {
			w := x.join(func(s *group.Start) { s.MaxInFlight = 50 })
			todo := make(chan group.Delivery, 50)
			working.Go(func() {
				for d := range todo {
					do(w, d)
				}
			})
			working.Go(func() {
				defer w.Close()
				defer close(todo)
				for {
					p, err := w.Pull(1 << 20)
					if err != nil {
						t.Error(err)
						return
					}
					for _, d := range p.Deliveries {
						if ahead {
							todo <- d
						} else {
							do(w, d)
						}
					}
					if len(p.Deliveries) > 0 {
						continue
					}
					select {
					case <-w.Signal():
					case <-quit:
						return
					}
				}
			})
		}
		g := x.assigned(0)
		batch := group.Batch{Partition: p0}
		for offset := range int64(records) {
			key := "hot"
			if offset%10 == 0 {
				key = fmt.Sprint(offset / 10 % 50)
			}
			if hot || key != "hot" {
				batch.Records = append(batch.Records, group.Record{Offset: offset, Key: []byte(key), Body: []byte("body")})
			}
			if batch.Next = offset + 1; batch.Next%together == 0 {
				mu.Lock()
				for _, r := range batch.Records {
					if string(r.Key) != "hot" {
						came[r.Offset] = time.Now()
					}
				}
				mu.Unlock()
				g.Append(batch)
				batch.Records = nil
				time.Sleep(together * time.Millisecond)
			}
		}
		synctest.Wait()
		s := x.groups.Stats()[0]
		backlog = s.Waiting + s.InFlight
		close(quit)
		working.Wait()
		slices.Sort(ds)
	})
	return ds, backlog
}

// Revoke gives up only what it is told to: what was read of the others is dealt on, and nothing of them is asked for again.
func TestRetainedPartitionsGoOnDuringARevocation(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.MaxInFlight = 4 })
		defer w.Close()
		g := x.assigned(0)
		p1 := group.Partition{Topic: "t", Partition: 1}
		g.Assign([]group.Place{{Partition: p1}})
		for _, id := range []group.Partition{p0, p1} {
			b := group.Batch{Partition: id, Next: 10}
			for i := range int64(10) {
				b.Records = append(b.Records, group.Record{Offset: i, Body: []byte("body")})
			}
			g.Append(b)
		}
		if got := pull(t, w); len(got) != 4 {
			t.Fatalf("got %v", got)
		}
		done := make(chan []group.Place, 1)
		go func() { done <- g.Revoke(context.Background(), []group.Partition{p0}) }()
		synctest.Wait()
		w.Ack([]int64{2, 4}, 0) // those of one partition, the turns being what they are
		p, err := w.Pull(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Deliveries) == 0 {
			t.Error("nothing is dealt while a partition is revoked")
		}
		w.Ack(nil, 1<<40)
		fronts := <-done
		if len(fronts) != 1 || fronts[0].Partition != p0 || fronts[0].Offset != 2 {
			t.Errorf("got fronts %+v", fronts)
		}
		got := map[int64]bool{}
		for range 3 {
			for _, offset := range pull(t, w) {
				got[offset] = true
			}
			w.Ack(nil, 1<<40)
		}
		for offset := int64(4); offset < 10; offset++ {
			if !got[offset] {
				t.Errorf("offset %d of the partition that stays was not dealt", offset)
			}
		}
		time.Sleep(time.Second)
		if commits := g.Turn().Commit; len(commits) != 1 || commits[0].Partition != p1 || commits[0].Offset != 10 {
			t.Errorf("got commits %+v", commits)
		}
	})
}
