package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// ListGroups returns all consumer groups, ordered by name. Errors: hub.ErrUnavailable, also where a broker does not answer, since the groups that
// it knows would be missing; hub.ErrDraining.
func (c *Client) ListGroups(ctx context.Context) ([]*tailracev1.GroupSummary, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	var out []*tailracev1.GroupSummary
	err := c.admin.call(ctx, "list groups", func(ctx context.Context, client *confluent.AdminClient, limit time.Duration) error {
		r, err := client.ListConsumerGroups(ctx, confluent.SetAdminRequestTimeout(limit))
		if err = errors.Join(append(r.Errors, err)...); err != nil {
			return err
		}
		for _, g := range r.Valid {
			out = append(out, &tailracev1.GroupSummary{Group: g.GroupID, State: g.State.String()})
		}
		return nil
	})
	slices.SortFunc(out, func(a, b *tailracev1.GroupSummary) int { return cmp.Compare(a.GetGroup(), b.GetGroup()) })
	return out, err
}

// GroupMember is the name of this process as a member of groups.
func (c *Client) GroupMember() string { return memberClient + c.process }

// GetGroup describes a group, all but what workers do. What is not known of a partition is -1. Errors: group.ErrUnknown, hub.ErrUnavailable,
// hub.ErrDraining.
func (c *Client) GetGroup(ctx context.Context, name string) (*tailracev1.Group, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	d, err := c.admin.describeGroup(ctx, name)
	if err != nil {
		return nil, err
	}
	commits, err := c.admin.commits(ctx, name, nil)
	if err != nil {
		return nil, err
	}
	g := &tailracev1.Group{Group: name, State: d.State.String()}
	at := map[group.Partition]int64{}
	for _, m := range d.Members {
		member := &tailracev1.Member{Process: m.ClientID}
		for _, tp := range m.Assignment.TopicPartitions {
			at[group.Partition{Topic: *tp.Topic, Partition: tp.Partition}] = -1
			member.Partitions = append(member.Partitions, &tailracev1.TopicPartition{Topic: *tp.Topic, Partition: tp.Partition})
		}
		slices.SortFunc(member.Partitions, compare)
		g.Members = append(g.Members, member)
	}
	slices.SortFunc(g.Members, func(a, b *tailracev1.Member) int { return cmp.Compare(a.GetProcess(), b.GetProcess()) })
	maps.Copy(at, commits)
	ends, err := c.ends(ctx, at)
	if err != nil {
		return nil, err
	}
	for p, committed := range at {
		gp := &tailracev1.GroupPartition{Topic: p.Topic, Partition: p.Partition, Committed: committed, End: ends[p], Lag: -1}
		if committed >= 0 && gp.GetEnd() >= 0 {
			gp.Lag = max(gp.GetEnd()-committed, 0)
		}
		g.Partitions = append(g.Partitions, gp)
	}
	slices.SortFunc(g.Partitions, compare)
	return g, nil
}

func compare[P interface {
	GetTopic() string
	GetPartition() int32
}](a, b P) int {
	return cmp.Or(cmp.Compare(a.GetTopic(), b.GetTopic()), cmp.Compare(a.GetPartition(), b.GetPartition()))
}

// ends are the ends of partitions, as members of this service come to them, -1 where it is not known: the topic is gone, or there is no leader.
func (c *Client) ends(ctx context.Context, of map[group.Partition]int64) (map[group.Partition]int64, error) {
	byTopic := map[string][]int32{}
	out := make(map[group.Partition]int64, len(of))
	for p := range of {
		out[p] = -1
		byTopic[p.Topic] = append(byTopic[p.Topic], p.Partition)
	}
	for topic, partitions := range byTopic {
		info, err := c.admin.topic(ctx, topic, infoAge)
		switch {
		case errors.Is(err, hub.ErrUnknownTopic):
			continue
		case err != nil:
			return nil, err
		}
		partitions = slices.DeleteFunc(partitions, func(p int32) bool { return p >= info.count })
		found, err := c.admin.offsets(ctx, topic, partitions, confluent.LatestOffsetSpec, c.cfg.Isolation)
		if err != nil {
			return nil, err
		}
		for p, o := range found {
			if o.err == nil {
				out[group.Partition{Topic: topic, Partition: p}] = o.offset
			}
		}
	}
	return out, nil
}

// describeGroup asks the group's coordinator for its state and members.
func (a *admin) describeGroup(ctx context.Context, name string) (d confluent.ConsumerGroupDescription, err error) {
	unknown := &group.NamedError{Group: name, Err: group.ErrUnknown}
	err = a.call(ctx, "describe group", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		r, err := c.DescribeConsumerGroups(ctx, []string{name}, confluent.SetAdminRequestTimeout(limit))
		if err != nil {
			return err
		}
		if len(r.ConsumerGroupDescriptions) != 1 {
			return fmt.Errorf("the answer has %d groups", len(r.ConsumerGroupDescriptions))
		}
		d = r.ConsumerGroupDescriptions[0]
		switch d.Error.Code() {
		case confluent.ErrNoError, confluent.ErrGroupIDNotFound:
			return nil
		default:
			return d.Error
		}
	})
	if err == nil && (d.Error.Code() == confluent.ErrGroupIDNotFound || d.State == confluent.ConsumerGroupStateDead) {
		err = unknown
	}
	return d, err
}

// commits are the committed offsets of a group: of a topic's partitions that have one, or of all topics.
func (a *admin) commits(ctx context.Context, name string, only *string) (map[group.Partition]int64, error) {
	out := map[group.Partition]int64{}
	err := a.call(ctx, "committed offsets", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		r, err := c.ListConsumerGroupOffsets(ctx, []confluent.ConsumerGroupTopicPartitions{{Group: name}}, confluent.SetAdminRequestTimeout(limit))
		if err != nil {
			return err
		}
		for _, g := range r.ConsumerGroupsTopicPartitions {
			for _, tp := range g.Partitions {
				switch {
				case tp.Error != nil:
					return fmt.Errorf("%q partition %d: %w", *tp.Topic, tp.Partition, tp.Error)
				case tp.Offset >= 0 && (only == nil || *only == *tp.Topic):
					out[group.Partition{Topic: strings.Clone(*tp.Topic), Partition: tp.Partition}] = int64(tp.Offset)
				}
			}
		}
		return nil
	})
	return out, err
}
