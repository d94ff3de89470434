package stream_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/stream"
)

func TestACallerThatLeavesIsReleased(t *testing.T) {
	s := start(t, patience)
	for _, options := range [][]connect.ClientOption{nil, {connect.WithGRPC()}} {
		client := s.client(options...)
		var subs []*subscription
		for range 20 {
			sub := subscribe(t, client, orders())
			sub.started()
			subs = append(subs, sub)
		}
		if n := s.hub.Subscribers("orders"); n != 20 {
			t.Errorf("%d subscribers, want 20", n)
		}
		for _, sub := range subs {
			sub.cancel()
		}
		s.released()
	}
	// A stream is counted a little after its subscription is released.
	eventually(t, "40 streams ended by the client", func() bool { return s.metric("tailrace_stream_ended_total", "client") == 40 })
}

// A peer that vanished sends no FIN: only an unanswered ping tells.
func TestAVanishedPeerIsReleased(t *testing.T) {
	s := start(t, patience, func(c *stream.Config) { c.PingTimeout = 200 * time.Millisecond })
	r, err := newRelay(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	client := tailracev1connect.NewStreamServiceClient(h2c(t, nil), r.url(), connect.WithGRPC())
	sub := subscribe(t, client, orders())
	sub.started()
	staying := subscribe(t, s.client(), orders())
	staying.started()

	r.hush()
	eventually(t, "one subscription left", func() bool { return s.hub.Subscribers("orders") == 1 })
	s.source.Append("orders", 0, hubtest.Text("k", "v"))
	staying.records(1)
	eventually(t, "the line of the end", func() bool { return len(s.log.lines("session ended", "initiator=client")) == 1 })
}

// One reader that takes nothing, on the same connection as one that does.
func TestAStalledStreamDelaysNobodyAndEnds(t *testing.T) {
	s := start(t, patience, func(c *stream.Config) { c.StallTimeout = time.Second })
	shared := h2c(t, &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10})
	client := tailracev1connect.NewStreamServiceClient(shared, s.url, connect.WithAcceptCompression("gzip", nil, nil))
	m := orders()
	m.HeartbeatInterval = durationpb.New(time.Second)
	stalled := subscribe(t, client, m)
	stalled.started()
	reading := subscribe(t, client, m)
	reading.started()

	const n = 400
	for range n {
		s.source.Append("orders", 0, hubtest.Record{Value: make([]byte, 8<<10)})
	}
	if got := len(reading.records(n)[0]); got != n {
		t.Errorf("the neighbour got %d records, want %d", got, n)
	}
	eventually(t, "the stalled stream ended", func() bool {
		return s.metric("tailrace_stream_ended_total", "STALLED", "server") == 1
	})
	if n := s.hub.Subscribers("orders"); n != 1 {
		t.Errorf("%d subscribers, want the neighbour", n)
	}
	if err := stalled.end(); err == nil {
		t.Error("the stalled stream ended without an error")
	}
	s.source.Append("orders", 1, hubtest.Text("k", "v"))
	reading.records(1)
}

// A request that never arrives in full is not waited for; one that has arrived may take as long as it likes.
func TestRequestBodiesHaveADeadline(t *testing.T) {
	s := start(t, patience, func(c *stream.Config) { c.BodyTimeout = 300 * time.Millisecond })
	sub := subscribe(t, s.client(), orders())
	sub.started()
	old := subscribe(t, tailracev1connect.NewStreamServiceClient(http1(t), s.url), orders())
	old.started()

	for name, client := range map[string]*http.Client{"HTTP/1.1": http1(t), "HTTP/2": h2c(t, nil)} {
		for path, kind := range map[string]string{
			tailracev1connect.StreamServicePublishProcedure:   "application/proto",
			tailracev1connect.StreamServiceSubscribeProcedure: "application/connect+proto",
		} {
			body, write := io.Pipe()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, body)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Content-Type", kind)
			res, err := client.Do(request)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body) // ends
				_ = res.Body.Close()
			}
			if ctx.Err() != nil {
				t.Errorf("%s %s: no answer (%v)", name, path, err)
			}
			_ = write.Close()
			cancel()
		}
	}
	s.source.Append("orders", 0, hubtest.Text("k", "v"))
	sub.records(1)
	old.records(1)
}

func TestSIGTERMTellsEveryStream(t *testing.T) {
	s := start(t, patience)
	var subs []*subscription
	for i, options := range [][]connect.ClientOption{nil, {connect.WithGRPC()}, {connect.WithGRPCWeb()}, {connect.WithProtoJSON()}} {
		sub := subscribe(t, s.client(options...), orders())
		sub.started()
		s.source.Append("orders", 0, hubtest.Text("k", "v"))
		sub.records(1)
		for _, earlier := range subs[:i] {
			earlier.records(1)
		}
		subs = append(subs, sub)
	}
	s.stop()
	for _, sub := range subs {
		if told := read(t, sub.end()); told.code != connect.CodeUnavailable || told.reason != "DRAINING" || told.retry <= 0 {
			t.Errorf("got %+v", told)
		}
	}
	s.drained()
	if c, err := net.DialTimeout("tcp", s.addr, time.Second); err == nil {
		_ = c.Close()
		t.Error("the listener is open")
	}
	if n := s.metric("tailrace_stream_ended_total", "DRAINING", "server"); n != 4 {
		t.Errorf("the metric says %v ends", n)
	}
}

// Grace is for those who listen.
func TestADrainCutsOffWhoTakesNothing(t *testing.T) {
	s := start(t, 500*time.Millisecond)
	client := tailracev1connect.NewStreamServiceClient(h2c(t, &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}), s.url,
		connect.WithAcceptCompression("gzip", nil, nil)) // zeros would shrink to nothing
	sub := subscribe(t, client, orders())
	sub.started()
	for range 400 {
		s.source.Append("orders", 0, hubtest.Record{Value: make([]byte, 8<<10)})
	}
	// What is in the hub's memory is sent before the farewell, and can't be.
	eventually(t, "all records in the hub", func() bool {
		next, _ := s.source.FollowedTo("orders", 0)
		return next == 400
	})
	s.stop()
	s.drained()
	s.released()
	if got := s.log.lines("cut off"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

// A handler's bug ends its own call.
func TestAPanicIsInternal(t *testing.T) {
	s := start(t, patience)
	s.kafka.publish = func(context.Context, string, []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
		panic("secret")
	}
	_, err := s.client().Publish(t.Context(), &tailracev1.PublishRequest{Topic: "orders", Records: []*tailracev1.PublishRecord{{}}})
	if told := read(t, err); told.code != connect.CodeInternal || told.reason != "INTERNAL" {
		t.Errorf("got %v", err)
	}
	if got := s.log.lines("panic in a handler", "secret", "failure_test.go"); len(got) != 1 {
		t.Errorf("got %v", got)
	}
}

func TestKafkasSilenceIsAnswered(t *testing.T) {
	s := start(t, patience, func(c *stream.Config) { c.ResolveTimeout = 200 * time.Millisecond })
	s.source.SetDelays(hubtest.Delays{BeforeResolve: time.Hour})
	err := subscribe(t, s.client(), orders()).end()
	if told := read(t, err); told.code != connect.CodeUnavailable || told.reason != "KAFKA_UNAVAILABLE" || told.retry <= 0 {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	stream, err := s.client().Subscribe(ctx, orders())
	if err == nil {
		stream.Receive()
		err = stream.Err()
		_ = stream.Close()
	}
	if code := codeOf(err); code != connect.CodeDeadlineExceeded {
		t.Errorf("got %v", err)
	}
}
