package frametest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Place is a position in JSON: an offset, or [offset, leader epoch]. Without an epoch it is -1.
type Place struct {
	Offset int64
	Epoch  int32
}

// MarshalJSON writes the shorter of the two.
func (p Place) MarshalJSON() ([]byte, error) {
	if p.Epoch < 0 {
		return strconv.AppendInt(nil, p.Offset, 10), nil
	}
	return fmt.Appendf(nil, "[%d,%d]", p.Offset, p.Epoch), nil
}

// UnmarshalJSON reads both.
func (p *Place) UnmarshalJSON(text []byte) error {
	p.Epoch = -1
	if text[0] != '[' {
		return json.Unmarshal(text, &p.Offset)
	}
	return json.Unmarshal(text, &[]any{&p.Offset, &p.Epoch})
}

type object = map[string]any

// Server translates an encoded ServerFrame to JSON, as the edge says it where `as` is text. What the JSON form does not have (the topic of a gap,
// the partition count of started) is left out.
func Server(encoded []byte) ([]byte, error) {
	m := &tailracev1.ServerFrame{}
	if err := (proto.UnmarshalOptions{}).Unmarshal(encoded, m); err != nil {
		return nil, fmt.Errorf("server frame: %w", err)
	}
	if len(m.ProtoReflect().GetUnknown()) > 0 {
		return nil, fmt.Errorf("server frame with unknown fields %x", m.ProtoReflect().GetUnknown())
	}
	o, err := frameObject(m)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(o); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(text.Bytes()), nil
}

func frameObject(m *tailracev1.ServerFrame) (object, error) {
	switch f := m.GetOp().(type) {
	case *tailracev1.ServerFrame_Welcome:
		w := f.Welcome
		return object{
			"op": "welcome", "session": w.GetSession(), "protocol": w.GetProtocol(), "features": append([]string{}, w.GetFeatures()...),
			"heartbeatMs": w.GetHeartbeat().AsDuration().Milliseconds(), "maxMessageBytes": w.GetMaxMessageBytes(),
		}, nil
	case *tailracev1.ServerFrame_Started:
		return startedObject(f.Started), nil
	case *tailracev1.ServerFrame_Records:
		return recordsObject(f.Records), nil
	case *tailracev1.ServerFrame_Deliveries:
		records := []object{}
		for _, d := range f.Deliveries.GetDeliveries() {
			o := recordObject(d.GetRecord())
			o["tag"], o["attempt"] = d.GetTag(), d.GetAttempt()
			records = append(records, o)
		}
		return object{"op": "records", "id": f.Deliveries.GetId(), "records": records}, nil
	case *tailracev1.ServerFrame_CaughtUp:
		return object{"op": "caughtup", "id": f.CaughtUp.GetId()}, nil
	case *tailracev1.ServerFrame_Gap:
		return gapObject(f.Gap), nil
	case *tailracev1.ServerFrame_Topology:
		return object{"op": "topology", "id": f.Topology.GetId(), "partitions": f.Topology.GetTopology().GetPartitions()}, nil
	case *tailracev1.ServerFrame_Heartbeat:
		return heartbeatObject(f.Heartbeat), nil
	case *tailracev1.ServerFrame_Published:
		p := f.Published.GetPublished()
		o := object{"op": "published", "id": f.Published.GetId(), "partition": p.GetPartition(), "offset": p.GetOffset()}
		if p.GetTime() != nil {
			o["time"] = p.GetTime().AsTime().UnixMilli()
		}
		return o, nil
	case *tailracev1.ServerFrame_Unsubscribed:
		return object{"op": "unsubscribed", "id": f.Unsubscribed.GetId(), "reason": f.Unsubscribed.GetReason()}, nil
	case *tailracev1.ServerFrame_Pong:
		return object{"op": "pong", "id": f.Pong.GetId()}, nil
	case *tailracev1.ServerFrame_Error:
		return errorObject(f.Error), nil
	case *tailracev1.ServerFrame_Goodbye:
		g := f.Goodbye
		o := object{"op": "goodbye", "code": g.GetCode(), "reason": g.GetReason()}
		if g.ReconnectAfterMax != nil {
			o["reconnectAfterMs"] = []int64{g.GetReconnectAfterMin().AsDuration().Milliseconds(), g.GetReconnectAfterMax().AsDuration().Milliseconds()}
		}
		return o, nil
	default:
		return nil, fmt.Errorf("server frame with the arm %T", m.GetOp())
	}
}

func startedObject(f *tailracev1.StartedFrame) object {
	if m := f.GetConsume(); m != nil {
		word := func(text, prefix string) string { return strings.ToLower(strings.TrimPrefix(text, prefix)) }
		o := object{
			"op": "started", "id": f.GetId(), "group": m.GetGroup(), "topics": m.GetTopics(), "maxInFlight": m.GetMaxInFlight(),
			"ackTimeoutMs": m.GetAckTimeout().AsDuration().Milliseconds(), "maxAttempts": m.GetMaxAttempts(), "autoAck": m.GetAutoAck(),
			"initial": word(m.GetInitial().String(), "INITIAL_POSITION_"), "ordering": word(m.GetOrdering().String(), "ORDERING_"),
		}
		if m.GetDeadLetterTopic() != "" {
			o["deadLetter"] = m.GetDeadLetterTopic()
		}
		return o
	}
	ps := []object{}
	for _, p := range f.GetStarted().GetPartitions() {
		o := object{"partition": p.GetPartition(), "start": p.GetStart(), "end": p.GetEnd()}
		if p.GetIncomplete() {
			o["incomplete"] = true
		}
		ps = append(ps, o)
	}
	return object{"op": "started", "id": f.GetId(), "topic": f.GetTopic(), "topicId": f.GetStarted().GetTopicId(), "partitions": ps}
}

func gapObject(f *tailracev1.GapFrame) object {
	g := f.GetGap()
	o := object{
		"op": "gap", "id": f.GetId(), "partition": g.GetPartition(), "from": g.GetFrom(), "to": g.GetTo(),
		"reason": strings.ToLower(strings.TrimPrefix(g.GetReason().String(), "GAP_REASON_")),
	}
	if g.GetTopicId() != "" {
		o["topicId"] = g.GetTopicId()
	}
	if g.GetRecords() != 0 {
		o["records"] = g.GetRecords()
	}
	return o
}

func heartbeatObject(f *tailracev1.HeartbeatFrame) object {
	o := object{"op": "heartbeat", "time": f.GetTime().AsTime().UnixMilli()}
	moved, lag, unavailable := object{}, object{}, object{}
	for _, s := range f.GetSubscriptions() {
		lag[s.GetId()] = s.GetLag()
		if len(s.GetUnavailablePartitions()) > 0 {
			unavailable[s.GetId()] = s.GetUnavailablePartitions()
		}
		places := map[string]Place{}
		for _, p := range s.GetPositions() {
			at := Place{p.GetOffset(), -1}
			if p.LeaderEpoch != nil {
				at.Epoch = p.GetLeaderEpoch()
			}
			places[strconv.Itoa(int(p.GetPartition()))] = at
		}
		if len(places) > 0 {
			moved[s.GetId()] = places
		}
	}
	for name, v := range map[string]object{"positions": moved, "lag": lag, "unavailable": unavailable} {
		if len(v) > 0 {
			o[name] = v
		}
	}
	if f.GetUpstreamUnavailable() {
		o["upstream"] = "unavailable"
	}
	return o
}

func errorObject(f *tailracev1.ErrorFrame) object {
	o := object{
		"op": "error", "re": f.GetRe(), "final": f.GetFinal(), "code": f.GetCode(), "reason": f.GetReason(), "message": f.GetMessage(),
		"retryable": f.GetRetryable(),
	}
	if f.GetId() != "" {
		o["id"] = f.GetId()
	}
	switch f.GetOutcome() {
	case tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED:
		o["outcome"] = "refused"
	case tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN:
		o["outcome"] = "unknown"
	case tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNSPECIFIED:
	}
	if f.RetryAfter != nil {
		o["retryAfterMs"] = f.GetRetryAfter().AsDuration().Milliseconds()
	}
	if len(f.GetTags()) > 0 {
		o["tags"] = f.GetTags()
	}
	return o
}

func recordsObject(f *tailracev1.RecordsFrame) object {
	records, moved := []object{}, map[string]Place{}
	for _, b := range f.GetRecords().GetBatches() {
		name, told := strconv.Itoa(int(b.GetPartition())), false
		at := Place{b.GetNext(), -1}
		for _, r := range b.GetRecords() {
			records = append(records, recordObject(r))
			told = b.GetNext() == r.GetOffset()+1
			if r.LeaderEpoch != nil {
				at.Epoch = r.GetLeaderEpoch()
			}
		}
		if delete(moved, name); !told {
			moved[name] = at
		}
	}
	o := object{"op": "records", "id": f.GetId(), "records": records}
	if len(moved) > 0 {
		o["positions"] = moved
	}
	return o
}

func recordObject(r *tailracev1.Record) object {
	o := object{"topic": r.GetTopic(), "partition": r.GetPartition(), "offset": r.GetOffset()}
	if r.Time != nil {
		o["time"] = r.GetTime().AsTime().UnixMilli()
		if r.GetTimeType() == tailracev1.TimestampType_TIMESTAMP_TYPE_APPEND {
			o["timeType"] = "append"
		}
	}
	if r.LeaderEpoch != nil {
		o["epoch"] = r.GetLeaderEpoch()
	}
	switch {
	case r.Key == nil:
	case utf8.Valid(r.Key):
		o["key"] = string(r.Key)
	default:
		o["keyBase64"] = r.Key
	}
	headers := [][2]any{}
	for _, h := range r.GetHeaders() {
		v := any(nil)
		switch {
		case h.Value == nil:
		case utf8.Valid(h.Value):
			v = string(h.Value)
		default:
			v = object{"base64": h.Value}
		}
		headers = append(headers, [2]any{h.GetName(), v})
	}
	if len(headers) > 0 {
		o["headers"] = headers
	}
	switch {
	case r.Value == nil:
		o["tombstone"] = true
	case utf8.Valid(r.Value):
		o["text"] = string(r.Value)
	default:
		o["base64"] = r.Value
	}
	return o
}
