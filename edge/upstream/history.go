package upstream

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Most keys that travel with a request (tailrace.v1.SubscribeRequest.keys); with more, all records come.
const (
	maxKeys     = 1000
	maxKeyBytes = 64 << 10
)

// ReadAt implements hub.Source by a Subscribe that ends by itself. When no service answers it returns hub.ErrUnavailable, after a pause.
func (s *Source) ReadAt(ctx context.Context, c hub.ChunkID, to int64, limit int, only *hub.Terms) ([]*hub.Entry, int64, error) {
	streaming, cancel := context.WithCancel(ctx)
	defer cancel()
	s.metrics.reads.Inc()
	r := s.next()
	stream, err := r.subscribe.CallServerStream(streaming, ask(streaming, &tailracev1.SubscribeRequest{
		Topic: c.Topic, TopicId: c.TopicID, Partitions: []int32{c.Partition},
		Keys: keysOf(only), KeyScope: tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS,
		Start: startMessage(at(hub.Position{Partition: c.Partition, Offset: c.From, Epoch: -1})),
		Stop: &tailracev1.Stop{
			Positions: []*tailracev1.Position{{Partition: c.Partition, Offset: to}},
			AtEnd:     true, // the log may end below to, after a truncation
			Records:   int64(limit),
			Bytes:     hub.MaxChunkBytes,
		},
		// Not to fail: the answer then tells whose log it is, and where it begins.
		OnOutOfRange:  tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_EARLIEST,
		MaxBatchBytes: hub.MaxChunkBytes,
	}))
	if err != nil {
		return nil, 0, s.readError(ctx, r, &c, err)
	}
	chunk := chunk{id: &c, to: to, limit: limit, next: c.From}
	for !chunk.over && stream.Receive() {
		if err = chunk.message(stream.Msg()); err != nil {
			break
		}
	}
	if err == nil {
		err = stream.Err()
	}
	s.metrics.historyRecords.Add(float64(chunk.records))
	s.metrics.historyBytes.Add(float64(chunk.bytes))
	cancel()
	_ = stream.Close() // it ended, or was cancelled
	switch {
	case err != nil && chunk.next > c.From && ctx.Err() == nil:
		return chunk.es, chunk.next, nil // what came is right; what is missing is asked for again
	case err != nil:
		return nil, 0, s.readError(ctx, r, &c, err)
	case !chunk.started:
		return nil, 0, s.readError(ctx, r, &c, errEnded)
	}
	return chunk.es, chunk.end(), nil
}

// readError is the error of a read; a service that does not answer is given time.
func (s *Source) readError(ctx context.Context, r *replica, c *hub.ChunkID, err error) error {
	if outside, ok := err.(*hub.OffsetOutOfRangeError); ok { //nolint:errorlint // made here, never wrapped
		return outside
	}
	if err == hub.ErrTopicDeleted { //nolint:errorlint,err113 // likewise
		return err
	}
	err = s.callError(ctx, r, c.Topic, err)
	if isUnavailable(err) && s.pause(ctx, 3) != nil {
		return s.ended(ctx, err)
	}
	return err
}

// chunk gathers what a read returns.
type chunk struct {
	id      *hub.ChunkID
	to      int64
	limit   int
	es      []*hub.Entry
	next    int64
	last    int64 // end of the partition when the read began
	records int
	bytes   int
	started bool
	over    bool // to was reached; or a gap: what comes behind it is asked for by itself
}

func (c *chunk) message(m *wirev1.SubscribeResponse) error {
	if !c.started {
		return c.start(m)
	}
	switch event := m.GetEvent().(type) {
	case *wirev1.SubscribeResponse_Records:
		return c.add(event.Records)
	case *wirev1.SubscribeResponse_Gap:
		gap := &tailracev1.Gap{}
		if err := proto.Unmarshal(event.Gap, gap); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		if c.next == c.id.From {
			return c.outside(gap.GetTo())
		}
		c.over = true
	}
	return nil
}

func (c *chunk) start(m *wirev1.SubscribeResponse) error {
	started, err := readStarted(m)
	if err != nil {
		return err
	}
	if started.GetTopicId() != c.id.TopicID {
		return hub.ErrTopicDeleted
	}
	ps := started.GetPartitions()
	if len(ps) != 1 || ps[0].GetPartition() != c.id.Partition {
		return fmt.Errorf("%w: started has other partitions", errMalformed)
	}
	c.started, c.last = true, ps[0].GetEnd()
	if ps[0].GetStart() != c.id.From {
		return c.outside(ps[0].GetStart())
	}
	return nil
}

func (c *chunk) outside(oldest int64) error {
	return &hub.OffsetOutOfRangeError{Topic: c.id.Topic, Partition: c.id.Partition, Offset: c.id.From, Oldest: oldest, End: c.last}
}

func (c *chunk) add(records []byte) error {
	es, err := readRecords(records)
	if err != nil {
		return err
	}
	for _, e := range es {
		if e.Partition != c.id.Partition || e.Next < c.next || e.Kind == hub.Records && e.Meta[0].Offset < c.next {
			return fmt.Errorf("%w: records of another place", errMalformed)
		}
		c.records += len(e.Meta)
		c.bytes += len(e.Body)
		e.From = c.next
		if e.Next >= c.to {
			c.over = true
			below(e, c.to)
		}
		c.next = e.Next
		if len(e.Meta) > 0 {
			c.es = append(c.es, e)
		}
		if c.over {
			break
		}
	}
	return nil
}

// below clips an entry to the offsets below to.
func below(e *hub.Entry, to int64) {
	n, _ := slices.BinarySearchFunc(e.Meta, to, func(m hub.Meta, to int64) int { return cmp.Compare(m.Offset, to) })
	e.Body, e.Meta, e.Next = e.Piece(0, n), e.Meta[:n:n], to
}

// end is the position after the chunk. A stream that ended before it was full has reached to, or the end of the partition, with nothing but holes
// behind its last record.
func (c *chunk) end() int64 {
	if c.over || c.records >= c.limit || c.bytes >= hub.MaxChunkBytes {
		return c.next
	}
	return max(c.next, min(c.to, c.last))
}

func keysOf(only *hub.Terms) [][]byte {
	if only == nil || only.Keys == nil || len(only.Keys) > maxKeys {
		return nil
	}
	keys, total := make([][]byte, 0, len(only.Keys)), 0
	for k := range only.Keys {
		keys = append(keys, []byte(k))
		if total += len(k); total > maxKeyBytes {
			return nil
		}
	}
	return keys
}
