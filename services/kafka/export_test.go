package kafka

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/hub"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// Appender is what a follower needs of a hub.Topic.
type Appender = appender

// FollowTo is Follow with a stand-in for the hub's topic.
func (c *Client) FollowTo(t Appender, partition int32, from int64) (unfollow func()) {
	return c.follow(t, partition, from)
}

// EncodeRecords is encodeRecords.
func EncodeRecords(msgs []*confluent.Message) ([]byte, []hub.Meta) { return encodeRecords(msgs) }

// OwnProperties are the properties that are refused.
var OwnProperties = ownProperties

// SearchTime bounds a search.
const SearchTime = searchTime

// SearchMemory bounds what all searches remember, and returns what it is at the moment.
func (c *Client) SearchMemory(most int) int {
	c.tails.mu.Lock()
	defer c.tails.mu.Unlock()
	c.tails.most = most
	return c.tails.bytes
}

// HistoryRecords is how many records were read from history.
func (c *Client) HistoryRecords() int { return int(sum(c.metrics.historyIn)) }

// HistoryPlaces is how many places history readers took up: each fetches anew.
func (c *Client) HistoryPlaces() int { return int(sum(c.metrics.history.WithLabelValues("cold"))) }

// Misplaced is how many records were found elsewhere than their keys say, in all topics.
func (c *Client) Misplaced() int { return int(sum(c.metrics.misplaced)) }

// FetchedByGroups is how many bytes members of groups got from brokers.
func (c *Client) FetchedByGroups() int { return int(sum(c.metrics.fetched.WithLabelValues("group"))) }

// Rebalances is how often partitions were assigned, revoked or lost by members.
func (c *Client) Rebalances(change string) int {
	return int(sum(c.metrics.rebalances.WithLabelValues(change)))
}

// Held is for how long partitions are held, in all.
func (c *Client) Held() float64 { return sum(c.metrics.held) }

// StopFetching makes librdkafka stop to fetch a partition behind the follower's back, as it does after some errors. An epoch other than -1 is what
// the last record before its position is said to have had.
func (c *Client) StopFetching(topic string, partition, epoch int32) {
	for _, f := range c.followers {
		done := make(chan struct{})
		f.send(command{found: func() {
			_ = f.consumer.IncrementalUnassign([]confluent.TopicPartition{{Topic: &topic, Partition: partition}})
			if p := f.parts[key{topic, partition}]; p != nil && epoch >= 0 {
				p.epoch = epoch
			}
			close(done)
		}})
		<-done
	}
}

// RefuseConsumers makes that no follower can open another consumer, until allow is called. refused counts.
func (c *Client) RefuseConsumers(err error) (refused func() int, allow func()) {
	var n atomic.Int64
	var allowed atomic.Bool
	for _, f := range c.followers {
		done := make(chan struct{})
		f.send(command{found: func() {
			open := f.open
			f.open = func() (*confluent.Consumer, error) {
				if allowed.Load() {
					return open()
				}
				n.Add(1)
				return nil, err
			}
			close(done)
		}})
		<-done
	}
	return func() int { return int(n.Load()) }, func() { allowed.Store(true) }
}

// sum is a metric's value, over all labels.
func sum(m prometheus.Collector) (v float64) {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	families, err := reg.Gather()
	if err != nil {
		return -1
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			v += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return v
}

// Slots bound dead letters.
type Slots struct{ s *slots }

// NewSlots makes some.
func NewSlots() Slots { return Slots{newSlots()} }

// Take is take.
func (s Slots) Take(ctx context.Context, group, topic string) error {
	return s.s.take(ctx, burier{group, topic})
}

// Leave is leave.
func (s Slots) Leave(group, topic string) { s.s.leave(burier{group, topic}) }

// Close is close.
func (s Slots) Close() { s.s.close() }

// Held is how many a group has for a topic.
func (s Slots) Held(group, topic string) int {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	return s.s.held[burier{group, topic}]
}

// Waiting is how many wait.
func (s Slots) Waiting() int {
	s.s.mu.Lock()
	defer s.s.mu.Unlock()
	return len(s.s.waiting)
}

// Bell is a bell.
type Bell struct{ bell *bell }

// NewBell makes one.
func NewBell() (Bell, error) {
	b, err := newBell()
	return Bell{b}, err
}

// Hang is hang.
func (b Bell) Hang(c *confluent.Consumer) bool { return b.bell.hang(c) }

// TakeDown is takeDown.
func (b Bell) TakeDown(c *confluent.Consumer) { b.bell.takeDown(c) }

// Ring is ring.
func (b Bell) Ring() { b.bell.ring() }

// Wait is wait.
func (b Bell) Wait(limit time.Duration) bool { return b.bell.wait(limit) }

// Close is close.
func (b Bell) Close() { b.bell.close() }

// OwnSettings are the properties that clients are made with whatever -kafka.property says.
func OwnSettings() []string {
	own := map[string]bool{}
	for _, settings := range []func(Config) *confluent.ConfigMap{
		func(c Config) *confluent.ConfigMap { return c.follower(nil) },
		func(c Config) *confluent.ConfigMap { return c.reader(nil) },
		func(c Config) *confluent.ConfigMap { return c.producer(nil) },
		func(c Config) *confluent.ConfigMap { return c.admin(nil) },
		func(c Config) *confluent.ConfigMap { return c.member(nil, "host-1", "g", 1) },
	} {
		c := DefaultConfig()
		for k := range *settings(c) {
			if strings.HasPrefix(k, "go.") {
				continue
			}
			c.Properties = map[string]string{k: "a value that nothing has"}
			if (*settings(c))[k] != "a value that nothing has" {
				own[k] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(own))
}

// Refused is what librdkafka says when one property is set.
func (c Config) Refused(k string) string { return c.refused(k) }

// OpenMember makes the consumer of one of so many members.
func OpenMember(members int) error {
	c, err := confluent.NewConsumer(DefaultConfig().member(nil, "host-1", "g", members))
	if err == nil {
		err = c.Close()
	}
	return err
}

// MemberSetting is a number among the properties of a group's member in a process with so many; 0: it is none.
func MemberSetting(key string, members int) int {
	n, _ := (*DefaultConfig().member(nil, "host-1", "g", members))[key].(int)
	return n
}
