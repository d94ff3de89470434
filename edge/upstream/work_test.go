package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"tailrace.dev/tailrace/edge/upstream"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

// toldWork is what a worker is told; messages are taken one by one.
type toldWork struct {
	messages chan *wirev1.ConsumeResponse
	ended    chan error
}

func consumeAt(t *testing.T, s *upstream.Source, start *tailracev1.ConsumeStart, wait time.Duration) (w *toldWork, send func(*tailracev1.ConsumeRequest) bool, hangUp func()) {
	t.Helper()
	w, send, _, end := consumeCounted(t, s, start, wait)
	return w, send, func() { end(false) }
}

func consumeCounted(t *testing.T, s *upstream.Source, start *tailracev1.ConsumeStart, wait time.Duration) (
	w *toldWork, send func(*tailracev1.ConsumeRequest) bool, waiting func() int, hangUp func(lost bool),
) {
	t.Helper()
	w = &toldWork{make(chan *wirev1.ConsumeResponse), make(chan error, 2)}
	gone := make(chan struct{})
	send, waiting, end := s.OpenConsume(t.Context(), start, time.Now().Add(wait), func(m *wirev1.ConsumeResponse, err error) {
		if err != nil {
			w.ended <- err
			return
		}
		select {
		case w.messages <- m:
		case <-gone:
		}
	})
	hung := false
	hangUp = func(lost bool) {
		if !hung {
			hung = true
			close(gone)
			end(lost)
		}
	}
	t.Cleanup(func() { hangUp(false) })
	return w, send, waiting, hangUp
}

func (w *toldWork) next(t *testing.T) *wirev1.ConsumeResponse {
	t.Helper()
	select {
	case m := <-w.messages:
		return m
	case err := <-w.ended:
		t.Fatalf("ended: %v", err)
	case <-time.After(patience):
		t.Fatal("no message")
	}
	return nil
}

func (w *toldWork) end(t *testing.T) error {
	t.Helper()
	select {
	case err := <-w.ended:
		return err
	case <-time.After(patience):
		t.Fatal("no end")
		return nil
	}
}

func workStarted() *tailracev1.ConsumeResponse {
	return &tailracev1.ConsumeResponse{Event: &tailracev1.ConsumeResponse_Started{Started: &tailracev1.ConsumeStarted{Settings: &tailracev1.ConsumeStart{Group: "g"}}}}
}

func delivery(tag int64) *tailracev1.ConsumeResponse {
	return &tailracev1.ConsumeResponse{Event: &tailracev1.ConsumeResponse_Deliveries{Deliveries: &tailracev1.Deliveries{
		Deliveries: []*tailracev1.Delivery{{Tag: tag, Attempt: 1, Record: &tailracev1.Record{Topic: "t"}}},
	}}}
}

func ackOf(tags ...int64) *tailracev1.ConsumeRequest {
	return &tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: tags}}}
}

func groupStart() *tailracev1.ConsumeStart {
	return &tailracev1.ConsumeStart{Group: "g", Topics: []string{"t"}}
}

// What was acknowledged before the end arrives before it, and the service sees the end of what was said.
func TestConsumeSaysAllBeforeItEnds(t *testing.T) {
	svc := newScript(t)
	heard := make(chan []int64, 1)
	svc.consumes = []consuming{func(_ context.Context, s *worker) error {
		if m, err := s.Receive(); err != nil || m.GetStart().GetGroup() != "g" {
			return fmt.Errorf("no start: %w", err)
		}
		if err := errors.Join(s.Send(workStarted()), s.Send(delivery(1))); err != nil {
			return err
		}
		var tags []int64
		for {
			m, err := s.Receive()
			if errors.Is(err, io.EOF) {
				heard <- tags
				return nil
			}
			if err != nil {
				return err
			}
			tags = append(tags, m.GetAck().GetTags()...)
			tags = append(tags, m.GetNack().GetTags()...)
		}
	}}
	w, send, waiting, hangUp := consumeCounted(t, newSource(t, nil, svc.address), groupStart(), patience)
	if w.next(t).GetStarted() == nil || w.next(t).GetDeliveries() == nil {
		t.Error("got other messages")
	}
	for tag := range int64(200) { // runs of acks are one
		if !send(ackOf(tag + 1)) {
			t.Fatalf("ack %d was refused", tag+1)
		}
	}
	hangUp(false)
	select {
	case got := <-heard:
		if len(got) != 200 || !slices.IsSorted(got) {
			t.Errorf("got %v", got)
		}
	case <-time.After(patience):
		t.Fatal("the service was not told the end")
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d bytes wait after all was sent", n)
	}
}

// Where the client was lost the stream is reset, so that the service counts a failure; but its acks arrive before that.
func TestConsumeWhoseClientWasLost(t *testing.T) {
	svc := newScript(t)
	heard := make(chan []int64, 1)
	ended := make(chan error, 1)
	svc.consumes = []consuming{func(ctx context.Context, s *worker) error {
		_, err := s.Receive()
		if err := errors.Join(err, s.Send(workStarted()), s.Send(delivery(1))); err != nil {
			return err
		}
		var tags []int64
		for {
			m, err := s.Receive()
			if err != nil {
				heard <- tags
				ended <- err
				return err
			}
			for _, tag := range m.GetAck().GetTags() {
				if tag < 1000 {
					tags = append(tags, tag)
					continue
				}
				if ctx.Err() != nil {
					t.Error("the reset came before the acks")
				}
				refused := &tailracev1.ConsumeResponse_AckRefused{AckRefused: &tailracev1.AckRefused{Tags: []int64{tag}}}
				if err := s.Send(&tailracev1.ConsumeResponse{Event: refused}); err != nil {
					return err
				}
			}
		}
	}}
	w, send, _, hangUp := consumeCounted(t, newSource(t, nil, svc.address), groupStart(), patience)
	if w.next(t).GetStarted() == nil || w.next(t).GetDeliveries() == nil {
		t.Error("got other messages")
	}
	for tag := range int64(200) {
		if !send(ackOf(tag + 1)) {
			t.Fatalf("ack %d was refused", tag+1)
		}
	}
	hangUp(true)
	select {
	case got := <-heard:
		if len(got) != 200 {
			t.Errorf("got %v", got)
		}
	case <-time.After(patience):
		t.Fatal("the service was not told the end")
	}
	if err := <-ended; errors.Is(err, io.EOF) {
		t.Error("it was half-closed, want a reset")
	}
}

// A worker that acknowledges by itself half-closes nothing: its stream is reset. So is one whose service takes nothing more.
func TestConsumeEndsAtTheService(t *testing.T) {
	for name, auto := range map[string]bool{"auto ack": true, "deaf service": false} {
		t.Run(name, func(t *testing.T) {
			svc := newScript(t)
			ended := make(chan struct{})
			svc.consumes = []consuming{func(ctx context.Context, s *worker) error {
				defer close(ended)
				if _, err := s.Receive(); err != nil {
					return err
				}
				if err := s.Send(workStarted()); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			}}
			start := groupStart()
			start.AutoAck = auto
			w, _, hangUp := consumeAt(t, newSource(t, nil, svc.address), start, patience)
			w.next(t)
			hangUp()
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("the service was not told the end")
			}
		})
	}
}

// While the caller takes nothing, the service's sends come to a halt.
func TestConsumeHoldsOneMessage(t *testing.T) {
	svc := newScript(t)
	var sent atomic.Int64
	stuck := make(chan struct{})
	svc.consumes = []consuming{func(_ context.Context, s *worker) error {
		if _, err := s.Receive(); err != nil {
			return err
		}
		big := delivery(1)
		big.GetDeliveries().Deliveries[0].Record.Value = make([]byte, 128<<10)
		progress := make(chan struct{}, 1000)
		go func() {
			idle := 0
			for idle < 20 {
				select {
				case <-progress:
					idle = 0
				case <-time.After(50 * time.Millisecond):
					idle++
				}
			}
			close(stuck)
		}()
		for sent.Load() < 1000 {
			if err := s.Send(big); err != nil {
				return err
			}
			sent.Add(1)
			progress <- struct{}{}
		}
		return nil
	}}
	_, _, hangUp := consumeAt(t, newSource(t, nil, svc.address), groupStart(), patience)
	select {
	case <-stuck:
	case <-time.After(patience):
		t.Fatal("it is never stuck")
	}
	hangUp()
	if n := sent.Load(); n >= 1000 {
		t.Errorf("%d messages of 128 KiB went to a caller that takes none", n)
	}
}

// Until it has started it is tried again; what a service refuses, it refuses the caller.
func TestConsumeStarts(t *testing.T) {
	refuse := func(reason string) consuming {
		return func(context.Context, *worker) error { return failure(connect.CodeInternal, reason, facts) }
	}
	svc := newScript(t)
	svc.consumes = []consuming{
		refuse(stream.ReasonDraining), refuse(stream.ReasonUnavailable), func(context.Context, *worker) error { return errCut },
		func(ctx context.Context, s *worker) error {
			if err := s.Send(workStarted()); err != nil {
				return err
			}
			return failure(connect.CodeUnavailable, stream.ReasonDraining, nil)
		},
	}
	w, _, _ := consumeAt(t, newSource(t, nil, svc.address), groupStart(), patience)
	w.next(t)
	if err := w.end(t); !errors.Is(err, hub.ErrDraining) {
		t.Errorf("got %v", err)
	}
	for reason, want := range map[string]error{
		stream.ReasonInvalidArgument: &hub.InvalidError{Field: "f", Problem: "is wrong"},
		stream.ReasonForbidden:       &hub.ForbiddenError{Problem: "it said no"},
		stream.ReasonGroupSettings:   &hub.GroupSettingsError{Problem: "it said no"},
		stream.ReasonUnknownTopic:    &hub.UnknownTopicError{Topic: "t"},
		stream.ReasonTopicDeleted:    hub.ErrTopicDeleted,
		stream.ReasonLimit:           &hub.LimitError{Limit: "readers", Value: 5, Retry: time.Second},
		stream.ReasonUnimplemented:   hub.ErrUnimplemented,
	} {
		svc.consumes = []consuming{refuse(reason)}
		w, _, _ := consumeAt(t, newSource(t, nil, svc.address), groupStart(), patience)
		if err := w.end(t); !reflect.DeepEqual(err, want) {
			t.Errorf("%s: got %#v, want %#v", reason, err, want)
		}
	}
	w, _, _ = consumeAt(t, newSource(t, nil, "127.0.0.1:1"), groupStart(), 50*time.Millisecond)
	if err := w.end(t); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestConsumeHasLimits(t *testing.T) {
	svc := newScript(t)
	svc.consumes = []consuming{func(ctx context.Context, s *worker) error {
		if err := s.Send(workStarted()); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	source := newSource(t, func(c *upstream.Config) { c.ConsumeStreams = 1 }, svc.address)
	first, _, hangUp := consumeAt(t, source, groupStart(), patience)
	first.next(t)
	second, _, _ := consumeAt(t, source, groupStart(), patience)
	if limit, ok := errors.AsType[*hub.LimitError](second.end(t)); !ok || limit.Value != 1 {
		t.Errorf("got %v", limit)
	}
	hangUp()

	_, send, waiting, _ := consumeCounted(t, newSource(t, nil, "127.0.0.1:1"), groupStart(), patience) // nobody takes anything
	if !send(ackOf(make([]int64, 1000)...)) || waiting() < 8000 {
		t.Errorf("%d bytes wait, want those of 1,000 tags", waiting())
	}
	sent := 1
	for sent < 1000 && send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Nack{Nack: &tailracev1.Nack{Tags: []int64{1}}}}) {
		sent++
	}
	if sent != 64 {
		t.Errorf("%d nacks wait, want 64", sent)
	}
	if send(ackOf(make([]int64, 20_000)...)) {
		t.Error("20,000 tags more wait")
	}
}
