package stream

import (
	"fmt"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// subscription is a SubscribeRequest that was found valid, its defaults filled in.
type subscription struct {
	request    hub.Request
	heartbeat  time.Duration
	batchBytes int
}

// maxViolations bounds an answer: it travels in headers.
const maxViolations = 16

// checker collects violations.
type checker struct{ found violations }

func (c *checker) require(ok bool, field, format string, args ...any) {
	if !ok && len(c.found) < maxViolations {
		c.found = append(c.found, &hub.InvalidError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
}

// parseSubscribe validates a request; the error is all that is wrong with it.
func parseSubscribe(m *tailracev1.SubscribeRequest) (subscription, error) {
	c := &checker{}
	c.require(m.GetTopic() != "", "topic", "is required")
	c.partitions("partitions", m.GetPartitions())
	c.keys(m.GetKeys())
	c.require(m.GetMaxBatchBytes() >= 0, "max_batch_bytes", "is negative")
	c.require(m.GetMaxRecordBytes() >= 0, "max_record_bytes", "is negative")

	s := subscription{
		request: hub.Request{
			Topic: m.GetTopic(), TopicID: m.GetTopicId(), Partitions: m.GetPartitions(), Keys: m.GetKeys(),
			KeyScope:       c.keyScope(m.GetKeyScope()),
			Start:          c.start(m.GetStart()),
			Stop:           c.stop(m.GetStop()),
			OnOutOfRange:   c.outOfRange(m.GetOnOutOfRange()),
			Slow:           c.slowPolicy(m.GetSlowPolicy()),
			MaxRecordBytes: int(m.GetMaxRecordBytes()),
		},
		heartbeat:  defaultHeartbeat,
		batchBytes: defaultBatchBytes,
	}
	if d := m.GetHeartbeatInterval(); d != nil {
		s.heartbeat = d.AsDuration()
		c.require(d.IsValid() && s.heartbeat >= minHeartbeat && s.heartbeat <= maxHeartbeat,
			"heartbeat_interval", "must be from %s to %s", minHeartbeat, maxHeartbeat)
	}
	if n := m.GetMaxBatchBytes(); n > 0 {
		s.batchBytes = min(int(n), maxBatchBytes)
	}
	return s, c.found.or(nil)
}

func (c *checker) partitions(field string, ps []int32) {
	c.require(len(ps) <= maxPartitions, field, "has %d entries, at most %d are allowed", len(ps), maxPartitions)
	seen := make(map[int32]struct{}, min(len(ps), maxPartitions))
	for _, p := range ps[:min(len(ps), maxPartitions)] {
		c.partition(field, p, seen)
	}
}

func (c *checker) partition(field string, p int32, seen map[int32]struct{}) {
	c.require(p >= 0, field, "partition %d is negative", p)
	_, twice := seen[p]
	c.require(!twice, field, "partition %d is named twice", p)
	seen[p] = struct{}{}
}

func (c *checker) keys(keys [][]byte) {
	c.require(len(keys) <= maxKeys, "keys", "has %d entries, at most %d are allowed", len(keys), maxKeys)
	total := 0
	for _, k := range keys {
		total += len(k)
	}
	c.require(total <= maxKeyBytes, "keys", "has %d bytes in all, at most %d are allowed", total, maxKeyBytes)
}

func (c *checker) start(m *tailracev1.Start) hub.Start {
	switch at := m.GetAt().(type) {
	case nil, *tailracev1.Start_Latest:
		return hub.Start{Kind: hub.Latest}
	case *tailracev1.Start_Earliest:
		return hub.Start{Kind: hub.Earliest}
	case *tailracev1.Start_Positions:
		return hub.Start{
			Kind:      hub.AtPositions,
			Positions: c.positions("start.positions", at.Positions.GetPositions()),
			Missing:   c.missing(at.Positions.GetMissing()),
		}
	case *tailracev1.Start_Time:
		c.require(at.Time.IsValid(), "start.time", "is not a valid time")
		return hub.Start{Kind: hub.AtTime, Time: at.Time.AsTime()}
	case *tailracev1.Start_Last:
		c.require(at.Last >= 1 && at.Last <= maxLast, "start.last", "must be from 1 to %d", maxLast)
		return hub.Start{Kind: hub.Last, Last: int(at.Last)}
	default:
		c.require(false, "start", "is of a kind that this service does not know")
		return hub.Start{}
	}
}

func (c *checker) stop(m *tailracev1.Stop) hub.Stop {
	c.require(m.GetRecords() >= 0, "stop.records", "is negative")
	c.require(m.GetBytes() >= 0, "stop.bytes", "is negative")
	return hub.Stop{
		Positions: c.positions("stop.positions", m.GetPositions()),
		AtEnd:     m.GetAtEnd(),
		Records:   m.GetRecords(),
		Bytes:     m.GetBytes(),
	}
}

func (c *checker) positions(field string, ms []*tailracev1.Position) []hub.Position {
	if len(ms) == 0 {
		return nil
	}
	c.require(len(ms) <= maxPartitions, field, "has %d entries, at most %d are allowed", len(ms), maxPartitions)
	ms = ms[:min(len(ms), maxPartitions)]
	seen := make(map[int32]struct{}, len(ms))
	positions := make([]hub.Position, len(ms))
	for i, m := range ms {
		c.partition(field, m.GetPartition(), seen)
		c.require(m.GetOffset() >= 0, field, "offset %d of partition %d is negative", m.GetOffset(), m.GetPartition())
		positions[i] = hub.Position{Partition: m.GetPartition(), Offset: m.GetOffset(), Epoch: -1}
		if m.LeaderEpoch != nil {
			positions[i].Epoch = m.GetLeaderEpoch()
		}
	}
	return positions
}

func (c *checker) missing(m tailracev1.MissingPosition) hub.Missing {
	switch m {
	case tailracev1.MissingPosition_MISSING_POSITION_UNSPECIFIED, tailracev1.MissingPosition_MISSING_POSITION_EARLIEST:
		return hub.MissingEarliest
	case tailracev1.MissingPosition_MISSING_POSITION_LATEST:
		return hub.MissingLatest
	case tailracev1.MissingPosition_MISSING_POSITION_SKIP:
		return hub.MissingSkip
	}
	c.require(false, "start.positions.missing", "has the unknown value %d", m)
	return 0
}

func (c *checker) keyScope(m tailracev1.KeyScope) hub.KeyScope {
	switch m {
	case tailracev1.KeyScope_KEY_SCOPE_UNSPECIFIED:
		return hub.KeyScopeDefault
	case tailracev1.KeyScope_KEY_SCOPE_HASHED:
		return hub.KeyScopeHashed
	case tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS:
		return hub.KeyScopeAll
	}
	c.require(false, "key_scope", "has the unknown value %d", m)
	return 0
}

func (c *checker) outOfRange(m tailracev1.OutOfRangePolicy) hub.OutOfRange {
	switch m {
	case tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_UNSPECIFIED, tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_EARLIEST:
		return hub.OutOfRangeEarliest
	case tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_LATEST:
		return hub.OutOfRangeLatest
	case tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_FAIL:
		return hub.OutOfRangeFail
	}
	c.require(false, "on_out_of_range", "has the unknown value %d", m)
	return 0
}

func (c *checker) slowPolicy(m tailracev1.SlowPolicy) hub.SlowPolicy {
	switch m {
	case tailracev1.SlowPolicy_SLOW_POLICY_UNSPECIFIED, tailracev1.SlowPolicy_SLOW_POLICY_CATCH_UP:
		return hub.SlowCatchUp
	case tailracev1.SlowPolicy_SLOW_POLICY_SKIP:
		return hub.SlowSkip
	case tailracev1.SlowPolicy_SLOW_POLICY_CONFLATE:
		return hub.SlowConflate
	case tailracev1.SlowPolicy_SLOW_POLICY_FAIL:
		return hub.SlowFail
	}
	c.require(false, "slow_policy", "has the unknown value %d", m)
	return 0
}

// parsePublish validates what concerns a request as a whole; each record is judged by itself, where it is appended.
func parsePublish(m *tailracev1.PublishRequest, encodedBytes int) error {
	c := &checker{}
	c.require(m.GetTopic() != "", "topic", "is required")
	n := len(m.GetRecords())
	c.require(n > 0, "records", "is empty")
	c.require(n <= maxPublishRecords, "records", "has %d entries, at most %d are allowed", n, maxPublishRecords)
	c.require(encodedBytes <= maxPublishBytes, "records", "has %d bytes in all, at most %d are allowed", encodedBytes, maxPublishBytes)
	return c.found.or(nil)
}
