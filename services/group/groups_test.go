package group_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// table is a running Groups in a bubble, whose member is the test.
type table struct {
	*still
	t      *testing.T
	groups *group.Groups
}

// within runs a test in a bubble with Groups of that Config.
func within(t *testing.T, cfg group.Config, do func(t *testing.T, x *table)) {
	synctest.Test(t, func(t *testing.T) {
		s := newStill()
		cfg.Cluster = s
		if cfg.DeadLetters == nil {
			cfg.DeadLetters = s
		}
		x := &table{still: s, t: t, groups: group.New(cfg)}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = x.groups.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		do(t, x)
	})
}

func begin(change func(*group.Start)) group.Start {
	s := group.Start{Settings: group.Settings{Group: "g", Topics: []string{"t"}}}
	if change != nil {
		change(&s)
	}
	return s
}

func (x *table) join(change func(*group.Start)) *group.Worker {
	x.t.Helper()
	w, err := x.groups.Join(context.Background(), begin(change))
	if err != nil {
		x.t.Fatal(err)
	}
	return w
}

// assigned is the group, with partition 0 of its topic and so many records of these keys in it.
func (x *table) assigned(n int, keys ...string) *group.Group {
	g := <-x.joined
	g.Assign([]group.Place{{Partition: p0}})
	feed(g, 0, n, keys...)
	return g
}

var p0 = group.Partition{Topic: "t"}

func feed(g *group.Group, from, n int, keys ...string) {
	b := group.Batch{Partition: p0, Next: int64(from + n)}
	for i := range n {
		r := group.Record{Offset: int64(from + i), Body: []byte("body")}
		if len(keys) > 0 {
			r.Key = []byte(keys[i%len(keys)])
		}
		b.Records = append(b.Records, r)
	}
	g.Append(b)
}

// pull is what a worker gets, as offsets.
func pull(t *testing.T, w *group.Worker) (offsets []int64) {
	t.Helper()
	p, err := w.Pull(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range p.Deliveries {
		offsets = append(offsets, d.Record.Offset)
	}
	return offsets
}

func TestSettingsAreThoseOfTheFirstWorker(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.Topics = []string{"t", "s", "t"} })
		if got := w.Settings(); got.MaxAttempts != 5 || got.MaxInFlight != 100 || got.AckTimeout != 30*time.Second || !slices.Equal(got.Topics, []string{"s", "t"}) {
			t.Errorf("defaults: got %+v", got)
		}
		other := begin(func(s *group.Start) { s.Topics, s.MaxAttempts = []string{"s", "t"}, 3 })
		_, err := x.groups.Join(context.Background(), other)
		if refused := (*group.SettingsError)(nil); !errors.As(err, &refused) || refused.Current.MaxAttempts != 5 {
			t.Fatalf("got %v", err)
		}
		<-x.joined
		w.Close()
		began := time.Now()
		again, err := x.groups.Join(context.Background(), other) // it has no workers: at once
		if err != nil || time.Since(began) > time.Second {
			t.Fatalf("got %v after %v", err, time.Since(began))
		}
		<-x.joined
		again.Close()
	})
}

func TestStartsThatAreRefused(t *testing.T) {
	within(t, group.Config{MaxGroups: 2, MaxWorkers: 1, Allowed: regexp.MustCompile(`g|g[0-9]`)}, func(t *testing.T, x *table) {
		for field, change := range map[string]func(*group.Start){
			"group": func(s *group.Start) { s.Group = "" }, "topics": func(s *group.Start) { s.Topics = nil },
			"max_in_flight": func(s *group.Start) { s.MaxInFlight = 10_001 }, "ack_timeout": func(s *group.Start) { s.AckTimeout = time.Millisecond },
			"max_attempts": func(s *group.Start) { s.MaxAttempts = -1 }, "dead_letter_topic": func(s *group.Start) { s.DeadLetter = "t" },
		} {
			_, err := x.groups.Join(context.Background(), begin(change))
			if invalid := (*hub.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Field != field {
				t.Errorf("%s: got %v", field, err)
			}
		}
		for _, name := range []string{"g\x001", " ", "g\n"} {
			_, err := x.groups.Join(context.Background(), begin(func(s *group.Start) { s.Group = name }))
			if invalid := (*hub.InvalidError)(nil); !errors.As(err, &invalid) || invalid.Field != "group" {
				t.Errorf("%q: got %v", name, err)
			}
		}
		if _, err := x.groups.Join(context.Background(), begin(func(s *group.Start) { s.Group = "g10" })); !errors.Is(err, group.ErrNotAllowed) {
			t.Errorf("name: got %v", err)
		}
		defer x.join(nil).Close()
		defer x.join(func(s *group.Start) { s.Group = "g1" }).Close()
		for _, name := range []string{"g", "g2"} { // a second worker; a third group
			_, err := x.groups.Join(context.Background(), begin(func(s *group.Start) { s.Group = name }))
			if limit := (*hub.LimitError)(nil); !errors.As(err, &limit) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
}

func TestGroupIsLeftAfterItsLastWorker(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		x.join(nil).Close()
		<-x.joined
		time.Sleep(4 * time.Second)
		w := x.join(nil) // the same membership
		time.Sleep(10 * time.Second)
		if len(x.joined) > 0 || len(x.groups.Stats()) != 1 {
			t.Error("it was left while it had a worker")
		}
		w.Close()
		time.Sleep(5*time.Second + time.Millisecond)
		synctest.Wait()
		if got := x.groups.Stats(); len(got) != 0 {
			t.Errorf("it is still there: %+v", got)
		}
	})
}

func TestAutoAck(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.AutoAck = true })
		g := x.assigned(3)
		if got := pull(t, w); len(got) != 3 {
			t.Fatalf("got %v", got)
		}
		time.Sleep(time.Minute)
		if got := g.Turn().Commit; len(got) != 0 {
			t.Errorf("commits before the hand-over: %v", got)
		}
		pull(t, w)
		time.Sleep(time.Second)
		if got := g.Turn().Commit; len(got) != 1 || got[0].Offset != 3 {
			t.Errorf("got commits %v", got)
		}
		feed(g, 3, 2)
		if got := pull(t, w); len(got) != 2 {
			t.Fatalf("got %v", got)
		}
		w.Close() // they were not handed over
		other := x.join(nil)
		if got := pull(t, other); !slices.Equal(got, []int64{3, 4}) && !slices.Equal(got, []int64{4, 3}) {
			t.Errorf("got %v", got)
		}
		other.Close()
	})
}

func TestDrainWaitsForWhatIsHeld(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		busy, slow, idle := x.join(nil), x.join(nil), x.join(nil)
		g := x.assigned(1)
		pull(t, busy)
		feed(g, 1, 1)
		pull(t, slow)
		pull(t, idle)
		x.groups.Drain()
		<-idle.Signal()
		if _, err := idle.Pull(1); !errors.Is(err, hub.ErrDraining) {
			t.Errorf("idle: got %v", err)
		}
		if got := pull(t, busy); len(got) != 0 {
			t.Errorf("got %v while draining", got)
		}
		if refused := busy.Ack([]int64{1}, 0); len(refused) > 0 {
			t.Errorf("refused %v", refused)
		}
		if _, err := busy.Pull(1); !errors.Is(err, hub.ErrDraining) {
			t.Errorf("busy: got %v", err)
		}
		pull(t, slow)
		for len(slow.Signal()) > 0 {
			<-slow.Signal()
		}
		began := time.Now()
		pull(t, slow)
		<-slow.Signal()
		if _, err := slow.Pull(1); !errors.Is(err, hub.ErrDraining) || time.Since(began) != 500*time.Millisecond {
			t.Errorf("slow: got %v after %v", err, time.Since(began))
		}
		if _, err := x.groups.Join(context.Background(), begin(nil)); !errors.Is(err, hub.ErrDraining) {
			t.Errorf("join: got %v", err)
		}
		for _, w := range []*group.Worker{busy, slow, idle} {
			w.Close()
		}
	})
}

func TestWaitingWorkersGetTheirShare(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		var workers []*group.Worker
		for range 10 {
			w := x.join(nil)
			defer w.Close()
			workers = append(workers, w)
			pull(t, w)
		}
		x.assigned(100)
		for i, w := range workers {
			<-w.Signal()
			if got := pull(t, w); len(got) != 10 {
				t.Errorf("worker %d: got %d", i, len(got))
			}
		}
	})
}

func TestHotKeyDelaysNobodyElse(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		hot := x.join(func(s *group.Start) { s.MaxInFlight = 10 })
		other := x.join(func(s *group.Start) { s.MaxInFlight = 10 })
		g := x.assigned(1000, "hot")
		if got := pull(t, hot); len(got) != 10 {
			t.Fatalf("got %v", got)
		}
		if got := pull(t, other); len(got) != 0 {
			t.Fatalf("the key is held by two: %v", got)
		}
		feed(g, 1000, 5, "a", "b", "c", "d", "e")
		<-other.Signal()
		if got := pull(t, other); len(got) != 5 {
			t.Errorf("behind a backlog of one key: got %v", got)
		}
		hot.Close()
		other.Close()
	})
}

func TestGapsAreTold(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(nil)
		g := x.assigned(0)
		pull(t, w)
		gap := group.Gap{Partition: p0, From: 0, To: 50, Reason: hub.GapRetention}
		g.Gap(gap)
		<-w.Signal()
		if p, err := w.Pull(1); err != nil || !slices.Equal(p.Gaps, []group.Gap{gap}) {
			t.Errorf("got %+v, %v", p, err)
		}
		time.Sleep(time.Second)
		if got := g.Turn().Commit; len(got) != 1 || got[0].Offset != 50 {
			t.Errorf("got %v", got)
		}
		w.Close()
	})
}

// A tag that is named twice in one ack or nack counts once, and is not refused.
func TestTagsThatAreNamedTwice(t *testing.T) {
	within(t, group.Config{}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.MaxAttempts = 2 })
		defer w.Close()
		x.assigned(3)
		pull(t, w)
		if got := w.Ack([]int64{1, 9, 1, 2, 9, 2}, 2); !slices.Equal(got, []int64{9, 9}) {
			t.Errorf("got %v refused", got)
		}
		if got := w.Nack([]int64{3, 2, 3}, 0, "no"); !slices.Equal(got, []int64{2}) {
			t.Errorf("got %v refused", got)
		}
		if got := pull(t, w); !slices.Equal(got, []int64{2}) { // it failed once
			t.Errorf("got %v", got)
		}
	})
}
