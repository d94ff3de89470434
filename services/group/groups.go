package group

import (
	"context"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/hub"
)

// Config of Groups. Zero values take the defaults.
type Config struct {
	Cluster     Cluster
	DeadLetters DeadLetters
	Logger      *slog.Logger
	// Registerer gets the metrics tailrace_group_…; nil: nobody.
	Registerer prometheus.Registerer

	// MaxGroups of this process at a time; default 100.
	MaxGroups int
	// MaxWorkers of a group in this process; default 1000.
	MaxWorkers int
	// Allowed is what a group's name must match, from its first to its last character; nil: all are allowed.
	Allowed *regexp.Regexp
	// Linger is how long a group without workers is kept; default 5 s.
	Linger time.Duration
	// Grace is what work in flight has when its partition is revoked, and at a drain; default 500 ms, at most 5 s: Kafka waits meanwhile.
	Grace time.Duration
	// CommitInterval is how often fronts are committed; default 1 s.
	CommitInterval time.Duration
	// WindowRecords and WindowBytes bound what lies beyond the front of a partition, which then waits, until half of it is left; default 10,000 and
	// 64 MiB.
	WindowRecords int
	WindowBytes   int64
	// Budget bounds the bytes beyond the fronts of all partitions of all groups: beyond half of it, those with more than their share wait, beyond all of
	// it those with more than LeastShare; they go on when half of that is left. Default 256 MiB.
	Budget int64
}

func (c Config) withDefaults() Config {
	fill := func(d *time.Duration, otherwise time.Duration) {
		if *d <= 0 {
			*d = otherwise
		}
	}
	number := func(n *int, otherwise int) {
		if *n <= 0 {
			*n = otherwise
		}
	}
	number(&c.MaxGroups, 100)
	number(&c.MaxWorkers, 1000)
	number(&c.WindowRecords, 10_000)
	fill(&c.Linger, 5*time.Second)
	fill(&c.Grace, 500*time.Millisecond)
	fill(&c.CommitInterval, time.Second)
	c.Grace = min(c.Grace, 5*time.Second)
	if c.WindowBytes <= 0 {
		c.WindowBytes = 64 << 20
	}
	if c.Budget <= 0 {
		c.Budget = 256 << 20
	}
	if c.Allowed != nil {
		c.Allowed = regexp.MustCompile(`\A(?:` + c.Allowed.String() + `)\z`)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Groups are all groups of this process. Its methods may be called concurrently.
type Groups struct {
	cfg    Config
	counts counts

	ready   chan struct{} // closed by Run
	stopped chan struct{} // closed when Run returns

	mu       sync.Mutex
	groups   map[string]*Group
	life     context.Context //nolint:containedctx // that of Run: groups outlive the call that made them
	running  sync.WaitGroup
	draining bool
}

// New returns Groups that wait for Run.
func New(cfg Config) *Groups {
	gs := &Groups{cfg: cfg.withDefaults(), ready: make(chan struct{}), stopped: make(chan struct{}), groups: map[string]*Group{}}
	if cfg.Registerer != nil {
		cfg.Registerer.MustRegister(&collector{gs})
	}
	return gs
}

// Run serves until ctx ends; then groups are left: what is held has a grace, fronts are committed. It is called once. The error is nil.
func (gs *Groups) Run(ctx context.Context) error {
	gs.mu.Lock()
	gs.life = ctx
	gs.mu.Unlock()
	close(gs.ready)
	<-ctx.Done()
	gs.Drain()
	gs.running.Wait()
	close(gs.stopped)
	return nil
}

// Drain ends all workers with hub.ErrDraining: at once those that hold nothing, the others when they don't any more, within the grace.
func (gs *Groups) Drain() {
	gs.mu.Lock()
	gs.draining = true
	groups := slices.Collect(maps.Values(gs.groups))
	gs.mu.Unlock()
	for _, g := range groups {
		g.drain()
	}
}

// Join makes a worker of a group, which this process joins if it has not yet. Whoever joins closes the Worker. Errors: *hub.InvalidError,
// ErrNotAllowed, *SettingsError, *hub.LimitError, hub.ErrUnknownTopic, hub.ErrUnavailable, hub.ErrDraining, ctx's.
func (gs *Groups) Join(ctx context.Context, s Start) (*Worker, error) {
	s, err := s.normal()
	if err != nil {
		return nil, err
	}
	if !gs.Allows(s.Group) {
		return nil, ErrNotAllowed
	}
	select {
	case <-gs.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := gs.cfg.Cluster.Check(ctx, s.Topics); err != nil {
		return nil, err
	}
	for {
		g, err := gs.group(s.Settings)
		if err != nil {
			return nil, err
		}
		if w, ok, err := g.join(s); ok {
			return w, err
		}
		select { // it is being left
		case <-g.left:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// group finds a group, or begins it.
func (gs *Groups) group(s Settings) (*Group, error) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if g := gs.groups[s.Group]; g != nil {
		return g, nil
	}
	if gs.draining {
		return nil, hub.ErrDraining
	}
	if len(gs.groups) >= gs.cfg.MaxGroups {
		return nil, &hub.LimitError{Limit: "groups in this process", Value: int64(gs.cfg.MaxGroups), Retry: gs.cfg.Linger}
	}
	g := newGroup(&gs.cfg, s, &gs.counts)
	ctx, leave := context.WithCancel(gs.life)
	g.leave = leave
	g.emptySince = g.now()
	g.arm(g.emptySince + int64(gs.cfg.Linger))
	gs.groups[s.Group] = g
	gs.running.Go(func() {
		defer leave()
		g.serve(ctx, gs.cfg.Cluster)
		gs.mu.Lock()
		delete(gs.groups, s.Group)
		gs.mu.Unlock()
		close(g.left)
	})
	return g, nil
}
