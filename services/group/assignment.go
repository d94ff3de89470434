package group

import (
	"context"
	"time"
)

// Assign begins with partitions, each at its place. One that the group has already begins anew.
func (g *Group) Assign(places []Place) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range places {
		if l := g.lanes[at.Partition]; l != nil {
			g.drop(l, lost)
		}
		l := newLane(g, at)
		if !at.Fresh {
			l.committed = at.Offset
		}
		g.lanes[at.Partition] = l
		g.counts.lanes.Add(1)
	}
	g.later.forget()
}

// Append takes what was read of a partition, in order. What comes of a partition that is not assigned, and what was here before, is left out.
func (g *Group) Append(b Batch) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l := g.lanes[b.Partition]
	if l == nil || l.leaving {
		return
	}
	items := make([]item, len(b.Records))
	known := 0 // at the beginning: they were here before
	for i := range b.Records {
		r := &b.Records[i]
		size := len(r.Body) + itemBytes
		seq, ok := l.tracker.Append(r.Offset, r.Epoch, size)
		if !ok {
			known = i + 1
			continue
		}
		g.charge(int64(size))
		it := &items[i]
		it.lane, it.record, it.seq = l, r, seq
		q := l.queueOf(r.Key)
		it.queue = q
		q.push(it)
		g.undealt++
		switch {
		case q.line == nil:
			if q.count == 1 || !q.loose {
				g.place(q)
			}
		case q.loose:
			g.ready++
		}
	}
	if items = items[known:]; len(items) > 0 {
		l.batches = append(l.batches, batch{first: items[0].seq, items: items})
	}
	l.tracker.Pass(b.Next)
	g.rouse()
}

// charge counts what the group holds in memory, and with it what all do.
func (g *Group) charge(bytes int64) {
	g.bytes += bytes
	g.counts.bytes.Add(bytes)
}

// itemBytes is what a record costs beside its body.
const itemBytes = 256

// Gap says that a partition goes on at gap.To, and tells the workers.
func (g *Group) Gap(gap Gap) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.lanes[gap.Partition]; l != nil {
		l.tracker.Pass(gap.To)
	}
	for w := range g.workers {
		w.tell(gap)
	}
}

// Revoke takes partitions away: nothing more of them is dealt, what is held has a grace to be acknowledged, then it is let go: acks for it are not
// held any more. It returns the fronts, which the caller commits before anybody else reads on. Other partitions go on meanwhile.
func (g *Group) Revoke(ctx context.Context, ps []Partition) []Place {
	g.mu.Lock()
	defer g.mu.Unlock()
	var quiet []chan struct{}
	var lanes []*lane
	for _, p := range ps {
		l := g.lanes[p]
		if l == nil {
			continue
		}
		lanes = append(lanes, l)
		g.halt(l)
		if l.busy > 0 {
			l.quiet = make(chan struct{})
			quiet = append(quiet, l.quiet)
		}
	}
	if len(quiet) > 0 {
		grace := time.NewTimer(g.cfg.Grace)
		g.mu.Unlock()
		for _, c := range quiet {
			select {
			case <-c:
				continue
			case <-grace.C:
			case <-ctx.Done():
			}
			break
		}
		grace.Stop()
		g.mu.Lock()
	}
	var fronts []Place
	for _, l := range lanes {
		if g.lanes[l.id] != l {
			continue
		}
		offset, epoch := l.tracker.Front()
		fronts = append(fronts, Place{Partition: l.id, Offset: offset, Epoch: epoch})
		g.drop(l, revoked)
	}
	g.later.forget()
	return fronts
}

// Lose lets partitions go that somebody else may have by now: nothing of them may be committed. It returns where their fronts were, to tell of.
func (g *Group) Lose(ps []Partition) []Place {
	g.mu.Lock()
	defer g.mu.Unlock()
	fronts := make([]Place, 0, len(ps))
	for _, p := range ps {
		if l := g.lanes[p]; l != nil {
			offset, epoch := l.tracker.Front()
			fronts = append(fronts, Place{Partition: p, Offset: offset, Epoch: epoch})
			g.drop(l, lost)
		}
	}
	g.later.forget()
	return fronts
}

// halt deals nothing more of a lane.
func (g *Group) halt(l *lane) {
	l.leaving = true
	g.withdraw(&l.loose)
	for _, q := range l.keys {
		g.withdraw(q)
	}
}

// drop lets a lane go, and what is held of it. What it has in Group.later is the caller's to forget, once for all that it drops.
func (g *Group) drop(l *lane, how outcome) {
	g.halt(l)
	l.gone = true
	delete(g.lanes, l.id)
	g.counts.lanes.Add(-1)
	eased := map[*Worker]struct{}{}
	let := func(q *queue) {
		for q.heldFirst != nil {
			it := q.heldFirst
			eased[it.worker] = struct{}{}
			g.release(it)
			it.state = settled
			g.counts.settle(how)
		}
		g.undealt -= q.count
	}
	let(&l.loose)
	for _, q := range l.keys {
		let(q)
	}
	_, bytes := l.tracker.Beyond()
	g.charge(-bytes)
	if l.paused {
		g.pausedN--
	}
	if l.quiet != nil {
		close(l.quiet)
		l.quiet = nil
	}
	for w := range eased {
		g.roused(w)
	}
}

// Turn is asked before each poll.
func (g *Group) Turn() Turn {
	g.mu.Lock()
	defer g.mu.Unlock()
	var t Turn
	now := g.now()
	commit := now-g.committed >= int64(g.cfg.CommitInterval)
	if commit {
		g.committed = now
	}
	for _, l := range g.lanes {
		if full := g.full(l); full != l.paused {
			if l.paused = full; full {
				g.pausedN++
				if g.windowFull(l) {
					l.stuck.note(l.tracker.Low(), now)
				}
				g.arm(now + lasting)
				t.Pause = append(t.Pause, l.id)
			} else {
				g.pausedN--
				t.Resume = append(t.Resume, l.id)
			}
		}
		if !commit || l.offered >= 0 {
			continue
		}
		if offset, epoch := l.tracker.Front(); offset != l.committed {
			l.offered = offset
			t.Commit = append(t.Commit, Place{Partition: l.id, Offset: offset, Epoch: epoch})
		}
	}
	t.Busy = g.pausedN > 0
	room := (g.cfg.Budget/2 - g.counts.bytes.Load()) / max(g.counts.lanes.Load(), 1)
	t.Take = int(min(max(room, LeastShare), MostTaken))
	return t
}

// full says whether a lane has to wait. Between the marks it stays as it is: to pause throws away what was fetched ahead.
//
// Half of the budget is for whoever comes first; beyond it lanes with more than their share of that half wait. Those who came first keep what they
// have, though, and shares shrink as lanes come: beyond all of the budget, a lane has the least.
func (g *Group) full(l *lane) bool {
	records, bytes := l.tracker.Beyond()
	all, budget := g.counts.bytes.Load(), g.cfg.Budget
	share := max(budget/2/max(g.counts.lanes.Load(), 1), 1)
	least := min(share, LeastShare)
	if l.paused {
		return records > g.cfg.WindowRecords/2 || bytes > g.cfg.WindowBytes/2 || all > budget/4 && bytes > share/2 || all > budget/2 && bytes > least/2
	}
	return records >= g.cfg.WindowRecords || bytes >= g.cfg.WindowBytes || all >= budget/2 && bytes >= share || all >= budget && bytes >= least
}

// Committed answers the commits of a Turn. What failed is offered again.
func (g *Group) Committed(places []Place, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, at := range places {
		if l := g.lanes[at.Partition]; l != nil && l.offered == at.Offset {
			if l.offered = -1; err == nil {
				l.committed = at.Offset
			}
		}
	}
}
