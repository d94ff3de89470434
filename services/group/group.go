package group

import (
	"context"
	"hash/maphash"
	"math"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// never is a time that does not come.
const never = math.MaxInt64

// Group is one group of this process while it has workers here, and a little longer. Cluster.Join calls its exported methods.
type Group struct {
	cfg      *Config
	settings Settings
	base     time.Time
	seed     maphash.Seed
	leave    context.CancelFunc
	kick     chan struct{} // the clock has to look
	graves   chan struct{} // the burial has to look
	left     chan struct{} // closed when it was left
	counts   *counts

	mu         sync.Mutex
	lanes      map[Partition]*lane
	workers    map[*Worker]struct{}
	lanesReady laneLine
	ready      int        // what stands in the lines of lanes: keys, and records without order
	free       workerLine // idle workers that hold nothing
	idle       workerLine // and those that hold something
	coming     int        // workers that were woken and have not pulled yet
	promised   int        // of what is ready: for those of them that held nothing, for a while
	promisedBy int64      // the end of it; never: there is none
	wakeBy     int64      // when idle workers are woken for what others did not take; never: there is no need
	later      delays
	armed      int64 // when the clock looks next
	undealt    int   // records that wait
	bytes      int64 // beyond the fronts
	spare      []*queue
	letters    []*item // for the burial
	emptySince int64
	committed  int64 // when commits were asked for last
	pausedN    int
	leaving    bool // no worker comes any more
	draining   bool
	drainBy    int64
	err        error // what ended it
}

func newGroup(cfg *Config, s Settings, c *counts) *Group {
	return &Group{
		cfg: cfg, settings: s, base: time.Now(), seed: maphash.MakeSeed(), counts: c,
		kick: make(chan struct{}, 1), graves: make(chan struct{}, 1), left: make(chan struct{}),
		lanes: map[Partition]*lane{}, workers: map[*Worker]struct{}{}, armed: never, promisedBy: never, wakeBy: never,
	}
}

func (g *Group) now() int64 { return int64(time.Since(g.base)) }

func (g *Group) hash(key []byte) uint64 { return maphash.Bytes(g.seed, key) }

// spareQueues is how many queues of keys are kept for the next ones.
const spareQueues = 1024

func (g *Group) newQueue() *queue {
	if n := len(g.spare); n > 0 {
		q := g.spare[n-1]
		g.spare = g.spare[:n-1]
		return q
	}
	return &queue{}
}

func (g *Group) freeQueue(q *queue) {
	if len(g.spare) < spareQueues {
		*q = queue{}
		g.spare = append(g.spare, q)
	}
}

// join adds a worker. Another group of the same name must be made where ok is false: this one is being left.
func (g *Group) join(s Start) (w *Worker, ok bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.leaving || g.err != nil:
		return nil, false, nil
	case g.draining:
		return nil, true, hub.ErrDraining
	case !g.settings.equal(&s.Settings):
		if len(g.workers) == 0 {
			g.depart()
			return nil, false, nil
		}
		return nil, true, &SettingsError{g.settings}
	case len(g.workers) >= g.cfg.MaxWorkers:
		return nil, true, &hub.LimitError{Limit: "workers of a group in this process", Value: int64(g.cfg.MaxWorkers)}
	}
	w = &Worker{group: g, start: s, signal: make(chan struct{}, 1), held: newHolding(s.MaxInFlight)}
	g.workers[w] = struct{}{}
	return w, true, nil
}

// over is what ended the group, or ends it for this worker.
func (g *Group) over(w *Worker) error {
	if g.err != nil {
		return g.err
	}
	if g.draining && (w.held.count == 0 || g.now() >= g.drainBy) {
		return hub.ErrDraining
	}
	return nil
}

// depart begins to leave Kafka's group.
func (g *Group) depart() {
	if !g.leaving {
		g.leaving = true
		g.leave()
	}
}

// drain deals nothing any more; workers have a grace for what they hold.
func (g *Group) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.draining {
		return
	}
	g.draining, g.drainBy = true, g.now()+int64(g.cfg.Grace)
	g.arm(g.drainBy)
	g.wakeAll()
}

func (g *Group) wakeAll() {
	for w := range g.workers {
		w.wake()
	}
}

// serve is the group's life: it returns when Kafka's group was left, for which ctx ends.
func (g *Group) serve(ctx context.Context, cluster Cluster) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var roles sync.WaitGroup
	roles.Go(func() { g.clock(life) })
	roles.Go(func() { g.bury(life) })
	err := cluster.Join(ctx, g.settings, g)
	g.mu.Lock()
	g.leaving = true
	if g.err = err; err == nil {
		if g.err = hub.ErrUnavailable; g.draining {
			g.err = hub.ErrDraining
		}
	}
	for _, l := range g.lanes {
		g.drop(l, lost)
	}
	g.later.forget()
	g.wakeAll()
	g.mu.Unlock()
	end()
	roles.Wait()
}

// arm makes the clock look at a time, at the latest.
func (g *Group) arm(at int64) {
	if at >= g.armed {
		return
	}
	g.armed = at
	select {
	case g.kick <- struct{}{}:
	default:
	}
}

// clock looks after all that happens at some time.
func (g *Group) clock(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.kick:
		case <-timer.C:
		}
		g.mu.Lock()
		g.tick()
		wait := time.Duration(min(g.armed-g.now(), int64(time.Hour)))
		g.mu.Unlock()
		timer.Reset(max(wait, 0))
	}
}

// tick does what is due, and says in armed when to look again.
func (g *Group) tick() {
	now := g.now()
	next := int64(never)
	g.armed = 0 // what is done here need not kick the clock
	for w := range g.workers {
		if w.start.AutoAck {
			continue // what it holds is on its way to it
		}
		for w.oldest != nil && w.oldest.due <= now {
			g.giveBack(w.oldest, timedOut, "not acknowledged in time", 0)
			g.roused(w)
		}
		if w.oldest != nil {
			next = min(next, w.oldest.due)
		}
	}
	for len(g.later) > 0 && g.later[0].at <= now {
		g.due(g.later.pop())
	}
	if len(g.later) > 0 {
		next = min(next, g.later[0].at)
	}
	if g.promisedBy <= now {
		g.promised, g.promisedBy = 0, never // they had their time
	}
	if g.wakeBy <= now {
		g.rouseMore()
	}
	g.rouse() // for what is not delayed any more
	next = min(next, g.promisedBy, g.wakeBy)
	if n := g.stuckFronts(now); n > 0 {
		next = min(next, now+int64(time.Second))
	}
	if g.draining && !g.leaving {
		if now >= g.drainBy {
			g.wakeAll()
		} else {
			next = min(next, g.drainBy)
		}
	}
	if len(g.workers) == 0 && !g.leaving {
		if at := g.emptySince + int64(g.cfg.Linger); now >= at {
			g.depart()
		} else {
			next = min(next, at)
		}
	}
	g.armed = next
}

// due goes on with what was delayed.
func (g *Group) due(d delay) {
	switch {
	case d.queue != nil:
		d.queue.timed = false
		g.withdraw(d.queue)
		g.place(d.queue)
	case d.item.state == delayed:
		if d.item.lane.leaving {
			return
		}
		g.back(d.item)
	case d.item.state == dying:
		g.letters = append(g.letters, d.item)
		g.toGrave()
	}
}
