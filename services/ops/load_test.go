package ops_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/ops"
)

// pipes is a listener in memory, for tests whose clock is a fake one.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// ask sends a request on a connection of its own, whose answer waits to be read.
func (p *pipes) ask(t *testing.T, path string) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = near.Close() })
	p.conns <- far
	if _, err := fmt.Fprintf(near, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path); err != nil {
		t.Fatal(err)
	}
	return near
}

func status(t *testing.T, conn net.Conn) int {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	return res.StatusCode
}

// TestCallersWhoDoNotReadHoldNothing: so many scrapes at a time are served; others are refused at once, health is told all the same, and a caller who
// does not take its answer is given up, so that nobody can hold the metrics for ever.
func TestCallersWhoDoNotReadHoldNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		many := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailrace_test_bytes", Help: "More than a connection holds."}, []string{"n"})
		reg.MustRegister(many)
		for n := range 1000 {
			many.WithLabelValues(fmt.Sprint(n)).Set(1)
		}
		s := ops.New(ops.Config{Gatherer: reg, Logger: slog.New(slog.DiscardHandler)})
		ln := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx, ln) }()

		for range ops.MaxScrapes {
			ln.ask(t, "/metrics")
		}
		synctest.Wait()
		if got := status(t, ln.ask(t, "/metrics")); got != http.StatusServiceUnavailable {
			t.Errorf("one more is answered with %d, want 503", got)
		}
		if got := status(t, ln.ask(t, "/healthz")); got != http.StatusOK {
			t.Errorf("health is answered with %d meanwhile, want 200", got)
		}
		time.Sleep(ops.WriteTimeout)
		synctest.Wait()
		if got := status(t, ln.ask(t, "/metrics")); got != http.StatusOK {
			t.Errorf("after %v it is answered with %d, want 200", ops.WriteTimeout, got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
