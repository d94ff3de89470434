package group_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/group"
)

// entry is a record of the fake log.
type entry struct {
	offset int64
	key    string // empty: none
	acked  bool   // by an ack that counted
	dead   bool
}

// logOf is one partition in the fake Kafka.
type logOf struct {
	id        group.Partition
	entries   []*entry
	end       int64
	committed int64
	owner     *life // nil: nobody
	moving    bool  // a revocation is under way
}

// life is one assignment of a partition to a process.
type life struct {
	log    *logOf
	proc   *proc
	group  *group.Group
	from   int64
	next   int64 // where the member reads on
	paused bool
	over   bool
	state  map[int64]*fate // of what was appended, by offset

	records map[*group.Record]bool
}

// fate is what the model knows of a record in a life.
type fate struct {
	entry    *entry
	attempts int
	failures int
	done     bool
	dying    bool
	holder   *worker // nil: nobody
	tag      int64
	due      time.Time
	notYet   time.Time
}

// proc is one process of the service.
type proc struct {
	world  *world
	name   string
	groups *group.Groups
	end    context.CancelFunc
	ended  chan struct{}
	member *group.Group // nil: not in the group
}

type worker struct {
	*group.Worker
	proc  *proc
	start group.Start
	tag   int64
	held  map[int64]*life // by tag
	what  map[int64]*fate
	empty bool // its last Pull found nothing
}

// world is a fake Kafka, the processes on it, and what the model knows. Steps are taken by one goroutine, which settles between them; what others have to
// tell is posted to it.
type world struct {
	t       *testing.T
	random  *rand.Rand
	start   group.Start
	procs   []*proc
	workers []*worker
	steady  bool // nothing fails any more
	over    chan struct{}

	logs    []*logOf
	letters []func() // answers that are due for dead letters
	trace   []string

	mu     sync.Mutex
	posted []func()
}

func (w *world) note(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf(format, args...))
	if len(w.trace) > 60 {
		w.trace = w.trace[1:]
	}
}

func (w *world) fatal(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.trace {
		w.t.Log(l)
	}
	w.t.Fatalf(format, args...)
}

const grace = 500 * time.Millisecond

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 42)), over: make(chan struct{})}
	w.start = group.Start{Settings: group.Settings{
		Group: "g", Topics: []string{"t"}, Ordering: group.Ordering(w.random.IntN(4) / 3), MaxAttempts: 1 + w.random.IntN(4),
	}}
	for p := range 1 + w.random.IntN(3) {
		first := int64(w.random.IntN(3)) * 10
		w.logs = append(w.logs, &logOf{id: group.Partition{Topic: "t", Partition: int32(p)}, end: first, committed: first})
	}
	for i := range 1 + w.random.IntN(3) {
		p := &proc{world: w, name: string(rune('A' + i)), ended: make(chan struct{})}
		p.groups = group.New(group.Config{
			Cluster: p, DeadLetters: p, Linger: 5 * time.Second, Grace: grace, WindowRecords: 5 + w.random.IntN(40), MaxWorkers: 6,
		})
		ctx, cancel := context.WithCancel(context.Background())
		p.end = cancel
		go func() { defer close(p.ended); _ = p.groups.Run(ctx) }()
		w.procs = append(w.procs, p)
	}
	return w
}

func (p *proc) Check(context.Context, []string) error { return nil }

// Join is group.Cluster's: steps of the world are the member's goroutine, until it leaves.
func (p *proc) Join(ctx context.Context, _ group.Settings, g *group.Group) error {
	w := p.world
	w.post(func() { p.member = g })
	<-ctx.Done()
	left := make(chan struct{})
	w.post(func() {
		p.member = nil
		var mine []group.Partition
		for _, l := range w.logs {
			if l.owner != nil && l.owner.group == g && !l.moving {
				mine = append(mine, l.id)
			}
		}
		w.revoke(g, mine, func() { close(left) })
	})
	select {
	case <-left:
	case <-w.over:
	}
	return nil
}

// post has something done between two steps.
func (w *world) post(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.posted = append(w.posted, do)
}

// revoke is the callback of a rebalance: when it ends partitions may be read by others.
func (w *world) revoke(g *group.Group, ps []group.Partition, then func()) {
	for _, p := range ps {
		w.logs[p.Partition].moving = true
	}
	go func() {
		fronts := g.Revoke(context.Background(), ps)
		w.post(func() {
			for _, f := range fronts {
				w.commit(f, g)
			}
			for _, p := range ps {
				l := w.logs[p.Partition]
				l.moving = false
				w.endLife(l.owner)
				l.owner = nil
			}
			then()
		})
	}()
}

// endLife lets go what is held of a partition.
func (w *world) endLife(l *life) {
	l.over = true
	for _, f := range l.state {
		w.free(f)
	}
	w.note("%s: %s[%d] is over", l.proc.name, l.log.id.Topic, l.log.id.Partition)
}

func (w *world) free(f *fate) {
	if f.holder != nil {
		delete(f.holder.held, f.tag)
		delete(f.holder.what, f.tag)
		f.holder = nil
	}
}

// commit checks a front and stores it.
func (w *world) commit(at group.Place, g *group.Group) {
	l := w.logs[at.Partition.Partition]
	if l.owner == nil || l.owner.group != g {
		return // fenced
	}
	want := l.owner.next
	for _, e := range l.entries {
		if e.offset >= l.owner.from && e.offset < l.owner.next && !l.owner.state[e.offset].done {
			want = e.offset
			break
		}
	}
	if at.Offset != want {
		w.fatal("%s commits %d of partition %d, want %d", l.owner.proc.name, at.Offset, l.id.Partition, want)
	}
	l.committed = at.Offset
}

// Bury is group.DeadLetters'.
func (p *proc) Bury(_ context.Context, letter group.Letter, done func(error)) {
	w := p.world
	w.post(func() {
		o := w.logs[letter.Partition.Partition].owner
		if o == nil || o.proc != p || o.state[letter.Record.Offset] == nil || !o.state[letter.Record.Offset].dying {
			return // its life has ended meanwhile
		}
		f := o.state[letter.Record.Offset]
		if f.failures < w.start.MaxAttempts {
			w.fatal("dead letter of %d, which failed %d times", letter.Record.Offset, f.failures)
		}
		if letter.To != "t.dlq" || letter.Attempts != f.attempts || letter.Group != "g" || letter.Reason == "" {
			w.fatal("got %+v, attempts %d", letter, f.attempts)
		}
		var answer error
		switch n := w.random.IntN(12); {
		case n < 4 && !w.steady:
			answer = errors.New("no broker")
		case n == 4:
			answer = fmt.Errorf("dead letter: %w", group.ErrGoesRound)
		}
		w.letters = append(w.letters, func() {
			if answer == nil || errors.Is(answer, group.ErrGoesRound) {
				f.entry.dead = true
				f.done, f.dying = true, false
			}
			done(answer)
		})
	})
}
