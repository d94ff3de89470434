package edge_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/trace"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

var (
	full    = flag.Bool("edge.full", false, "run the socket tests at full size")
	asCrowd = flag.String("edge.crowd", "", "be the readers of a benchmark: address, number, path")
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err == nil {
		lim.Cur = lim.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim)
	}
	if *asCrowd != "" {
		if err := runCrowd(*asCrowd); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// size picks the CI size or the full size.
func size(ci, whole int) int {
	if *full {
		return whole
	}
	return ci
}

func proof(t testing.TB, format string, args ...any) {
	t.Helper()
	which := "CI size"
	if *full {
		which = "full size"
	}
	fmt.Printf("proof %s (%s): %s\n", t.Name(), which, fmt.Sprintf(format, args...))
}

// await polls until ok.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// rig is an edge over a hub over a store in memory.
type rig struct {
	src       *hubtest.Source
	hub       *hub.Hub
	edge      *edge.Server
	publisher *publisher
	registry  *prometheus.Registry
	addr      string
	stop      func() // ends edge and hub; idempotent
}

// config is the default, made quick to drain.
func config() edge.Config {
	cfg := edge.DefaultConfig()
	cfg.DrainSpread = 0
	cfg.DrainRate = 1 << 20
	return cfg
}

func start(t testing.TB, cfg edge.Config) *rig {
	t.Helper()
	return startOn(t, cfg, hub.Config{})
}

// startOn is start with a hub of that configuration.
func startOn(t testing.TB, cfg edge.Config, hubCfg hub.Config) *rig {
	t.Helper()
	return startLogged(t, cfg, hubCfg, slog.New(slog.DiscardHandler))
}

// startLogged is startOn with a log.
func startLogged(t testing.TB, cfg edge.Config, hubCfg hub.Config, log *slog.Logger) *rig {
	t.Helper()
	r := &rig{src: hubtest.New(), publisher: &publisher{}, registry: prometheus.NewRegistry()}
	hubCfg.Logger, hubCfg.Registerer = log, r.registry
	r.hub = hub.New(r.src, hubCfg)
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "page %s", r.URL.Path) })
	var err error
	if r.edge, err = edge.New(cfg, r.hub, r.publisher, page, log, r.registry); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = ln.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	hubCtx, cancelHub := context.WithCancel(context.Background())
	var edgeDone, hubDone sync.WaitGroup
	hubDone.Go(func() {
		if err := r.hub.Run(hubCtx); err != nil && hubCtx.Err() == nil {
			t.Errorf("hub: %v", err)
		}
	})
	edgeDone.Go(func() {
		if err := r.edge.Serve(ctx, ln); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	r.stop = sync.OnceFunc(func() {
		cancel()
		edgeDone.Wait()
		r.publisher.lines.Wait()
		cancelHub()
		hubDone.Wait()
		for _, v := range r.src.Violations() {
			t.Errorf("source: %s", v)
		}
	})
	t.Cleanup(r.stop)
	await(t, "the edge is ready", r.edge.Ready)
	return r
}

// metric is the sum of a metric over its labels, or of the one with a label value.
func (r *rig) metric(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
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

// endings lists the reasons for which sessions have ended.
func (r *rig) endings(t testing.TB) (list []string) {
	for _, why := range edge.Reasons() {
		if n := r.metric(t, "tailrace_edge_sessions_ended_total", why.Name); n > 0 {
			list = append(list, fmt.Sprintf("%v %s", n, why.Name))
		}
	}
	return list
}

// ended waits until exactly one session has ended for a reason.
func (r *rig) ended(t testing.TB, reason string) {
	t.Helper()
	await(t, "a session ended: "+reason, func() bool { return r.metric(t, "tailrace_edge_sessions_ended_total", reason) == 1 })
	if got := r.metric(t, "tailrace_edge_sessions_ended_total", ""); got != 1 {
		t.Errorf("%v sessions ended, want 1", got)
	}
}

// publisher is a Publisher in memory. gate, if set, holds up every call until it can receive.
type publisher struct {
	mu    sync.Mutex
	calls [][]string // values, by call
	topic []string
	next  int64
	fail  error
	write func(r *tailracev1.PublishRecord) *tailracev1.PublishFailure // what becomes of a record; nil: it is appended
	last  *tailracev1.PublishRecord
	gate  chan struct{}
	held  string // the topic that gate is for; empty: all
	deaf  bool   // the gate holds up also what has no time left
	idle  bool   // a way that has nothing to do tells so at once

	waiting atomic.Int32 // at the gate
	lines   sync.WaitGroup
}

func (p *publisher) setFail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

// OpenPublish publishes one record after the other, in a goroutine that ends with what is queued.
func (p *publisher) OpenPublish(ctx context.Context, tell func(uint64, *tailracev1.PublishResult, error)) (
	publish func(uint64, string, *tailracev1.PublishRecord, time.Time, *trace.Parent), hangUp func(),
) {
	var mu sync.Mutex
	var queue []func()
	var busy, closed bool
	publish = func(n uint64, topic string, record *tailracev1.PublishRecord, by time.Time, _ *trace.Parent) {
		mu.Lock()
		defer mu.Unlock()
		queue = append(queue, func() {
			mu.Lock()
			over := closed
			mu.Unlock()
			if over {
				tell(n, nil, hub.ErrUnavailable)
				return
			}
			ctx, cancel := context.WithDeadline(ctx, by)
			defer cancel()
			results, err := p.Publish(ctx, topic, []*tailracev1.PublishRecord{record})
			if err != nil {
				tell(n, nil, err)
				return
			}
			tell(n, results[0], nil)
		})
		if busy {
			return
		}
		busy = true
		p.lines.Go(func() {
			for {
				mu.Lock()
				if len(queue) == 0 {
					busy = false
					mu.Unlock()
					if p.idle {
						tell(0, nil, nil)
					}
					return
				}
				do := queue[0]
				queue = queue[1:]
				mu.Unlock()
				do()
			}
		})
	}
	return publish, func() {
		mu.Lock()
		closed = true
		mu.Unlock()
	}
}

func (p *publisher) Publish(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	if p.gate != nil && (p.held == "" || p.held == topic) {
		if p.deaf {
			ctx = context.WithoutCancel(ctx)
		}
		p.waiting.Add(1)
		defer p.waiting.Add(-1)
		select {
		case <-p.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return nil, p.fail
	}
	var values []string
	var results []*tailracev1.PublishResult
	for _, r := range records {
		if p.last = r; p.write != nil {
			if f := p.write(r); f != nil {
				results = append(results, &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: f}})
				continue
			}
		}
		values = append(values, string(r.GetValue()))
		results = append(results, &tailracev1.PublishResult{
			Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{Partition: 0, Offset: p.next}},
		})
		p.next++
	}
	p.calls, p.topic = append(p.calls, values), append(p.topic, topic)
	return results, nil
}
