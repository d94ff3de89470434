package e2e_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// pair is one service and one edge, as processes.
type pair struct {
	t             testing.TB
	service, edge *process
	rpc, rpcOps   string // host:port of the service
	ws, wsOps     string // host:port of the edge
}

type pairOptions struct {
	kafka       string   // bootstrap servers, or "embedded"
	service     []string // more arguments of the service
	edge        []string // more arguments of the edge
	upstream    func(rpc string) string
	plain       bool // without race detector, for benchmarks
	withoutEdge bool
}

// startPair starts both processes and waits until they are ready.
func startPair(t testing.TB, o pairOptions) *pair {
	t.Helper()
	dir := binaries(t, *race && !o.plain)
	address := func() string { return fmt.Sprintf("127.0.0.1:%d", freePort(t)) }
	p := &pair{t: t, rpc: address(), rpcOps: address(), ws: address(), wsOps: address()}
	p.service = newProcess(t, "tailrace", filepath.Join(dir, "tailrace"),
		append([]string{"-listen", p.rpc, "-ops-listen", p.rpcOps, "-kafka", o.kafka}, o.service...)...)
	p.startService()
	if o.withoutEdge {
		return p
	}
	upstream := p.rpc
	if o.upstream != nil {
		upstream = o.upstream(p.rpc)
	}
	p.edge = newProcess(t, "tailrace-edge", filepath.Join(dir, "tailrace-edge"),
		append([]string{"-listen", p.ws, "-ops-listen", p.wsOps, "-upstream", "http://" + upstream}, o.edge...)...)
	p.startEdge()
	return p
}

func (p *pair) startService() {
	p.t.Helper()
	p.service.start()
	p.awaitReady(p.service, p.rpcOps)
}

func (p *pair) startEdge() {
	p.t.Helper()
	p.edge.start()
	p.awaitReady(p.edge, p.wsOps)
}

// again starts both processes anew: they have forgotten everything.
func (p *pair) again() {
	p.t.Helper()
	p.service.kill()
	p.edge.kill()
	p.startService()
	p.startEdge()
}

func (p *pair) awaitReady(proc *process, ops string) {
	p.t.Helper()
	await(p.t, 60*time.Second, proc.name+" ready", func() bool {
		if !proc.running() {
			p.t.Fatalf("%s exited while starting, code %d", proc.name, proc.exit(time.Second))
		}
		code, _, err := get(p.t.Context(), "http://"+ops+"/readyz")
		return err == nil && code == http.StatusOK
	})
}

// stop ends a process kindly and demands exit code 0.
func (p *pair) stop(proc *process, within time.Duration) {
	p.t.Helper()
	proc.signal(syscall.SIGTERM)
	if code := proc.exit(within); code != 0 {
		p.t.Errorf("%s exited with %d after SIGTERM, want 0", proc.name, code)
	}
}

func get(ctx context.Context, url string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	read, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(read), err
}

// metric sums the samples of a metric on an ops listener whose labels contain all the given pairs, such as `reason="draining"`.
func metric(t testing.TB, ops, name string, labels ...string) float64 {
	t.Helper()
	sum, found := tryMetric(t, ops, name, labels...)
	if !found {
		t.Fatalf("%s has no metric %s %v", ops, name, labels)
	}
	return sum
}

func tryMetric(t testing.TB, ops, name string, labels ...string) (sum float64, found bool) {
	t.Helper()
	code, body, err := get(t.Context(), "http://"+ops+"/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("GET /metrics of %s: %d, %v", ops, code, err)
	}
samples:
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, name) || (line[len(name)] != ' ' && line[len(name)] != '{') {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(line, label) {
				continue samples
			}
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("metric line %q: %v", line, err)
		}
		sum += value
		found = true
	}
	return sum, found
}
