package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// rebalance is the callback, which runs inside Poll: nobody else reads what is revoked before it returns.
func (m *member) rebalance(_ *confluent.Consumer, event confluent.Event) error {
	if m.retired {
		return m.decline(event)
	}
	m.gather()
	switch e := event.(type) {
	case confluent.AssignedPartitions:
		m.client.metrics.rebalances.WithLabelValues(changeAssigned).Inc()
		m.assigned(e.Partitions)
	case confluent.RevokedPartitions:
		m.give()
		ps := make([]group.Partition, len(e.Partitions))
		for i, tp := range e.Partitions {
			ps[i] = group.Partition{Topic: *tp.Topic, Partition: tp.Partition}
		}
		if m.consumer.AssignmentLost() {
			m.log.WarnContext(m.ctx, "group member lost its partitions", slog.Int("partitions", len(ps)))
			m.client.metrics.rebalances.WithLabelValues(changeLost).Inc()
			m.lostAt = time.Now()
			m.lose(ps)
			m.forget(ps)
		} else {
			m.client.metrics.rebalances.WithLabelValues(changeRevoked).Inc()
			m.revoke(ps)
		}
		if err := m.consumer.IncrementalUnassign(e.Partitions); err != nil {
			m.broken = fmt.Errorf("unassign: %w", err)
		}
	}
	return nil
}

// decline leaves the group alone: another member may serve it already, while this one is being closed.
func (m *member) decline(event confluent.Event) error {
	if e, ok := event.(confluent.RevokedPartitions); ok {
		return m.consumer.IncrementalUnassign(e.Partitions)
	}
	return m.consumer.IncrementalAssign(nil)
}

// assigned places partitions and begins to fetch them. Where Kafka does not say where, it asks for as long as the group may wait; then the member
// is replaced.
func (m *member) assigned(tps []confluent.TopicPartition) {
	var placed []placed
	var err error
	for until, pause := time.Now().Add(memberLooks), resolvePause; ; pause = min(2*pause, resolvePauseMax) {
		if placed, err = m.places(tps); err == nil || m.broken != nil || m.ctx.Err() != nil || time.Now().After(until) {
			break
		}
		select {
		case <-m.ctx.Done():
		case <-time.After(pause):
		}
	}
	if err != nil {
		if m.broken == nil {
			m.broken = fmt.Errorf("place partitions: %w", err)
		}
		_ = m.consumer.IncrementalAssign(nil)
		return
	}
	at := make([]confluent.TopicPartition, len(placed))
	places := make([]group.Place, len(placed))
	for i, p := range placed {
		places[i] = p.Place
		at[i] = confluent.TopicPartition{Topic: &placed[i].Topic, Partition: p.Partition.Partition, Offset: confluent.Offset(p.Offset)}
		m.next[p.Partition], m.epochs[p.Partition] = p.Offset, p.Epoch
	}
	if err := m.consumer.IncrementalAssign(at); err != nil {
		m.broken = fmt.Errorf("assign: %w", err)
		return
	}
	m.group.Assign(places)
	for _, at := range places {
		delete(m.past.lost, at.Partition)
	}
	for _, p := range placed {
		if p.gap != nil {
			m.log.WarnContext(m.ctx, "committed offset is not in the log", slog.String("topic", p.Topic), slog.Int("partition", int(p.Partition.Partition)),
				slog.Int64("committed", p.gap.From), slog.Int64("start", p.gap.To))
			m.group.Gap(*p.gap)
		}
	}
}

// placed is where a partition begins.
type placed struct {
	group.Place
	gap *group.Gap
}

// places finds where partitions begin: at their commits, if those are of this log and in it.
func (m *member) places(tps []confluent.TopicPartition) ([]placed, error) {
	byTopic := map[string][]int32{}
	for _, tp := range tps {
		byTopic[*tp.Topic] = append(byTopic[*tp.Topic], tp.Partition)
	}
	ctx, cancel := context.WithTimeout(m.ctx, adminTimeout)
	defer cancel()
	var out []placed
	for topic, partitions := range byTopic {
		ps, err := m.placesIn(ctx, topic, partitions)
		if err != nil {
			return nil, err
		}
		out = append(out, ps...)
	}
	return out, nil
}

func (m *member) placesIn(ctx context.Context, topic string, partitions []int32) ([]placed, error) {
	info, err := m.client.admin.topic(ctx, topic, 0)
	if err != nil {
		return nil, err
	}
	if !m.judgeID(topic, info.id) { // before partitions of the new log stand beside those of the old one
		return nil, errAnew
	}
	all := make([]confluent.TopicPartition, info.count)
	for p := range all {
		all[p] = confluent.TopicPartition{Topic: &topic, Partition: int32(p)}
	}
	commits, err := m.consumer.Committed(all, int(adminTimeout/time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("committed offsets: %w", err)
	}
	for _, c := range commits {
		if c.Error != nil {
			return nil, fmt.Errorf("committed offset of %q partition %d: %w", topic, c.Partition, c.Error)
		}
	}
	log := m.logOf(topic, info, commits)
	bounds, err := m.client.admin.bounds(ctx, topic, partitions, m.client.cfg.Isolation)
	if err != nil {
		return nil, err
	}
	if err := m.truly(ctx, topic, commits, bounds, info.id); err != nil {
		return nil, err
	}
	out := make([]placed, 0, len(partitions))
	for _, p := range partitions {
		b := bounds[p]
		if b.err != nil {
			return nil, fmt.Errorf("bounds of %q partition %d: %w", topic, p, b.err)
		}
		b.end = max(b.end, b.oldest)
		if int(p) >= len(commits) {
			return nil, fmt.Errorf("%q partition %d is not there yet", topic, p)
		}
		out = append(out, m.place(commits[p], b, log))
	}
	m.past.logs[topic] = log
	return out, nil
}

// place finds where one partition begins.
func (m *member) place(c confluent.TopicPartition, b logBounds, log topicLog) placed {
	initial := b.oldest
	if m.settings.Initial == group.Latest {
		initial = b.end
	}
	at := placed{Place: group.Place{Partition: group.Partition{Topic: *c.Topic, Partition: c.Partition}, Offset: int64(c.Offset), Epoch: -1, Fresh: true}}
	gap := func(to int64, reason hub.GapReason) placed {
		at.gap = &group.Gap{Partition: at.Partition, From: at.Offset, To: to, Reason: reason}
		at.Offset = to
		return at
	}
	switch {
	case c.Offset < 0 && (c.Partition >= log.first || m.past.anew[*c.Topic] == log.id):
		at.Offset = b.oldest
	case c.Offset < 0:
		at.Offset = initial
	case foreignTo(c, log.id) && m.past.anew[*c.Topic] == log.id: // that was told
		at.Offset = b.oldest
	case foreignTo(c, log.id):
		return gap(b.oldest, hub.GapRecreated)
	case at.Offset < b.oldest:
		return gap(b.oldest, hub.GapRetention)
	case at.Offset > b.end:
		return gap(initial, hub.GapTruncation)
	default:
		at.Fresh = false
		if c.LeaderEpoch != nil {
			at.Epoch = *c.LeaderEpoch
		}
	}
	return at
}
