// Package frametest translates between the two forms of the WebSocket protocol, for tests: so one dialogue can be held in both, and what is
// said in both compared. It shares no code with the edge. Its functions may be called concurrently.
package frametest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// unknown is the number of a field that no message has: that of ops and fields that the protocol does not have.
const unknown = 999

// clientJSON is every op of a client.
type clientJSON struct {
	Op             string
	ID             string
	Topic          string
	TopicID        string
	Keys           []bytesJSON
	Partitions     []int32
	Start          json.RawMessage
	Until          json.RawMessage
	OnOutOfRange   string
	Slow           string
	As             string
	MaxRecordBytes int32

	Key       *string
	KeyBase64 *[]byte
	Value     json.RawMessage
	Text      *string
	Base64    *[]byte
	Tombstone bool
	Headers   [][2]json.RawMessage
	Partition *int32

	Topics       []string
	Group        string
	Initial      string
	MaxInFlight  int32
	AckTimeoutMs int64
	MaxAttempts  int32
	DeadLetter   string
	Ordering     string
	AutoAck      bool
	Tags         []int64
	UpTo         int64
	DelayMs      int64
	Reason       string
	Token        string
}

// bytesJSON is a string or {"base64":…}.
type bytesJSON []byte

// UnmarshalJSON reads either.
func (b *bytesJSON) UnmarshalJSON(text []byte) error {
	if text[0] == '{' {
		var v struct{ Base64 []byte }
		err := json.Unmarshal(text, &v)
		*b = v.Base64
		return err
	}
	var s string
	err := json.Unmarshal(text, &s)
	*b = bytesJSON(s)
	return err
}

// Client translates an op of a client from JSON to an encoded ClientFrame. It judges nothing: what is wrong in one form is wrong in the other. A
// member that the protocol does not have becomes an unknown field, an op that it does not have an unknown arm. What ClientFrame cannot say, such
// as a value of the wrong type, is an error. "as" is left out.
func Client(text []byte) ([]byte, error) {
	var c clientJSON
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("translate %.100s: %w", text, err)
	}
	m, err := c.frame()
	if err != nil {
		return nil, fmt.Errorf("translate %.100s: %w", text, err)
	}
	encoded, err := proto.Marshal(m)
	if err != nil || m.Op == nil || !hasUnknown(text) {
		if m.Op == nil {
			encoded = protowire.AppendBytes(protowire.AppendTag(nil, unknown, protowire.BytesType), nil)
		}
		return encoded, err
	}
	arm, _, n := protowire.ConsumeTag(encoded)
	op, _ := protowire.ConsumeBytes(encoded[n:])
	op = protowire.AppendVarint(protowire.AppendTag(op, unknown, protowire.VarintType), 1)
	return protowire.AppendBytes(protowire.AppendTag(nil, arm, protowire.BytesType), op), nil
}

func hasUnknown(text []byte) bool {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(&clientJSON{})
	return err != nil && strings.Contains(err.Error(), "unknown field")
}

func (c *clientJSON) frame() (*tailracev1.ClientFrame, error) {
	m := &tailracev1.ClientFrame{}
	switch c.Op {
	case "subscribe":
		q, err := c.subscribe()
		m.Op = &tailracev1.ClientFrame_Subscribe{Subscribe: &tailracev1.SubscribeOp{Id: c.ID, Request: q}}
		return m, err
	case "publish":
		r, err := c.record()
		m.Op = &tailracev1.ClientFrame_Publish{Publish: &tailracev1.PublishOne{Id: c.ID, Topic: c.Topic, Record: r}}
		return m, err
	case "unsubscribe":
		m.Op = &tailracev1.ClientFrame_Unsubscribe{Unsubscribe: &tailracev1.UnsubscribeOp{Id: c.ID}}
	case "ping":
		m.Op = &tailracev1.ClientFrame_Ping{Ping: &tailracev1.PingOp{Id: c.ID}}
	case "consume":
		m.Op = &tailracev1.ClientFrame_Consume{Consume: &tailracev1.ConsumeOp{Id: c.ID, Start: c.consume()}}
	case "ack":
		m.Op = &tailracev1.ClientFrame_Ack{Ack: &tailracev1.AckOp{Id: c.ID, Ack: &tailracev1.Ack{Tags: c.Tags, UpTo: c.UpTo}}}
	case "nack":
		m.Op = &tailracev1.ClientFrame_Nack{Nack: &tailracev1.NackOp{Id: c.ID, Nack: &tailracev1.Nack{Tags: c.Tags, Delay: milliseconds(c.DelayMs), Reason: c.Reason}}}
	case "auth":
		m.Op = &tailracev1.ClientFrame_Auth{Auth: &tailracev1.AuthOp{Token: c.Token}}
	}
	return m, nil
}

func (c *clientJSON) consume() *tailracev1.ConsumeStart {
	return &tailracev1.ConsumeStart{
		Group: c.Group, Topics: c.Topics, MaxInFlight: c.MaxInFlight, AckTimeout: milliseconds(c.AckTimeoutMs), MaxAttempts: c.MaxAttempts,
		DeadLetterTopic: c.DeadLetter, AutoAck: c.AutoAck,
		Initial:  choose[tailracev1.InitialPosition](c.Initial, "earliest", "latest"),
		Ordering: choose[tailracev1.Ordering](c.Ordering, "key", "none"),
	}
}

// milliseconds is a duration; nil for none.
func milliseconds(n int64) *durationpb.Duration {
	if n == 0 {
		return nil
	}
	return durationpb.New(time.Duration(n) * time.Millisecond)
}

func (c *clientJSON) subscribe() (*tailracev1.SubscribeRequest, error) {
	q := &tailracev1.SubscribeRequest{
		Topic: c.Topic, TopicId: c.TopicID, Partitions: c.Partitions, MaxRecordBytes: c.MaxRecordBytes,
		OnOutOfRange: choose[tailracev1.OutOfRangePolicy](c.OnOutOfRange, "earliest", "latest", "fail"),
		SlowPolicy:   choose[tailracev1.SlowPolicy](c.Slow, "catchup", "skip", "conflate", "fail"),
	}
	for _, k := range c.Keys {
		q.Keys = append(q.Keys, k)
	}
	var err error
	if q.Start, err = start(c.Start); err != nil {
		return nil, err
	}
	q.Stop, err = stop(c.Until)
	return q, err
}

// choose is the number of a word of a closed choice, from 1; 0 where there is none, and 99 for one that is not known.
func choose[E ~int32](word string, words ...string) E {
	if word == "" {
		return 0
	}
	if i := slices.Index(words, word); i >= 0 {
		return E(i + 1)
	}
	return 99
}

func start(text json.RawMessage) (*tailracev1.Start, error) {
	switch string(text) {
	case "":
		return nil, nil
	case `"latest"`:
		return &tailracev1.Start{At: &tailracev1.Start_Latest{Latest: &tailracev1.Latest{}}}, nil
	case `"earliest"`:
		return &tailracev1.Start{At: &tailracev1.Start_Earliest{Earliest: &tailracev1.Earliest{}}}, nil
	}
	var s struct {
		Positions map[string]Place
		Missing   string
		Time      *time.Time
		Last      *int32
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	switch {
	case s.Time != nil:
		return &tailracev1.Start{At: &tailracev1.Start_Time{Time: timestamppb.New(*s.Time)}}, nil
	case s.Last != nil:
		return &tailracev1.Start{At: &tailracev1.Start_Last{Last: *s.Last}}, nil
	}
	ps, err := positions(s.Positions)
	return &tailracev1.Start{At: &tailracev1.Start_Positions{Positions: &tailracev1.Positions{
		Positions: ps, Missing: choose[tailracev1.MissingPosition](s.Missing, "earliest", "latest", "skip"),
	}}}, err
}

func stop(text json.RawMessage) (*tailracev1.Stop, error) {
	switch string(text) {
	case "":
		return nil, nil
	case `"end"`:
		return &tailracev1.Stop{AtEnd: true}, nil
	}
	var s struct {
		Positions map[string]Place
		Records   int64
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	ps, err := positions(s.Positions)
	return &tailracev1.Stop{Positions: ps, Records: s.Records}, err
}

func positions(places map[string]Place) (ps []*tailracev1.Position, err error) {
	for name, at := range places {
		p, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return nil, err
		}
		q := &tailracev1.Position{Partition: int32(p), Offset: at.Offset}
		if at.Epoch >= 0 {
			q.LeaderEpoch = &at.Epoch
		}
		ps = append(ps, q)
	}
	return ps, nil
}

func (c *clientJSON) record() (*tailracev1.PublishRecord, error) {
	r := &tailracev1.PublishRecord{Partition: c.Partition}
	switch {
	case c.Key != nil:
		r.Key = []byte(*c.Key)
	case c.KeyBase64 != nil:
		r.Key = *c.KeyBase64
	}
	switch {
	case c.Value != nil:
		r.Value = c.Value
	case c.Text != nil:
		r.Value = []byte(*c.Text)
	case c.Base64 != nil:
		r.Value = *c.Base64
	}
	for _, h := range c.Headers {
		g := &tailracev1.Header{}
		if err := json.Unmarshal(h[0], &g.Name); err != nil {
			return nil, err
		}
		if string(h[1]) != "null" {
			var v bytesJSON
			if err := json.Unmarshal(h[1], &v); err != nil {
				return nil, err
			}
			g.Value = append([]byte{}, v...)
		}
		r.Headers = append(r.Headers, g)
	}
	return r, nil
}
