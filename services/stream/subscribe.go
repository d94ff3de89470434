package stream

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// waker is hub.Waker for one stream: a signal of one slot; the handler then pulls.
type waker struct{ signal chan struct{} }

func newWaker() *waker { return &waker{signal: make(chan struct{}, 1)} }

// Moved and Ready never block.
func (w *waker) Moved(*hub.Topic) { w.wake() }

func (w *waker) Ready(uint64) { w.wake() }

func (w *waker) wake() {
	select {
	case w.signal <- struct{}{}:
	default: // it is awake already
	}
}

// subscribe is StreamService.Subscribe, sending the shadow of its response.
func (s *Server) subscribe(ctx context.Context, m *tailracev1.SubscribeRequest, out *connect.ServerStream[wirev1.SubscribeResponse]) error {
	if s.cfg.Tracer != nil {
		return s.tracedSubscribe(ctx, m, out)
	}
	return s.follow(ctx, m, out, nil)
}

// follow answers a Subscribe. first is the span that ends with the first record, or with the stream; nil: there is none.
func (s *Server) follow(ctx context.Context, m *tailracev1.SubscribeRequest, out *connect.ServerStream[wirev1.SubscribeResponse], first *trace.Receive) error {
	c := callFrom(ctx)
	c.bodyRead()
	c.topic = m.GetTopic()
	want, err := parseSubscribe(m)
	if err != nil {
		return err
	}
	err = access.Allow(ctx, access.Request{Action: access.ActionSubscribe, Topic: m.GetTopic(), Keys: m.GetKeys()})
	if err != nil {
		return &deniedError{err}
	}
	w := newWaker()
	sub, err := s.resolve(ctx, want.request, w)
	if err != nil {
		return err
	}
	defer sub.Close()
	s.input.leave(c) // a stream may live for days
	c.stretch = m.GetStop() != nil
	s.observer.started(ctx, tailracev1connect.StreamServiceSubscribeProcedure, out.Conn().Peer(),
		slog.Int("partitions", len(sub.Started().Partitions)), slog.Int("keys", len(m.GetKeys())))

	c.quiet = want.heartbeat
	r := &reader{
		server: s, call: c, out: out, sub: sub, waker: w,
		batchBytes: want.batchBytes,
		// A tenth less, by chance: streams that started together must not beat together.
		heartbeat: want.heartbeat - rand.N(want.heartbeat/10+1), //nolint:gosec // spreads load, guards nothing
		records:   s.metrics.records.WithLabelValues(s.metrics.topics.Of(c.topic)),
		bytes:     s.metrics.bytes.WithLabelValues(s.metrics.topics.Of(c.topic)),
		first:     first,
	}
	return r.run(ctx)
}

// resolve subscribes at the hub. Kafka's silence is answered with ErrUnavailable, before the caller's own deadline where that is later.
func (s *Server) resolve(ctx context.Context, r hub.Request, w hub.Waker) (*hub.Subscription, error) {
	bounded, cancel := context.WithTimeout(ctx, s.cfg.ResolveTimeout)
	defer cancel()
	sub, err := s.cfg.Hub.Subscribe(bounded, r, w, 0)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, hub.ErrUnavailable
	}
	return sub, err
}

// reader is the one sender of a stream.
type reader struct {
	server     *Server
	call       *call
	out        *connect.ServerStream[wirev1.SubscribeResponse]
	sub        *hub.Subscription
	waker      *waker
	batchBytes int
	heartbeat  time.Duration
	records    counter
	bytes      counter
	first      *trace.Receive // nil once the first record was sent

	sentAt    time.Time // when anything was sent last
	toldAt    time.Time // when moved positions were looked for last
	awayAt    time.Time // when availability was looked at last
	away      []int32   // the partitions that were told as unavailable
	caughtUp  bool
	moved     []hub.Position // scratch
	awayAgain []int32        // scratch
	message   wirev1.SubscribeResponse
	body      wirev1.SubscribeResponse_Records
}

// awayBusy is how often availability is looked at while a stream is busy, where looking must not cost much. One that waits is woken.
const awayBusy = 100 * time.Millisecond

type counter interface{ Add(float64) }

// run sends until the subscription or the caller ends.
func (r *reader) run(ctx context.Context) error {
	if err := r.event(startedMessage(r.sub.Started())); err != nil {
		return err
	}
	r.toldAt = r.sentAt
	timer := time.NewTimer(r.untilNext(time.Now()))
	defer timer.Stop()
	for {
		batch, err := r.sub.Pull(r.batchBytes)
		if err != nil {
			return err
		}
		if batch.Slow != hub.SlowCatchUp {
			r.server.observer.slow(ctx, r.call, batch.Slow)
		}
		if err := r.batch(&batch); err != nil {
			return err
		}
		idle := len(batch.Parts) == 0 && !batch.CaughtUp
		if err := r.beatIfDue(time.Now(), idle); err != nil {
			return err
		}
		if !idle {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		select {
		case <-r.waker.signal:
		case now := <-timer.C:
			if err := r.beatIfDue(now, true); err != nil {
				return err
			}
			timer.Reset(r.untilNext(time.Now()))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *reader) untilNext(now time.Time) time.Duration {
	return r.due().Sub(now)
}

// due is when the stream must be looked after again: silence may last one interval, and so may the telling of a moved position,
// whatever else is sent.
func (r *reader) due() time.Time {
	if r.toldAt.Before(r.sentAt) {
		return r.toldAt.Add(r.heartbeat)
	}
	return r.sentAt.Add(r.heartbeat)
}

// beatIfDue sends a heartbeat if one is due, and at once if a partition became unavailable or available: an edge passes that on.
func (r *reader) beatIfDue(now time.Time, idle bool) error {
	due := !now.Before(r.due())
	changed := (idle || due || now.Sub(r.awayAt) >= awayBusy) && r.lookAway(now)
	if !due && !changed {
		return nil
	}
	r.moved = r.sub.Moved(r.moved[:0])
	r.toldAt = now
	if !changed && len(r.moved) == 0 && now.Before(r.sentAt.Add(r.heartbeat)) {
		return nil
	}
	return r.event(heartbeatMessage(now, r.moved, r.sub.Lag(), r.away))
}

// lookAway says whether other partitions are unavailable than were told.
func (r *reader) lookAway(now time.Time) bool {
	r.awayAt = now
	r.awayAgain = r.sub.Unavailable(r.awayAgain[:0])
	if slices.Equal(r.away, r.awayAgain) {
		return false
	}
	r.away, r.awayAgain = r.awayAgain, r.away
	return true
}

// batch sends what was pulled, in order: neighbouring records as one message, everything else in a message of its own.
func (r *reader) batch(b *hub.Batch) error {
	for parts := b.Parts; len(parts) > 0; {
		var err error
		p := &parts[0]
		if p.Carried() {
			if parts, err = r.sendRecords(parts); err != nil {
				return err
			}
			if r.first != nil && r.call.records > 0 {
				r.endFirst(b)
			}
			continue
		}
		parts = parts[1:]
		switch p.Kind {
		case hub.Gap, hub.Recreated:
			gap := gapMessage(p)
			r.server.metrics.gaps.WithLabelValues(gap.GetReason().String()).Inc()
			err = r.event(gap)
		case hub.Topology:
			err = r.event(&tailracev1.Topology{Partitions: p.Count, TopicId: p.TopicID})
		case hub.Records, hub.Advance: // carried
		case hub.Unavailable, hub.Available: // told by heartbeats
		case hub.Deleted: // the error follows
		}
		if err != nil {
			return err
		}
	}
	if b.CaughtUp {
		r.caughtUp = true
		return r.event(&tailracev1.CaughtUp{})
	}
	return nil
}

// sendRecords sends the records at the front of parts as one message, and returns the rest.
func (r *reader) sendRecords(parts []hub.Part) ([]hub.Part, error) {
	buffer := r.server.buffers.take()
	defer r.server.buffers.give(buffer)
	body, rest := hub.AppendBatches((*buffer)[:0], parts)
	*buffer = body

	r.body.Records = body
	r.message.Event = &r.body
	if err := r.out.Send(&r.message); err != nil {
		return nil, err
	}
	r.body.Records = nil
	now := time.Now()
	r.sentAt = now
	r.account(parts[:len(parts)-len(rest)], now)
	return rest, nil
}

func (r *reader) account(parts []hub.Part, now time.Time) {
	records, bytes := 0, 0
	first := int64(-1)
	for i := range parts {
		p := &parts[i]
		if p.Kind != hub.Records || p.Lo == p.Hi {
			continue
		}
		if records == 0 {
			first = p.Meta[p.Lo].Time
		}
		records += p.Hi - p.Lo
		bytes += p.PieceBytes()
	}
	if records == 0 {
		return
	}
	r.call.records += int64(records)
	r.call.bytes += int64(bytes)
	r.records.Add(float64(records))
	r.bytes.Add(float64(bytes))
	r.server.metrics.messages.Inc()
	if r.caughtUp && first >= 0 {
		r.server.metrics.delay.Observe(max(0, now.Sub(time.UnixMilli(first)).Seconds()))
	}
}

// event sends a message that is small and rare.
func (r *reader) event(m proto.Message) error {
	response := &wirev1.SubscribeResponse{}
	if err := shadow(response, &tailracev1.SubscribeResponse{}, m); err != nil {
		return err
	}
	if err := r.out.Send(response); err != nil {
		return err
	}
	r.sentAt = time.Now()
	return nil
}
