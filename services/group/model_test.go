package group_test

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

var (
	seeds = flag.Int("group.seeds", 200, "histories that the model test plays")
	first = flag.Uint64("group.first", 0, "the first of them")
)

// TestModel plays random histories of groups on a fake Kafka: workers that come and go, acks in any order, late and wrong ones, nacks, timeouts,
// dead letters that can't be stored, partitions that are revoked, lost and assigned again to another of several processes. What workers get is
// compared with the log, and every commit with a plain set.
func TestModel(t *testing.T) {
	for seed := *first; seed < *first+uint64(*seeds); seed++ {
		if ok := t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { history(t, seed) }) }); !ok {
			return
		}
	}
}

func history(t *testing.T, seed uint64) {
	w := newWorld(t, seed)
	defer func() {
		for _, p := range w.procs {
			p.end()
		}
		close(w.over)
		for _, p := range w.procs {
			<-p.ended
		}
	}()
	w.settle()
	for range 400 {
		w.step()
	}
	w.finish()
}

// finish lets everything come to its end: nothing is lost, nothing is left.
func (w *world) finish() {
	w.steady = true
	start := w.start
	start.MaxInFlight, start.AckTimeout = 50, time.Minute
	for len(w.workers) > 0 {
		w.note("%s: worker ends", w.workers[0].proc.name)
		o := w.workers[0]
		o.Close()
		w.gone(o)
		for tag := int64(1); len(o.what) > 0; tag++ {
			if o.what[tag] != nil {
				w.fail(o, tag, nil, 0)
			}
		}
		w.settle()
	}
	for _, p := range w.procs {
		w.add(p, start)
	}
	w.settle()
	for round := 0; !w.quiet(); round++ {
		if round == 400 {
			for _, l := range w.logs {
				w.t.Logf("partition %d: committed %d, end %d, owner %v", l.id.Partition, l.committed, l.end, l.owner != nil)
			}
			w.fatal("it does not come to an end")
		}
		for _, l := range w.logs {
			if l.owner == nil && !l.moving {
				w.assign(l)
			}
		}
		w.fetch()
		for _, o := range w.workers {
			for w.pullBy(o) > 0 {
				w.ackBy(o, nil, o.tag)
				w.settle()
			}
		}
		w.answer()
		w.settle()
		time.Sleep(time.Second)
		w.settle()
		w.turn()
		w.settle()
	}
	for _, l := range w.logs {
		for _, e := range l.entries {
			if !e.acked && !e.dead {
				w.fatal("offset %d of partition %d was never acknowledged", e.offset, l.id.Partition)
			}
		}
	}
	for _, p := range w.procs {
		for _, s := range p.groups.Stats() {
			if s.InFlight != 0 || s.Waiting != 0 || s.Bytes != 0 {
				w.fatal("something is left: %+v", s)
			}
		}
	}
	for _, p := range w.procs {
		if n := p.member.Delayed(); n != 0 {
			w.fatal("%s keeps %d delays", p.name, n)
		}
	}
	for _, o := range w.workers {
		o.Close()
	}
	time.Sleep(6 * time.Second)
	w.settle()
	for _, p := range w.procs {
		if n := len(p.groups.Stats()); n != 0 || p.member != nil {
			w.fatal("%s is still in the group", p.name)
		}
	}
}

func (w *world) quiet() bool {
	for _, l := range w.logs {
		if l.committed != l.end {
			return false
		}
	}
	return true
}
