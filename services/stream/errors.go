package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// Domain of every google.rpc.ErrorInfo that the service sends.
const Domain = "tailrace.dev"

// Reasons: stable names of what went wrong. Texts may change, these do not.
const (
	ReasonInvalidArgument  = "INVALID_ARGUMENT"
	ReasonForbidden        = "FORBIDDEN"
	ReasonUnknownTopic     = "UNKNOWN_TOPIC"
	ReasonUnknownPartition = "UNKNOWN_PARTITION"
	ReasonTopicDeleted     = "TOPIC_DELETED"
	ReasonOffsetOutOfRange = "OFFSET_OUT_OF_RANGE"
	ReasonLagged           = "LAGGED"
	ReasonLimit            = "LIMIT"
	ReasonUnavailable      = "KAFKA_UNAVAILABLE"
	ReasonDraining         = "DRAINING"
	ReasonUnimplemented    = "UNIMPLEMENTED"
	ReasonStalled          = "STALLED"
	ReasonCanceled         = "CANCELED"
	ReasonDeadline         = "DEADLINE_EXCEEDED"
	ReasonConnectionLost   = "CONNECTION_LOST"
	ReasonInternal         = "INTERNAL"
	// ReasonRecordTooLarge and ReasonStopped are met in the results of PublishStream.
	ReasonRecordTooLarge = "RECORD_TOO_LARGE"
	ReasonStopped        = "STOPPED" // a record before it failed, under stop_on_error
	// ReasonGroupSettings: the workers of a group have settings in common, which are in the metadata.
	ReasonGroupSettings = "GROUP_SETTINGS"
	// ReasonUnknownGroup and ReasonGroupActive are GroupService's.
	ReasonUnknownGroup = "UNKNOWN_GROUP"
	ReasonGroupActive  = "GROUP_ACTIVE" // the group has members
	// ReasonDone is no error: a stop was reached, or a unary call was answered. It is met in logs and metrics only.
	ReasonDone = "DONE"
)

// Retry hints: how long a caller had better wait.
const (
	retryUnavailable = time.Second
	retryDraining    = time.Second
)

var (
	// errStalled: the peer took nothing for the stall timeout. It is not told (its stream was reset), but logged and counted.
	errStalled = errors.New("the reader takes nothing")
	// errGone: the peer can't be written to any more.
	errGone = errors.New("connection lost")
)

// deniedError is access.Allow's no; its text is meant for the caller.
type deniedError struct{ err error }

func (e *deniedError) Error() string { return e.err.Error() }
func (e *deniedError) Unwrap() error { return e.err }

// violations are the fields of a request that are wrong, all of them at once.
type violations []*hub.InvalidError

func (v violations) Error() string {
	texts := make([]string, len(v))
	for i, f := range v {
		texts[i] = f.Error()
	}
	return strings.Join(texts, "; ")
}

// or returns err, but the violations where there are any.
func (v violations) or(err error) error {
	if len(v) > 0 {
		return v
	}
	return err
}

// verdict is what a caller is told of an error.
type verdict struct {
	code     connect.Code
	reason   string
	text     string
	retry    time.Duration // 0: no hint
	metadata map[string]string
	fields   []*hub.InvalidError
	client   bool  // the caller ended it
	cause    error // nil: nobody needs it
}

// sentence is what a caller is told, and the cause by which judge knows an error again that comes back from the RPC library.
type sentence struct {
	text  string
	cause error
}

func (e *sentence) Error() string { return e.text }
func (e *sentence) Unwrap() error { return e.cause }

// judge is the one table from Go errors to codes and reasons. What it does not know is our bug, and its text stays here.
//
//nolint:cyclop // a table
func judge(err error) verdict {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	var (
		fields    violations
		field     *hub.InvalidError
		unknown   *hub.UnknownTopicError
		partition *hub.UnknownPartitionError
		offset    *hub.OffsetOutOfRangeError
		lagged    *hub.LaggedError
		limit     *hub.LimitError
		settings  *group.SettingsError
		named     *group.NamedError
		forbidden *hub.ForbiddenError
		others    *hub.GroupSettingsError
		denied    *deniedError
		coded     *connect.Error
	)
	switch {
	case err == nil, errors.Is(err, io.EOF):
		return verdict{reason: ReasonDone}
	case errors.As(err, &fields):
		return verdict{code: connect.CodeInvalidArgument, reason: ReasonInvalidArgument, text: fields.Error(), fields: fields}
	case errors.As(err, &field):
		return verdict{code: connect.CodeInvalidArgument, reason: ReasonInvalidArgument, text: field.Error(), fields: violations{field}}
	case errors.As(err, &denied):
		return verdict{code: connect.CodePermissionDenied, reason: ReasonForbidden, text: denied.Error()}
	case errors.As(err, &forbidden):
		return verdict{code: connect.CodePermissionDenied, reason: ReasonForbidden, text: forbidden.Error()}
	case errors.As(err, &others):
		return verdict{code: connect.CodeFailedPrecondition, reason: ReasonGroupSettings, text: others.Error()}
	case errors.As(err, &unknown):
		return verdict{code: connect.CodeNotFound, reason: ReasonUnknownTopic, text: unknown.Error(), metadata: map[string]string{"topic": unknown.Topic}}
	case errors.As(err, &partition):
		metadata := map[string]string{
			"topic": partition.Topic, "partition": number(int64(partition.Partition)), "count": number(int64(partition.Count)),
		}
		if partition.TopicID != "" {
			metadata["topic_id"] = partition.TopicID
		}
		return verdict{code: connect.CodeNotFound, reason: ReasonUnknownPartition, text: partition.Error(), metadata: metadata}
	case errors.As(err, &offset):
		return verdict{code: connect.CodeOutOfRange, reason: ReasonOffsetOutOfRange, text: offset.Error(), metadata: map[string]string{
			"topic": offset.Topic, "partition": number(int64(offset.Partition)), "offset": number(offset.Offset),
			"oldest": number(offset.Oldest), "end": number(offset.End),
		}}
	case errors.As(err, &lagged):
		return verdict{code: connect.CodeResourceExhausted, reason: ReasonLagged, text: lagged.Error(), metadata: map[string]string{
			"records": number(lagged.Records),
		}}
	case errors.As(err, &limit):
		return verdict{code: connect.CodeResourceExhausted, reason: ReasonLimit, text: limit.Error(), retry: limit.Retry, cause: limit, metadata: map[string]string{
			"limit": limit.Limit, "value": number(limit.Value),
		}}
	case errors.As(err, &settings):
		now := settings.Current
		return verdict{code: connect.CodeFailedPrecondition, reason: ReasonGroupSettings, text: settings.Error(), metadata: map[string]string{
			"group": now.Group, "topics": strings.Join(now.Topics, ","), "initial": now.Initial.String(), "ordering": now.Ordering.String(),
			"max_attempts": strconv.Itoa(now.MaxAttempts), "dead_letter_topic": now.DeadLetter,
		}}
	case errors.Is(err, group.ErrNotAllowed):
		return verdict{code: connect.CodePermissionDenied, reason: ReasonForbidden, text: group.ErrNotAllowed.Error()}
	case errors.As(err, &named):
		v := judge(named.Err)
		v.text, v.metadata = named.Error(), map[string]string{"group": named.Group}
		return v
	case errors.Is(err, group.ErrUnknown):
		return verdict{code: connect.CodeNotFound, reason: ReasonUnknownGroup, text: group.ErrUnknown.Error()}
	case errors.Is(err, group.ErrActive):
		return verdict{code: connect.CodeFailedPrecondition, reason: ReasonGroupActive, text: group.ErrActive.Error()}
	case errors.Is(err, hub.ErrUnknownTopic):
		return verdict{code: connect.CodeNotFound, reason: ReasonUnknownTopic, text: hub.ErrUnknownTopic.Error()}
	case errors.Is(err, hub.ErrTopicDeleted):
		return verdict{code: connect.CodeNotFound, reason: ReasonTopicDeleted, text: hub.ErrTopicDeleted.Error()}
	case errors.Is(err, hub.ErrDraining):
		return verdict{code: connect.CodeUnavailable, reason: ReasonDraining, text: "this replica is shutting down", retry: retryDraining}
	case errors.Is(err, hub.ErrUnavailable):
		return verdict{code: connect.CodeUnavailable, reason: ReasonUnavailable, text: "kafka cannot be reached at the moment", retry: retryUnavailable}
	case errors.Is(err, hub.ErrUnimplemented):
		return verdict{code: connect.CodeUnimplemented, reason: ReasonUnimplemented, text: "not part of this build"}
	case errors.Is(err, hub.ErrClosed):
		return verdict{code: connect.CodeInternal, reason: ReasonInternal, text: "internal error"} // only its owner closes it: our bug
	case errors.Is(err, errStalled):
		return verdict{code: connect.CodeAborted, reason: ReasonStalled, text: errStalled.Error()}
	case errors.Is(err, errGone):
		return verdict{code: connect.CodeCanceled, reason: ReasonConnectionLost, text: errGone.Error(), client: true}
	case errors.As(err, &coded):
		return judgeCoded(coded)
	case errors.Is(err, context.Canceled):
		return verdict{code: connect.CodeCanceled, reason: ReasonCanceled, text: "canceled", client: true}
	case errors.Is(err, context.DeadlineExceeded):
		return verdict{code: connect.CodeDeadlineExceeded, reason: ReasonDeadline, text: "deadline exceeded", client: true}
	default:
		return verdict{code: connect.CodeInternal, reason: ReasonInternal, text: "internal error"}
	}
}

// judgeCoded takes an error that already has a code: the RPC library's own (a malformed request, say), or a generated unimplemented.
func judgeCoded(err *connect.Error) verdict {
	v := verdict{code: err.Code(), reason: strings.ToUpper(err.Code().String()), text: err.Message()}
	switch err.Code() {
	case connect.CodeCanceled, connect.CodeDeadlineExceeded:
		v.client = true
	case connect.CodeInternal, connect.CodeUnknown, connect.CodeDataLoss:
		v.text = "internal error"
	default:
	}
	return v
}

// toConnect is the error as it travels. topic completes texts and metadata that do not name one.
func toConnect(v verdict, topic string) *connect.Error {
	metadata := v.metadata
	if topic != "" && metadata["topic"] == "" {
		metadata = map[string]string{"topic": topic}
		maps.Copy(metadata, v.metadata)
		if v.fields == nil {
			v.text = fmt.Sprintf("topic %q: %s", topic, v.text)
		}
	}
	err := connect.NewError(v.code, &sentence{v.text, v.cause})
	add := func(detail *connect.ErrorDetail, problem error) {
		if problem == nil { // details of well-known types always marshal
			err.AddDetail(detail)
		}
	}
	add(connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: v.reason, Domain: Domain, Metadata: metadata}))
	if v.retry > 0 {
		add(connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(v.retry)}))
	}
	if len(v.fields) > 0 {
		bad := &errdetails.BadRequest{}
		for _, f := range v.fields {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: f.Field, Description: f.Problem})
		}
		add(connect.NewErrorDetail(bad))
	}
	return err
}
