package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
)

// topic is the part of hub.Topic that a feed needs.
type topic interface {
	Name() string
	ID() string
	Count() int32
	Append(batch ...*hub.Entry)
}

// feedBatchBytes is what an edge may send in one frame, so that each entry of the ring can be shared by all sockets.
const feedBatchBytes = 64 << 10

// feed follows one partition. All but the first three fields belongs to the goroutine of run.
type feed struct {
	source    *Source
	topic     topic
	name      string
	partition int32

	id       string    // of the log that next is in
	next     int64     // position in that log
	epoch    int32     // leader epoch of the record before it, -1 unknown
	from     int64     // what the stream under way was asked to start at
	jump     *jump     // told by `started`; the gap that explains it may follow
	down     bool      // Unavailable was told
	moved    bool      // the stream under way has told something new
	count    count     // what the service told last
	unknown  time.Time // since when the service does not know the topic, or the partition; zero: it does
	failures int
}

// jump is a position that `started` has instead of the one asked for.
type jump struct {
	id string // of the log, where it is another one
	to int64
}

// count is how many partitions a log has.
type count struct {
	id string // empty: nothing was told
	n  int32
}

// Follow implements hub.Source.
func (s *Source) Follow(t *hub.Topic, partition int32, from int64) (unfollow func()) {
	return s.follow(t, partition, from)
}

func (s *Source) follow(t topic, partition int32, from int64) (unfollow func()) {
	f := &feed{source: s, topic: t, name: t.Name(), partition: partition, id: t.ID(), next: from, epoch: -1}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // it lives until unfollow, Follow has no context
	s.metrics.feeds.Inc()
	var wg sync.WaitGroup
	wg.Go(func() { f.run(ctx) })
	return func() {
		cancel()
		wg.Wait()
		s.metrics.feeds.Dec()
	}
}

// run keeps a stream open until ctx ends, or the topic is gone.
func (f *feed) run(ctx context.Context) {
	for {
		err := f.stream(ctx)
		if ctx.Err() != nil || f.ended(ctx, err) {
			return
		}
		if f.moved {
			f.failures = 0
		}
		f.failures++
		if f.source.pause(ctx, f.failures) != nil {
			return
		}
	}
}

// stream opens a stream at the position and appends what it brings. The error says why it ended.
func (f *feed) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := f.source.forFeed(f.name, f.partition)
	f.moved, f.jump = false, nil
	f.from = f.next
	silence := 3 * f.source.cfg.Heartbeat
	watchdog := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer watchdog.Stop()

	stream, err := r.subscribe.CallServerStream(ctx, ask(ctx, f.request()))
	if err == nil {
		defer func() {
			cancel(nil)
			_ = stream.Close() // it ended, or was cancelled
		}()
		for first := true; stream.Receive(); first = false {
			watchdog.Reset(silence)
			if err := f.message(stream.Msg(), first); err != nil {
				return err
			}
		}
		if err = stream.Err(); err == nil {
			err = errEnded
		}
	}
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	if !connect.IsWireError(err) && !errors.Is(err, errEnded) {
		r.failed()
	}
	return err
}

func (f *feed) request() *tailracev1.SubscribeRequest {
	return &tailracev1.SubscribeRequest{
		Topic: f.name, TopicId: f.id, Partitions: []int32{f.partition},
		Start:             startMessage(at(hub.Position{Partition: f.partition, Offset: f.from, Epoch: f.epoch})),
		OnOutOfRange:      tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_EARLIEST,
		HeartbeatInterval: durationpb.New(f.source.cfg.Heartbeat),
		MaxBatchBytes:     feedBatchBytes,
	}
}

// ended deals with the end of a stream, and says whether it is the end of the feed, too.
func (f *feed) ended(ctx context.Context, err error) bool {
	a := answerOf(err)
	f.source.metrics.losses.WithLabelValues(lossReason(a.reason)).Inc()
	level := slog.LevelDebug
	switch a.reason {
	case reasonTopicDeleted:
		f.append(&hub.Entry{Kind: hub.Deleted, From: f.next, Next: f.next, End: -1})
		return true
	case reasonUnknownTopic, reasonUnknownPartition: // of a topic that has grown, a replica may hear late
		if id := a.metadata["topic_id"]; id != "" && id != f.id {
			f.append(&hub.Entry{Kind: hub.Recreated, From: f.next, End: -1, TopicID: id, Count: int32(a.number("count"))})
			return true // the log made anew does not have it
		}
		if f.unknown.IsZero() {
			f.unknown = time.Now()
		}
		if time.Since(f.unknown) >= f.source.cfg.UnknownAfter {
			f.append(&hub.Entry{Kind: hub.Deleted, From: f.next, Next: f.next, End: -1})
			return true
		}
	case reasonLost, reasonDraining, reasonUnavailable:
	default:
		if !f.down {
			level = slog.LevelWarn // nothing that time alone heals
		}
	}
	f.source.cfg.Logger.Log(ctx, level, "feed lost", slog.String("topic", f.name), slog.Int("partition", int(f.partition)),
		slog.Int64("next", f.next), slog.String("reason", a.reason), slog.Any("error", err))
	f.available(false)
	return false
}

// message appends what one message says, in one step.
func (f *feed) message(m *wirev1.SubscribeResponse, first bool) error {
	if first {
		return f.started(m)
	}
	switch event := m.GetEvent().(type) {
	case *wirev1.SubscribeResponse_Records:
		return f.records(event.Records)
	case *wirev1.SubscribeResponse_Gap:
		gap := &tailracev1.Gap{}
		if err := proto.Unmarshal(event.Gap, gap); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		return f.gap(gap)
	case *wirev1.SubscribeResponse_Topology:
		topology := &tailracev1.Topology{}
		if err := proto.Unmarshal(event.Topology, topology); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		f.topology(topology.GetTopicId(), topology.GetPartitions())
	case *wirev1.SubscribeResponse_Heartbeat:
		beat := &tailracev1.Heartbeat{}
		if err := proto.Unmarshal(event.Heartbeat, beat); err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
		f.heartbeat(beat)
	}
	return nil
}

func (f *feed) started(m *wirev1.SubscribeResponse) error {
	started, err := readStarted(m)
	if err != nil {
		return err
	}
	ps := started.GetPartitions()
	if len(ps) != 1 || ps[0].GetPartition() != f.partition {
		return fmt.Errorf("%w: started has other partitions", errMalformed)
	}
	f.unknown = time.Time{}
	f.topology(started.GetTopicId(), started.GetPartitionCount())
	f.available(true)
	start := ps[0].GetStart()
	if started.GetTopicId() != f.id || start != f.from {
		f.jump = &jump{to: start}
	}
	if started.GetTopicId() != f.id {
		f.jump.id = started.GetTopicId()
	}
	return nil
}

// land tells the jump, in case no gap does.
func (f *feed) land() {
	j := f.jump
	if j == nil {
		return
	}
	f.jump = nil
	e := &hub.Entry{From: f.next, Next: j.to, End: -1}
	switch {
	case j.id != "":
		e.Kind, e.TopicID, f.id = hub.Recreated, j.id, j.id
		if f.count.id == j.id {
			e.Count = f.count.n
		}
	case j.to < f.next:
		e.Kind, e.Reason = hub.Gap, hub.GapTruncation
	case j.to > f.next:
		e.Kind, e.Reason = hub.Gap, hub.GapRetention
	default:
		return
	}
	f.next, f.epoch = j.to, -1
	f.append(e)
	f.tellCount()
}

func (f *feed) gap(gap *tailracev1.Gap) error {
	if gap.GetPartition() != f.partition {
		return fmt.Errorf("%w: gap of another partition", errMalformed)
	}
	if f.jump != nil {
		f.jump.to = gap.GetTo()
		f.land()
		return nil
	}
	if gap.GetReason() == tailracev1.GapReason_GAP_REASON_RECREATED && gap.GetTopicId() == "" {
		return fmt.Errorf("%w: a topic made anew without its id", errMalformed)
	}
	f.jump = &jump{to: gap.GetTo(), id: gap.GetTopicId()}
	f.land()
	return nil
}

func (f *feed) records(b []byte) error {
	es, err := readRecords(b)
	if err != nil {
		return err
	}
	f.land()
	n := 0
	for _, e := range es {
		n += len(e.Meta)
		if e.Partition != f.partition || e.Next < f.next || e.Kind == hub.Records && e.Meta[0].Offset < f.next {
			return fmt.Errorf("%w: records of another place", errMalformed)
		}
		e.From, f.next = f.next, e.Next
		if n := len(e.Meta); n > 0 {
			f.epoch = e.Meta[n-1].Epoch
		}
	}
	f.source.metrics.records.Add(float64(n))
	f.source.metrics.bytes.Add(float64(len(b)))
	f.available(true)
	f.append(es...)
	return nil
}

func (f *feed) heartbeat(beat *tailracev1.Heartbeat) {
	up := !slices.Contains(beat.GetUnavailablePartitions(), f.partition)
	f.available(up)
	if !up {
		return
	}
	f.land()
	for _, p := range beat.GetPositions() {
		if p.GetPartition() == f.partition && p.GetOffset() > f.next {
			f.append(&hub.Entry{Kind: hub.Advance, From: f.next, Next: p.GetOffset(), End: -1})
			f.next = p.GetOffset()
		}
	}
}

// topology takes the number of partitions of a log. A service that does not say which means the one that is read.
func (f *feed) topology(id string, n int32) {
	if id == "" {
		id = f.id
	}
	f.count = count{id, n}
	f.tellCount()
}

// tellCount tells another number of partitions, once the feed has come to the log that has it. Other feeds tell it, too: the hub takes the first.
func (f *feed) tellCount() {
	if f.count.id == f.id && f.count.n != f.topic.Count() {
		f.append(&hub.Entry{Kind: hub.Topology, From: f.next, Next: f.next, End: -1, Count: f.count.n, TopicID: f.id})
	}
}

// available tells whether the partition can be read, where that has changed.
func (f *feed) available(up bool) {
	if up != f.down {
		return
	}
	f.down = !up
	kind := hub.Available
	if f.down {
		kind = hub.Unavailable
	}
	f.append(&hub.Entry{Kind: kind, From: f.next, Next: f.next, End: -1})
}

func (f *feed) append(es ...*hub.Entry) {
	f.moved = f.moved || es[0].Kind != hub.Available && es[0].Kind != hub.Unavailable
	for _, e := range es {
		e.Partition = f.partition
	}
	f.topic.Append(es...)
}
