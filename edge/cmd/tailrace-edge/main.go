// Command tailrace-edge serves WebSockets: it brings the streams of a tailrace service to browsers. This package only wires; see -help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/edge/console"
	"tailrace.dev/tailrace/edge/upstream"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/ops"
	"tailrace.dev/tailrace/services/setting"
	"tailrace.dev/tailrace/services/trace"
	"tailrace.dev/tailrace/services/trace/otlp"
)

// Exit codes, as -help tells them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// linger is how long a partition without a subscription is still followed: a page that is reloaded finds its topic warm.
const linger = 30 * time.Second

// traceTimeout is for how long the end waits for the receiver of traces.
const traceTimeout = 3 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// Once the first signal has begun the drain, a second one has its default effect.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the whole program until ctx ends, and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg, settings, action, problems := configure(args, os.Environ())
	switch {
	case len(problems) > 0:
		settings.WriteProblems(stderr, problems)
		return exitUsage
	case action != setting.Run:
		for _, w := range settings.Warnings() {
			_, _ = fmt.Fprintln(stderr, "warning: "+w)
		}
		return written(settings.Write(stdout, action, intro))
	}
	out, logger := ops.OpenLog(stderr, cfg.LogLevel, cfg.LogFormat)
	defer out.Close()
	logger.InfoContext(ctx, "configuration", slog.Any("", settings))
	for _, w := range settings.Warnings() {
		logger.WarnContext(ctx, "unknown environment variable", slog.String("warning", w))
	}
	if err := serve(ctx, &cfg, logger); err != nil {
		logger.ErrorContext(ctx, "ended", slog.Any("error", err))
		return exitFailed
	}
	logger.InfoContext(ctx, "ended")
	return exitOK
}

// written is the exit code of what was asked for instead of a run.
func written(err error) int {
	if err != nil {
		return exitFailed
	}
	return exitOK
}

// serve runs all parts until ctx ends or one of them fails, then stops them in order: readiness, sockets, hub, feeds, ops.
func serve(ctx context.Context, cfg *Config, logger *slog.Logger) error {
	if err := fitDescriptors(ctx, &cfg.Edge, cfg.sessionsAsked, len(cfg.Upstreams), logger); err != nil {
		return err
	}
	l, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	p, err := assemble(ctx, cfg, logger)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	logger.InfoContext(ctx, "listening", slog.String("web", l.web.Addr().String()), slog.String("ops", l.ops.Addr().String()))
	return p.run(ctx, l)
}

// listeners are bound before anything else starts, so that a taken port is the first thing to be told.
type listeners struct{ web, ops net.Listener }

func listen(ctx context.Context, cfg *Config) (listeners, error) {
	var lc net.ListenConfig
	web, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return listeners{}, fmt.Errorf("-listen: %w", err)
	}
	ops, err := lc.Listen(ctx, "tcp", cfg.OpsListen)
	if err != nil {
		return listeners{}, errors.Join(fmt.Errorf("-ops-listen: %w", err), web.Close())
	}
	return listeners{web, ops}, nil
}

func (l listeners) Close() error { return errors.Join(l.web.Close(), l.ops.Close()) }

// parts of the process.
type parts struct {
	cfg    *Config
	logger *slog.Logger
	source *upstream.Source
	hub    *hub.Hub
	edge   *edge.Server
	tracer *trace.Tracer // nil: off
	ops    *ops.Server
}

func assemble(ctx context.Context, cfg *Config, logger *slog.Logger) (*parts, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	source, err := upstream.New(upstream.Config{Addresses: cfg.Upstreams, Logger: logger, Registerer: registry})
	if err != nil {
		return nil, err
	}
	h := hub.New(source, hub.Config{
		MemoryBudget: int64(cfg.MemoryBudget), Linger: linger, SlowAfter: cfg.SlowAfter, Logger: logger, Registerer: registry,
	})
	sockets := cfg.Edge
	sockets.UpstreamAvailable, sockets.UpstreamProblem, sockets.Consumer = source.Available, source.Problem, source
	cfg.Trace.Service, cfg.Trace.Dial, cfg.Trace.Logger, cfg.Trace.Registerer = "tailrace-edge", otlp.Dial, logger, registry
	if sockets.Tracer, err = trace.New(ctx, cfg.Trace); err != nil {
		return nil, err
	}
	server, err := edge.New(sockets, h, source, web(source), logger, registry)
	if err != nil {
		return nil, err
	}
	return &parts{
		cfg: cfg, logger: logger, source: source, hub: h, edge: server, tracer: sockets.Tracer,
		ops: ops.New(ops.Config{Gatherer: registry, Logger: logger, Detail: func() map[string]string {
			return map[string]string{"upstream": state(source)}
		}}),
	}, nil
}

// web is what is not a socket: the page, and what it asks for of topics and groups.
func web(source *upstream.Source) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", console.Handler())
	mux.Handle("/api/topics", source.TopicsHandler())
	mux.Handle("/api/groups", source.GroupsHandler())
	return mux
}

func state(source *upstream.Source) string {
	switch {
	case source.Available():
		return "up"
	case reached(source):
		return "lost"
	default:
		return "not reached yet"
	}
}

func reached(source *upstream.Source) bool {
	select {
	case <-source.Reached():
		return true
	default:
		return false
	}
}

// run runs all parts. Each outlives those that use it: when one has ended, it ends the next.
func (p *parts) run(ctx context.Context, l listeners) error {
	g, serving := errgroup.WithContext(ctx) // ends with the signal, or when a part fails
	rest := context.WithoutCancel(ctx)
	socketLife, endSockets := context.WithCancel(rest)
	hubLife, endHub := context.WithCancel(rest)
	sourceLife, endSource := context.WithCancel(rest)
	opsLife, endOps := context.WithCancel(rest)

	g.Go(func() error {
		defer endSockets()
		select {
		case <-p.source.Reached():
			p.ops.Reached()
			p.logger.InfoContext(ctx, "ready")
			<-serving.Done()
		case <-serving.Done():
		}
		return p.drain(rest)
	})
	g.Go(func() error {
		defer endHub()
		return wrap("serve sockets", p.edge.Serve(socketLife, l.web))
	})
	g.Go(func() error {
		defer endSource()
		return wrap("hub", p.hub.Run(hubLife))
	})
	g.Go(func() error {
		defer endOps()
		return wrap("upstream", p.source.Run(sourceLife))
	})
	g.Go(func() error { return wrap("serve ops", p.ops.Run(opsLife, l.ops)) })
	err := g.Wait()
	return errors.Join(err, p.endTraces(rest))
}

// endTraces exports the last spans, once nothing makes any; what is not taken by then is lost.
func (p *parts) endTraces(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	return p.tracer.Shutdown(ctx)
}

// drain tells the balancer, then every client.
func (p *parts) drain(ctx context.Context) error {
	p.ops.Drain()
	timeout := p.cfg.drainTimeout()
	p.logger.InfoContext(ctx, "draining", slog.Int("sessions", p.edge.Sessions()), slog.Duration("timeout", timeout))
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := p.edge.Drain(ctx); err != nil {
		p.logger.WarnContext(ctx, "sockets were cut off", slog.Any("error", err)) // they come back, as after a crash
	}
	return nil
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
