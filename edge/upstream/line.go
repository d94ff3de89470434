package upstream

import (
	"context"
	"errors"
	"io"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// lineTick is how often a line looks for records whose time is over.
const lineTick = 250 * time.Millisecond

type (
	publishStream = connect.BidiStreamForClient[tailracev1.PublishStreamRequest, tailracev1.PublishStreamResponse]
	// tell takes what became of a record. An error means that it is certainly not in the log; 0 and neither: the line went idle.
	tell func(n uint64, result *tailracev1.PublishResult, err error)
)

// line publishes what one socket says, in its order, over one PublishStream at a time. That is opened for the first record and closed when the
// line has been idle for a while: then nothing of the line runs. Records that were not sent when a stream is lost, and those of which the
// service says that it did not look at them, wait for the next; of the others the outcome is unknown, and they are never sent again.
//
// Its goroutine, started by publish and awaited by Source.Run, sends; another, which that one starts and awaits, receives. A timer looks for records
// whose time is over, as a send may block for long; Source.Run awaits what it has begun, too.
type line struct {
	source *Source
	ctx    context.Context //nolint:containedctx // of the process's sockets
	tell   tell
	wake   chan struct{} // one slot: there is something to send, or the line was closed

	mu      sync.Mutex // guards the rest
	waiting []lineRecord
	sent    []lineRecord // in the order of their sending; some may have been answered
	owed    map[uint64]struct{}
	running bool
	closed  bool
	ticking *time.Timer
	absent  time.Time          // since when records wait for a service; zero: there is one
	stop    context.CancelFunc // of the stream
	began   bool               // the stream's request has left
	useful  bool               // it has brought a result
	ending  bool               // nothing more is sent on it
}

// lineRecord is a record on its way.
type lineRecord struct {
	n      uint64
	topic  string
	record *tailracev1.PublishRecord
	by     time.Time
	of     *trace.Parent
}

// OpenPublish returns the way of one socket's records to a service. publish queues a record and never waits: the caller bounds what it has
// queued. Records keep their order within a partition. tell is called once for each, by its number, from another goroutine, a little after by at the latest; it must not block. With an
// error the record is certainly not in the log: hub.ErrUnavailable, *hub.LimitError. Number 0 tells that the line has been idle, and costs nothing any more. hangUp says that nothing
// follows: what was not sent is refused, what was sent gets its answer. When ctx ends, all does.
func (s *Source) OpenPublish(ctx context.Context, tell func(n uint64, result *tailracev1.PublishResult, err error)) (
	publish func(n uint64, topic string, record *tailracev1.PublishRecord, by time.Time, of *trace.Parent), hangUp func(),
) {
	l := &line{source: s, ctx: ctx, tell: tell, wake: make(chan struct{}, 1), owed: map[uint64]struct{}{}}
	return l.publish, l.hangUp
}

func (l *line) publish(n uint64, topic string, record *tailracev1.PublishRecord, by time.Time, of *trace.Parent) {
	l.mu.Lock()
	if !l.running {
		if l.source.lines.Add(1) > int64(l.source.cfg.PublishStreams) {
			l.source.lines.Add(-1)
			l.mu.Unlock()
			l.tell(n, nil, &hub.LimitError{Limit: "sockets that publish at once", Value: int64(l.source.cfg.PublishStreams), Retry: time.Second})
			return
		}
		l.running, l.absent = true, time.Now()
		l.ticking = time.AfterFunc(lineTick, l.expire)
		l.source.running.Go(l.run)
	}
	l.waiting = append(l.waiting, lineRecord{n, topic, record, by, of})
	l.mu.Unlock()
	poke(l.wake)
}

func (l *line) hangUp() {
	l.mu.Lock()
	l.closed = true
	refused := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for _, r := range refused {
		l.tell(r.n, nil, hub.ErrUnavailable)
	}
	poke(l.wake)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run keeps a stream while there is something to do.
func (l *line) run() {
	for failures := 0; ; failures++ {
		if failures > 0 && l.source.pause(l.ctx, failures) != nil {
			break
		}
		if !l.await() {
			return
		}
		if l.ctx.Err() != nil {
			break
		}
		if l.over(l.stream()) {
			failures = 0
		}
	}
	l.mu.Lock()
	refused := l.waiting
	l.waiting, l.closed = nil, true
	l.mu.Unlock()
	for _, r := range refused {
		l.tell(r.n, nil, hub.ErrUnavailable)
	}
	l.await()
}

// await waits for a record. false: there was none for long, the line is closed, or ctx has ended; nothing of it runs any more.
func (l *line) await() bool {
	idle := time.NewTimer(l.linger())
	defer idle.Stop()
	for {
		l.mu.Lock()
		if len(l.waiting) > 0 {
			l.mu.Unlock()
			return true
		}
		if l.closed {
			l.rest()
			return false
		}
		l.mu.Unlock()
		select {
		case <-l.wake:
		case <-idle.C:
			l.mu.Lock()
			if len(l.waiting) > 0 {
				l.mu.Unlock()
				return true
			}
			l.rest()
			l.tell(0, nil, nil)
			return false
		case <-l.ctx.Done():
			l.mu.Lock()
			l.closed = true
			l.mu.Unlock()
			return true
		}
	}
}

// linger is how long an idle stream is kept: less when there are many.
func (l *line) linger() time.Duration {
	if l.source.lines.Load() > int64(l.source.cfg.PublishStreams)/2 {
		return 0
	}
	return l.source.cfg.PublishLinger
}

// rest ends the running; mu is held, and given back.
func (l *line) rest() {
	l.running = false
	l.ticking.Stop()
	l.sent, l.owed = nil, map[uint64]struct{}{}
	l.mu.Unlock()
	l.source.lines.Add(-1)
}

// stream opens a stream and uses it until the line is idle, or the stream is lost. It returns why it ended; nil: the line is idle or closed.
func (l *line) stream() (r *replica, err error) {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	l.mu.Lock()
	l.stop, l.began, l.useful, l.ending = cancel, false, false, false
	l.mu.Unlock()
	// Without a head there is no request: nothing was sent.
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.began, l.absent = true, time.Time{}
	}})
	r = l.source.next()
	s := r.pipeline.CallBidiStream(traced)
	var receiving sync.WaitGroup
	var lost error
	receiving.Go(func() {
		lost = l.receive(s)
		cancel() // wakes the sender
	})
	l.send(ctx, s)
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	_ = s.CloseRequest()
	receiving.Wait()
	_ = s.CloseResponse()
	return r, lost
}

// send sends what waits until the line is idle, closed, or ctx ends.
func (l *line) send(ctx context.Context, s *publishStream) {
	idle := time.NewTimer(l.linger())
	defer idle.Stop()
	for {
		l.mu.Lock()
		if len(l.waiting) > 0 && ctx.Err() == nil {
			r := l.waiting[0]
			l.waiting[0] = lineRecord{}
			l.waiting = l.waiting[1:]
			l.sent = append(l.sent, r)
			l.owed[r.n] = struct{}{}
			l.mu.Unlock()
			m := &tailracev1.PublishOne{Id: strconv.FormatUint(r.n, 36), Topic: r.topic, Record: r.record}
			if r.of != nil {
				m.Traceparent, m.Tracestate = r.of.Traceparent, r.of.Tracestate
			}
			if s.Send(&tailracev1.PublishStreamRequest{Event: &tailracev1.PublishStreamRequest_Publish{Publish: m}}) != nil {
				return // the receiver knows why
			}
			idle.Reset(l.linger())
			continue
		}
		closed := l.closed
		l.mu.Unlock()
		if closed {
			return
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		case <-idle.C:
			l.mu.Lock()
			busy := len(l.owed) > 0 || len(l.waiting) > 0
			l.mu.Unlock()
			if !busy {
				return
			}
			idle.Reset(lineTick)
		}
	}
}

// receive takes results until the stream ends; nil: as it was asked to.
func (l *line) receive(s *publishStream) error {
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(m.GetId(), 36, 64)
		if err == nil && l.settle(n) {
			l.tell(n, m.GetResult(), nil)
		}
	}
}

// settle is true for a record that was sent and has no result yet: now it has.
func (l *line) settle(n uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.owed[n]
	delete(l.owed, n)
	l.useful = true
	for len(l.sent) > 0 {
		if _, waits := l.owed[l.sent[0].n]; waits {
			break
		}
		l.sent[0] = lineRecord{}
		l.sent = l.sent[1:]
	}
	return ok
}

// over settles what a stream left without a result. It is true if the stream was of use: the next may be opened at once.
func (l *line) over(r *replica, lost error) bool {
	a := answerOf(lost)
	l.mu.Lock()
	var left []lineRecord
	for _, s := range l.sent {
		if _, waits := l.owed[s.n]; waits {
			left = append(left, s)
		}
	}
	useful := l.useful || errors.Is(lost, io.EOF)
	l.sent = nil
	clear(l.owed)
	back := !l.began || a.reason == reasonDraining
	if back && !l.closed {
		l.waiting = append(left, l.waiting...)
		left = nil
	}
	if len(l.waiting) > 0 && l.absent.IsZero() {
		l.absent = time.Now()
	}
	l.mu.Unlock()
	if !errors.Is(lost, io.EOF) && l.ctx.Err() == nil {
		r.failed()
	}
	for _, s := range left {
		switch {
		case back:
			l.tell(s.n, nil, hub.ErrUnavailable)
		case refuses(a.reason):
			l.tell(s.n, &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: a.refused()}}, nil)
		default:
			l.tell(s.n, doubt("the connection to the service was lost after the record was sent"), nil)
		}
	}
	return useful
}

func doubt(text string) *tailracev1.PublishResult {
	return &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: unknown(text)}}
}

// expire ends the waiting of records whose time is over.
func (l *line) expire() {
	now := time.Now()
	var refused, unknowns []uint64
	l.mu.Lock()
	if !l.running {
		l.mu.Unlock()
		return
	}
	l.source.running.Add(1) // run is counted, and cannot end meanwhile
	defer l.source.running.Done()
	l.ticking.Reset(lineTick)
	given := !l.absent.IsZero() && now.Sub(l.absent) >= l.source.cfg.PublishWait
	for len(l.waiting) > 0 && (given || !now.Before(l.waiting[0].by)) {
		refused = append(refused, l.waiting[0].n)
		l.waiting[0] = lineRecord{}
		l.waiting = l.waiting[1:]
	}
	if given {
		l.absent = now // those to come have their own time
	}
	for _, s := range l.sent {
		if now.Before(s.by) {
			break
		}
		if _, waits := l.owed[s.n]; waits {
			delete(l.owed, s.n)
			unknowns = append(unknowns, s.n)
		}
	}
	if (l.ending || l.closed && l.stop != nil) && len(l.owed) == 0 {
		l.stop() // the service had time to say goodbye, or to read on
	}
	l.mu.Unlock()
	for _, n := range refused {
		l.tell(n, nil, hub.ErrUnavailable)
	}
	for _, n := range unknowns {
		l.tell(n, doubt("the service did not answer in time"), nil)
	}
}
