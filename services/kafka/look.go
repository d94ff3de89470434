package kafka

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// errAnew: a topic was created anew. A new consumer is needed: librdkafka does not believe in leaders whose epochs are below those it has seen.
var errAnew = errors.New("a topic was created anew")

// past is what a group's members here know of its topics, one after the other.
type past struct {
	logs map[string]topicLog       // of topics, as partitions were placed
	lost map[group.Partition]front // of partitions that were lost, and are not held since
	anew map[string]string         // topics that were created anew, and their ids since
}

// front is where a group was in a partition when that was lost.
type front struct {
	offset int64
	at     time.Time
}

func newPast() *past {
	return &past{logs: map[string]topicLog{}, lost: map[group.Partition]front{}, anew: map[string]string{}}
}

// lose lets partitions go that are others' by now, or nobody's: Kafka takes those of a topic that is deleted away, too.
func (m *member) lose(ps []group.Partition) {
	for _, at := range m.group.Lose(ps) {
		m.past.lost[at.Partition] = front{at.Offset, time.Now()}
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
		ctx, cancel := context.WithCancel(m.ctx)
		m.lookEnd = cancel
		go func(answer chan<- error) { answer <- m.client.Check(ctx, m.settings.Topics) }(m.looks)
	}
}

// lookNoMore ends the look under way: Check may ask for many topics, one after the other, with Kafka away.
func (m *member) lookNoMore() {
	if m.looks == nil {
		return
	}
	m.lookEnd()
	m.seen(<-m.looks)
	m.looks = nil
}

func (m *member) seen(err error) {
	m.lookEnd()
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
	m.renewed()
}

// renewed looks whether what is known of the topics says that one was created anew.
func (m *member) renewed() {
	for topic := range m.past.logs {
		if i, ok := m.client.admin.known(topic); ok {
			m.judgeID(topic, i.id)
		}
	}
}

// judgeID says whether a topic still has the id under which its partitions were placed. If not, their positions and fronts are of another log:
// they are let go, the workers are told, and this consumer ends. Kafka has deleted the group's commits along with the topic, so that whoever
// places the partitions next, here, has to know of it: Join keeps it for the next member.
func (m *member) judgeID(topic, id string) bool {
	log, ok := m.past.logs[topic]
	if !ok || log.id == id {
		return true
	}
	m.broken = errAnew
	delete(m.past.logs, topic)
	m.past.anew[topic] = id
	var over []group.Partition
	for p := range m.next {
		if p.Topic == topic {
			over = append(over, p)
			delete(m.next, p)
		}
	}
	m.lose(over)
	m.unqueue()
	for p, was := range m.past.lost {
		if p.Topic != topic {
			continue
		}
		delete(m.past.lost, p)
		if time.Since(was.at) > m.client.cfg.DeletedAfter {
			continue // not along with the topic, or the group would have ended: it is somebody else's
		}
		m.log.WarnContext(m.ctx, "topic was created anew", slog.String("topic", topic), slog.Int("partition", int(p.Partition)), slog.Int64("front", was.offset))
		m.group.Gap(group.Gap{Partition: p, From: was.offset, To: 0, Reason: hub.GapRecreated})
	}
	return false
}
