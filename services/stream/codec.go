package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
)

// jsonCodec replaces Connect's JSON codec on all handlers, for two reasons. It refuses unknown fields, because a mistyped `start` must
// not mean latest. And it writes shadows as the messages that they stand for.
type jsonCodec struct{ name string }

// withJSON registers the codec under both names that Connect knows.
func withJSON() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(&jsonCodec{name: "json"}),
		connect.WithCodec(&jsonCodec{name: "json; charset=utf-8"}),
	)
}

func (c *jsonCodec) Name() string { return c.name }

func (c *jsonCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

func (c *jsonCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", message)
	}
	var full proto.Message
	switch message.(type) {
	case *wirev1.SubscribeResponse:
		full = &tailracev1.SubscribeResponse{}
	case *wirev1.ConsumeResponse:
		full = &tailracev1.ConsumeResponse{}
	}
	if full != nil {
		ready, err := proto.Marshal(m)
		if err != nil {
			return nil, fmt.Errorf("marshal shadow: %w", err)
		}
		if err := proto.Unmarshal(ready, full); err != nil {
			return nil, fmt.Errorf("unmarshal shadow: %w", err)
		}
		m = full
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, m)
}

func (c *jsonCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", message)
	}
	if len(data) == 0 {
		return errors.New("empty body: a JSON object was expected")
	}
	return protojson.UnmarshalOptions{}.Unmarshal(data, m)
}

// MarshalStable and IsBinary make Connect's GET requests possible, as with its own codec.
func (c *jsonCodec) MarshalStable(message any) ([]byte, error) {
	text, err := c.Marshal(message)
	if err != nil {
		return nil, err
	}
	compact := bytes.NewBuffer(text[:0])
	if err := json.Compact(compact, text); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

func (c *jsonCodec) IsBinary() bool { return false }
