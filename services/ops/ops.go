// Package ops is for those who operate a process: a listener with health, readiness, metrics and profiles, and the way of the log. Both processes
// use it. It never serves users, and nothing that users do depends on it.
package ops

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tailrace.dev/tailrace/services/access"
)

// Bounds of an ops request. Profiles take as long as the caller asks for, so that there is no write timeout.
const (
	headerTimeout = 5 * time.Second
	closeTimeout  = 2 * time.Second
	writeTimeout  = 10 * time.Second // of all but profiles
	maxScrapes    = 8                // of the metrics, at a time: each costs what all of them cost to gather
)

// Config of a Server.
type Config struct {
	// Gatherer is what /metrics shows. Required.
	Gatherer prometheus.Gatherer
	// Detail adds facts to /healthz, such as the state of the way to Kafka, each as a short name and value. It must not block. Optional.
	Detail func() map[string]string
	// Logger gets the HTTP server's own complaints. Required.
	Logger *slog.Logger
}

// Server answers on the ops listener:
//
//	/              a page of figures, which reads /metrics
//	/healthz       200 while the process runs, with details as JSON
//	/readyz        200 once Reached was called and until Drain is, else 503
//	/metrics       Prometheus metrics; 503 while eight others gather them
//	/debug/pprof/  profiles, for callers on loopback only
//
// An answer that is not taken within 10 s is given up, but for a profile.
//
// Its methods may be called concurrently.
type Server struct {
	cfg      Config
	mux      *http.ServeMux
	reached  atomic.Bool
	draining atomic.Bool
}

// New returns a Server that is not ready yet.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, mux: http.NewServeMux()}
	s.mux.Handle("GET /{$}", soon(newPage()))
	s.mux.Handle("GET /healthz", soon(http.HandlerFunc(s.health)))
	s.mux.Handle("GET /readyz", soon(http.HandlerFunc(s.readiness)))
	s.mux.Handle("GET /metrics", soon(promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})))
	s.mux.HandleFunc("/debug/pprof/", onLoopback(pprof.Index))
	s.mux.HandleFunc("/debug/pprof/cmdline", onLoopback(pprof.Cmdline))
	s.mux.HandleFunc("/debug/pprof/profile", onLoopback(pprof.Profile))
	s.mux.HandleFunc("/debug/pprof/symbol", onLoopback(pprof.Symbol))
	s.mux.HandleFunc("/debug/pprof/trace", onLoopback(pprof.Trace))
	return s
}

// Reached says that what the process depends on (Kafka, or for an edge the service) has answered. Once is for good: a later loss is told to
// the connected, by heartbeats, and unreadiness would make a balancer cut off exactly those.
func (s *Server) Reached() { s.reached.Store(true) }

// Drain ends readiness for good.
func (s *Server) Drain() { s.draining.Store(true) }

// Ready says whether /readyz answers 200.
func (s *Server) Ready() bool { return s.reached.Load() && !s.draining.Load() }

// Handler returns what the listener serves.
func (s *Server) Handler() http.Handler { return s.mux }

// Run serves on ln, which it closes, until ctx ends. Requests in flight then have two seconds. The error is nil if ctx was the cause.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       headerTimeout,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := srv.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close() // a profile that somebody still takes
	}
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// soon bounds how long an answer may take, so that callers who do not read theirs hold nothing for ever.
func soon(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // a recorder of a test has none
		h.ServeHTTP(w, r)
	})
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	answer := struct {
		Status string            `json:"status"`
		Ready  bool              `json:"ready"`
		Detail map[string]string `json:"detail,omitempty"`
	}{Status: "ok", Ready: s.Ready()}
	if s.cfg.Detail != nil {
		answer.Detail = s.cfg.Detail()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the caller left: nobody to tell
}

func (s *Server) readiness(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.draining.Load():
		http.Error(w, "draining", http.StatusServiceUnavailable)
	case !s.reached.Load():
		http.Error(w, "starting", http.StatusServiceUnavailable)
	default:
		_, _ = w.Write([]byte("ready\n"))
	}
}

// onLoopback keeps profiles, which tell much of a process and cost it much, from everybody but this machine.
func onLoopback(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		from, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() || !access.HostAllowed(r.Host, nil) {
			http.Error(w, "profiles are served to this machine only, under a loopback address or localhost", http.StatusForbidden)
			return
		}
		h(w, r)
	}
}
