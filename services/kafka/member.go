package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// How long a member waits whose name another process has taken, longer each time: of two that share one each takes the other's place; and one whose
// name Kafka has not released yet.
const (
	fencedRest     = 30 * time.Second
	fencedRestMost = 10 * time.Minute
	unreleasedRest = 10 * time.Second
)

// fencedByItself is how long after the loss of its session a static member may be refused as fenced without another process: a request of before,
// a commit say, comes under the id that it had then. One that was a member for less is believed to have another process beside it: else two that
// share a name would take each other's place without a rest.
const fencedByItself = 15 * time.Second

const (
	memberPoll     = 100 * time.Millisecond // how long a poll may wait
	memberBusyPoll = 10 * time.Millisecond  // while something is paused
	memberBatch    = 500                    // records that are taken at once
	memberRest     = time.Second            // before a member that failed is replaced
	memberLooks    = 30 * time.Second
)

// member is this process in one of Kafka's groups. Its goroutine, Join's, is the only one that calls its consumer, except for a commit under way,
// which it awaits before whatever must not overtake it.
type member struct {
	client   *Client
	log      *slog.Logger
	settings group.Settings
	group    *group.Group
	consumer *confluent.Consumer
	ctx      context.Context //nolint:containedctx // that of Join: the callback has no other

	past       *past // Join's, handed from member to member
	next       map[group.Partition]int64
	commits    chan error     // the answer of the commit under way; nil: none is
	offered    []group.Place  // what it commits; nil: it was given up
	queued     []group.Place  // what is committed next
	committing sync.WaitGroup // calls of CommitOffsets
	looks      chan error     // of the look at topics under way; nil: none
	lookEnd    context.CancelFunc
	lookAt     time.Time
	goneAt     time.Time            // since when a topic is missing; zero: none is
	newest     []*confluent.Message // a run of one partition
	pending    map[group.Partition][]*confluent.Message
	ends       map[group.Partition]int64
	epochs     map[group.Partition]int32 // leader epoch of the record before next, -1 unknown
	paused     map[group.Partition]bool
	astray     astray
	bell       *bell // nil: there is none
	hung       bool  // the consumer rings it
	fetched    meter
	deaf       bool      // the coordinator has not answered the commit under way in time
	lostAt     time.Time // when partitions were lost last
	retired    bool      // all is given back: what the callback is told now is no business of the group's
	broken     error     // ends this consumer
}

// Check is group.Cluster's.
func (c *Client) Check(ctx context.Context, topics []string) error {
	if err := c.started(ctx); err != nil {
		return err
	}
	for _, t := range topics {
		_, err := c.admin.topic(ctx, t, infoAge)
		if errors.Is(err, hub.ErrUnknownTopic) {
			return &hub.UnknownTopicError{Topic: t}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Join is group.Cluster's. A member that fails is replaced by another, for ever; what ends it is hub.ErrTopicDeleted,
// or that Kafka refuses the group: *hub.ForbiddenError, *hub.GroupSettingsError, *hub.InvalidError.
func (c *Client) Join(ctx context.Context, s group.Settings, g *group.Group) error {
	if err := c.started(ctx); err != nil {
		return err
	}
	log := c.log.With(slog.String("group", s.Group))
	c.members.Add(1)
	defer c.members.Add(-1)
	b, err := newBell()
	if err != nil {
		log.WarnContext(ctx, "no bell for a group member: it polls all the time", slog.Any("error", err))
	} else {
		defer b.close()
		defer context.AfterFunc(ctx, b.ring)()
	}
	past := newPast()
	for fenced := fencedRest; ; {
		m := &member{
			client: c, log: log, settings: s, group: g, ctx: ctx,
			past: past, next: map[group.Partition]int64{}, epochs: map[group.Partition]int32{}, paused: map[group.Partition]bool{},
			pending: map[group.Partition][]*confluent.Message{}, ends: map[group.Partition]int64{},
			bell: b, fetched: meter{total: c.metrics.fetched.WithLabelValues(consumerGroup)},
		}
		born := time.Now()
		err := m.run()
		if why := denial(s, err); why != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "Kafka refuses the group, its workers are told", slog.Any("error", err))
			return why
		}
		rest := memberRest
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, hub.ErrTopicDeleted):
			return err
		case errors.Is(err, errAnew):
			continue
		case isCode(err, confluent.ErrFencedInstanceID) && time.Since(m.lostAt) < fencedByItself && m.lostAt.Sub(born) > fencedByItself:
			log.WarnContext(ctx, "Kafka had let this member's session end, and refuses what it began before; another takes its place", slog.Any("error", err))
		case isCode(err, confluent.ErrFencedInstanceID):
			rest, fenced = fenced, min(2*fenced, fencedRestMost)
			log.ErrorContext(ctx, "another process is this member of the group", slog.String("instance", c.cfg.GroupInstance), slog.Duration("again_in", rest),
				slog.String("advice", "give each process a -kafka.group-instance of its own; what is served here waits"))
		case isCode(err, confluent.ErrUnreleasedInstanceID):
			rest = unreleasedRest
			log.WarnContext(ctx, "Kafka still waits for the member of this name that was here before", slog.String("instance", c.cfg.GroupInstance),
				slog.String("advice", "with the consumer protocol one that was killed is waited for until its session ends; else give each process a -kafka.group-instance of its own"))
		default:
			if isFatal(err) {
				rest, fenced = fenced, min(2*fenced, fencedRestMost)
			}
			log.WarnContext(ctx, "group member failed, another takes its place", slog.Any("error", err), slog.Duration("again_in", rest))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(rest):
		}
	}
}

// run is the life of one consumer: until ctx ends, or it is broken.
func (m *member) run() error {
	consumer, err := confluent.NewConsumer(m.client.cfg.member(m.client.logs, m.client.process, m.settings.Group, int(m.client.members.Load())))
	if err != nil {
		return fmt.Errorf("open group member: %w", err)
	}
	m.consumer = consumer
	m.hung = m.bell != nil && m.bell.hang(consumer)
	defer func() {
		bound := closeBound
		if m.deaf { // nor will it soon
			bound = time.Second
		}
		closeWithin(m.log, "group member", bound, func() {
			m.committing.Wait() // Close must not race another call
			if !isFatal(m.broken) || !destroy(consumer) {
				_ = consumer.Close()
			}
			select {
			case m.client.freed <- struct{}{}:
			default:
			}
		})
	}()
	defer func() {
		if m.hung {
			m.bell.takeDown(consumer)
		}
	}()
	defer m.retire()
	if err := consumer.SubscribeTopics(m.settings.Topics, m.rebalance); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	for m.ctx.Err() == nil && m.broken == nil {
		m.turn()
		m.look()
		m.find()
	}
	return m.broken
}

// turn does what the group wants, and gives it what has come.
func (m *member) turn() {
	t := m.group.Turn()
	if len(t.Pause) > 0 {
		_ = m.consumer.Pause(m.partitions(t.Pause)) // one that is not assigned any more need not be
		for _, p := range t.Pause {
			m.paused[p] = true
		}
	}
	if len(t.Resume) > 0 {
		_ = m.consumer.Resume(m.partitions(t.Resume))
		for _, p := range t.Resume {
			delete(m.paused, p)
		}
	}
	m.queued = append(m.queued, t.Commit...) // each partition once: none is offered again before it is answered
	m.settle(false)
	m.begin()
	wait := memberPoll
	if t.Busy || m.commits != nil && !m.hung {
		wait = memberBusyPoll
	}
	poll := wait
	if m.hung {
		poll = 0
	}
	records, bytes := 0, 0
	for records < memberBatch && bytes < t.Take {
		switch e := m.consumer.Poll(int(poll / time.Millisecond)).(type) {
		case nil:
			m.give()
			if m.hung && records == 0 {
				m.bell.wait(wait)
			}
			return
		case *confluent.Message:
			m.message(e)
			records++
			bytes += messageBytes(e)
		case confluent.PartitionEOF:
			m.gather()
			id := group.Partition{Topic: *e.Topic, Partition: e.Partition}
			if next, ok := m.next[id]; ok {
				m.next[id] = max(next, int64(e.Offset))
				m.ends[id] = m.next[id]
			}
		case confluent.Error:
			m.failure(e)
		case *confluent.Stats:
			m.fetched.take(m.consumer, e)
			m.astray.report(e.String())
		}
		poll = 0
	}
	m.give()
}

// failure looks at an error event.
func (m *member) failure(e confluent.Error) {
	switch {
	case e.IsFatal():
		m.broken = fmt.Errorf("fatal: %w", e)
	case denial(m.settings, e) != nil:
		m.broken = e
	case isOutOfRange(e) || e.Code() == confluent.ErrLogTruncation:
		m.astray.wanted = true // it names no partition, and that one is not fetched any more
	case e.Code() == confluent.ErrMaxPollExceeded:
		m.log.WarnContext(m.ctx, "group member was expelled, it joins again", slog.Any("error", e))
	default:
		m.client.metrics.errors.Inc()
		m.log.DebugContext(m.ctx, "group member", slog.String("code", e.Code().String()), slog.Any("error", e))
	}
}

// retire gives everything back, before the consumer is closed.
func (m *member) retire() {
	m.give()
	m.revoke(m.held())
	m.settle(true)
	m.lookNoMore()
	m.astray.wait()
	m.retired = true
}

func (m *member) held() []group.Partition {
	ps := make([]group.Partition, 0, len(m.next))
	for p := range m.next {
		ps = append(ps, p)
	}
	return ps
}

// revoke commits the fronts of partitions and lets them go. The grace is not cut short by the end of ctx: that is when it is wanted.
func (m *member) revoke(ps []group.Partition) {
	if len(ps) == 0 {
		return
	}
	fronts := m.group.Revoke(context.WithoutCancel(m.ctx), ps)
	m.forget(ps)
	m.settle(true)
	if m.queued = append(m.queued, fronts...); len(m.queued) > 0 {
		m.begin()
		m.settle(true)
	}
	m.unqueue() // where the commit before is unanswered: soon somebody else commits there
}

func (m *member) forget(ps []group.Partition) {
	for _, p := range ps {
		delete(m.next, p)
		delete(m.pending, p)
		delete(m.ends, p)
		delete(m.epochs, p)
		delete(m.paused, p)
		m.astray.forget(p)
	}
	m.unqueue()
}

func (m *member) partitions(ps []group.Partition) []confluent.TopicPartition {
	tps := make([]confluent.TopicPartition, len(ps))
	for i := range ps {
		tps[i] = confluent.TopicPartition{Topic: &ps[i].Topic, Partition: ps[i].Partition}
	}
	return tps
}

func isCode(err error, code confluent.ErrorCode) bool {
	e, ok := errors.AsType[confluent.Error](err)
	return ok && e.Code() == code
}

func isFatal(err error) bool {
	e, ok := errors.AsType[confluent.Error](err)
	return ok && e.IsFatal()
}
