package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// maxTags bounds an ack or a nack: no worker holds more.
const maxTags = group.MaxMaxInFlight

// consume is StreamService.Consume, sending the shadow of its response. Two goroutines share a worker: the handler's pulls and sends, the one that it
// starts, and awaits, receives acks and nacks.
func (s *Server) consume(ctx context.Context, stream *connect.BidiStream[tailracev1.ConsumeRequest, wirev1.ConsumeResponse]) error {
	if s.cfg.Groups == nil {
		return hub.ErrUnimplemented
	}
	c := callFrom(ctx)
	start, err := s.consumeStart(ctx, c, stream)
	if err != nil {
		return err
	}
	start.Name = stream.Peer().Addr
	if s.cfg.Tracer != nil {
		return s.tracedConsume(ctx, c, start, stream)
	}
	return s.work(ctx, c, start, stream, nil)
}

// work is a consume from its start on. first is the span that ends with the first delivery, or with the stream; nil: there is none.
func (s *Server) work(
	ctx context.Context, c *call, start group.Start, stream *connect.BidiStream[tailracev1.ConsumeRequest, wirev1.ConsumeResponse], first *trace.Receive,
) error {
	w, err := s.join(ctx, start)
	if err != nil {
		return err
	}
	defer w.Close()
	s.input.leave(c)
	c.quiet = defaultHeartbeat
	s.observer.started(ctx, tailracev1connect.StreamServiceConsumeProcedure, stream.Peer(), slog.String("group", start.Group))

	life, cancel := context.WithCancel(ctx)
	o := &consumer{server: s, call: c, stream: stream, worker: w, first: first, refused: make(chan []int64), ended: make(chan error, 1), now: make(chan struct{})}
	close(o.now)
	var receiving sync.WaitGroup
	receiving.Go(func() { o.ended <- o.receive(life) })
	err = o.run(ctx)
	cancel()
	_ = c.rc.SetReadDeadline(time.Unix(1, 0)) // ends a Receive that is under way
	receiving.Wait()
	if leaves(ctx, w.Settings().AutoAck, err) {
		w.Leave()
	}
	return err
}

// leaves says whether a worker whose stream ends so has left in order, so that what it holds has not failed: it half-closed its request, or this process
// drains. A reset, or a connection that was lost, may be the work of a record; but not of one that was still to be handed over, which is all that
// a worker with auto_ack holds.
func leaves(ctx context.Context, autoAck bool, err error) bool {
	return err == nil || errors.Is(err, hub.ErrDraining) || autoAck && ctx.Err() != nil
}

// consumeStart receives the first message, which has to come soon.
func (s *Server) consumeStart(ctx context.Context, c *call, stream *connect.BidiStream[tailracev1.ConsumeRequest, wirev1.ConsumeResponse]) (group.Start, error) {
	_ = c.rc.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout))
	m, err := stream.Receive()
	c.bodyRead()
	if errors.Is(err, io.EOF) {
		return group.Start{}, &hub.InvalidError{Field: "event", Problem: "the first message must be start"}
	}
	if err != nil {
		return group.Start{}, received(ctx, err)
	}
	if m.GetStart() == nil {
		return group.Start{}, &hub.InvalidError{Field: "event", Problem: "the first message must be start"}
	}
	start, err := parseConsume(m.GetStart())
	if err != nil {
		return group.Start{}, err
	}
	c.topic = start.Topics[0]
	if len(start.Topics) > 1 {
		c.topic = ""
	}
	for _, topic := range start.Topics {
		if err := s.cfg.allow(ctx, access.Request{Action: access.ActionConsume, Topic: topic, Group: start.Group}); err != nil {
			return group.Start{}, &deniedError{err}
		}
	}
	for _, topic := range hub.DeadLetterTopics(start.Topics, start.DeadLetter) { // a nack may write there
		if err := s.cfg.allow(ctx, access.Request{Action: access.ActionPublish, Topic: topic, Group: start.Group}); err != nil {
			return group.Start{}, &deniedError{fmt.Errorf("dead letters to %q: %w", topic, err)}
		}
	}
	return start, nil
}

// join becomes a worker. Kafka's silence is answered with ErrUnavailable.
func (s *Server) join(ctx context.Context, start group.Start) (*group.Worker, error) {
	bounded, cancel := context.WithTimeout(ctx, s.cfg.ResolveTimeout)
	defer cancel()
	w, err := s.cfg.Groups.Join(bounded, start)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, hub.ErrUnavailable
	}
	return w, err
}

// consumer is one stream of a worker.
type consumer struct {
	server  *Server
	call    *call
	stream  *connect.BidiStream[tailracev1.ConsumeRequest, wirev1.ConsumeResponse]
	worker  *group.Worker
	refused chan []int64 // tags to be told as not held: who receives waits until they are
	ended   chan error   // receiving has

	// Owned by run.
	first   *trace.Receive // nil once the first delivery was sent
	sentAt  time.Time
	now     chan struct{} // closed
	message wirev1.ConsumeResponse
	body    wirev1.ConsumeResponse_Deliveries
}

// run sends until the group or the caller ends.
func (o *consumer) run(ctx context.Context) error {
	if err := o.event(&tailracev1.ConsumeStarted{Settings: startMessage(o.worker.Settings())}); err != nil {
		return err
	}
	beat := time.NewTimer(defaultHeartbeat)
	defer beat.Stop()
	for {
		p, err := o.worker.Pull(defaultBatchBytes)
		if err != nil {
			return err
		}
		if err := o.deliver(p); err != nil {
			return err
		}
		if done, err := o.wait(ctx, len(p.Deliveries)+len(p.Gaps) == 0, beat); done {
			return err
		}
	}
}

// wait lets others have their turn; where nothing was pulled, until there may be something.
func (o *consumer) wait(ctx context.Context, idle bool, beat *time.Timer) (done bool, err error) {
	signal, busy := o.worker.Signal(), o.now
	if idle {
		busy = nil
	} else {
		signal = nil
	}
	select {
	case tags := <-o.refused:
		return o.failed(o.event(&tailracev1.AckRefused{Tags: tags}))
	case err := <-o.ended:
		// A request that was half-closed is served on where nothing needs to be said any more.
		return err != nil || !o.worker.Settings().AutoAck, err
	case now := <-beat.C:
		due := o.sentAt.Add(defaultHeartbeat)
		if !now.Before(due) {
			err = o.event(&tailracev1.Heartbeat{Time: timestamppb.New(now)})
			due = now.Add(defaultHeartbeat)
		}
		beat.Reset(time.Until(due))
		return o.failed(err)
	case <-ctx.Done():
		return true, ctx.Err()
	case <-signal:
	case <-busy:
	}
	return false, nil
}

func (o *consumer) failed(err error) (bool, error) { return err != nil, err }

// deliver sends what was pulled.
func (o *consumer) deliver(p group.Pulled) error {
	for _, gap := range p.Gaps {
		m := &tailracev1.Gap{Partition: gap.Partition.Partition, From: gap.From, To: gap.To, Reason: tailracev1.GapReason(gap.Reason)}
		o.server.metrics.gaps.WithLabelValues(m.GetReason().String()).Inc()
		if err := o.event(&tailracev1.ConsumeGap{Topic: gap.Topic, Gap: m}); err != nil {
			return err
		}
	}
	if len(p.Deliveries) == 0 {
		return nil
	}
	buffer := o.server.buffers.take()
	defer o.server.buffers.give(buffer)
	*buffer = appendDeliveries((*buffer)[:0], p.Deliveries)
	o.body.Deliveries = *buffer
	o.message.Event = &o.body
	if err := o.stream.Send(&o.message); err != nil {
		return err
	}
	o.sentAt = time.Now()
	if o.first != nil {
		o.endFirst(&p.Deliveries[0])
	}
	o.call.records += int64(len(p.Deliveries))
	o.call.bytes += int64(len(*buffer))
	o.body.Deliveries = nil
	return nil
}

// event sends a message that is small and rare.
func (o *consumer) event(event proto.Message) error {
	m := &wirev1.ConsumeResponse{}
	if err := shadow(m, &tailracev1.ConsumeResponse{}, event); err != nil {
		return err
	}
	if err := o.stream.Send(m); err != nil {
		return err
	}
	o.sentAt = time.Now()
	return nil
}

// receive takes acks and nacks until the caller has said all: then the error is nil.
func (o *consumer) receive(ctx context.Context) error {
	for {
		m, err := o.stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return received(ctx, err)
		}
		refused, err := o.take(m)
		if err != nil {
			return err
		}
		o.server.input.leave(o.call)
		if len(refused) == 0 {
			continue
		}
		select {
		case o.refused <- refused:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take does what one message says.
func (o *consumer) take(m *tailracev1.ConsumeRequest) (refused []int64, err error) {
	few := func(field string, tags []int64) error {
		if len(tags) > maxTags {
			return &hub.InvalidError{Field: field, Problem: fmt.Sprintf("has %d entries, at most %d are allowed", len(tags), maxTags)}
		}
		return nil
	}
	switch e := m.GetEvent().(type) {
	case *tailracev1.ConsumeRequest_Ack:
		if err := few("ack.tags", e.Ack.GetTags()); err != nil {
			return nil, err
		}
		return o.worker.Ack(e.Ack.GetTags(), e.Ack.GetUpTo()), nil
	case *tailracev1.ConsumeRequest_Nack:
		if err := few("nack.tags", e.Nack.GetTags()); err != nil {
			return nil, err
		}
		delay := e.Nack.GetDelay()
		if d := delay.AsDuration(); delay != nil && (!delay.IsValid() || d < 0 || d > group.MaxDelay) {
			return nil, &hub.InvalidError{Field: "nack.delay", Problem: fmt.Sprintf("must be from 0 to %v", group.MaxDelay)}
		}
		if len(e.Nack.GetReason()) > group.MaxReason {
			return nil, &hub.InvalidError{Field: "nack.reason", Problem: fmt.Sprintf("is longer than %d bytes", group.MaxReason)}
		}
		return o.worker.Nack(e.Nack.GetTags(), delay.AsDuration(), e.Nack.GetReason()), nil
	case *tailracev1.ConsumeRequest_Start:
		return nil, &hub.InvalidError{Field: "start", Problem: "may only come first"}
	default:
		return nil, &hub.InvalidError{Field: "event", Problem: "is required: ack or nack"}
	}
}
