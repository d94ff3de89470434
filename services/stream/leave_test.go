package stream_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// A half-close and a drain are no failures of what is held, a reset is one.
func TestConsumeLeaves(t *testing.T) {
	s, l := startGroups(t)
	once := starting()
	once.MaxAttempts = 1
	first := consume(t, s.client(), once)
	first.next()
	g := <-l.members
	appendRecords(t, g, 0, 2)
	first.deliveries(2)
	if err := first.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Receive(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	opened, err := s.client().Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second := &work{t, opened}
	second.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: once}})
	second.next()
	if got, want := second.deliveries(2), []string{"0:1:2", "1:2:2"}; !slices.Equal(got, want) {
		t.Errorf("after a half-close: got %v, want %v", got, want)
	}
	second.ack(0, 1, 7)
	if got := second.next().GetAckRefused().GetTags(); !slices.Equal(got, []int64{7}) {
		t.Errorf("got %v refused", got)
	}
	if n := l.buried.Load(); n != 0 {
		t.Errorf("%d dead letters after a half-close", n)
	}
	cancel()
	_ = opened.CloseResponse() // its HTTP client notices only now
	committed(t, g, 2)
	if n := l.buried.Load(); n != 1 {
		t.Errorf("%d dead letters after a reset, want 1", n)
	}

	third := consume(t, s.client(), once)
	third.next()
	appendRecords(t, g, 2, 1)
	third.deliveries(1)
	s.stop()
	if _, err := third.Receive(); read(t, err).reason != "DRAINING" {
		t.Errorf("got %v", err)
	}
	if n := l.buried.Load(); n != 1 {
		t.Errorf("%d dead letters after a drain, want 1", n)
	}
}
