package stream_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/stream"
)

// What has no result yet bounds what is received; the rest stays with the caller.
func TestPublishStreamPushesBack(t *testing.T) {
	for name, test := range map[string]struct{ bytes, least, most, n int }{
		"records": {10, 1024, 1024, 3000}, "bytes": {100_000, 40, 42, 300},
	} {
		t.Run(name, func(t *testing.T) {
			s, q := startQueue(t, true)
			p := openPublisher(t, s.client())
			n := test.n
			sent := make(chan error, 1)
			go func() {
				for i := range n {
					if err := p.stream.Send(publishOne(fmt.Sprint(i), strings.Repeat("x", test.bytes))); err != nil {
						sent <- err
						return
					}
				}
				sent <- p.stream.CloseRequest()
			}()
			eventually(t, "the bound is reached", func() bool { return q.handed() >= test.least })
			for range 20 {
				pause()
			}
			if got := q.handed(); got < test.least || got > test.most {
				t.Errorf("%d are handed over without a result, want %d to %d", got, test.least, test.most)
			}
			q.release()
			if _, results := p.results(n); len(results) != n {
				t.Errorf("%d results", len(results))
			}
			if err := errors.Join(<-sent, p.end()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A drain takes nothing more, tells what became of all that it took, and says why it ends.
func TestADrainAnswersWhatItTook(t *testing.T) {
	s, q := startQueue(t, true)
	p := openPublisher(t, s.client(connect.WithGRPC()))
	p.send(publishOne("a", "a"), publishOne("b", "b"))
	eventually(t, "they are handed over", func() bool { return q.handed() == 2 })
	s.stop()
	eventually(t, "it is told of the drain", func() bool { // what is sent meanwhile is taken, or not looked at
		_ = p.stream.Send(publishOne("late", "late"))
		n := q.handed()
		pause()
		return len(s.log.lines("drain")) > 0 || q.handed() == n
	})
	q.release()
	handed := q.handed()
	p.results(handed)
	if told := read(t, p.end()); told.code != connect.CodeUnavailable || told.reason != "DRAINING" || told.retry == 0 {
		t.Errorf("got %+v", told)
	}
	if got := q.handed(); got != handed {
		t.Errorf("%d were handed over, %d answered", got, handed)
	}
	s.drained()
}

func TestPublishStreamEndsWithItsCaller(t *testing.T) {
	ended := func(t *testing.T, s *service, reason string) {
		t.Helper()
		eventually(t, "the stream ended: "+reason, func() bool {
			return s.metric("tailrace_stream_ended_total", tailracev1connect.StreamServicePublishStreamProcedure, reason) == 1
		})
	}
	dropped := func(t *testing.T, q *queue) {
		t.Helper()
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.ctx.Err() == nil {
			t.Error("what was not handed over is not dropped")
		}
	}
	t.Run("it cancels", func(t *testing.T) {
		s, q := startQueue(t, true)
		p := openPublisher(t, s.client())
		p.send(publishOne("a", "a"))
		eventually(t, "it is handed over", func() bool { return q.handed() == 1 })
		p.cancel()
		ended(t, s, "CANCELED")
		dropped(t, q)
	})
	t.Run("its deadline comes", func(t *testing.T) {
		for _, options := range [][]connect.ClientOption{nil, {connect.WithGRPC()}} {
			s, q := startQueue(t, true)
			client := tailracev1connect.NewStreamServiceClient(h2c(t, nil), s.url, options...)
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			call, err := client.PublishStream(ctx)
			if err != nil {
				t.Fatal(err)
			}
			_ = call.Send(publishOne("a", "a"))
			if _, err := call.Receive(); connect.CodeOf(err) != connect.CodeDeadlineExceeded {
				t.Errorf("got %v", err)
			}
			eventually(t, "the stream ended", func() bool {
				return s.metric("tailrace_stream_ended_total", tailracev1connect.StreamServicePublishStreamProcedure) == 1
			})
			_ = call.CloseRequest()
			_ = call.CloseResponse()
			if q.handed() > 0 {
				dropped(t, q)
			}
		}
	})
	t.Run("it vanishes", func(t *testing.T) {
		s, q := startQueue(t, true, func(c *stream.Config) { c.PingTimeout = 200 * time.Millisecond })
		r, err := newRelay(s.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.close)
		p := openPublisher(t, tailracev1connect.NewStreamServiceClient(h2c(t, nil), r.url()))
		p.send(publishOne("a", "a"))
		eventually(t, "it is handed over", func() bool { return q.handed() == 1 })
		r.hush()
		ended(t, s, "CANCELED")
		dropped(t, q)
	})
	t.Run("it takes no results", func(t *testing.T) {
		s, q := startQueue(t, false, func(c *stream.Config) { c.StallTimeout = 300 * time.Millisecond })
		q.fail["x"] = &tailracev1.PublishFailure{Message: strings.Repeat("a long message", 2000)}
		p := openPublisher(t, tailracev1connect.NewStreamServiceClient(h2c(t, &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}), s.url))
		for i := 0; p.stream.Send(publishOne(fmt.Sprint(i), "x")) == nil; i++ {
			if i == 1<<20 {
				t.Fatal("everything is taken")
			}
		}
		ended(t, s, "STALLED")
	})
}

func TestPublishStreamNeedsHTTP2(t *testing.T) {
	s, _ := startQueue(t, false)
	res, err := http1(t).Post(s.url+tailracev1connect.StreamServicePublishStreamProcedure, "application/connect+json", strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusHTTPVersionNotSupported {
		t.Errorf("got %d", res.StatusCode)
	}
}
