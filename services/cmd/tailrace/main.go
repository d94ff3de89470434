// Command tailrace is the service: it reads Kafka and serves Connect, gRPC and gRPC-Web streams. This package only wires; see -help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"tailrace.dev/tailrace/services/embedded"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/ops"
	"tailrace.dev/tailrace/services/setting"
	"tailrace.dev/tailrace/services/stream"
	"tailrace.dev/tailrace/services/trace"
	"tailrace.dev/tailrace/services/trace/otlp"
)

// Exit codes, as -help tells them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

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

// serve runs all parts until ctx ends or one of them fails, then stops them in order: readiness, listener and streams, hub, Kafka, the
// embedded broker.
func serve(ctx context.Context, cfg *Config, logger *slog.Logger) (err error) {
	listeners, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	broker, err := startBroker(cfg, logger)
	if err != nil {
		return errors.Join(err, listeners.Close())
	}
	if broker != nil {
		cfg.Kafka.Bootstrap = broker.Addr()
		defer broker.Close()
	}
	p, err := assemble(ctx, cfg, broker, logger)
	if err != nil {
		return errors.Join(err, listeners.Close())
	}
	logger.InfoContext(ctx, "listening", slog.String("rpc", listeners.rpc.Addr().String()),
		slog.String("ops", listeners.ops.Addr().String()), slog.String("kafka", cfg.Kafka.Bootstrap))
	return p.run(ctx, listeners)
}

// listeners are bound before anything else starts, so that a taken port is the first thing to be told.
type listeners struct{ rpc, ops net.Listener }

func listen(ctx context.Context, cfg *Config) (listeners, error) {
	var lc net.ListenConfig
	rpc, err := lc.Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return listeners{}, fmt.Errorf("-listen: %w", err)
	}
	ops, err := lc.Listen(ctx, "tcp", cfg.OpsListen)
	if err != nil {
		return listeners{}, errors.Join(fmt.Errorf("-ops-listen: %w", err), rpc.Close())
	}
	return listeners{rpc, ops}, nil
}

func (l listeners) Close() error { return errors.Join(l.rpc.Close(), l.ops.Close()) }

// startBroker starts the embedded broker, if that is what is wanted.
func startBroker(cfg *Config, logger *slog.Logger) (*embedded.Broker, error) {
	if !cfg.Embedded() {
		return nil, nil //nolint:nilnil // there is none
	}
	broker, err := embedded.Start(embedded.Config{DataDir: cfg.DataDir, Logger: logger})
	if err != nil && cfg.DataDir != "" {
		return nil, fmt.Errorf("-kafka.data-dir %q: %w", cfg.DataDir, err)
	}
	return broker, err
}

// parts of the process.
type parts struct {
	cfg    *Config
	logger *slog.Logger
	broker *embedded.Broker // nil: Kafka is elsewhere
	kafka  *kafka.Client
	hub    *hub.Hub
	groups *group.Groups
	stream *stream.Server
	tracer *trace.Tracer // nil: off
	ops    *ops.Server
}

func assemble(ctx context.Context, cfg *Config, broker *embedded.Broker, logger *slog.Logger) (*parts, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	cfg.Kafka.TraceHeaders = cfg.Trace.On()
	client, err := kafka.New(cfg.Kafka, logger, registry)
	if err != nil {
		return nil, err
	}
	cfg.Trace.Service, cfg.Trace.Dial, cfg.Trace.Logger, cfg.Trace.Registerer = "tailrace", otlp.Dial, logger, registry
	tracer, err := trace.New(ctx, cfg.Trace)
	if err != nil {
		return nil, err
	}
	h := hub.New(client, hub.Config{
		MemoryBudget:   int64(cfg.MemoryBudget),
		HistoryReaders: cfg.Kafka.HistoryReaders,
		SlowAfter:      cfg.SlowAfter,
		Logger:         logger,
		Registerer:     registry,
	})
	groups := group.New(group.Config{
		Cluster: client, DeadLetters: client, Logger: logger, Registerer: registry,
		MaxGroups: cfg.MaxGroups, Allowed: cfg.GroupNames.pattern, Grace: cfg.GroupGrace, Budget: int64(cfg.GroupMemory),
	})
	return &parts{
		cfg: cfg, logger: logger, broker: broker, kafka: client, hub: h, groups: groups, tracer: tracer,
		stream: stream.New(stream.Config{Groups: groups, GroupAdmin: client, Hub: h, Publisher: client, Topics: client, Logger: logger, Registerer: registry, Tracer: tracer}),
		ops: ops.New(ops.Config{
			Gatherer: registry,
			Logger:   logger,
			Detail:   func() map[string]string { return map[string]string{"kafka": health(client.Health())} },
		}),
	}, nil
}

func health(h kafka.Health) string {
	switch {
	case h.Up:
		return "up"
	case h.Reached:
		return "lost: " + h.Error
	default:
		return "not reached yet: " + h.Error
	}
}

// run runs all parts. Each outlives those that use it: when one has ended, it ends the next.
func (p *parts) run(ctx context.Context, l listeners) error {
	g, serving := errgroup.WithContext(ctx) // ends with the signal, or when a part fails
	rest := context.WithoutCancel(ctx)
	accepting, endAccepting := context.WithCancel(rest)
	hubLife, endHub := context.WithCancel(rest)
	kafkaLife, endKafka := context.WithCancel(rest)
	opsLife, endOps := context.WithCancel(rest)

	g.Go(func() error {
		defer endAccepting()
		select {
		case <-p.kafka.Reached():
			p.ops.Reached()
			p.logger.InfoContext(ctx, "ready")
			<-serving.Done()
		case <-serving.Done():
		}
		p.ops.Drain()
		p.logger.InfoContext(ctx, "draining", slog.Duration("timeout", p.cfg.DrainTimeout))
		return nil
	})
	g.Go(func() error {
		defer endHub()
		return wrap("serve RPCs", p.stream.Run(accepting, l.rpc, p.cfg.DrainTimeout))
	})
	g.Go(func() error {
		defer endKafka()
		// Groups commit when their workers are gone.
		var groups sync.WaitGroup
		groups.Go(func() { _ = p.groups.Run(hubLife) }) // its error is nil
		defer groups.Wait()
		return wrap("hub", p.hub.Run(hubLife))
	})
	g.Go(func() error {
		defer endOps()
		return wrap("kafka", p.kafka.Run(kafkaLife))
	})
	g.Go(func() error { return wrap("serve ops", p.ops.Run(opsLife, l.ops)) })
	if p.cfg.Demo {
		g.Go(func() error { return embedded.Demo(serving, p.broker, p.kafka, p.logger) })
	}
	err := g.Wait()
	return errors.Join(err, p.endTraces(rest))
}

// endTraces exports the last spans, once nothing makes any; what is not taken by then is lost.
func (p *parts) endTraces(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, traceTimeout)
	defer cancel()
	return p.tracer.Shutdown(ctx)
}

func wrap(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
