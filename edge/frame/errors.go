package frame

import (
	"context"
	"errors"
	"strings"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// ErrorOf translates an error of the hub or its source into the answer to a request: code, reason, text. An error without an entry here is a
// fault of ours: its text is withheld, and the caller logs it. The answer is final for subscribe and consume; for a publish it says refused:
// err means that nothing was sent.
func ErrorOf(re, id string, err error) *Error {
	e := &Error{Re: re, ID: id, Final: re == "subscribe" || re == "consume", Message: err.Error(), Outcome: outcomeOf(re)}
	var (
		invalid   *hub.InvalidError
		partition *hub.UnknownPartitionError
		outside   *hub.OffsetOutOfRangeError
		lagged    *hub.LaggedError
		limit     *hub.LimitError
		forbidden *hub.ForbiddenError
		settings  *hub.GroupSettingsError
	)
	switch {
	case errors.As(err, &invalid):
		e.Code, e.Reason = "invalid_argument", "INVALID_ARGUMENT"
	case errors.As(err, &partition):
		e.Code, e.Reason = "not_found", "UNKNOWN_PARTITION"
	case errors.As(err, &outside):
		e.Code, e.Reason = "out_of_range", "OFFSET_OUT_OF_RANGE"
	case errors.As(err, &lagged):
		e.Code, e.Reason = "resource_exhausted", "LAGGED"
	case errors.As(err, &limit):
		e.Code, e.Reason = "resource_exhausted", "LIMIT"
		e.Retryable, e.RetryAfterMs = limit.Retry > 0, limit.Retry.Milliseconds()
	case errors.As(err, &forbidden):
		e.Code, e.Reason = "permission_denied", "FORBIDDEN"
	case errors.As(err, &settings):
		e.Code, e.Reason = "failed_precondition", "GROUP_SETTINGS"
	case errors.Is(err, hub.ErrUnknownTopic):
		e.Code, e.Reason = "not_found", "UNKNOWN_TOPIC"
	case errors.Is(err, hub.ErrTopicDeleted):
		e.Code, e.Reason = "not_found", "TOPIC_DELETED"
	case errors.Is(err, hub.ErrUnavailable):
		e.Code, e.Reason, e.Retryable, e.RetryAfterMs = "unavailable", "UNAVAILABLE", true, 1000
	case errors.Is(err, hub.ErrDraining):
		e.Code, e.Reason, e.Retryable = "unavailable", "DRAINING", true
	case errors.Is(err, hub.ErrUnimplemented):
		e.Code, e.Reason = "unimplemented", "UNIMPLEMENTED"
	case errors.Is(err, hub.ErrClosed), errors.Is(err, context.Canceled):
		e.Code, e.Reason = "canceled", "CANCELED"
	case errors.Is(err, context.DeadlineExceeded):
		e.Code, e.Reason, e.Retryable = "deadline_exceeded", "DEADLINE_EXCEEDED", true
	default:
		e.Code, e.Reason, e.Message = "internal", "INTERNAL", "internal error"
	}
	return e
}

// ErrorOfFailure is the answer to a publish that was not acknowledged.
func ErrorOfFailure(id string, f *tailracev1.PublishFailure) *Error {
	e := &Error{Re: "publish", ID: id, Code: f.GetCode(), Reason: f.GetReason(), Message: f.GetMessage(), Outcome: "unknown"}
	if f.GetOutcome() == tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED {
		e.Outcome = "refused"
	}
	if r := f.GetRetryAfter(); r != nil {
		e.Retryable, e.RetryAfterMs = true, r.AsDuration().Milliseconds()
	}
	return e
}

// IDInUse is the answer to a subscribe (or consume) whose id names one that is still open: nothing changes.
func IDInUse(re, id string) *Error {
	return &Error{
		Re: re, ID: id, Code: "already_exists", Reason: "ID_IN_USE", Message: "the id is in use by a subscription or consume of this session",
	}
}

// NotHeld is the answer to an ack or nack of deliveries that the consume of that id does not hold (any more): it had no effect on them.
// Of nacks, too, re is "ack": the service does not tell them apart.
func NotHeld(id string, tags []int64) *Error {
	return &Error{
		Re: "ack", ID: id, Code: "failed_precondition", Reason: "NOT_HELD", Message: "these deliveries are not held here (any more)", Tags: tags,
	}
}

// Denied is the answer to a request that access.Allow refused with err.
func Denied(re, id string, err error) *Error {
	return &Error{
		Re: re, ID: id, Final: re == "subscribe" || re == "consume",
		Code: "permission_denied", Reason: "FORBIDDEN", Message: err.Error(), Outcome: outcomeOf(re),
	}
}

// Invalid is the answer to a request of which field is wrong.
func Invalid(re, id, field, problem string) *Error {
	return &Error{
		Re: re, ID: id, Final: re == "subscribe" || re == "consume",
		Code: "invalid_argument", Reason: "INVALID_ARGUMENT", Message: strings.TrimPrefix(field+": "+problem, ": "), Outcome: outcomeOf(re),
	}
}

// outcomeOf is what is certain about the record of a request that was refused before anything was sent.
func outcomeOf(re string) string {
	if re == "publish" {
		return "refused"
	}
	return ""
}
