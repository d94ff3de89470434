package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// astray finds the partitions of a member whose positions are not in their logs any more: librdkafka's error names none, and that one is not fetched
// from then on. One whose log lost its end and has grown again since may stop without an error; the statistics tell. It belongs to the member's
// goroutine; the questions to Kafka have one of their own, one at a time.
type astray struct {
	wanted  bool
	next    time.Time         // not before
	answer  chan []finding    // of the questions under way; nil: none are
	reports chan *statistics  // nil: none is being decoded
	stopped map[string]int    // reports in a row, by key.String, in which nothing fetched a partition
	beyond  map[key]time.Time // since when the leader says that the position is beyond its log
	asking  sync.WaitGroup
}

func (a *astray) forget(p group.Partition) {
	delete(a.beyond, keyOf(p))
	delete(a.stopped, keyOf(p).String())
}

// wait comes before the consumer is closed, when the member's context has ended or soon will.
func (a *astray) wait() { a.asking.Wait() }

func keyOf(p group.Partition) key { return key{p.Topic, p.Partition} }

// report takes a report of librdkafka's, which is long, to be decoded elsewhere.
func (a *astray) report(text string) {
	if a.reports != nil {
		return
	}
	answer := make(chan *statistics, 1)
	a.reports = answer
	a.asking.Go(func() {
		s := &statistics{}
		if err := json.Unmarshal([]byte(text), s); err != nil {
			s = &statistics{}
		}
		answer <- s
	})
}

// find looks for positions that are not in their logs, if there is reason to, and goes on where the logs do.
func (m *member) find() {
	a := &m.astray
	select {
	case s := <-a.reports: // blocks where there is none
		a.reports = nil
		m.compare(s)
	default:
	}
	if a.answer != nil {
		select {
		case findings := <-a.answer:
			a.answer = nil
			m.judge(findings)
		default:
		}
		return
	}
	if !a.wanted || time.Now().Before(a.next) || len(m.next) == 0 {
		return
	}
	m.give()
	a.wanted, a.next = false, time.Now().Add(checkEvery)
	suspects := make([]suspect, 0, len(m.next))
	for id, next := range m.next {
		suspects = append(suspects, suspect{p: &followed{key: keyOf(id)}, next: next, epoch: m.epochs[id], stuck: true})
	}
	answer := make(chan []finding, 1)
	a.answer = answer
	a.asking.Go(func() {
		for _, topic := range m.settings.Topics { // a position in the log of a topic that was created anew means nothing
			_, _ = m.client.admin.topic(m.ctx, topic, 0)
		}
		answer <- m.client.inspect(m.ctx, suspects)
	})
}

// compare looks for partitions that should be fetched and are not.
func (m *member) compare(s *statistics) {
	a := &m.astray
	stopped := map[string]int{}
	for topic, t := range s.Topics {
		for _, sp := range t.Partitions {
			if _, held := m.next[group.Partition{Topic: topic, Partition: sp.Partition}]; !held {
				continue
			}
			switch sp.FetchState {
			case "none", "stopping", "stopped":
				k := key{topic, sp.Partition}.String()
				if stopped[k] = a.stopped[k] + 1; stopped[k] > stuckAfter {
					a.wanted = true
				}
			}
		}
	}
	a.stopped = stopped
}

// judge acts on findings. A partition that moved since they were asked for is fetched, whatever they say.
func (m *member) judge(findings []finding) {
	if m.renewed(); m.broken != nil {
		return
	}
	a := &m.astray
	var still []group.Partition // where nothing is wrong
	found := false
	for _, fd := range findings {
		id := group.Partition{Topic: fd.p.key.topic, Partition: fd.p.key.partition}
		if next, held := m.next[id]; !held || next != fd.next {
			continue
		}
		if fd.err == nil && (fd.high < 0 || fd.next <= fd.high) {
			delete(a.beyond, fd.p.key)
		}
		switch {
		case fd.err != nil:
			m.log.DebugContext(m.ctx, "bounds of a partition", slog.String("partition", fd.p.key.String()), slog.Any("error", fd.err))
			found, a.wanted = true, true
		case fd.next < fd.oldest:
			m.jump(id, fd.oldest, hub.GapRetention)
			found = true
		case fd.lost > 0:
			m.jump(id, fd.next-fd.lost, hub.GapTruncation)
			found = true
		case fd.high >= 0 && fd.next > fd.high:
			// Another replica may have been ahead when this position was made: only the second such answer counts.
			found = true
			if since, ok := a.beyond[fd.p.key]; !ok {
				if a.beyond == nil {
					a.beyond = map[key]time.Time{}
				}
				a.beyond[fd.p.key], a.wanted = time.Now(), true
			} else if time.Since(since) < beyondInterval {
				a.wanted = true
			} else {
				m.jump(id, fd.end, hub.GapTruncation)
			}
		default:
			still = append(still, id)
		}
	}
	if !found && len(still) > 0 { // one of them may have stopped for what is over by now
		m.fetchAt(still)
	}
}

// jump goes on elsewhere in a partition, and tells the workers what is missing, or, where the log has lost its end, what comes anew.
func (m *member) jump(id group.Partition, to int64, reason hub.GapReason) {
	from := m.next[id]
	m.log.WarnContext(m.ctx, "offsets are missing", slog.String("topic", id.Topic), slog.Int("partition", int(id.Partition)),
		slog.Int64("from", from), slog.Int64("to", to), slog.Any("reason", reason))
	m.next[id] = to
	m.epochs[id] = -1
	m.astray.forget(id)
	if reason == hub.GapTruncation { // what was read beyond is not in the log, and its acknowledgements mean nothing
		m.group.Assign([]group.Place{{Partition: id, Offset: to, Epoch: -1, Fresh: true}})
		delete(m.paused, id) // it begins as one that does not wait
	}
	m.fetchAt([]group.Partition{id})
	m.group.Gap(group.Gap{Partition: id, From: from, To: to, Reason: reason})
}

// fetchAt has partitions fetched at their places. Not by a Seek: librdkafka refuses that to a partition that it does not fetch.
func (m *member) fetchAt(ps []group.Partition) {
	tps := m.partitions(ps)
	for i, p := range ps {
		tps[i].Offset = confluent.Offset(m.next[p])
	}
	err := m.consumer.IncrementalUnassign(tps)
	if err == nil {
		err = m.consumer.IncrementalAssign(tps)
	}
	if err != nil { // it may be about to be revoked; a new member finds all places
		m.broken = fmt.Errorf("fetch elsewhere: %w", err)
		return
	}
	var paused []group.Partition
	for _, p := range ps {
		if m.paused[p] {
			paused = append(paused, p)
		}
	}
	if len(paused) > 0 {
		_ = m.consumer.Pause(m.partitions(paused))
	}
}

// truly finds out which commits are beyond the ends of their logs: the leader has to say so twice, since another replica may have been ahead.
// Those that are not get an end that contains them: an open transaction may hold it back.
func (m *member) truly(ctx context.Context, topic string, commits []confluent.TopicPartition, bounds map[int32]logBounds, id string) error {
	for look := range 2 {
		doubt := false
		for p, b := range bounds {
			if int(p) >= len(commits) || b.err != nil || int64(commits[p].Offset) <= b.end || foreignTo(commits[p], id) {
				continue
			}
			high, err := m.client.admin.highWatermark(ctx, topic, p)
			if err != nil {
				return fmt.Errorf("end of %q partition %d: %w", topic, p, err)
			}
			if at := int64(commits[p].Offset); at <= high {
				b.end = at
				bounds[p] = b
				continue
			}
			doubt = true
		}
		if !doubt || look == 1 {
			return nil
		}
		select {
		case <-time.After(beyondInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
