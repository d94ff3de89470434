package kafka

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/group"
)

// begin commits what is queued, unless a commit is under way: there is one at a time, also where the coordinator does not answer.
func (m *member) begin() {
	if m.commits != nil || len(m.queued) == 0 {
		return
	}
	places := m.queued
	m.queued = nil
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
		if m.bell != nil {
			m.bell.ring()
		}
	})
}

// unqueue drops what was to be committed of partitions that are not held any more.
func (m *member) unqueue() {
	m.queued = slices.DeleteFunc(m.queued, func(at group.Place) bool {
		_, held := m.next[at.Partition]
		return !held
	})
}

// commitBound is how long the answer of a commit is waited for where nothing else can go on; at most the session timeout.
const commitBound = 6 * time.Second

var errCommitUnanswered = errors.New("no answer from the coordinator")

// settle takes the answer of a commit under way, for which it may wait: librdkafka waits for the coordinator, for ever if need be, but the
// partitions are others' once the session is over. A commit that was given up is still under way, and its answer says that the coordinator is back.
func (m *member) settle(wait bool) {
	if m.commits == nil {
		return
	}
	var err error
	answered := true
	if wait && !m.deaf {
		select {
		case err = <-m.commits:
		case <-time.After(min(commitBound, m.client.cfg.SessionTimeout)):
			err, answered = errCommitUnanswered, false
		}
	} else {
		select {
		case err = <-m.commits:
		default:
			return
		}
	}
	m.group.Committed(m.offered, err)
	m.offered = nil
	if m.deaf = !answered; answered {
		m.commits = nil
	}
	if err != nil {
		m.log.WarnContext(m.ctx, "commit failed", slog.Any("error", err))
	}
}
