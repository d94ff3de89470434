package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

const (
	// maxRequests is how many acks and nacks of a worker wait for being sent, and maxRequestTags how many tags they have together.
	maxRequests    = 64
	maxRequestTags = 2 * maxAckTags
	maxAckTags     = 10_000 // in one ack, as the service has it
	// partingTime is how long a worker that ends may take to send its last acks.
	partingTime = time.Second
	// lastTag is one that no service deals: its refusal says that all before it was looked at.
	lastTag = 1 << 52
	// silence is when a service that says nothing is given up; it has a heartbeat of 15 s.
	silence = 50 * time.Second
)

type consumeStream = connect.BidiStreamForClient[tailracev1.ConsumeRequest, wirev1.ConsumeResponse]

// work is one worker of a group: one Consume stream. Until that has started it is tried again, at any service; once it was lost nothing of it can
// be resumed, as its tags are gone with it.
//
// Its goroutine, started by OpenConsume and awaited by Source.Run, sends; another, which that one starts and awaits, receives, and tells.
type work struct {
	source *Source
	start  *tailracev1.ConsumeStart
	tell   func(m *wirev1.ConsumeResponse, err error)
	wake   chan struct{}   // one slot: there is something to send, or the work was given up
	ctx    context.Context //nolint:containedctx // of the process's sockets; ends with the work
	cancel context.CancelFunc
	by     time.Time // when it has to have started

	mu      sync.Mutex // guards the rest
	waiting []*tailracev1.ConsumeRequest
	tags    int // of waiting
	reasons int // bytes of those of waiting
	started bool
	closed  bool
	failed  bool // the caller was lost
}

// OpenConsume makes a worker of a group, which has to have started at by. tell gets the messages of its stream one after the other, from another
// goroutine, and then, once, why it is over: hub.ErrUnavailable, hub.ErrDraining (start again), *hub.LimitError, *hub.GroupSettingsError,
// *hub.ForbiddenError and what else a service refuses. While it blocks, nothing more is received: so the caller holds at most one message, and the service
// notices. send queues an ack or a nack, and never waits; it is false where too many wait already. hangUp says that the caller is gone: what was
// queued is sent, then the service deals what the worker holds to others; tell must not block any more. If the caller was lost, the service counts that as a
// failure of all that the worker holds, else not. waiting is about how many bytes the acks and nacks take that wait. The end of ctx hangs up, in order.
func (s *Source) OpenConsume(ctx context.Context, start *tailracev1.ConsumeStart, by time.Time, tell func(m *wirev1.ConsumeResponse, err error)) (
	send func(m *tailracev1.ConsumeRequest) bool, waiting func() int, hangUp func(lost bool),
) {
	w := &work{source: s, start: start, tell: tell, wake: make(chan struct{}, 1), by: by}
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(ctx))
	stopped := context.AfterFunc(ctx, func() { w.hangUp(false) })
	s.running.Go(func() {
		defer stopped()
		w.run()
	})
	return w.send, w.size, w.hangUp
}

func (w *work) send(m *tailracev1.ConsumeRequest) bool {
	tags := len(m.GetAck().GetTags()) + len(m.GetNack().GetTags())
	w.mu.Lock()
	if w.tags+tags > maxRequestTags {
		w.mu.Unlock()
		return false
	}
	if !w.merge(m.GetAck()) {
		if len(w.waiting) >= maxRequests {
			w.mu.Unlock()
			return false
		}
		w.waiting = append(w.waiting, m)
	}
	w.tags += tags
	w.reasons += len(m.GetNack().GetReason())
	w.mu.Unlock()
	poke(w.wake)
	return true
}

// requestCost is about what an ack or a nack takes besides its tags and its reason.
const requestCost = 256

func (w *work) size() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting)*requestCost + w.tags*8 + w.reasons
}

// merge adds an ack to one that waits last, so that a client may acknowledge each record by itself. mu is held.
func (w *work) merge(m *tailracev1.Ack) bool {
	if m == nil || len(w.waiting) == 0 {
		return false
	}
	last := w.waiting[len(w.waiting)-1].GetAck()
	if last == nil || len(last.GetTags())+len(m.GetTags()) > maxAckTags {
		return false
	}
	last.Tags, last.UpTo = append(last.Tags, m.GetTags()...), max(last.GetUpTo(), m.GetUpTo())
	return true
}

func (w *work) hangUp(lost bool) {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	w.closed, w.failed = true, lost
	parts := w.started && !w.start.GetAutoAck()
	w.mu.Unlock()
	if !parts {
		w.cancel()
		return
	}
	parting := time.AfterFunc(partingTime, w.cancel)
	context.AfterFunc(w.ctx, func() { parting.Stop() })
	poke(w.wake)
}

// run ends when the stream has, and nothing of it is left.
func (w *work) run() {
	defer w.cancel()
	if n := w.source.works.Add(1); n > int64(w.source.cfg.ConsumeStreams) {
		w.source.works.Add(-1)
		w.tell(nil, &hub.LimitError{Limit: "consumes of sockets", Value: int64(w.source.cfg.ConsumeStreams), Retry: time.Second})
		return
	}
	defer w.source.works.Add(-1)
	late := time.AfterFunc(time.Until(w.by), w.late)
	defer late.Stop()
	for failures := 1; ; failures++ {
		err := w.stream()
		again := errors.Is(err, hub.ErrUnavailable) || errors.Is(err, hub.ErrDraining)
		if !again || w.begun() || w.source.pause(w.ctx, failures) != nil {
			w.tell(nil, err)
			return
		}
	}
}

// late gives up what has not started in time.
func (w *work) late() {
	if !w.begun() {
		w.cancel()
	}
}

func (w *work) begun() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.started
}

// lost says that the caller is gone, and not in order.
func (w *work) lost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.failed
}

// stream opens a stream and uses it until it is over, and says why that is.
func (w *work) stream() error {
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	r := w.source.next()
	s := r.consume.CallBidiStream(ctx)
	trace.Inject(ctx, s.RequestHeader())
	var receiving sync.WaitGroup
	var lost error
	receiving.Go(func() {
		lost = w.receive(s, cancel)
		cancel() // wakes the sender
	})
	if w.hand(ctx, s) {
		if w.lost() {
			// A reset tells the service that its worker was lost, but it would overtake the last acks.
			_ = s.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: []int64{lastTag}}}})
		} else {
			_ = s.CloseRequest() // what the service needs to end it
		}
		<-ctx.Done() // it has, or the time for that is over
	}
	// net/http's HTTP/2 client does not see the end of ctx while the request's body may still grow.
	_ = s.CloseRequest()
	receiving.Wait()
	_ = s.CloseResponse()
	if w.ctx.Err() != nil {
		return hub.ErrUnavailable
	}
	if errors.Is(lost, io.EOF) {
		return fmt.Errorf("%w: %w", hub.ErrUnavailable, errEnded)
	}
	a := answerOf(lost)
	if a.reason == reasonLost {
		r.failed()
		a.text = "the connection to the service was lost"
	}
	return a.workerError()
}

// hand sends the start, then what waits. It is true once all is said: the caller is gone.
func (w *work) hand(ctx context.Context, s *consumeStream) (done bool) {
	// An error of sending is told by the receiver.
	if s.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: w.start}}) != nil {
		<-ctx.Done()
		return false
	}
	for {
		w.mu.Lock()
		var m *tailracev1.ConsumeRequest
		if len(w.waiting) > 0 {
			m = w.waiting[0]
			w.waiting[0] = nil
			w.waiting = w.waiting[1:]
			w.tags -= len(m.GetAck().GetTags()) + len(m.GetNack().GetTags())
			w.reasons -= len(m.GetNack().GetReason())
		}
		closed := w.closed
		w.mu.Unlock()
		switch {
		case m != nil:
			if s.Send(m) != nil {
				<-ctx.Done()
				return false
			}
			continue
		case closed:
			return true
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return false
		}
	}
}

// receive tells what comes, until the stream ends.
func (w *work) receive(s *consumeStream, cancel context.CancelFunc) error {
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		quiet.Stop()
		w.mu.Lock()
		w.started = true
		w.mu.Unlock()
		if e, ok := m.GetEvent().(*wirev1.ConsumeResponse_AckRefused); ok && w.lost() && last(e.AckRefused) {
			cancel()
		}
		w.tell(m, nil)
		quiet.Reset(silence)
	}
}

// last says whether an encoded tailrace.v1.AckRefused has lastTag.
func last(refused []byte) bool {
	m := &tailracev1.AckRefused{}
	return proto.Unmarshal(refused, m) == nil && slices.Contains(m.GetTags(), lastTag)
}
