// Package upstream is an edge's way to the services: hub.Source over their RPC, a Publisher, and the list of topics.
//
// A feed is one Subscribe stream for each topic partition that the hub follows; it resumes at the position it had, whatever became of the
// connection or the service. Its goroutine, started by Follow and awaited by unfollow, is the only writer of its partition. Starts are resolved,
// and history is read, by Subscribe streams that end by themselves. Records are never decoded: a message's bytes become the body of an entry.
//
// Nothing here sends a record again whose outcome is not known.
package upstream

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Config of a Source. Zero durations take the defaults.
type Config struct {
	// Addresses of the services, such as http://127.0.0.1:7070: at least one. A feed goes to the one that a hash of its topic and partition
	// chooses among those that answer, so that edges share a service's fetches; everything else takes turns.
	Addresses []string
	// Logger gets a line whenever a service is lost or found. Required.
	Logger *slog.Logger
	// Registerer gets the metrics tailrace_edge_upstream_… and tailrace_edge_feed…; nil: none.
	Registerer prometheus.Registerer

	DialTimeout time.Duration // for one attempt to connect; default 3 s
	PingTimeout time.Duration // an HTTP/2 connection silent for this long is pinged, and given up when no answer comes as long again; default 5 s
	Heartbeat   time.Duration // asked of feeds, 1 s to 5 min; a feed silent for three of them is opened anew; default 10 s
	RetryMin    time.Duration // first pause after a failure; default 50 ms
	RetryMax    time.Duration // longest pause after failures; default 2 s
	ProbeEvery  time.Duration // how often the health of a service is asked for; default 2 s
	PublishWait time.Duration // how long a publish waits for a service that cannot be reached; default 5 s
	// PublishStreams is how many sockets may publish at once, each with a stream of its own; default 4096. When there are more than half of
	// that, a stream is given up as soon as all is answered, else after PublishLinger; default 10 s.
	PublishStreams int
	PublishLinger  time.Duration
	// ConsumeStreams is how many consumes there may be at once, of all sockets, each with a stream of its own; default 1024.
	ConsumeStreams int
	// UnknownAfter is how long a topic that a service no longer knows may be away before its feeds say Deleted; default 10 s. (A service that
	// has just started may not have seen it yet.)
	UnknownAfter time.Duration
}

func (c Config) withDefaults() Config {
	fill := func(d *time.Duration, otherwise time.Duration) {
		if *d <= 0 {
			*d = otherwise
		}
	}
	fill(&c.DialTimeout, 3*time.Second)
	fill(&c.PingTimeout, 5*time.Second)
	fill(&c.Heartbeat, 10*time.Second)
	fill(&c.RetryMin, 50*time.Millisecond)
	fill(&c.RetryMax, 2*time.Second)
	fill(&c.ProbeEvery, 2*time.Second)
	fill(&c.PublishWait, 5*time.Second)
	fill(&c.UnknownAfter, 10*time.Second)
	fill(&c.PublishLinger, 10*time.Second)
	if c.PublishStreams <= 0 {
		c.PublishStreams = 4096
	}
	if c.ConsumeStreams <= 0 {
		c.ConsumeStreams = 1024
	}
	return c
}

// Source fills hub.Source. Its methods may be called concurrently.
type Source struct {
	cfg      Config
	replicas []*replica
	turn     atomic.Uint32
	metrics  *metrics

	described memory[*tailracev1.Topic]

	lines   atomic.Int64   // of sockets that publish, with a stream or waiting for one
	works   atomic.Int64   // consumes
	running sync.WaitGroup // the goroutines of both

	reached     chan struct{} // closed when a service has answered for the first time
	reachedOnce sync.Once
}

var _ hub.Source = (*Source)(nil)

// New returns a Source; Run watches the services' health. It works without Run, but then takes every service for reachable.
func New(cfg Config) (*Source, error) {
	s := &Source{cfg: cfg.withDefaults(), reached: make(chan struct{})}
	s.described.age, s.described.most = describedAge, describedMost
	if len(cfg.Addresses) == 0 {
		return nil, errors.New("upstream: no address")
	}
	s.metrics = newMetrics(cfg.Registerer, &s.lines, &s.works)
	for _, address := range cfg.Addresses {
		address, err := CheckAddress(address)
		if err != nil {
			return nil, err
		}
		s.replicas = append(s.replicas, newReplica(address, &s.cfg))
	}
	return s, nil
}

// CheckAddress returns the address of a service without a slash at its end, or says what is wrong with it.
func CheckAddress(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !dialable(u) || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", fmt.Errorf("upstream %q: must be like http://host:port", address)
	}
	return u.Scheme + "://" + u.Host, nil
}

// dialable says whether a URL has a host, and a port or none.
func dialable(u *url.URL) bool {
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return u.Hostname() != "" && (u.Port() == "" && !strings.HasSuffix(u.Host, ":") || err == nil && port > 0)
}

// Run watches the health of the services until ctx ends; then, once all that OpenPublish and OpenConsume have begun has ended, it returns nil, and no connection
// is left that is not in use.
func (s *Source) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, r := range s.replicas {
		wg.Go(func() { s.watch(ctx, r) })
	}
	wg.Wait()
	s.running.Wait()
	for _, r := range s.replicas {
		r.http.CloseIdleConnections()
	}
	return nil
}

// Available says whether a service answers at the moment.
func (s *Source) Available() bool {
	for _, r := range s.replicas {
		if r.up.Load() {
			return true
		}
	}
	return false
}

// Reached is closed when a service has answered for the first time.
func (s *Source) Reached() <-chan struct{} { return s.reached }

// FiltersHistory is true: the service leaves out other keys.
func (s *Source) FiltersHistory() bool { return true }

// forFeed chooses a service for a partition: the same one for all edges that see the same services answer.
func (s *Source) forFeed(topic string, partition int32) *replica {
	var best *replica
	var bestUp bool
	var bestScore uint64
	for _, r := range s.replicas {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", r.address, topic, partition))
		score, up := binary.BigEndian.Uint64(sum[:]), r.up.Load()
		if best == nil || up && !bestUp || up == bestUp && score > bestScore {
			best, bestUp, bestScore = r, up, score
		}
	}
	return best
}

// next chooses a service for a single call: they take turns, those that answer first.
func (s *Source) next() *replica {
	turn := int(s.turn.Add(1))
	for i := range s.replicas {
		if r := s.replicas[(turn+i)%len(s.replicas)]; r.up.Load() {
			return r
		}
	}
	return s.replicas[turn%len(s.replicas)]
}

// pause waits after the given number of failures, by a random time: half to all of a pause that doubles each time. It returns early, with an
// error, when ctx ends.
func (s *Source) pause(ctx context.Context, failures int) error {
	d := s.cfg.RetryMax
	if shift := failures - 1; shift < 16 {
		d = min(d, s.cfg.RetryMin<<max(shift, 0))
	}
	d -= rand.N(d/2 + 1) //nolint:gosec // spreads load, guards nothing
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
