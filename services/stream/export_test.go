package stream

import (
	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Judged is an error as a caller gets it, and what the table says of it.
type Judged struct {
	Err    *connect.Error
	Reason string
	Client bool
}

func Judge(err error, topic string) Judged {
	v := judge(err)
	return Judged{Err: toConnect(v, topic), Reason: v.reason, Client: v.client}
}

// OwnErrors are the errors that this package adds to the hub's.
func OwnErrors(inner error) []error {
	return []error{errStalled, errGone, &deniedError{inner}, violations{{Field: "topic", Problem: "is required"}}}
}

func AppendRecords(dst []byte, parts []hub.Part) ([]byte, []hub.Part) {
	return appendRecords(dst, parts)
}

func Shadow(m proto.Message) (*wirev1.SubscribeResponse, error) { return shadow(m) }

func JSONCodec() connect.Codec { return &jsonCodec{name: "json"} }

// ParseSubscribe returns what a valid request becomes.
func ParseSubscribe(m *tailracev1.SubscribeRequest) (r hub.Request, heartbeatMillis int64, batchBytes int, err error) {
	s, err := parseSubscribe(m)
	return s.request, s.heartbeat.Milliseconds(), s.batchBytes, err
}

func ParsePublish(m *tailracev1.PublishRequest, bytes int) error { return parsePublish(m, bytes) }
