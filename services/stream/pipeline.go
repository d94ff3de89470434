package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// Bounds of a PublishStream.
const (
	pipelineRecords = 1024    // received and not answered; the next is not received
	pipelineBytes   = 4 << 20 // of them together, or one record
	maxPublishID    = 32      // characters
)

// pipeline is a PublishStream. Two goroutines share it: the handler's sends results as they come, and the one that it starts, and awaits,
// receives records and hands them over, in their order. Results wait in a list whose length is bounded by what may be received.
type pipeline struct {
	server *Server
	stream *connect.BidiStream[tailracev1.PublishStreamRequest, tailracev1.PublishStreamResponse]
	call   *call
	caller string

	results chan struct{} // one slot: there are results, or receiving has ended
	room    chan struct{} // one slot: results were sent

	mu      sync.Mutex // guards the rest
	ready   []result
	records int // received, result not sent
	bytes   int
	failed  bool // a record was not acknowledged
	over    bool // nothing more is received
	err     error

	// Owned by receive.
	began       bool
	stopOnError bool
}

// result is one to be sent.
type result struct {
	response *tailracev1.PublishStreamResponse
	bytes    int
}

// PublishStream appends records as they come and tells what became of each, by the caller's ids, as it is known. When it ends with an error
// of its own, everything that was received has its result, so that records without one are certainly not in the log.
func (h *streamService) PublishStream(ctx context.Context, stream *connect.BidiStream[tailracev1.PublishStreamRequest, tailracev1.PublishStreamResponse]) error {
	p := &pipeline{
		server: h.server, stream: stream, call: callFrom(ctx), caller: "stream " + strconv.FormatUint(h.server.streams.Add(1), 36),
		results: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	p.call.quiet = time.Nanosecond // the write deadline is kept from one send to the next, and lifted where there is none
	h.server.observer.started(ctx, tailracev1connect.StreamServicePublishStreamProcedure, stream.Peer())
	life, cancel := context.WithCancel(ctx) // with it ends what was not handed over
	defer cancel()
	var receiving sync.WaitGroup
	receiving.Go(func() { p.receive(life) })
	err := p.send(ctx)
	cancel()
	p.deafen()
	receiving.Wait()
	return err
}

// deafen ends a Receive that is under way, and those to come.
func (p *pipeline) deafen() { _ = p.call.rc.SetReadDeadline(time.Unix(1, 0)) }

// send sends results until the caller has said all and been told all, or something ends the stream.
func (p *pipeline) send(ctx context.Context) error {
	draining := p.server.draining
	var batch []result
	for {
		batch = p.take(batch[:0])
		for _, r := range batch {
			if err := p.stream.Send(r.response); err != nil {
				return err
			}
			p.call.records++
			p.call.bytes += int64(r.bytes)
			p.sent(r)
		}
		if len(batch) > 0 {
			continue
		}
		p.call.disarm()
		if done, err := p.done(); done {
			return err
		}
		select {
		case <-p.results:
		case <-ctx.Done():
			return ctx.Err()
		case <-draining:
			draining = nil
			p.end(hub.ErrDraining)
			p.deafen()
		}
	}
}

func (p *pipeline) take(batch []result) []result {
	p.mu.Lock()
	defer p.mu.Unlock()
	batch = append(batch, p.ready...)
	clear(p.ready)
	p.ready = p.ready[:0]
	return batch
}

// sent gives back the room of a record whose result is on its way.
func (p *pipeline) sent(r result) {
	p.mu.Lock()
	p.records--
	p.bytes -= r.bytes
	p.mu.Unlock()
	signal(p.room)
}

// done says that nothing more is received and all has been told, and how the stream ends.
func (p *pipeline) done() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over && p.records == 0, p.err
}

// end ends the receiving, with what the caller is told behind the last result. The first that does counts.
func (p *pipeline) end(err error) {
	p.mu.Lock()
	if !p.over {
		p.over, p.err = true, err
	}
	p.mu.Unlock()
	signal(p.results)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// receive hands over what the caller sends, until its last message.
func (p *pipeline) receive(ctx context.Context) {
	for {
		m, err := p.stream.Receive()
		switch {
		case errors.Is(err, io.EOF):
			p.end(nil)
			return
		case err != nil:
			p.end(received(ctx, err))
			return
		}
		if err := p.event(ctx, m); err != nil {
			p.end(err)
			return
		}
		p.began = true
		p.server.input.leave(p.call) // it has been handed over, or has its result
	}
}

// received is why nothing more can be received: what was sent can't be understood, or the caller is gone.
//
//nolint:errorlint // the RPC library's code is a guess where the connection was lost, and would win over the cause
func received(ctx context.Context, err error) error {
	switch code := connect.CodeOf(err); {
	case ctx.Err() != nil:
		return ctx.Err()
	case code == connect.CodeInvalidArgument, code == connect.CodeResourceExhausted, code == connect.CodeUnimplemented:
		return err
	default:
		return fmt.Errorf("receive: %w: %v", errGone, err)
	}
}

// event takes one message. The error ends the stream: the caller does not speak the protocol.
func (p *pipeline) event(ctx context.Context, m *tailracev1.PublishStreamRequest) error {
	switch e := m.GetEvent().(type) {
	case *tailracev1.PublishStreamRequest_Start:
		if p.began {
			return &hub.InvalidError{Field: "start", Problem: "may only come first"}
		}
		p.stopOnError = e.Start.GetStopOnError()
		return nil
	case *tailracev1.PublishStreamRequest_Publish:
		id := e.Publish.GetId()
		if n := utf8.RuneCountInString(id); n < 1 || n > maxPublishID {
			return &hub.InvalidError{Field: "publish.id", Problem: fmt.Sprintf("has %d characters, must have from 1 to %d", n, maxPublishID)}
		}
		p.publish(ctx, e.Publish)
		return nil
	default:
		return &hub.InvalidError{Field: "event", Problem: "is required: start or publish"}
	}
}

// publish waits for room and hands a record over, or refuses it.
func (p *pipeline) publish(ctx context.Context, m *tailracev1.PublishOne) {
	bytes := proto.Size(m)
	if !p.enter(ctx, bytes) {
		return
	}
	done := func(r *tailracev1.PublishResult) {
		p.mu.Lock()
		p.failed = p.failed || r.GetPublished() == nil
		p.ready = append(p.ready, result{&tailracev1.PublishStreamResponse{Id: m.GetId(), Result: r}, bytes})
		p.mu.Unlock()
		signal(p.results)
	}
	if p.server.cfg.Tracer != nil {
		ctx, done = p.traced(ctx, m, done)
	}
	if why := p.refusal(ctx, m, bytes); why != nil {
		done(&tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: why}})
		return
	}
	p.server.cfg.Publisher.Begin(ctx, p.caller, m.GetTopic(), m.GetRecord(), done)
}

// enter waits until a record may be taken; false: the stream has ended. Under stop_on_error one is under way at a time: there is no other way
// to be sure that nothing behind a failed record is appended.
func (p *pipeline) enter(ctx context.Context, bytes int) bool {
	most := pipelineRecords
	if p.stopOnError {
		most = 1
	}
	for {
		p.mu.Lock()
		over := p.over
		fits := p.records < most && p.bytes+bytes <= pipelineBytes || p.records == 0
		if fits && !over {
			p.records++
			p.bytes += bytes
		}
		p.mu.Unlock()
		if fits || over {
			return !over
		}
		select {
		case <-p.room:
		case <-ctx.Done():
			return false
		}
	}
}

// refusal says what is wrong with a record that need not be handed over.
func (p *pipeline) refusal(ctx context.Context, m *tailracev1.PublishOne, bytes int) *tailracev1.PublishFailure {
	p.mu.Lock()
	stopped := p.stopOnError && p.failed
	p.mu.Unlock()
	fail := func(code connect.Code, reason, text string) *tailracev1.PublishFailure {
		return &tailracev1.PublishFailure{
			Code: code.String(), Reason: reason, Message: text, Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED,
		}
	}
	switch {
	case stopped:
		return fail(connect.CodeAborted, ReasonStopped, "a record before it failed, and stop_on_error is set")
	case m.GetTopic() == "":
		return fail(connect.CodeInvalidArgument, ReasonInvalidArgument, "publish.topic is required")
	case m.GetRecord() == nil:
		return fail(connect.CodeInvalidArgument, ReasonInvalidArgument, "publish.record is required")
	case bytes > maxPublishBytes:
		return fail(connect.CodeInvalidArgument, ReasonRecordTooLarge, fmt.Sprintf("publish has %d bytes, at most %d are allowed", bytes, maxPublishBytes))
	}
	if err := access.Allow(ctx, access.Request{Action: access.ActionPublish, Topic: m.GetTopic()}); err != nil {
		p.server.cfg.Logger.DebugContext(ctx, "publish denied", slog.String("topic", m.GetTopic()), slog.Any("cause", err))
		return fail(connect.CodePermissionDenied, ReasonForbidden, err.Error())
	}
	return nil
}
