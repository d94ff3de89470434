package e2e_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// teamOptions say what the workers of a team do.
type teamOptions struct {
	workers      int
	group, topic string
	inFlight     int           // max_in_flight of each
	work         time.Duration // on each record, one after the other
}

// team is workers of one group, each a gRPC stream with a connection of its own, and what they have done.
type team struct {
	t       testing.TB
	p       *pair
	o       teamOptions
	workers []*teamWorker
	failed  atomic.Pointer[error] // the first stream that ended before it was told to

	mu   sync.Mutex
	jobs []job // that were begun
}

// job is a record at a worker.
type job struct {
	worker  *teamWorker
	record  *record
	tag     int64
	arrived time.Time
	begun   time.Time
}

// teamWorker is one of them.
type teamWorker struct {
	team   *team
	life   context.Context //nolint:containedctx // that of its stream
	cancel context.CancelFunc
	client *http.Client
	conn   atomic.Pointer[net.Conn]
	stream *connect.BidiStreamForClientSimple[tailracev1.ConsumeRequest, tailracev1.ConsumeResponse]
	holds  atomic.Bool // it acknowledges nothing
	ending atomic.Bool // it was told to
	roles  sync.WaitGroup
}

// startTeam starts workers and waits until each is told that it has started.
func startTeam(t testing.TB, p *pair, o teamOptions) *team {
	t.Helper()
	c := &team{t: t, p: p, o: o}
	t.Cleanup(c.leave)
	for range o.workers {
		c.workers = append(c.workers, c.start())
	}
	return c
}

// start begins one more worker.
func (c *team) start() *teamWorker {
	c.t.Helper()
	w := &teamWorker{team: c}
	w.life, w.cancel = context.WithCancel(c.t.Context())
	transport := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err == nil {
			w.conn.Store(&conn)
		}
		return conn, err
	}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	w.client = &http.Client{Transport: transport}
	service := tailracev1connect.NewStreamServiceClient(w.client, "http://"+c.p.rpc, connect.WithGRPC(), connect.WithAcceptCompression("gzip", nil, nil))
	s, err := service.Consume(w.life)
	if err == nil {
		w.stream = s
		err = s.Send(consumeStart(c.o.group, c.o.topic, c.o.inFlight))
	}
	var m *tailracev1.ConsumeResponse
	if err == nil {
		m, err = s.Receive()
	}
	if err != nil || m.GetStarted() == nil {
		w.cancel()
		c.t.Fatalf("a worker's start: %v, %v", m, err)
	}
	jobs := make(chan job, c.o.inFlight)
	w.roles.Go(func() { w.receive(jobs) })
	w.roles.Go(func() { w.do(jobs) })
	return w
}

func (w *teamWorker) receive(jobs chan<- job) {
	defer close(jobs)
	for {
		m, err := w.stream.Receive()
		if err != nil {
			if !w.ending.Load() {
				err = fmt.Errorf("a worker's stream: %w", err)
				w.team.failed.CompareAndSwap(nil, &err)
			}
			return
		}
		now := time.Now()
		for _, d := range m.GetDeliveries().GetDeliveries() {
			jobs <- job{worker: w, record: recordOf(d.GetRecord()), tag: d.GetTag(), arrived: now} // there is room for all that it may hold
		}
	}
}

func (w *teamWorker) do(jobs <-chan job) {
	for j := range jobs {
		if w.life.Err() != nil {
			continue
		}
		j.begun = time.Now()
		if w.team.o.work > 0 {
			pause(w.life, w.team.o.work)
		}
		w.team.mu.Lock()
		w.team.jobs = append(w.team.jobs, j)
		w.team.mu.Unlock()
		if !w.holds.Load() {
			_ = w.stream.Send(ackOf([]int64{j.tag}, 0)) // its receiver hears what is wrong
		}
	}
}

// end ends a worker's stream: by RST_STREAM, or by closing its connection.
func (w *teamWorker) end(connection bool) {
	w.ending.Store(true)
	if conn := w.conn.Load(); connection && conn != nil {
		(*conn).Close()
	} else {
		w.cancel()
		_ = w.stream.CloseResponse() // connect's client sends no RST_STREAM while nothing is sent or received
	}
}

// leave ends all workers, and awaits them. It may be called twice.
func (c *team) leave() {
	for _, w := range c.workers {
		w.end(false)
	}
	for _, w := range c.workers {
		w.cancel()
		w.roles.Wait()
		w.client.CloseIdleConnections()
	}
	if err := c.failed.Load(); err != nil {
		c.t.Error(*err)
	}
	c.workers = nil
}

// count is how many records pass, of those that were begun since forget.
func (c *team) count(pass func(*job) bool) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.jobs {
		if pass(&c.jobs[i]) {
			n++
		}
	}
	return n
}

func anyJob(*job) bool { return true }

// await waits until so many records were worked on since forget.
func (c *team) await(what string, n int) {
	c.t.Helper()
	eventually(c.t.Context(), 5*time.Minute, func() bool { return c.done() >= n || c.failed.Load() != nil })
	if err := c.failed.Load(); err != nil {
		c.t.Fatal(*err)
	}
	if got := c.done(); got < n {
		c.t.Fatalf("%d %s of %d", got, what, n)
	}
}

func (c *team) done() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.jobs)
}

// forget begins to count anew.
func (c *team) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = nil
}

// delays are the milliseconds from the time with which a value begins to the beginning of the work on it, sorted, of the jobs that pass.
func (c *team) delays(pass func(*job) bool) (all []float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.jobs {
		j := &c.jobs[i]
		stamp, _, _ := strings.Cut(string(j.record.value), " ")
		if sent, err := strconv.ParseInt(stamp, 10, 64); err == nil && pass(j) {
			all = append(all, float64(j.begun.UnixNano()-sent)/1e6)
		}
	}
	slices.Sort(all)
	return all
}

// tape is what was worked on, by partition, in the log's order.
func (c *team) tape() *tape {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := newTape(false)
	for i := range c.jobs {
		out.add(c.jobs[i].record)
	}
	for _, marks := range out.marks {
		slices.SortFunc(marks, func(a, b mark) int { return int(a.offset - b.offset) })
	}
	return out
}
