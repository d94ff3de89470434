package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptrace"
	"sync/atomic"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// reasonOutcomeUnknown is that of a record that was sent and not answered.
const reasonOutcomeUnknown = "OUTCOME_UNKNOWN"

// Publish appends records to a topic in their order and returns one result for each, in the same order. While no service can be reached it waits,
// at most Config.PublishWait and until ctx ends: then the error is hub.ErrUnavailable (or ctx's, when that was cancelled), and nothing was sent.
// Once sent, a record is never sent again: when the answer does not come, its result says so.
func (s *Source) Publish(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	wait, cancel := context.WithTimeout(ctx, s.cfg.PublishWait)
	defer cancel()
	m := &tailracev1.PublishRequest{Topic: topic, Records: records}
	for failures := 1; ; failures++ {
		results, err := s.publish(ctx, m)
		if err == nil {
			return results, nil
		}
		if s.pause(wait, failures) != nil {
			return nil, s.ended(ctx, err)
		}
	}
}

// publish tries once. An error means that it is certain that nothing was appended, and that another try may help.
func (s *Source) publish(ctx context.Context, m *tailracev1.PublishRequest) ([]*tailracev1.PublishResult, error) {
	// The body goes out after the head, so without the head there is no request. (net/http itself sends again only what the server has said
	// not to have processed, and what did not leave.)
	var sent atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	r := s.next()
	request := connect.NewRequest(m)
	trace.Inject(ctx, request.Header())
	response, err := r.publish.CallUnary(traced, request)
	if err == nil {
		if n := len(response.Msg.GetResults()); n != len(m.GetRecords()) {
			return failures(m, unknown(fmt.Sprintf("the service answered %d of %d records", n, len(m.GetRecords())))), nil
		}
		return response.Msg.GetResults(), nil
	}
	a := answerOf(err)
	switch {
	case a.reason == reasonLost && !sent.Load():
		if ctx.Err() == nil {
			r.failed()
		}
		return nil, fmt.Errorf("%w: %s", hub.ErrUnavailable, lostText)
	case a.reason == reasonDraining:
		return nil, fmt.Errorf("%w: %s", hub.ErrUnavailable, a.text)
	case a.reason == reasonLost:
		if ctx.Err() == nil {
			r.failed()
		}
		text := "the connection to the service was lost after the record was sent"
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			text = "the service did not answer in time"
		}
		return failures(m, unknown(text)), nil
	case refuses(a.reason):
		return failures(m, a.refused()), nil
	default:
		return failures(m, unknown("the service could not tell what became of the record")), nil
	}
}

// refuses says whether an answer with this reason makes certain that nothing was appended: the service refused the whole request.
func refuses(reason string) bool {
	switch reason {
	case reasonInvalidArgument, reasonForbidden, reasonUnknownTopic, reasonUnknownPartition, reasonTopicDeleted, reasonLimit, reasonUnavailable,
		reasonUnimplemented, reasonDraining:
		return true
	default:
		return false
	}
}

func (a *answer) refused() *tailracev1.PublishFailure {
	f := &tailracev1.PublishFailure{
		Code: a.code.String(), Reason: a.reason, Message: a.text, Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED,
	}
	if a.retry > 0 {
		f.RetryAfter = durationpb.New(a.retry)
	}
	return f
}

func unknown(text string) *tailracev1.PublishFailure {
	return &tailracev1.PublishFailure{
		Code: connect.CodeUnknown.String(), Reason: reasonOutcomeUnknown, Message: text + ": it may be in the log, or appear there",
		Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN,
	}
}

// failures is the same failure for each record.
func failures(m *tailracev1.PublishRequest, f *tailracev1.PublishFailure) []*tailracev1.PublishResult {
	results := make([]*tailracev1.PublishResult, len(m.GetRecords()))
	for i := range results {
		results[i] = &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: f}}
	}
	return results
}
