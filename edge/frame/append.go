package frame

import (
	"strconv"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Heartbeat is what a heartbeat tells: only what moved or is wrong.
type Heartbeat struct {
	Time                time.Time
	UpstreamUnavailable bool
	Subscriptions       []SubscriptionHeartbeat
}

// SubscriptionHeartbeat is the part of one subscription. Empty slices and a negative Lag are left out.
type SubscriptionHeartbeat struct {
	ID          string
	Positions   []hub.Position // that moved without a record
	Lag         int64          // offsets between positions and ends; -1: not told
	Unavailable []int32        // partitions that cannot be read at the moment
}

// AppendWelcome appends the first frame of a session.
func AppendWelcome(dst []byte, session string, heartbeat time.Duration, maxMessageBytes int64) []byte {
	dst = appendString(append(dst, `{"op":"welcome","session":`...), session)
	dst = appendInt(append(dst, `,"protocol":`...), Protocol)
	dst = appendInt(append(dst, `,"features":[],"heartbeatMs":`...), heartbeat.Milliseconds())
	dst = appendInt(append(dst, `,"maxMessageBytes":`...), maxMessageBytes)
	return append(dst, '}')
}

// AppendStarted appends how a subscription was resolved.
func AppendStarted(dst []byte, id, topic string, s hub.Started) []byte {
	dst = appendString(append(dst, `{"op":"started","id":`...), id)
	dst = appendString(append(dst, `,"topic":`...), topic)
	dst = appendString(append(dst, `,"topicId":`...), s.TopicID)
	dst = append(dst, `,"partitions":[`...)
	for i, p := range s.Partitions {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(append(dst, `{"partition":`...), int64(p.Partition))
		dst = appendInt(append(dst, `,"start":`...), p.Start)
		dst = appendInt(append(dst, `,"end":`...), p.End)
		if p.Incomplete {
			dst = append(dst, `,"incomplete":true`...)
		}
		dst = append(dst, '}')
	}
	return append(dst, `]}`...)
}

// AppendCaughtUp appends the seam between what was there before and what is live.
func AppendCaughtUp(dst []byte, id string) []byte {
	return append(appendString(append(dst, `{"op":"caughtup","id":`...), id), '}')
}

// AppendGap appends offsets that will not be delivered. A reason without a name here is told as "unspecified". topicID names the log that
// goes on at to, where it is another one; else it is empty.
func AppendGap(dst []byte, id string, partition int32, from, to int64, reason hub.GapReason, topicID string) []byte {
	return appendGap(dst, id, partition, from, to, reason, 0, topicID)
}

// appendGap appends a gap that leaves out that many records, if they are counted.
func appendGap(dst []byte, id string, partition int32, from, to int64, reason hub.GapReason, left int64, topicID string) []byte {
	dst = appendString(append(dst, `{"op":"gap","id":`...), id)
	dst = appendInt(append(dst, `,"partition":`...), int64(partition))
	dst = appendInt(append(dst, `,"from":`...), from)
	dst = appendInt(append(dst, `,"to":`...), to)
	dst = appendString(append(dst, `,"reason":`...), gapReason(reason))
	if left > 0 {
		dst = appendInt(append(dst, `,"records":`...), left)
	}
	if topicID != "" {
		dst = appendString(append(dst, `,"topicId":`...), topicID)
	}
	return append(dst, '}')
}

// AppendTopology appends a change of the partition count.
func AppendTopology(dst []byte, id string, partitions int32) []byte {
	dst = appendString(append(dst, `{"op":"topology","id":`...), id)
	return append(appendInt(append(dst, `,"partitions":`...), int64(partitions)), '}')
}

// AppendControl appends the frame of a part that carries no records: a gap for Gap and Recreated, a topology; nothing for the kinds that a
// client learns otherwise (Unavailable and Available by heartbeat, Deleted by the final error).
func AppendControl(dst []byte, id string, p *hub.Part) []byte {
	switch p.Kind {
	case hub.Gap:
		return appendGap(dst, id, p.Partition, p.From, p.Next, p.Reason, p.Left, "")
	case hub.Recreated:
		return AppendGap(dst, id, p.Partition, p.From, p.Next, hub.GapRecreated, p.TopicID)
	case hub.Topology:
		return AppendTopology(dst, id, p.Count)
	default:
		return dst
	}
}

// AppendHeartbeat appends a heartbeat.
func AppendHeartbeat(dst []byte, h *Heartbeat) []byte {
	dst = appendInt(append(dst, `{"op":"heartbeat","time":`...), h.Time.UnixMilli())
	dst = appendSection(dst, `,"positions":{`, h.Subscriptions,
		func(s *SubscriptionHeartbeat) bool { return len(s.Positions) > 0 },
		func(dst []byte, s *SubscriptionHeartbeat) []byte { return appendPositions(dst, s.Positions) })
	dst = appendSection(dst, `,"lag":{`, h.Subscriptions,
		func(s *SubscriptionHeartbeat) bool { return s.Lag >= 0 },
		func(dst []byte, s *SubscriptionHeartbeat) []byte { return appendInt(dst, s.Lag) })
	if h.UpstreamUnavailable {
		dst = append(dst, `,"upstream":"unavailable"`...)
	}
	dst = appendSection(dst, `,"unavailable":{`, h.Subscriptions,
		func(s *SubscriptionHeartbeat) bool { return len(s.Unavailable) > 0 },
		func(dst []byte, s *SubscriptionHeartbeat) []byte {
			for i, p := range s.Unavailable {
				dst = appendInt(append(dst, separator('[', i)), int64(p))
			}
			return append(dst, ']')
		})
	return append(dst, '}')
}

// appendSection appends an object with a member for each subscription that has one, or nothing where none has.
func appendSection(
	dst []byte, open string, subs []SubscriptionHeartbeat, has func(*SubscriptionHeartbeat) bool, value func([]byte, *SubscriptionHeartbeat) []byte,
) []byte {
	n := 0
	for i := range subs {
		s := &subs[i]
		if !has(s) {
			continue
		}
		if n == 0 {
			dst = append(dst, open...)
		} else {
			dst = append(dst, ',')
		}
		n++
		dst = value(append(appendString(dst, s.ID), ':'), s)
	}
	if n > 0 {
		dst = append(dst, '}')
	}
	return dst
}

// AppendPublished appends where a record was appended. Without an id it is the answer to an HTTP request.
func AppendPublished(dst []byte, id string, p *tailracev1.Published) []byte {
	dst = append(dst, `{"op":"published"`...)
	if id != "" {
		dst = appendString(append(dst, `,"id":`...), id)
	}
	dst = appendInt(append(dst, `,"partition":`...), int64(p.GetPartition()))
	dst = appendInt(append(dst, `,"offset":`...), p.GetOffset())
	if t := p.GetTime(); t != nil {
		dst = appendInt(append(dst, `,"time":`...), t.AsTime().UnixMilli())
	}
	return append(dst, '}')
}

// AppendResult appends the answer to a publish: published, or the error of its failure.
func AppendResult(dst []byte, id string, r *tailracev1.PublishResult) []byte {
	if p := r.GetPublished(); p != nil {
		return AppendPublished(dst, id, p)
	}
	return AppendError(dst, ErrorOfFailure(id, r.GetFailure()))
}

// AppendUnsubscribed appends the end of a subscription without an error; reason is "client" or "until".
func AppendUnsubscribed(dst []byte, id, reason string) []byte {
	dst = appendString(append(dst, `{"op":"unsubscribed","id":`...), id)
	return append(appendString(append(dst, `,"reason":`...), reason), '}')
}

// AppendPong appends the answer to a ping.
func AppendPong(dst []byte, id string) []byte {
	return append(appendString(append(dst, `{"op":"pong","id":`...), id), '}')
}

// AppendError appends an error.
func AppendError(dst []byte, e *Error) []byte {
	dst = appendString(append(dst, `{"op":"error","re":`...), e.Re)
	if e.ID != "" {
		dst = appendString(append(dst, `,"id":`...), e.ID)
	}
	dst = strconv.AppendBool(append(dst, `,"final":`...), e.Final)
	dst = appendString(append(dst, `,"code":`...), e.Code)
	dst = appendString(append(dst, `,"reason":`...), e.Reason)
	dst = appendString(append(dst, `,"message":`...), e.Message)
	dst = strconv.AppendBool(append(dst, `,"retryable":`...), e.Retryable)
	if e.Outcome != "" {
		dst = appendString(append(dst, `,"outcome":`...), e.Outcome)
	}
	if e.Retryable {
		dst = appendInt(append(dst, `,"retryAfterMs":`...), e.RetryAfterMs)
	}
	if len(e.Tags) > 0 {
		dst = append(dst, `,"tags":`...)
		for i, t := range e.Tags {
			dst = appendInt(append(dst, separator('[', i)), t)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// AppendGoodbye appends the announcement of a close frame. The client comes back after a random time from comeBackMin to comeBackMax; with a
// negative comeBackMax it stays away.
func AppendGoodbye(dst []byte, code int, reason string, comeBackMin, comeBackMax time.Duration) []byte {
	dst = appendInt(append(dst, `{"op":"goodbye","code":`...), int64(code))
	dst = appendString(append(dst, `,"reason":`...), reason)
	if comeBackMax >= 0 {
		dst = appendInt(append(dst, `,"reconnectAfterMs":[`...), comeBackMin.Milliseconds())
		dst = append(appendInt(append(dst, ','), comeBackMax.Milliseconds()), ']')
	}
	return append(dst, '}')
}

// appendPositions appends {"0":12,"1":[40,3]}.
func appendPositions(dst []byte, ps []hub.Position) []byte {
	dst = append(dst, '{')
	for i, p := range ps {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendInt(append(dst, '"'), int64(p.Partition)), `":`...)
		if p.Epoch < 0 {
			dst = appendInt(dst, p.Offset)
			continue
		}
		dst = appendInt(append(dst, '['), p.Offset)
		dst = append(appendInt(append(dst, ','), int64(p.Epoch)), ']')
	}
	return append(dst, '}')
}

// separator is open before the first element and a comma before the others.
func separator(open byte, i int) byte {
	if i == 0 {
		return open
	}
	return ','
}

func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }

// gapReason is the name of a reason: those of tailrace.v1.GapReason without the prefix, in lower case.
func gapReason(r hub.GapReason) string {
	switch r {
	case hub.GapRetention:
		return "retention"
	case hub.GapTruncation:
		return "truncation"
	case hub.GapRecreated:
		return "recreated"
	case hub.GapSlow:
		return "slow"
	case hub.GapConflated:
		return "conflated"
	case hub.GapTooLarge:
		return "too_large"
	case hub.GapStart:
		return "start"
	default:
		return "unspecified"
	}
}
