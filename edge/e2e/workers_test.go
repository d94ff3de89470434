package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fleet is two services and three edges, each of which may use both services. The last edge is never killed.
type fleet struct {
	t        *testing.T
	services [2]*pair
	edges    [3]*pair
	names    [4]atomic.Pointer[string] // of the lives of the two services and the first two edges
	lives    int
}

func startFleet(t *testing.T, kafka string) *fleet {
	t.Helper()
	f := &fleet{t: t}
	dir := binaries(t, *race)
	address := func() string { return fmt.Sprintf("127.0.0.1:%d", freePort(t)) }
	var upstream []string
	for i := range f.services {
		p := &pair{t: t, rpc: address(), rpcOps: address()}
		p.service = newProcess(t, fmt.Sprintf("tailrace-%d", i), filepath.Join(dir, "tailrace"), "-listen", p.rpc, "-ops-listen", p.rpcOps, "-kafka", kafka)
		p.service.start()
		f.services[i] = p
		upstream = append(upstream, "-upstream", "http://"+p.rpc)
	}
	for i := range f.edges {
		p := &pair{t: t, ws: address(), wsOps: address()}
		p.edge = newProcess(t, fmt.Sprintf("tailrace-edge-%d", i), filepath.Join(dir, "tailrace-edge"),
			append([]string{"-listen", p.ws, "-ops-listen", p.wsOps, "-heartbeat-interval", "1s", "-stall-timeout", "7s"}, upstream...)...)
		p.edge.start()
		f.edges[i] = p
	}
	for _, p := range f.services {
		p.awaitReady(p.service, p.rpcOps)
	}
	for _, p := range f.edges {
		p.awaitReady(p.edge, p.wsOps)
	}
	for i := range f.names {
		f.christen(i)
	}
	return f
}

// christen names the life of a process.
func (f *fleet) christen(i int) {
	f.lives++
	name := fmt.Sprintf("process %d", f.lives)
	f.names[i].Store(&name)
}

// kill ends a process by SIGKILL and starts it again: 0 and 1 are services, 2 and 3 edges.
func (f *fleet) kill(i int, ledgers []*ledger) {
	f.t.Helper()
	for _, l := range ledgers {
		l.endAll(*f.names[i].Load(), map[bool]string{true: killedService, false: killedEdge}[i < 2])
	}
	if i < 2 {
		f.services[i].service.kill()
		f.services[i].startService()
	} else {
		f.edges[i-2].edge.kill()
		f.edges[i-2].startEdge()
	}
	f.christen(i)
}

// staff are the workers of one group; each has one life after the other until there are enough ends.
type staff struct {
	t      *testing.T
	f      *fleet
	l      *ledger
	topic  string
	ends   *atomic.Int64 // connections that the test has ended
	enough *atomic.Bool
	relays sync.Mutex
	n      atomic.Int64
}

// How connections end, beside textEnds, rpcEnds and silence.
const (
	endOfTest     = "the end of the test"
	killedService = "SIGKILL of a service"
	killedEdge    = "SIGKILL of an edge"
)

var (
	textEnds = []string{"close frame", "FIN", "RST"}
	rpcEnds  = []string{"half-close", "connection reset", "cancelled"}
)

// work is one worker's lives.
func (w *staff) work(ctx context.Context, kind string) {
	for ctx.Err() == nil {
		if err := w.live(ctx, kind); err != nil && isOurs(err) {
			w.t.Errorf("%s, %s: %v", w.l.group, kind, err)
			return
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// live is one connection.
func (w *staff) live(ctx context.Context, kind string) error {
	i := rand.IntN(2)
	ends, target := textEnds, w.f.edges[i].ws
	name := *w.f.names[2+i].Load()
	if kind == "grpc" {
		ends, target, name = rpcEnds, w.f.services[i].rpc, *w.f.names[i].Load()
	}
	fate := ends[rand.IntN(len(ends))]
	if rand.IntN(8) == 0 { // few, as each holds what it is dealt until it is noticed
		fate = "silence"
	}
	mortal := !w.enough.Load()
	var way *relay
	if mortal && fate == "silence" {
		w.relays.Lock() // it fails the test by itself
		way = newRelay(w.t, target)
		w.relays.Unlock()
		target = way.address
	}
	c, err := dialLine(ctx, target, kind)
	if err != nil {
		return err
	}
	defer c.close()
	connection := fmt.Sprintf("connection %d", w.n.Add(1))
	cut := func(fate string) bool {
		if !w.l.endAll(connection, fate) {
			return false
		}
		if way != nil {
			way.silence(true)
		}
		c.end(fate)
		return true
	}
	defer context.AfterFunc(ctx, func() { cut(endOfTest) })()
	if mortal {
		life := time.AfterFunc(time.Duration(300+rand.IntN(size(1700, 6000)))*time.Millisecond, func() {
			if !w.enough.Load() && cut(fate) {
				w.ends.Add(1)
			}
		})
		defer life.Stop()
	}
	return w.serve(c, kind, connection, name)
}

func dialLine(ctx context.Context, address, kind string) (line, error) {
	if kind == "grpc" {
		return dialRPC(ctx, address)
	}
	bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := dialSession(bounded, address, "/ws", nil, dialOptions{protocols: []string{kind}})
	if err != nil {
		return nil, err
	}
	return &textLine{s: s}, nil
}

// serve consumes over a connection: one consume after the other where the service of one is lost.
func (w *staff) serve(c line, kind, connection, process string) error {
	for {
		hasty := rand.IntN(2) == 0
		timeout := patientTimeout
		if hasty {
			timeout = hastyTimeout
		}
		s := w.l.open(connection, process)
		if s == nil {
			return nil
		}
		if err := c.begin(w.l.group, w.topic, w.l.ordered, timeout); err != nil {
			w.l.end(s, "")
			return ignoreEnd(err)
		}
		err := w.consume(c, s, hasty)
		w.l.end(s, "")
		if err != nil {
			return err
		}
	}
}

// consume takes and settles what comes, until the stream is over: nil, if the connection is not.
func (w *staff) consume(c line, s *consuming, hasty bool) error {
	var forgotten []*dealt
	for {
		h, err := c.hear()
		if err != nil {
			return err
		}
		if h.over != nil {
			return nil
		}
		w.l.refuse(s, h.refused)
		if len(h.records) > 0 && !w.l.came(s, h.records) {
			continue // to the end of the connection
		}
		if err := w.settle(c, s, h.records, hasty, &forgotten); err != nil {
			return err
		}
		for len(forgotten) > 0 && time.Since(forgotten[0].when) > hastyTimeout+lateness {
			if err := w.ack(c, s, forgotten[:1]); err != nil {
				return err
			}
			forgotten = forgotten[1:]
		}
	}
}

// settle acknowledges most, in any order, nacks some, and forgets a few.
func (w *staff) settle(c line, s *consuming, records []*dealt, hasty bool, forgotten *[]*dealt) error {
	var good, bad []*dealt
	calm := w.enough.Load() // what is left may all be at one process, for one worker
	for _, d := range records {
		switch n := rand.IntN(1000); {
		case n < 5 && hasty && !calm:
			w.l.forget(d)
			*forgotten = append(*forgotten, d)
		case n < 25:
			bad = append(bad, d)
		default:
			good = append(good, d)
		}
	}
	if len(good) > 0 && !calm && rand.IntN(2) == 0 { // work takes time, and a worker dies with what it holds
		<-time.After(time.Duration(rand.IntN(150)) * time.Millisecond)
	}
	rand.Shuffle(len(good), func(i, j int) { good[i], good[j] = good[j], good[i] })
	first := rand.IntN(len(good) + 1)
	if err := w.ack(c, s, good[:first]); err != nil {
		return err
	}
	for _, d := range bad {
		delay := time.Duration(0)
		if rand.IntN(2) == 0 {
			delay = time.Duration(20+rand.IntN(300)) * time.Millisecond
		}
		if !w.l.nacking(s, d, delay) {
			continue
		}
		if err := c.nack(d.tag, delay); err != nil {
			return err
		}
	}
	if err := w.ack(c, s, good[first:]); err != nil {
		return err
	}
	if len(records) > 0 && rand.IntN(4) == 0 {
		return c.ack([]int64{w.l.stranger(s)})
	}
	return nil
}

func (w *staff) ack(c line, s *consuming, ds []*dealt) error {
	if len(ds) == 0 {
		return nil
	}
	tags := w.l.acking(s, ds)
	if len(tags) == 0 {
		return nil
	}
	return c.ack(tags)
}

// ignoreEnd drops an error that only says that the connection has ended.
func ignoreEnd(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}
