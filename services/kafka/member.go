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

const (
	memberPoll     = 100 * time.Millisecond // how long a poll may wait
	memberBusyPoll = 10 * time.Millisecond  // while something is paused
	memberBatch    = 500                    // records that are taken at once
	memberBytes    = 1 << 20
	memberRest     = time.Second // before a member that failed is replaced
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

	ids        map[string]string // of topics, as partitions were placed
	next       map[group.Partition]int64
	commits    chan error     // the answer of the commit under way; nil: none is
	offered    []group.Place  // what it commits
	committing sync.WaitGroup // calls of CommitOffsets
	looks      chan error     // of the look at topics under way; nil: none
	lookAt     time.Time
	goneAt     time.Time // since when a topic is missing; zero: none is
	pending    map[group.Partition][]*confluent.Message
	ends       map[group.Partition]int64
	broken     error // ends this consumer
}

// errAnew: a topic was created anew. A new consumer is needed: librdkafka does not believe in leaders whose epochs are below those it has seen.
var errAnew = errors.New("a topic was created anew")

// Check is group.Cluster's.
func (c *Client) Check(ctx context.Context, topics []string) error {
	if err := c.started(ctx); err != nil {
		return err
	}
	for _, t := range topics {
		if _, err := c.admin.topic(ctx, t, infoAge); err != nil {
			return err
		}
	}
	return nil
}

// Join is group.Cluster's. A member that fails is replaced by another, for ever; what ends it is hub.ErrTopicDeleted.
func (c *Client) Join(ctx context.Context, s group.Settings, g *group.Group) error {
	if err := c.started(ctx); err != nil {
		return err
	}
	log := c.log.With(slog.String("group", s.Group))
	for {
		m := &member{
			client: c, log: log, settings: s, group: g, ctx: ctx,
			ids: map[string]string{}, next: map[group.Partition]int64{},
			pending: map[group.Partition][]*confluent.Message{}, ends: map[group.Partition]int64{},
		}
		err := m.run()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, hub.ErrTopicDeleted):
			return err
		case errors.Is(err, errAnew):
			continue
		}
		log.WarnContext(ctx, "group member failed, another takes its place", slog.Any("error", err))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(memberRest):
		}
	}
}

// run is the life of one consumer: until ctx ends, or it is broken.
func (m *member) run() error {
	consumer, err := confluent.NewConsumer(m.client.cfg.member(m.client.logs, m.client.process, m.settings.Group))
	if err != nil {
		return fmt.Errorf("open group member: %w", err)
	}
	m.consumer = consumer
	defer closeBounded(m.log, "group member", func() {
		m.committing.Wait() // Close must not race another call
		_ = consumer.Close()
	})
	defer m.retire()
	if err := consumer.SubscribeTopics(m.settings.Topics, m.rebalance); err != nil {
		return fmt.Errorf("subscribe: %w", err)
	}
	for m.ctx.Err() == nil && m.broken == nil {
		m.turn()
		m.look()
	}
	return m.broken
}

// turn does what the group wants, and gives it what has come.
func (m *member) turn() {
	t := m.group.Turn()
	if len(t.Pause) > 0 {
		_ = m.consumer.Pause(m.partitions(t.Pause)) // one that is not assigned any more need not be
	}
	if len(t.Resume) > 0 {
		_ = m.consumer.Resume(m.partitions(t.Resume))
	}
	if len(t.Commit) > 0 {
		m.settle(true)
		m.begin(t.Commit)
	}
	m.settle(false)
	wait := memberPoll
	if t.Busy || m.commits != nil {
		wait = memberBusyPoll
	}
	records, bytes := 0, 0
	for records < memberBatch && bytes < memberBytes {
		switch e := m.consumer.Poll(int(wait / time.Millisecond)).(type) {
		case nil:
			m.give()
			return
		case *confluent.Message:
			id := group.Partition{Topic: *e.TopicPartition.Topic, Partition: e.TopicPartition.Partition}
			if next, ok := m.next[id]; ok && int64(e.TopicPartition.Offset) >= next {
				m.next[id] = int64(e.TopicPartition.Offset) + 1
				m.pending[id] = append(m.pending[id], e)
			}
			records++
			bytes += messageBytes(e)
		case confluent.PartitionEOF:
			id := group.Partition{Topic: *e.Topic, Partition: e.Partition}
			if next, ok := m.next[id]; ok {
				m.next[id] = max(next, int64(e.Offset))
				m.ends[id] = m.next[id]
			}
		case confluent.Error:
			m.failure(e)
		}
		wait = 0
	}
	m.give()
}

// give appends what was taken.
func (m *member) give() {
	for id, msgs := range m.pending {
		if len(msgs) == 0 {
			continue
		}
		m.group.Append(group.Batch{Partition: id, Records: encodeDealt(msgs), Next: m.next[id]})
		clear(msgs)
		m.pending[id] = msgs[:0]
		delete(m.ends, id)
	}
	for id, end := range m.ends {
		m.group.Append(group.Batch{Partition: id, Next: end})
	}
	clear(m.ends)
}

// failure looks at an error event.
func (m *member) failure(e confluent.Error) {
	switch {
	case e.IsFatal():
		m.broken = fmt.Errorf("fatal: %w", e)
	case e.Code() == confluent.ErrAutoOffsetReset || e.Code() == confluent.ErrOffsetOutOfRange:
		// It names no partition, and that one is not fetched any more: all are placed anew.
		m.broken = fmt.Errorf("a position is out of range: %w", e)
	case e.Code() == confluent.ErrMaxPollExceeded:
		m.log.WarnContext(m.ctx, "group member was expelled, it joins again", slog.Any("error", e))
	default:
		m.client.metrics.errors.Inc()
		m.log.DebugContext(m.ctx, "group member", slog.String("code", e.Code().String()), slog.Any("error", e))
	}
}

// look sees at times whether the topics are still those that they were.
func (m *member) look() {
	switch {
	case m.looks != nil:
		select {
		case err := <-m.looks:
			m.looks = nil
			m.seen(err)
		default:
		}
	case time.Since(m.lookAt) >= m.client.cfg.WatchInterval:
		m.lookAt = time.Now()
		m.looks = make(chan error, 1)
		go func(answer chan<- error) { answer <- m.client.Check(m.ctx, m.settings.Topics) }(m.looks)
	}
}

func (m *member) seen(err error) {
	if errors.Is(err, hub.ErrUnknownTopic) {
		if m.goneAt.IsZero() {
			m.goneAt = time.Now()
		}
		if time.Since(m.goneAt) > m.client.cfg.DeletedAfter {
			m.broken = hub.ErrTopicDeleted
		}
		return
	}
	if err != nil {
		return
	}
	m.goneAt = time.Time{}
	for topic, id := range m.ids {
		if i, ok := m.client.admin.known(topic); ok && i.id != id {
			m.broken = errAnew
			var over []group.Partition
			for p := range m.next {
				if p.Topic == topic {
					over = append(over, p)
					delete(m.next, p)
				}
			}
			m.group.Lose(over)
		}
	}
}

// retire gives everything back, before the consumer is closed.
func (m *member) retire() {
	m.give()
	m.revoke(m.held())
	m.settle(true)
	if m.looks != nil {
		m.seen(<-m.looks)
	}
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
	m.settle(true)
	if len(fronts) > 0 {
		m.begin(fronts)
		m.settle(true)
	}
	m.forget(ps)
}

func (m *member) forget(ps []group.Partition) {
	for _, p := range ps {
		delete(m.next, p)
		delete(m.pending, p)
		delete(m.ends, p)
	}
}

// begin commits; one commit is under way at a time.
func (m *member) begin(places []group.Place) {
	tps := make([]confluent.TopicPartition, len(places))
	for i, at := range places {
		tps[i] = confluent.TopicPartition{Topic: &at.Topic, Partition: at.Partition.Partition, Offset: confluent.Offset(at.Offset), Metadata: m.mark(at.Topic)}
		if at.Epoch >= 0 {
			tps[i].LeaderEpoch = &at.Epoch
		}
	}
	answer := make(chan error, 1)
	m.commits, m.offered = answer, places
	m.committing.Go(func() {
		done, err := m.consumer.CommitOffsets(tps)
		for _, tp := range done {
			err = errors.Join(err, tp.Error)
		}
		answer <- err
	})
}

// commitBound is how long the answer of a commit is waited for where nothing else can go on: longer than a session lasts without its coordinator.
const commitBound = 10 * time.Second

var errCommitUnanswered = errors.New("no answer from the coordinator")

// settle takes the answer of a commit under way, for which it may wait.
func (m *member) settle(wait bool) {
	if m.commits == nil {
		return
	}
	var err error
	if wait {
		select {
		case err = <-m.commits:
		case <-time.After(commitBound): // librdkafka waits for the coordinator, for ever if need be
			err = errCommitUnanswered
		}
	} else {
		select {
		case err = <-m.commits:
		default:
			return
		}
	}
	m.group.Committed(m.offered, err)
	m.commits, m.offered = nil, nil
	if err != nil {
		m.log.WarnContext(m.ctx, "commit failed", slog.Any("error", err))
	}
}

func (m *member) partitions(ps []group.Partition) []confluent.TopicPartition {
	tps := make([]confluent.TopicPartition, len(ps))
	for i := range ps {
		tps[i] = confluent.TopicPartition{Topic: &ps[i].Topic, Partition: ps[i].Partition}
	}
	return tps
}
