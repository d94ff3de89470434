package upstream

import (
	"context"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Resolve implements hub.Source by what `started` says of a Subscribe with the same start, keys and partitions. While no service answers it waits,
// until ctx ends: then the error is hub.ErrUnavailable.
func (s *Source) Resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	for failures := 1; ; failures++ {
		resolved, err := s.resolve(ctx, topic, q)
		if err == nil || !errors.Is(err, hub.ErrUnavailable) {
			return resolved, err
		}
		if s.pause(ctx, failures) != nil {
			return resolved, s.ended(ctx, err)
		}
	}
}

// ended is the error of a call whose time is up while the service was away, for the reason err.
func (s *Source) ended(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case ctx.Err() != nil: // the hub asks again for others who wait, and have more time
		return fmt.Errorf("%w: %w", err, ctx.Err())
	default:
		return err
	}
}

func (s *Source) resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := s.next()
	stream, err := r.subscribe.CallServerStream(ctx, ask(ctx, &tailracev1.SubscribeRequest{
		Topic: topic, TopicId: q.TopicID, Partitions: q.Partitions, Keys: q.Keys, KeyScope: keyScopeMessage(q.KeyScope), Start: startMessage(q.Start),
		// A position that is not in the log becomes the oldest one: so the answer tells that, too.
		OnOutOfRange: tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_EARLIEST,
		// What comes after the answer is of no interest.
		Stop: &tailracev1.Stop{Records: 1},
	}))
	if err != nil {
		return hub.Resolved{}, s.callError(ctx, r, topic, err)
	}
	log := make(chan *tailracev1.Topic, 1) // `started` tells the oldest offsets only where they are the start
	if q.Start.Kind == hub.Earliest {
		log <- nil
	} else {
		go func() {
			described, _ := s.describe(ctx, r, topic) // nil if the service does not say
			log <- described
		}()
	}
	started, err := firstStarted(stream)
	if err != nil {
		err = s.callError(ctx, r, topic, err)
		cancel()
	}
	described := <-log
	cancel()
	_ = stream.Close() // it was cancelled
	if err != nil {
		return hub.Resolved{}, err
	}
	return resolved(started, described, q), nil
}

// firstStarted receives the first message of a stream, which is `started`.
func firstStarted(stream *connect.ServerStreamForClient[wirev1.SubscribeResponse]) (*tailracev1.Started, error) {
	if !stream.Receive() {
		if err := stream.Err(); err != nil {
			return nil, err
		}
		return nil, errEnded
	}
	return readStarted(stream.Msg())
}

func readStarted(m *wirev1.SubscribeResponse) (*tailracev1.Started, error) {
	event, ok := m.GetEvent().(*wirev1.SubscribeResponse_Started)
	if !ok {
		return nil, fmt.Errorf("%w: the first one is not started", errMalformed)
	}
	started := &tailracev1.Started{}
	if err := proto.Unmarshal(event.Started, started); err != nil {
		return nil, fmt.Errorf("%w: %w", errMalformed, err)
	}
	return started, nil
}

// partitioner is what `started` says of it. A service that is newer than this edge may know others.
func partitioner(p tailracev1.Partitioner) hub.Partitioner {
	switch p {
	case tailracev1.Partitioner_PARTITIONER_UNSPECIFIED, tailracev1.Partitioner_PARTITIONER_MURMUR2:
		return hub.Murmur2
	case tailracev1.Partitioner_PARTITIONER_CRC32:
		return hub.CRC32
	case tailracev1.Partitioner_PARTITIONER_FNV1A:
		return hub.FNV1a
	default:
		return hub.Anywhere
	}
}

// resolved is what `started` says of a query. For positions the hub wants them as they were asked for; where `started` has another one the asked
// one was not in the log (or it is another log), and `started` has the oldest. Otherwise log has it; without, it is not known, and 0 as good as any.
func resolved(m *tailracev1.Started, log *tailracev1.Topic, q hub.Query) hub.Resolved {
	asked := make(map[int32]int64, len(q.Start.Positions))
	for _, p := range q.Start.Positions {
		asked[p.Partition] = p.Offset
	}
	oldest := make(map[int32]int64, len(log.GetPartitions()))
	if log.GetTopicId() == m.GetTopicId() {
		for _, p := range log.GetPartitions() {
			oldest[p.GetPartition()] = p.GetStart()
		}
	}
	res := hub.Resolved{TopicID: m.GetTopicId(), Count: m.GetPartitionCount(), Partitioner: partitioner(m.GetPartitioner()), Partitions: make([]hub.ResolvedPartition, len(m.GetPartitions()))}
	for i, p := range m.GetPartitions() {
		start := p.GetStart()
		r := hub.ResolvedPartition{Partition: p.GetPartition(), Start: start, End: max(p.GetEnd(), start), Incomplete: p.GetIncomplete()}
		r.Oldest = min(oldest[r.Partition], start)
		position, named := asked[r.Partition]
		switch {
		case named && start < position && position <= r.End && (q.TopicID == "" || q.TopicID == res.TopicID):
			r.Start, r.Lost = position, position-start // a truncation: other records are in their place
		case named && position != start:
			r.Oldest, r.Start = start, position
		case q.Start.Kind == hub.Earliest:
			r.Oldest = start
		}
		res.Partitions[i] = r
	}
	return res
}

// callError is the error of a call as the hub knows it. A call that got no answer makes its replica suspect.
func (s *Source) callError(ctx context.Context, r *replica, topic string, err error) error {
	if errors.Is(err, errMalformed) || errors.Is(err, errEnded) {
		return fmt.Errorf("%w: %w", hub.ErrUnavailable, err)
	}
	a := answerOf(err)
	if a.reason == reasonLost && ctx.Err() == nil {
		r.failed()
	}
	return a.hubError(topic)
}
