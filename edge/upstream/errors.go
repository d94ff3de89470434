package upstream

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"tailrace.dev/tailrace/services/hub"
)

// domain is that of the service's google.rpc.ErrorInfo.
const domain = "tailrace.dev"

// Reasons of the service, as in services/stream.
const (
	reasonInvalidArgument  = "INVALID_ARGUMENT"
	reasonForbidden        = "FORBIDDEN"
	reasonUnknownTopic     = "UNKNOWN_TOPIC"
	reasonUnknownPartition = "UNKNOWN_PARTITION"
	reasonTopicDeleted     = "TOPIC_DELETED"
	reasonOffsetOutOfRange = "OFFSET_OUT_OF_RANGE"
	reasonLimit            = "LIMIT"
	reasonUnavailable      = "KAFKA_UNAVAILABLE"
	reasonDraining         = "DRAINING"
	reasonUnimplemented    = "UNIMPLEMENTED"
	reasonGroupSettings    = "GROUP_SETTINGS"
	reasonInternal         = "INTERNAL"
	reasonUnknownGroup     = "UNKNOWN_GROUP"
	reasonLost             = "CONNECTION_LOST" // no answer of the service at all
)

var (
	errNotServing = errors.New("not serving")
	errSilent     = errors.New("stream is silent")
	errEnded      = errors.New("stream ended by itself")
	// errMalformed: what came is not what tailrace.v1 promises.
	errMalformed = errors.New("malformed message")
)

// What clients are told where it is not the service that says it: where it is, and what failed, is the operator's.
const (
	lostText  = "the edge cannot reach the service at the moment"
	kafkaText = "the service cannot reach Kafka, or the leader of a partition, at the moment"
)

// Problem says for people why the service is of no use at the moment, given that it is not.
func (s *Source) Problem() string {
	if s.Available() {
		return kafkaText
	}
	return lostText
}

// answer is what a service said of a call that failed.
type answer struct {
	reason   string // reasonLost, or empty, if it said nothing of its own
	code     connect.Code
	text     string
	retry    time.Duration // 0: no hint
	metadata map[string]string
	field    *hub.InvalidError
}

// answerOf reads the error of a call. Without an ErrorInfo of the service's own, whatever its code, it says nothing about the service: codes are
// also made up by the client's library and by proxies.
func answerOf(err error) answer {
	a := answer{code: connect.CodeOf(err), text: err.Error()}
	coded, ok := errors.AsType[*connect.Error](err)
	if !ok || !connect.IsWireError(err) {
		a.reason = reasonLost
		return a
	}
	a.text = coded.Message()
	for _, detail := range coded.Details() {
		value, err := detail.Value()
		if err != nil {
			continue
		}
		switch d := value.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == domain {
				a.reason, a.metadata = d.GetReason(), d.GetMetadata()
			}
		case *errdetails.RetryInfo:
			a.retry = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			if vs := d.GetFieldViolations(); len(vs) > 0 {
				a.field = &hub.InvalidError{Field: vs[0].GetField(), Problem: vs[0].GetDescription()}
			}
		}
	}
	return a
}

// number is a number in the metadata, -1 if there is none.
func (a *answer) number(name string) int64 {
	n, err := strconv.ParseInt(a.metadata[name], 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// hubError is the one table from what a service says to the errors of the hub. What is not in it is worth another try, later.
func (a *answer) hubError(topic string) error {
	number := a.number
	switch a.reason {
	case reasonInvalidArgument:
		if a.field != nil {
			return a.field
		}
		return &hub.InvalidError{Field: "request", Problem: a.text}
	case reasonUnknownTopic:
		return hub.ErrUnknownTopic
	case reasonTopicDeleted:
		return hub.ErrTopicDeleted
	case reasonUnknownPartition:
		return &hub.UnknownPartitionError{Topic: topic, Partition: int32(number("partition")), Count: int32(number("count")), TopicID: a.metadata["topic_id"]}
	case reasonOffsetOutOfRange:
		return &hub.OffsetOutOfRangeError{
			Topic: topic, Partition: int32(number("partition")), Offset: number("offset"), Oldest: number("oldest"), End: number("end"),
		}
	case reasonLimit:
		return &hub.LimitError{Limit: a.metadata["limit"], Value: number("value"), Retry: a.retry}
	case reasonUnimplemented:
		return hub.ErrUnimplemented
	case reasonForbidden:
		return &hub.ForbiddenError{Problem: a.text}
	case reasonLost:
		return fmt.Errorf("%w: %s", hub.ErrUnavailable, lostText)
	default:
		return fmt.Errorf("%w: %s", hub.ErrUnavailable, a.text)
	}
}

// workerError is the same of a worker's stream, which is the caller's own: what the service refuses, it refuses the caller.
func (a *answer) workerError() error {
	switch a.reason {
	case reasonUnknownTopic:
		if topic := a.metadata["topic"]; topic != "" { // of several
			return &hub.UnknownTopicError{Topic: topic}
		}
		return hub.ErrUnknownTopic
	case reasonGroupSettings:
		return &hub.GroupSettingsError{Problem: a.text}
	case reasonDraining:
		return fmt.Errorf("%w: %s", hub.ErrDraining, a.text)
	case reasonInternal:
		return fmt.Errorf("the service has failed: %s", a.text)
	default:
		return a.hubError("")
	}
}

func isUnavailable(err error) bool { return errors.Is(err, hub.ErrUnavailable) }
