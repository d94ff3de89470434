package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// ListTopics returns all topics but Kafka's internal ones, ordered by name. Errors: hub.ErrUnavailable, hub.ErrDraining.
func (c *Client) ListTopics(ctx context.Context) ([]*tailracev1.TopicSummary, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	names, err := c.admin.names(ctx)
	if err != nil || len(names) == 0 {
		return nil, err
	}
	infos, err := c.admin.describe(ctx, names)
	if err != nil {
		return nil, err
	}
	var out []*tailracev1.TopicSummary
	for _, i := range infos {
		if !i.missing && i.err == nil {
			out = append(out, &tailracev1.TopicSummary{Name: i.name, TopicId: i.id, Partitions: i.count})
		}
	}
	slices.SortFunc(out, func(a, b *tailracev1.TopicSummary) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// GetTopic describes one topic, all but local_subscribers. Bounds of a partition that cannot be asked are -1. Errors: hub.ErrUnknownTopic,
// hub.ErrUnavailable, hub.ErrDraining.
func (c *Client) GetTopic(ctx context.Context, topic string) (*tailracev1.Topic, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	info, err := c.admin.topic(ctx, topic, 0)
	if err != nil {
		return nil, err
	}
	partitions := make([]int32, info.count)
	for i := range partitions {
		partitions[i] = int32(i)
	}
	var stable, all map[int32]logBounds
	var stableErr, allErr error
	var both sync.WaitGroup
	both.Go(func() { stable, stableErr = c.admin.bounds(ctx, topic, partitions, ReadCommitted) })
	all, allErr = c.admin.bounds(ctx, topic, partitions, ReadUncommitted)
	both.Wait()
	if err := errors.Join(stableErr, allErr); err != nil {
		return nil, err
	}
	t := &tailracev1.Topic{Name: topic, TopicId: info.id}
	for _, p := range partitions {
		tp := &tailracev1.Partition{Partition: p, Leader: info.leaders[p], Start: -1, End: -1, HighWatermark: -1}
		if b := stable[p]; b.err == nil {
			tp.Start, tp.End = b.oldest, b.end
		}
		if b := all[p]; b.err == nil {
			tp.HighWatermark = b.end
		}
		t.Partitions = append(t.Partitions, tp)
	}
	return t, nil
}

// names lists the topics that are not Kafka's own.
func (a *admin) names(ctx context.Context) ([]string, error) {
	var names []string
	err := a.call(ctx, "list topics", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		// The call has no context: it ends with its timeout, so that only a caller who leaves early is answered early.
		type reply struct {
			m   *confluent.Metadata
			err error
		}
		done := make(chan reply, 1)
		a.asking.Go(func() {
			m, err := c.GetMetadata(nil, true, int(limit/time.Millisecond))
			done <- reply{m, err}
		})
		select {
		case r := <-done:
			if r.err != nil {
				return r.err
			}
			for name := range r.m.Topics {
				if !strings.HasPrefix(name, "__") {
					names = append(names, name)
				}
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return names, err
}

const (
	settingsAge     = time.Minute     // for how long the answer about a topic's settings is kept
	settingsTimeout = time.Second     // for how long a publish waits for it
	settingsRetry   = 5 * time.Second // until it is asked for again where there was none
)

// topicSettings are those of a topic's settings that publishing depends on.
type topicSettings struct {
	brokerTime bool  // the broker sets the times (message.timestamp.type=LogAppendTime); also where it is not known
	maxBytes   int64 // of a batch of records (max.message.bytes), 0 where it is not known
	compacted  bool  // cleanup.policy has compact
	at         time.Time
}

// settings tells what publishing to a topic depends on. Where Kafka does not say, what was known before stays; at first, a time is rather
// left out than told wrongly.
func (a *admin) settings(ctx context.Context, topic string) topicSettings {
	return a.settingsOf(ctx, topic, settingsAge)
}

// settingsOf is settings with an age of its own. Older settings do for the moment when the usual age is asked for: nobody waits for news.
func (a *admin) settingsOf(ctx context.Context, topic string, age time.Duration) topicSettings {
	a.mu.Lock()
	s, ok := a.set[topic]
	a.mu.Unlock()
	if ok && time.Since(s.at) < age {
		return s
	}
	known := s
	if !ok {
		s.brokerTime = true
	}
	answer := a.once.DoChan("settings of "+topic, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settingsTimeout)
		defer cancel()
		s := s
		s.at = time.Now()
		if err := a.ask(ctx, topic, &s); err != nil {
			s.at = s.at.Add(settingsRetry - settingsAge)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.set) >= infoTopics {
			clear(a.set)
		}
		a.set[topic] = s
		return s, nil
	})
	if ok && age == settingsAge {
		return known
	}
	select {
	case r := <-answer:
		if fresh, ok := r.Val.(topicSettings); ok {
			return fresh
		}
	case <-ctx.Done():
	}
	return s
}

// ask asks for a topic's settings.
func (a *admin) ask(ctx context.Context, topic string, s *topicSettings) error {
	return a.call(ctx, "describe settings", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		rs, err := c.DescribeConfigs(ctx, []confluent.ConfigResource{{Type: confluent.ResourceTopic, Name: topic}}, confluent.SetAdminRequestTimeout(limit))
		if err != nil {
			return err
		}
		for _, r := range rs {
			if r.Error.Code() != confluent.ErrNoError {
				continue // not allowed, most likely
			}
			if e, ok := r.Config["message.timestamp.type"]; ok {
				s.brokerTime = e.Value == "LogAppendTime"
			}
			s.compacted = strings.Contains(r.Config["cleanup.policy"].Value, "compact")
			s.maxBytes, _ = strconv.ParseInt(r.Config["max.message.bytes"].Value, 10, 64)
		}
		return nil
	})
}
