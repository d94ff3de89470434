package transcript_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/edge/console"
	"tailrace.dev/tailrace/edge/upstream"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
	"tailrace.dev/tailrace/services/stream"
	"tailrace.dev/tailrace/services/trace"
)

// backend is what is behind a service: Kafka, or a store in memory that can be made to do what no broker does on demand.
type backend interface {
	hub.Source
	stream.Publisher
	stream.Topics
}

// settings of a world.
type settings struct {
	store bool // a store in memory instead of Kafka
	edge  edge.Config
	hub   hub.Config
	// Of the service and of the edge; nil: none.
	serviceTraces, edgeTraces *trace.Tracer
}

func defaultSettings() settings {
	set := settings{edge: edge.DefaultConfig()}
	set.edge.DrainSpread = 0
	set.edge.DrainRate = 1 << 20
	return set
}

// world is an edge, the service behind it, and what is behind that, all on loopback.
type world struct {
	t       testing.TB
	set     settings
	log     *logBook
	cluster *kafkatest.Cluster // nil: store
	store   *store             // nil: Kafka
	kafka   *kafkaSide         // nil: store
	behind  backend

	rpc      string // address of the service
	endRPC   func()
	source   *upstream.Source
	hub      *hub.Hub
	edge     *edge.Server
	registry *prometheus.Registry
	web      string // address of the edge

	serving sync.WaitGroup
	endEdge context.CancelFunc
}

// logBook is what the processes log.
type logBook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newWorld(t testing.TB, set settings) *world {
	t.Helper()
	w := &world{t: t, set: set, log: &logBook{}, registry: prometheus.NewRegistry()}
	t.Cleanup(func() {
		if t.Failed() {
			log := w.log.String()
			t.Logf("log:\n%s", log[max(0, len(log)-16<<10):])
		}
	})
	if set.store {
		w.store = newStore(t)
		w.behind = w.store
	} else {
		w.cluster = kafkatest.StartEmbedded(t)
		w.behind = w.newKafka(t)
		w.kafka = newKafkaSide(t, w.cluster)
	}
	w.rpc = "127.0.0.1:0"
	w.startService()
	w.startEdge()
	return w
}

func (w *world) logger(process string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelInfo})).With("process", process)
}

// newKafka runs the service's side of Kafka until the test ends.
func (w *world) newKafka(t testing.TB) *kafka.Client {
	t.Helper()
	cfg := kafka.DefaultConfig()
	cfg.Bootstrap = w.cluster.Bootstrap
	cfg.WatchInterval = 100 * time.Millisecond
	cfg.DeletedAfter = 500 * time.Millisecond
	cfg.TraceHeaders = w.set.serviceTraces != nil
	c, err := kafka.New(cfg, w.logger("service"), nil)
	if err != nil {
		t.Fatal(err)
	}
	w.run("kafka", c.Run)
	select {
	case <-c.Reached():
	case <-time.After(patience):
		t.Fatal("Kafka was not reached")
	}
	return c
}

// run runs a part until the test ends; parts end in reverse order of their start.
func (w *world) run(what string, part func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- part(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("%s: %v", what, err)
		}
	})
}

// startService starts the service at its address; endRPC ends it, and cuts off its streams.
func (w *world) startService() {
	w.t.Helper()
	var ln net.Listener
	for until := time.Now().Add(patience); ln == nil; {
		var err error
		if ln, err = net.Listen("tcp", w.rpc); err != nil && time.Now().After(until) {
			w.t.Fatal(err)
		}
	}
	w.rpc = ln.Addr().String()
	log := w.logger("service")
	cfg := w.set.hub
	cfg.Logger, cfg.Linger = log, 50*time.Millisecond
	h := hub.New(w.behind, cfg)
	var groups *group.Groups
	if c, ok := w.behind.(*kafka.Client); ok {
		groups = group.New(group.Config{Cluster: c, DeadLetters: c, Logger: log, CommitInterval: 50 * time.Millisecond, Linger: 200 * time.Millisecond})
	}
	server := stream.New(stream.Config{Groups: groups, Hub: h, Publisher: w.behind, Topics: w.behind, Logger: log, Registerer: prometheus.NewRegistry(), Tracer: w.set.serviceTraces})
	serving, drain := context.WithCancel(context.WithoutCancel(w.t.Context()))
	life, end := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var parts sync.WaitGroup
	parts.Go(func() { _ = h.Run(life) })
	if groups != nil {
		parts.Go(func() { _ = groups.Run(life) })
	}
	served := make(chan struct{})
	parts.Go(func() { defer close(served); _ = server.Run(serving, ln, time.Millisecond) })
	w.endRPC = sync.OnceFunc(func() {
		drain()
		<-served
		end()
		parts.Wait()
	})
	w.t.Cleanup(w.endRPC)
}

func (w *world) startEdge() {
	w.t.Helper()
	log := w.logger("edge")
	source, err := upstream.New(upstream.Config{
		Addresses: []string{"http://" + w.rpc}, Logger: log, Heartbeat: time.Second, ProbeEvery: 50 * time.Millisecond,
		RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond, UnknownAfter: 300 * time.Millisecond,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.source = source
	w.run("upstream", source.Run)
	cfg := w.set.hub
	cfg.Logger, cfg.Registerer, cfg.Linger = log, w.registry, 50*time.Millisecond
	w.hub = hub.New(source, cfg)
	w.run("hub", w.hub.Run)
	sockets := w.set.edge
	sockets.UpstreamAvailable = source.Available
	if w.store == nil {
		sockets.Consumer = source
	}
	sockets.Tracer = w.set.edgeTraces
	mux := http.NewServeMux()
	mux.Handle("/", console.Handler())
	mux.Handle("/api/topics", source.TopicsHandler())
	if w.edge, err = edge.New(sockets, w.hub, source, mux, log, w.registry); err != nil {
		w.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.web = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	w.endEdge = cancel
	w.serving.Go(func() {
		if err := w.edge.Serve(ctx, ln); err != nil {
			w.t.Errorf("serve: %v", err)
		}
	})
	w.t.Cleanup(func() {
		cancel()
		w.serving.Wait()
	})
	await(w.t, "the edge is ready", func() bool { return w.edge.Ready() && source.Available() })
}

// restartEdge replaces an edge that was drained or stopped.
func (w *world) restartEdge() {
	w.endEdge()
	w.serving.Wait()
	w.registry = prometheus.NewRegistry()
	w.startEdge()
}

// metric is the sum of a metric over its labels, or of those with a label value.
func (w *world) metric(name, label string) float64 {
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			match := label == ""
			for _, l := range m.GetLabel() {
				match = match || l.GetValue() == label
			}
			if match {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// ended is the number of sessions that have ended, or for one reason.
func (w *world) ended(reason string) float64 {
	return w.metric("tailrace_edge_sessions_ended_total", reason)
}

var errNoStore = errors.New("only the store can do that: put `@ store` at the head of the file")

// gate lets calls through while it is open.
type gate struct {
	shut atomic.Pointer[chan struct{}]
}

func (g *gate) close() {
	c := make(chan struct{})
	g.shut.Store(&c)
}

func (g *gate) open() {
	if c := g.shut.Swap(nil); c != nil {
		close(*c)
	}
}

func (g *gate) pass(ctx context.Context) error {
	c := g.shut.Load()
	if c == nil {
		return nil
	}
	select {
	case <-*c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// hubtestTime is the time of the record at an offset.
func hubtestTime(offset int64) time.Time { return time.UnixMilli(hubtest.FirstTime + offset) }
