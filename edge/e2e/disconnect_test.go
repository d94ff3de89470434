package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestRandomDisconnects breaks connections at random moments, in every way a connection can end, while records keep coming; each reader
// resumes at its positions. What it got must be the log: nothing lost, nothing twice, each partition in order.
func TestRandomDisconnects(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	sockets, rpcs := newRelay(t, p.ws), newRelay(t, p.rpc)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	l := j.startLoad(topic, partitions, 1000, 100)
	want := size(60, 500) // of each transport
	var overSocket, overBinary, overRPC atomic.Int64
	var ends atomic.Pointer[map[int32]int64]
	done := func(r *reader) func() bool {
		return func() bool {
			e := ends.Load()
			return e != nil && r.reached(*e)
		}
	}
	var readers []*reader
	var wg sync.WaitGroup
	start := func(run func(r *reader) error) {
		r := newReader(topic, false)
		readers = append(readers, r)
		wg.Go(func() {
			for !done(r)() && ctx.Err() == nil {
				if err := run(r); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 3 {
		start(func(r *reader) error {
			return socketLife(ctx, sockets.address, "tailrace.v1.json", r, done(r), want, &overSocket)
		})
		start(func(r *reader) error {
			return socketLife(ctx, sockets.address, "tailrace.v1.proto", r, done(r), want, &overBinary)
		})
	}
	for name, subscribe := range subscribers(t, rpcs.address) {
		start(func(r *reader) error {
			if err := rpcLife(ctx, subscribe, r, done(r), want, &overRPC); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	cuts := 0
	for overSocket.Load() < int64(want) || overBinary.Load() < int64(want) || overRPC.Load() < int64(want) {
		if t.Failed() || ctx.Err() != nil {
			break
		}
		pause(ctx, time.Duration(200+rand.IntN(600))*time.Millisecond)
		sockets.cut()
		rpcs.cut()
		cuts++
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
	proof(t, "%d disconnects over WebSocket in JSON, %d in the binary subprotocol, %d over RPC (%d by cutting all at once), %d starts by %d readers under load: each got the %d records of the log, nothing twice",
		overSocket.Load(), overBinary.Load(), overRPC.Load(), cuts, starts, len(readers), log.count())
}

// lifetime is how long a connection lives until the reader breaks it; after enough breaks it lives until the reader is done.
func lifetime(breaks *atomic.Int64, want int) time.Duration {
	if breaks.Load() >= int64(want) {
		return time.Hour
	}
	return time.Duration(rand.ExpFloat64() * float64(150*time.Millisecond))
}

// socketLife is one connection of a reader. It returns an error only for a breach.
func socketLife(ctx context.Context, address, protocol string, r *reader, done func() bool, want int, breaks *atomic.Int64) error {
	defer r.disconnected()
	path, more := "/ws", map[string]any{"start": "earliest"}
	var first *reader
	if next, _ := r.positions(); len(next) == 0 && rand.IntN(2) == 0 {
		path, first = "/ws/"+r.topic+"?start=earliest", r
	}
	s, err := dialSession(ctx, address, path, first, dialOptions{protocols: []string{protocol}})
	if err != nil {
		return breachOnly(err)
	}
	defer s.abort(rand.IntN(2) == 0)
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	if first == nil {
		if err := s.subscribe("r", r, more); err != nil {
			return breachOnly(err)
		}
	}
	life := lifetime(breaks, want)
	way := rand.IntN(4)
	timer := time.AfterFunc(life, func() {
		switch way {
		case 0:
			_ = s.hangUp()
		case 1:
			_ = s.sendJSON(map[string]any{"op": "unsubscribe", "id": "r"}) // and go on reading until the connection is cut
			_ = s.hangUp()
		case 2:
			s.abort(true)
		default:
			s.abort(false)
		}
	})
	defer timer.Stop()
	defer when(done, func() { s.abort(false) })()
	err = s.run(done)
	if r.isStarted() && !done() {
		breaks.Add(1)
	}
	if closed, ok := errors.AsType[*closeError](err); ok && closed.code != 1000 {
		return fmt.Errorf("closed with %d %q, want 1000", closed.code, closed.reason)
	}
	return breachOnly(err)
}

// rpcLife is one stream of a reader.
func rpcLife(ctx context.Context, subscribe subscriber, r *reader, done func() bool, want int, breaks *atomic.Int64) error {
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	defer when(done, cancel)()
	before := r.startCount()
	lived := time.Time{}
	span := lifetime(breaks, want)
	early := rand.IntN(4) == 0 // it may end before it has begun
	defer when(func() bool {
		if lived.IsZero() && (early || r.startCount() > before) {
			lived = time.Now()
		}
		return !lived.IsZero() && time.Since(lived) > span
	}, cancel)()
	receive, err := subscribe(life, r.request(earliest()))
	if err == nil {
		err = r.follow(receive, done)
	}
	switch {
	case done():
	case r.startCount() > before:
		breaks.Add(1)
	default:
		pause(ctx, 10*time.Millisecond) // grpc-go refuses at once for a while after a connection has failed
	}
	return breachOnly(err)
}

func breachOnly(err error) error {
	if isBreach(err) {
		return err
	}
	return nil
}
