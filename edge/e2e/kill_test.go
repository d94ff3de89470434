package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// crowd is a number of sockets that follow one topic, each with a reader.
type crowd struct {
	t        testing.TB
	sessions []*session
	readers  []*reader
	failed   sync.Map // index → error
	wg       sync.WaitGroup
	leaving  atomic.Bool
}

// newCrowd opens n sockets, subscribes each and waits until all are started.
func newCrowd(ctx context.Context, t testing.TB, p *pair, topic string, n int, more map[string]any) *crowd {
	t.Helper()
	c := &crowd{t: t, sessions: make([]*session, n), readers: make([]*reader, n)}
	t.Cleanup(c.leave)
	gate := make(chan struct{}, 64)
	var dials sync.WaitGroup
	for i := range n {
		gate <- struct{}{}
		dials.Go(func() {
			defer func() { <-gate }()
			s, err := dialSession(ctx, p.ws, "/ws", nil, dialOptions{})
			if err != nil {
				c.failed.Store(i, err)
				return
			}
			r := newReader(topic, false)
			c.sessions[i], c.readers[i] = s, r
			c.wg.Go(func() {
				if err := s.run(forever); !c.leaving.Load() {
					c.failed.Store(i, err)
				}
			})
			if err := s.subscribe("c", r, more); err != nil {
				c.failed.Store(i, err)
			}
		})
	}
	dials.Wait()
	c.check()
	for i, r := range c.readers {
		await(t, 60*time.Second, fmt.Sprintf("start of socket %d", i), r.isStarted)
	}
	c.check()
	return c
}

// check fails the test if a socket has ended.
func (c *crowd) check() {
	c.t.Helper()
	n := 0
	c.failed.Range(func(i, err any) bool {
		if n++; n <= 3 {
			c.t.Errorf("socket %v ended: %v", i, err)
		}
		return true
	})
	if n > 0 {
		c.t.FailNow()
	}
}

// awaitEnds waits until every reader, but those at the indexes given, has come to the ends.
func (c *crowd) awaitEnds(within time.Duration, ends map[int32]int64, but ...int) {
	c.t.Helper()
	left := map[int]bool{}
	for i := range c.readers {
		left[i] = true
	}
	for _, i := range but {
		delete(left, i)
	}
	ok := eventually(c.t.Context(), within, func() bool {
		for i := range left {
			_, failed := c.failed.Load(i)
			if failed || c.readers[i].reached(ends) {
				delete(left, i)
			}
		}
		return len(left) == 0
	})
	c.check()
	if !ok {
		for i := range left {
			next, _ := c.readers[i].positions()
			c.t.Fatalf("not within %v: %d of %d sockets at the ends %v; socket %d is at %v", within, len(c.readers)-len(left), len(c.readers), ends, i, next)
		}
	}
}

// verify compares every reader with the log.
func (c *crowd) verify(log *tape) {
	c.t.Helper()
	for i, r := range c.readers {
		if err := r.verify(log); err != nil {
			c.t.Fatalf("socket %d: %v", i, err)
		}
	}
}

func (c *crowd) leave() {
	c.leaving.Store(true)
	for _, s := range c.sessions {
		if s != nil {
			s.abort(false)
		}
	}
	c.wg.Wait()
}

// heartbeatsSay waits until every socket has had a heartbeat, later than since, that passes.
func (c *crowd) heartbeatsSay(within time.Duration, since time.Time, what string, pass func(*heartbeatFrame) bool) time.Duration {
	c.t.Helper()
	for i, s := range c.sessions {
		await(c.t, within, fmt.Sprintf("heartbeat of socket %d that says %s", i, what), func() bool {
			c.check()
			_, ok := s.firstHeartbeat(func(h *heartbeatFrame) bool { return h.Time >= since.UnixMilli() && pass(h) })
			return ok
		})
	}
	return time.Since(since)
}

// TestServiceKilled kills and freezes the service under load. The sockets stay open, are told, and miss nothing.
func TestServiceKilled(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	c := newCrowd(t.Context(), t, p, topic, 20, map[string]any{"start": "earliest"})
	l := j.startLoad(topic, partitions, 500, 100)

	kills := size(4, 20)
	var slowest, told time.Duration
	for i := range kills {
		pause(t.Context(), time.Duration(rand.IntN(1000))*time.Millisecond)
		down := time.Now()
		p.service.kill()
		if i == 0 { // sooner than by the next heartbeat that is due
			told = c.heartbeatsSay(10*time.Second, down, "upstream unavailable", func(h *heartbeatFrame) bool { return h.Upstream == "unavailable" })
		}
		p.startService()
		up := time.Now()
		c.awaitEnds(60*time.Second, j.ends(topic))
		slowest = max(slowest, time.Since(up))
	}
	// A peer that is frozen, not dead: no FIN, no RST, and nothing lost when it goes on.
	p.service.signal(syscall.SIGSTOP)
	frozen := time.Now()
	c.heartbeatsSay(60*time.Second, frozen, "upstream unavailable", func(h *heartbeatFrame) bool { return h.Upstream == "unavailable" })
	noticed := time.Since(frozen)
	p.service.signal(syscall.SIGCONT)
	c.awaitEnds(60*time.Second, j.ends(topic))
	// Frozen for so short a time that nobody need notice.
	p.service.signal(syscall.SIGSTOP)
	pause(t.Context(), time.Second)
	p.service.signal(syscall.SIGCONT)

	ends := l.stop()
	c.awaitEnds(60*time.Second, ends)
	log := j.read(topic, false)
	c.verify(log)
	proof(t, "%d SIGKILLs and 2 freezes of the service under load: %d sockets stayed open on the same connections, told after %v (frozen: %v), "+
		"at the log's end again %v after the restart was ready at the latest; each got the %d records of the log, nothing twice",
		kills, len(c.sessions), told.Round(time.Millisecond), noticed.Round(time.Millisecond), slowest.Round(time.Millisecond), log.count())
}

// TestSilentNetwork lets the way between edge and service swallow everything, without a FIN or a RST.
func TestSilentNetwork(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	var between *relay
	p := startPair(t, pairOptions{kafka: kafka, upstream: func(rpc string) string {
		between = newRelay(t, rpc)
		return between.address
	}})
	c := newCrowd(t.Context(), t, p, topic, 10, map[string]any{"start": "earliest"})
	l := j.startLoad(topic, partitions, 200, 100)
	var told, resumed time.Duration
	for range size(1, 5) {
		between.silence(true)
		since := time.Now()
		told = max(told, c.heartbeatsSay(60*time.Second, since, "upstream unavailable", func(h *heartbeatFrame) bool { return h.Upstream == "unavailable" }))
		between.silence(false)
		since = time.Now()
		c.awaitEnds(60*time.Second, j.ends(topic))
		resumed = max(resumed, time.Since(since))
	}
	ends := l.stop()
	c.awaitEnds(60*time.Second, ends)
	log := j.read(topic, false)
	c.verify(log)
	proof(t, "the network between edge and service fell silent %d times: %d sockets told after %v, at the log's end again after %v at most; each got the %d records, nothing twice",
		size(1, 5), len(c.sessions), told.Round(time.Millisecond), resumed.Round(time.Millisecond), log.count())
}

// TestEdgeKilled kills the edge under load; its clients come back with their positions.
func TestEdgeKilled(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	l := j.startLoad(topic, partitions, 500, 100)

	var ends atomic.Pointer[map[int32]int64]
	readers := make([]*reader, 20)
	var wg sync.WaitGroup
	for i := range readers {
		r := newReader(topic, false)
		readers[i] = r
		done := func() bool {
			e := ends.Load()
			return e != nil && r.reached(*e)
		}
		wg.Go(func() {
			for !done() && ctx.Err() == nil {
				if err := comeBack(ctx, p, r, done); err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
			}
		})
	}
	kills := size(3, 15)
	for range kills {
		for i, r := range readers {
			await(t, 30*time.Second, fmt.Sprintf("start of reader %d", i), func() bool { return r.isStarted() || t.Failed() })
		}
		pause(ctx, time.Duration(rand.IntN(1000))*time.Millisecond)
		p.edge.kill()
		p.startEdge()
	}
	e := l.stop()
	ends.Store(&e)
	wg.Wait()
	log := j.read(topic, false)
	starts := 0
	for i, r := range readers {
		starts += r.starts
		if err := r.verify(log); err != nil {
			t.Errorf("reader %d: %v", i, err)
		}
	}
	proof(t, "%d SIGKILLs of the edge under load: %d readers came back (%d starts) and each got the %d records of the log, nothing twice", kills, len(readers), starts, log.count())
}

// comeBack is one connection of a reader to an edge that may be away.
func comeBack(ctx context.Context, p *pair, r *reader, done func() bool) error {
	defer r.disconnected()
	s, err := dialSession(ctx, p.ws, "/ws", nil, dialOptions{})
	if err != nil {
		pause(ctx, 20*time.Millisecond)
		return breachOnly(err)
	}
	defer s.abort(false)
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	if err := s.subscribe("r", r, map[string]any{"start": "earliest"}); err != nil {
		return nil
	}
	defer when(done, func() { s.abort(false) })()
	err = s.run(func() bool { return done() || len(s.errorFrames()) > 0 })
	for _, f := range s.errorFrames() {
		if f.Code != "unavailable" {
			return fmt.Errorf("error frame %+v", f)
		}
	}
	if closed, ok := errors.AsType[*closeError](err); ok {
		return fmt.Errorf("a killed process sent %w", closed)
	}
	return breachOnly(err)
}
