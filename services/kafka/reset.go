package kafka

import (
	"context"
	"fmt"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// ResetOffsets moves the committed offsets of a group without members, or tells how they would be, for a request that was found valid. Errors:
// group.ErrUnknown, group.ErrActive, hub.ErrUnknownTopic, *hub.UnknownPartitionError, *hub.OffsetOutOfRangeError, hub.ErrUnavailable,
// hub.ErrDraining; then no offset was moved, but for hub.ErrUnavailable, after which they may have been.
func (c *Client) ResetOffsets(ctx context.Context, m *tailracev1.ResetOffsetsRequest) ([]*tailracev1.ResetPartition, error) {
	if err := c.started(ctx); err != nil {
		return nil, err
	}
	info, err := c.admin.topic(ctx, m.GetTopic(), 0)
	if err != nil {
		return nil, err
	}
	partitions, err := toReset(m, &info)
	if err != nil {
		return nil, err
	}
	d, err := c.admin.describeGroup(ctx, m.GetGroup())
	if err != nil {
		return nil, err
	}
	if len(d.Members) > 0 {
		return nil, &group.NamedError{Group: m.GetGroup(), Err: group.ErrActive}
	}
	to, err := c.resetTo(ctx, m, partitions)
	if err != nil {
		return nil, err
	}
	before, err := c.admin.commits(ctx, m.GetGroup(), &info.name)
	if err != nil {
		return nil, err
	}
	out := make([]*tailracev1.ResetPartition, len(partitions))
	for i, p := range partitions {
		out[i] = &tailracev1.ResetPartition{Partition: p, Before: -1, After: to[p]}
		if at, ok := before[group.Partition{Topic: info.name, Partition: p}]; ok {
			out[i].Before = at
		}
	}
	if m.GetDryRun() {
		return out, nil
	}
	return out, c.admin.commit(ctx, m.GetGroup(), &info, out)
}

// toReset are the partitions that a request means, in order.
func toReset(m *tailracev1.ResetOffsetsRequest, info *topicInfo) ([]int32, error) {
	named := map[int32]bool{}
	for _, p := range m.GetPartitions() {
		named[p] = true
	}
	for _, p := range m.GetPositions().GetPositions() {
		named[p.GetPartition()] = true
	}
	for p := range named {
		if p >= info.count {
			return nil, &hub.UnknownPartitionError{Topic: info.name, Partition: p, Count: info.count, TopicID: info.id}
		}
	}
	var out []int32
	for p := range info.count {
		if len(named) == 0 || named[p] {
			out = append(out, p)
		}
	}
	return out, nil
}

// resetTo finds the offsets that a request means.
func (c *Client) resetTo(ctx context.Context, m *tailracev1.ResetOffsetsRequest, partitions []int32) (map[int32]int64, error) {
	bounds, err := c.admin.bounds(ctx, m.GetTopic(), partitions, c.cfg.Isolation)
	if err != nil {
		return nil, err
	}
	var times map[int32]offset
	if m.GetTime() != nil {
		at := confluent.NewOffsetSpecForTimestamp(max(m.GetTime().AsTime().UnixMilli(), 0))
		if times, err = c.admin.offsets(ctx, m.GetTopic(), partitions, at, c.cfg.Isolation); err != nil {
			return nil, err
		}
	}
	given := map[int32]int64{}
	for _, p := range m.GetPositions().GetPositions() {
		given[p.GetPartition()] = p.GetOffset()
	}
	to := make(map[int32]int64, len(partitions))
	for _, p := range partitions {
		b := bounds[p]
		if b.err == nil && times != nil {
			b.err = times[p].err
		}
		if b.err != nil {
			return nil, fmt.Errorf("bounds of %q partition %d: %w: %w", m.GetTopic(), p, hub.ErrUnavailable, b.err)
		}
		b.end = max(b.end, b.oldest)
		switch m.GetTo().(type) {
		case *tailracev1.ResetOffsetsRequest_Earliest:
			to[p] = b.oldest
		case *tailracev1.ResetOffsetsRequest_Time:
			if to[p] = b.end; times[p].offset >= 0 {
				to[p] = min(max(times[p].offset, b.oldest), b.end)
			}
		case *tailracev1.ResetOffsetsRequest_Positions:
			if to[p] = given[p]; to[p] < b.oldest || to[p] > b.end {
				return nil, &hub.OffsetOutOfRangeError{Topic: m.GetTopic(), Partition: p, Offset: to[p], Oldest: b.oldest, End: b.end}
			}
		default:
			to[p] = b.end
		}
	}
	return to, nil
}

// commit sets offsets in the name of a group without members, in one request: all of them or none.
func (a *admin) commit(ctx context.Context, name string, info *topicInfo, to []*tailracev1.ResetPartition) error {
	mark := topicMark + info.id
	tps := make([]confluent.TopicPartition, len(to))
	for i, p := range to {
		tps[i] = confluent.TopicPartition{Topic: &info.name, Partition: p.GetPartition(), Offset: confluent.Offset(p.GetAfter()), Metadata: &mark}
	}
	active := false
	err := a.call(ctx, "reset offsets", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		r, err := c.AlterConsumerGroupOffsets(ctx, []confluent.ConsumerGroupTopicPartitions{{Group: name, Partitions: tps}}, confluent.SetAdminRequestTimeout(limit))
		if active = refusesCommit(err); active {
			return nil
		}
		if err != nil {
			return err
		}
		for _, g := range r.ConsumerGroupsTopicPartitions {
			for _, tp := range g.Partitions {
				if active = refusesCommit(tp.Error); active {
					return nil
				}
				if tp.Error != nil {
					return fmt.Errorf("partition %d: %w", tp.Partition, tp.Error)
				}
			}
		}
		return nil
	})
	if err == nil && active { // somebody has joined since
		return &group.NamedError{Group: name, Err: group.ErrActive}
	}
	return err
}

// refusesCommit says that Kafka takes no offsets from outside, since the group has members.
func refusesCommit(err error) bool {
	switch codeOf(err) {
	case confluent.ErrUnknownMemberID, confluent.ErrNonEmptyGroup, confluent.ErrGroupSubscribedToTopic, confluent.ErrRebalanceInProgress,
		confluent.ErrIllegalGeneration, confluent.ErrStaleMemberEpoch:
		return true
	default:
		return false
	}
}
