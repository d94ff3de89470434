package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
)

// TestEdgeDrains ends the edge kindly: every socket is told to come back, and does so without a loss.
func TestEdgeDrains(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	n := size(300, 5000)
	readers := make([]*reader, n)
	var lives sync.WaitGroup
	for i := range n {
		readers[i] = newReader(topic, false)
	}
	l := j.startLoad(topic, partitions, rateFor(n), 100)
	gate := make(chan struct{}, 64)
	for i, r := range readers {
		lives.Go(func() {
			gate <- struct{}{}
			s, err := dialSession(ctx, p.ws, "/ws/"+topic, r, dialOptions{})
			<-gate
			if err == nil {
				err = sentAway(s)
			}
			if err != nil {
				t.Errorf("socket %d: %v", i, err)
			}
			r.disconnected()
		})
	}
	for i, r := range readers {
		await(t, time.Minute, fmt.Sprintf("start of socket %d", i), func() bool { return r.isStarted() || t.Failed() })
	}
	if t.Failed() {
		t.FailNow()
	}
	began := time.Now()
	p.edge.signal(syscall.SIGTERM)
	await(t, 10*time.Second, "readiness is off", func() bool {
		code, _, err := get(ctx, "http://"+p.wsOps+"/readyz")
		return err != nil || code != 200
	})
	lives.Wait()
	drained := time.Since(began)
	if code := p.edge.exit(30 * time.Second); code != 0 {
		t.Errorf("the edge exited with %d after SIGTERM, want 0", code)
	}
	exited := time.Since(began)
	p.startEdge()
	ends := l.stop()
	for i, r := range readers {
		lives.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			done := func() bool { return r.reached(ends) }
			for !done() && ctx.Err() == nil && !t.Failed() {
				if err := comeBack(ctx, p, r, done); err != nil {
					t.Errorf("socket %d, come back: %v", i, err)
				}
			}
		})
	}
	lives.Wait()
	log := j.read(topic, false)
	for i, r := range readers {
		if err := r.verify(log); err != nil {
			t.Fatalf("socket %d: %v", i, err)
		}
	}
	proof(t, "SIGTERM of the edge under load: each of %d sockets got goodbye and close 4000 within %v, exit 0 after %v; all came back and got exactly the log (%d records)",
		n, drained.Round(time.Millisecond), exited.Round(time.Millisecond), log.count())
}

// sentAway reads a session until the server ends it, which it must do by goodbye, close 4000 and the end of the connection.
func sentAway(s *session) error {
	defer s.abort(false)
	err := s.run(forever)
	closed, ok := errors.AsType[*closeError](err)
	switch {
	case !ok:
		return fmt.Errorf("ended by %w, want a close frame", err)
	case closed.code != 4000 || closed.reason != "draining":
		return fmt.Errorf("%w, want 4000 draining", closed)
	case s.goodbye == nil || s.goodbye.Code != 4000 || s.goodbye.ReconnectAfterMs == nil || len(*s.goodbye.ReconnectAfterMs) != 2:
		return fmt.Errorf("goodbye %+v, want code 4000 with reconnectAfterMs", s.goodbye)
	}
	if _, _, err := s.next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the close frame: %w, want EOF", err)
	}
	return nil
}

// TestServiceDrains ends the service kindly: streams end with a code that says come back, and the edge does.
func TestServiceDrains(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := newCrowd(ctx, t, p, topic, 20, map[string]any{"start": "earliest"})
	l := j.startLoad(topic, partitions, 500, 100)

	subscribe := connectSubscriber(h2c(t), p.rpc)
	r := newReader(topic, false)
	ended := make(chan error, 1)
	go func() {
		receive, err := subscribe(ctx, r.request(earliest()))
		if err == nil {
			err = r.follow(receive, forever)
		}
		ended <- err
	}()
	await(t, 30*time.Second, "start of the stream", r.isStarted)
	await(t, 30*time.Second, "records on the stream", func() bool { return r.count() > 100 })
	began := time.Now()
	p.stop(p.service, 30*time.Second)
	exited := time.Since(began)
	err := <-ended
	if got := connect.CodeOf(err); got != connect.CodeUnavailable {
		t.Errorf("the stream ended with %v (%v), want unavailable", got, err)
	}
	if got := reasonOf(err); got != "DRAINING" {
		t.Errorf("the stream ended with reason %q (%v), want DRAINING", got, err)
	}
	p.startService()
	up := time.Now()
	ends := l.stop()
	c.awaitEnds(time.Minute, ends)
	resumed := time.Since(up)
	receive, err := subscribe(ctx, r.request(nil))
	if err == nil {
		err = r.follow(receive, func() bool { return r.reached(ends) })
	}
	if err != nil {
		t.Fatalf("the stream, resumed: %v", err)
	}
	log := j.read(topic, false)
	c.verify(log)
	if err := r.verify(log); err != nil {
		t.Errorf("the stream: %v", err)
	}
	proof(t, "SIGTERM of the service under load: exit 0 after %v, its stream ended with unavailable/DRAINING and resumed exactly; %d sockets stayed open and were at the end %v after the restart (%d records)",
		exited.Round(time.Millisecond), len(c.sessions), resumed.Round(time.Millisecond), log.count())
}

// reasonOf is the stable reason of an error of the RPC.
func reasonOf(err error) string {
	failed, ok := errors.AsType[*connect.Error](err)
	if !ok {
		return ""
	}
	for _, detail := range failed.Details() {
		value, err := detail.Value()
		if err != nil {
			continue
		}
		if info, ok := value.(*errdetails.ErrorInfo); ok && info.GetDomain() == "tailrace.dev" {
			return info.GetReason()
		}
	}
	return ""
}
