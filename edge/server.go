package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// ErrStopped is returned by Serve when it was called before.
var ErrStopped = errors.New("edge served already")

// Server is the edge's listener: WebSockets at /ws and /ws/{topic}, streams of events at /sse/{topic}, publishes by request at
// /publish/{topic}, everything else by an http.Handler. Its methods may be called concurrently; Serve once.
type Server struct {
	cfg       Config
	hub       *hub.Hub
	publisher Publisher
	allow     func(context.Context, access.Request) error // access.Allow
	log       *slog.Logger
	metrics   *metrics
	rest      http.Handler // what is no session
	base      time.Time    // of now

	workers    []*worker
	subscribes *tasks
	publishes  *tasks
	input      input

	// Set by Serve before anything else runs.
	ctx      context.Context // of tasks
	requests *requests

	posters  posters
	door     *door
	upgrades sync.WaitGroup
	served   atomic.Bool // Serve was called
	serving  atomic.Bool // Serve runs, the workers are there
	draining atomic.Bool
	stopping chan struct{} // closed by Drain: no more connections are accepted
	stopOnce sync.Once
	next     atomic.Uint32 // worker of the next session

	mu        sync.Mutex
	sessions  int
	addresses map[netip.Addr]int // sessions by address, where they are limited
	upgrading int                // of them: not handed to a worker yet
	posts     int                // publishes by request
	stopped   bool               // no more are welcome
	settled   *sync.Cond         // upgrading or posts is 0
	total     int                // sessions when the drain began
	empty     chan struct{}      // closed when there are no sessions and posts and Drain waits; nil while it doesn't
}

// New returns a Server that does nothing yet. h must be run by the caller, for longer than Serve. rest answers requests that are not for a
// socket (their Host is checked before). Metrics are registered with r.
func New(cfg Config, h *hub.Hub, publisher Publisher, rest http.Handler, log *slog.Logger, r prometheus.Registerer) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("edge: %w", err)
	}
	if cfg.Workers == 0 {
		cfg.Workers = runtime.GOMAXPROCS(0)
	}
	s := &Server{
		cfg: cfg, hub: h, publisher: publisher, log: log, rest: rest, base: time.Now(),
		subscribes: newTasks(cfg.Subscribes), publishes: newTasks(cfg.Publishes), input: input{max: cfg.MaxInputBytes},
		door: newDoor(cfg.MaxHandshakes), stopping: make(chan struct{}), addresses: make(map[netip.Addr]int), posters: posters{of: make(map[netip.Addr]*allowance)}, allow: access.Allow,
	}
	s.metrics = newMetrics(r, &s.input)
	s.settled = sync.NewCond(&s.mu)
	return s, nil
}

// now is the time since New, in nanoseconds of the monotonic clock.
func (s *Server) now() int64 { return int64(time.Since(s.base)) }

// Ready says whether new sockets are welcome: Serve runs and Drain was not called.
func (s *Server) Ready() bool { return s.serving.Load() && !s.draining.Load() }

// Sessions returns the number of open sockets.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions
}

// Serve accepts connections from ln, which it closes, until ctx ends; then it ends all sessions at once and returns nil when everything
// it started has ended. For a kind end call Drain first. ln must be a TCP listener without TLS.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	defer ln.Close()
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		return fmt.Errorf("serve: want a TCP listener, not %T", ln)
	}
	if !s.served.CompareAndSwap(false, true) {
		return ErrStopped
	}
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err := s.start(); err != nil {
		return err
	}
	s.requests = newRequests(s, ln.Addr())
	var workers, pollers, requests sync.WaitGroup
	for _, w := range s.workers {
		workers.Go(w.run)
		pollers.Go(w.poller.run)
	}
	requests.Go(s.requests.serve)
	s.serving.Store(true)

	err := s.accept(ctx, tcp)
	if err == nil {
		<-ctx.Done() // after Drain: until the caller is done too
	}
	s.serving.Store(false)
	s.upgrades.Wait()
	s.requests.close()
	requests.Wait()
	s.closeDoor()
	for _, w := range s.workers {
		w.inbox.order(false, true)
	}
	workers.Wait()
	for _, w := range s.workers {
		w.poller.close()
	}
	pollers.Wait()
	cancel()
	s.awaitPosts()
	s.subscribes.wait()
	s.publishes.wait()
	for _, w := range s.workers {
		w.discard()
	}
	return err
}

// start makes the workers.
func (s *Server) start() error {
	for range s.cfg.Workers {
		w, err := newWorker(s)
		if err != nil {
			for _, w := range s.workers {
				w.poller.close()
			}
			return fmt.Errorf("serve: %w", err)
		}
		s.workers = append(s.workers, w)
	}
	return nil
}

// Drain refuses new connections and sessions, tells every client to come back elsewhere and ends its session, spread over at least
// DrainSpread, and returns when none is left and all publishes are answered, or with ctx's error. Call it once, while Serve runs.
func (s *Server) Drain(ctx context.Context) error {
	if !s.serving.Load() {
		return nil
	}
	s.draining.Store(true)
	s.stopOnce.Do(func() { close(s.stopping) })
	s.mu.Lock()
	s.total = s.sessions
	empty := make(chan struct{})
	s.empty = empty
	s.tellEmpty()
	s.mu.Unlock()
	for _, w := range s.workers {
		w.inbox.order(true, false)
	}
	select {
	case <-empty:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain: %d sockets are left: %w", s.Sessions(), ctx.Err())
	}
}

// drainSpread is the time over which a drain closes the sessions.
func (s *Server) drainSpread() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.cfg.DrainSpread, time.Duration(s.total)*time.Second/time.Duration(s.cfg.DrainRate))
}

// room says whether a session may come in.
type room uint8

const (
	entered room = iota
	full         // the process has no room
	crowded      // the address has enough
)

// enter counts a session in, before its upgrade, or says that there is no room. settle must follow. remote is the peer's host:port.
func (s *Server) enter(remote string) room {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions >= s.cfg.MaxSessions || s.stopped || s.draining.Load() {
		return full
	}
	if most := s.cfg.MaxPerAddress; most > 0 {
		a := addressOf(remote)
		if s.addresses[a] >= most {
			return crowded
		}
		s.addresses[a]++
	}
	s.sessions++
	s.upgrading++
	return entered
}

// settle ends an upgrade, which has handed the session to a worker or not.
func (s *Server) settle(remote string, handed bool) {
	s.mu.Lock()
	s.upgrading--
	if s.upgrading == 0 {
		s.settled.Broadcast()
	}
	s.mu.Unlock()
	if !handed {
		s.exit(remote)
	}
}

// closeDoor waits for the last upgrade; none follows.
func (s *Server) closeDoor() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for s.upgrading > 0 {
		s.settled.Wait()
	}
}

// exit counts out a session, or one that was not upgraded after all.
func (s *Server) exit(remote string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions--
	if s.cfg.MaxPerAddress > 0 {
		a := addressOf(remote)
		if s.addresses[a]--; s.addresses[a] == 0 {
			delete(s.addresses, a)
		}
	}
	s.tellEmpty()
}

// tellEmpty tells Drain that nothing is left. mu is held.
func (s *Server) tellEmpty() {
	if s.sessions == 0 && s.posts == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// left is called by a session's worker after its connection was closed.
func (s *Server) left(x *session) {
	s.metrics.sessions.WithLabelValues(x.kind()).Dec()
	s.metrics.ended.WithLabelValues(x.kind(), x.reason.Name, x.reason.Initiator).Inc()
	level := slog.LevelInfo
	if x.reason == &endInternal {
		level = slog.LevelError
	}
	s.log.LogAttrs(s.ctx, level, "session ended", append(x.identify(), slog.Int("code", int(x.reason.Code)), slog.String("reason", x.reason.Name),
		slog.String("initiator", x.reason.Initiator), slog.String("cause", x.cause),
		slog.Duration("duration", time.Duration(s.now()-x.started).Round(time.Microsecond)),
		slog.Uint64("records", x.records), slog.Uint64("bytes", x.bytes), slog.Uint64("messages", x.messages))...)
	s.exit(x.conn.RemoteAddr().String())
}
