package group_test

import (
	"context"
	"errors"
	"slices"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// step does one random thing.
func (w *world) step() {
	r := w.random
	switch n := r.IntN(100); {
	case n < 12:
		w.produce(1 + r.IntN(8))
	case n < 24:
		w.fetch()
	case n < 30:
		w.turn()
	case n < 34:
		w.join()
	case n < 37:
		w.end()
	case n < 58:
		w.pull()
	case n < 78:
		w.ack()
	case n < 84:
		w.nack()
	case n < 88:
		w.rebalance()
	case n < 90:
		w.lose()
	case n < 93:
		w.answer()
	default:
		w.advance([]time.Duration{time.Millisecond, 30 * time.Millisecond, grace, time.Second, 3 * time.Second, 8 * time.Second}[r.IntN(6)])
	}
	w.settle()
}

// settle waits until nothing moves, and has the model follow.
func (w *world) settle() {
	for {
		synctest.Wait()
		w.timeouts()
		w.mu.Lock()
		posted := w.posted
		w.posted = nil
		w.mu.Unlock()
		if len(posted) == 0 {
			break
		}
		for _, do := range posted {
			do()
		}
	}
}

func (w *world) produce(n int) {
	l := w.logs[w.random.IntN(len(w.logs))]
	for range n {
		if w.random.IntN(10) == 0 {
			l.end += int64(w.random.IntN(4)) // a hole
		}
		key := ""
		if w.random.IntN(6) > 0 {
			key = string(rune('a' + w.random.IntN(5)*w.random.IntN(2)))
		}
		l.entries = append(l.entries, &entry{offset: l.end, key: key})
		l.end++
	}
}

// fetch gives the next records of an assigned partition, and at times some that were there before.
func (w *world) fetch() {
	for _, l := range w.logs {
		o := l.owner
		if o == nil || o.paused || l.moving {
			continue
		}
		b := group.Batch{Partition: l.id, Next: o.next}
		for _, e := range l.entries {
			if e.offset < o.next || len(b.Records) == 20 {
				continue
			}
			rec := group.Record{Offset: e.offset, Epoch: 3, Body: []byte("body")}
			if e.key != "" {
				rec.Key = []byte(e.key)
			}
			b.Records = append(b.Records, rec)
			b.Next = e.offset + 1
			o.state[e.offset] = &fate{entry: e}
		}
		if len(b.Records) < 20 {
			b.Next = l.end
		}
		for i := range b.Records {
			o.records[&b.Records[i]] = true
		}
		o.next = b.Next
		o.group.Append(b)
	}
}

// turn is what a member does before it polls.
func (w *world) turn() {
	for _, p := range w.procs {
		g := p.member
		if g == nil || slices.ContainsFunc(w.logs, func(l *logOf) bool { return l.moving && l.owner.group == g }) {
			continue // it is in the callback
		}
		t := g.Turn()
		for _, id := range t.Pause {
			w.logs[id.Partition].owner.paused = true
		}
		for _, id := range t.Resume {
			w.logs[id.Partition].owner.paused = false
		}
		if len(t.Commit) == 0 {
			continue
		}
		if !w.steady && w.random.IntN(4) == 0 {
			g.Committed(t.Commit, errors.New("no coordinator"))
			continue
		}
		for _, at := range t.Commit {
			w.commit(at, g)
		}
		g.Committed(t.Commit, nil)
	}
}

func (w *world) join() {
	p := w.procs[w.random.IntN(len(w.procs))]
	start := w.start
	start.MaxInFlight = 1 + w.random.IntN(8)
	start.AckTimeout = time.Duration(1+w.random.IntN(5)) * time.Second
	w.add(p, start)
}

func (w *world) add(p *proc, start group.Start) {
	go func() {
		gw, err := p.groups.Join(context.Background(), start)
		w.post(func() {
			if err != nil {
				if limit := (*hub.LimitError)(nil); !errors.As(err, &limit) {
					w.fatal("join: %v", err)
				}
				return
			}
			w.note("%s: worker joins, %d in flight", p.name, start.MaxInFlight)
			w.workers = append(w.workers, &worker{Worker: gw, proc: p, start: gw.Settings(), held: map[int64]*life{}, what: map[int64]*fate{}})
		})
	}()
}

// some is a random worker, nil if there is none.
func (w *world) some() *worker {
	if len(w.workers) == 0 {
		return nil
	}
	return w.workers[w.random.IntN(len(w.workers))]
}

// rebalance moves partitions from one process, and gives those that nobody has to another.
func (w *world) rebalance() {
	var ps []group.Partition
	var from *proc
	for _, l := range w.logs {
		switch {
		case l.owner != nil && !l.moving && (from == nil || from == l.owner.proc) && w.random.IntN(2) == 0:
			from = l.owner.proc
			ps = append(ps, l.id)
		case l.owner == nil && !l.moving:
			w.assign(l)
		}
	}
	if from == nil {
		return
	}
	g := w.logs[ps[0].Partition].owner.group
	w.note("%s: revoke %v", from.name, ps)
	w.revoke(g, ps, func() {})
}

// assign gives a free partition to one of the members.
func (w *world) assign(l *logOf) {
	members := slices.DeleteFunc(slices.Clone(w.procs), func(p *proc) bool { return p.member == nil })
	if len(members) == 0 {
		return
	}
	p := members[w.random.IntN(len(members))]
	l.owner = &life{log: l, proc: p, group: p.member, from: l.committed, next: l.committed, state: map[int64]*fate{}, records: map[*group.Record]bool{}}
	p.member.Assign([]group.Place{{Partition: l.id, Offset: l.committed, Epoch: -1}})
	w.note("%s: assigned %d at %d", p.name, l.id.Partition, l.committed)
}

// lose is the end of a session: partitions are somebody else's already.
func (w *world) lose() {
	for _, l := range w.logs {
		if l.owner == nil || l.moving {
			continue
		}
		o := l.owner
		w.note("%s: loses %d", o.proc.name, l.id.Partition)
		o.group.Lose([]group.Partition{l.id})
		w.endLife(o)
		l.owner = nil
		return
	}
}

// answer lets the broker answer for a dead letter.
func (w *world) answer() {
	letters := w.letters
	w.letters = nil
	for _, answer := range letters {
		answer()
	}
}
