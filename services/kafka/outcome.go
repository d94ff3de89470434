package kafka

import (
	"errors"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// answer is the result of one record, and its outcome for the metric.
type answer struct {
	outcome string
	result  *tailracev1.PublishResult
}

// cause is why a record was refused.
type cause struct {
	code    string // Connect's name
	reason  string
	message string
	retry   time.Duration // 0: it does not help
}

// Causes that are not the record's own.
var (
	draining    = cause{"unavailable", ReasonDraining, "the service is shutting down", time.Second}
	canceled    = cause{"canceled", ReasonCanceled, "the caller left before the record was handed over", 0}
	unavailable = cause{"unavailable", ReasonKafkaUnavailable, "Kafka does not answer", 2 * time.Second}
	leaderless  = cause{"unavailable", ReasonKafkaUnavailable, "the partition has no leader", 2 * time.Second}
	silent      = cause{"unavailable", ReasonKafkaUnavailable, "the partition's leader does not answer", 2 * time.Second}
	crowded     = cause{"resource_exhausted", ReasonLimit, "too many records wait for Kafka", time.Second}
	// unknownTopic: it was there a moment ago.
	unknownTopic = cause{"not_found", ReasonUnknownTopic, "the topic does not exist", 0}
	// unmet: Kafka says that there is such a partition, the producer has not heard of it.
	unmet = cause{"unavailable", ReasonKafkaUnavailable, "the partition is new", 500 * time.Millisecond}
)

// refusals are the errors with which a record is certainly not in the log: librdkafka's own before anything was sent, and those with which a
// broker refuses a batch before it appends. Every other error leaves it open: a request that timed out may have been written, and so may
// NOT_ENOUGH_REPLICAS_AFTER_APPEND; what was purged from a queue may be a retry of what had been sent.
var refusals = map[confluent.ErrorCode]cause{
	confluent.ErrUnknownTopic:                {"not_found", ReasonUnknownTopic, "", 0},
	confluent.ErrUnknownTopicOrPart:          {"not_found", ReasonUnknownTopic, "", 0},
	confluent.ErrTopicException:              {"not_found", ReasonUnknownTopic, "", 0},
	confluent.ErrUnknownPartition:            unmet, // partitions that are not there were refused before
	confluent.ErrMsgSizeTooLarge:             {"invalid_argument", ReasonRecordTooLarge, "", 0},
	confluent.ErrRecordListTooLarge:          {"invalid_argument", ReasonRecordTooLarge, "", 0},
	confluent.ErrInvalidRecord:               {"invalid_argument", ReasonInvalidRecord, "", 0},
	confluent.ErrInvalidTimestamp:            {"invalid_argument", ReasonInvalidRecord, "", 0},
	confluent.ErrInvalidArg:                  {"invalid_argument", ReasonInvalidRecord, "", 0},
	confluent.ErrInvalidMsg:                  {"invalid_argument", ReasonInvalidRecord, "", 0},
	confluent.ErrInvalidMsgSize:              {"invalid_argument", ReasonInvalidRecord, "", 0},
	confluent.ErrUnsupportedForMessageFormat: {"failed_precondition", ReasonKafkaRefused, "", 0},
	confluent.ErrUnsupportedCompressionType:  {"failed_precondition", ReasonKafkaRefused, "", 0},
	confluent.ErrPolicyViolation:             {"failed_precondition", ReasonKafkaRefused, "", 0},
	confluent.ErrTopicAuthorizationFailed:    {"permission_denied", ReasonNotAuthorized, "", 0},
	confluent.ErrClusterAuthorizationFailed:  {"permission_denied", ReasonNotAuthorized, "", 0},
	confluent.ErrNotEnoughReplicas:           {"unavailable", ReasonKafkaUnavailable, "", 2 * time.Second},
	confluent.ErrQueueFull:                   {"resource_exhausted", ReasonLimit, "", time.Second},
	// The broker found fault with another record of its batch.
	confluent.ErrInvalidDifferentRecord: {"unavailable", ReasonKafkaRefused, "", 100 * time.Millisecond},
}

// refusal is the answer for a record that is certainly not in the log.
func refusal(c cause) answer {
	return failed(c, tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED, outcomeRefused)
}

// unknownOutcome is the answer for a record that may be in the log, or appear there. There is no hint when to retry: that may double it.
func unknownOutcome(code, message string) answer {
	return failed(cause{code, ReasonOutcomeUnknown, message, 0}, tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN, outcomeUnknown)
}

func failed(c cause, o tailracev1.PublishOutcome, label string) answer {
	f := &tailracev1.PublishFailure{Code: c.code, Reason: c.reason, Message: c.message, Outcome: o}
	if c.retry > 0 {
		f.RetryAfter = durationpb.New(c.retry)
	}
	return answer{label, &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: f}}}
}

// produceFailure is the answer for a record that librdkafka did not take: whatever the error, nothing was sent.
func produceFailure(err error) answer {
	c, ok := refusals[codeOf(err)]
	if !ok {
		c = cause{code: "unavailable", reason: ReasonKafkaRefused, retry: time.Second}
	}
	c.message = err.Error()
	return refusal(c)
}

// deliveryFailure is the answer for a delivery report with an error, for a record of that size in a topic with that limit (0: unknown).
func deliveryFailure(err error, size, limit int64) answer {
	c, ok := refusals[codeOf(err)]
	if !ok {
		return unknownOutcome("unavailable", err.Error())
	}
	c.message = err.Error()
	if c.reason == ReasonRecordTooLarge && size < limit/2 {
		// Not the record but the batch it shared: the topic's limit is far below what librdkafka puts into one.
		c = cause{"unavailable", ReasonKafkaRefused, "sent together with too many others for the topic's max.message.bytes", 100 * time.Millisecond}
	}
	return refusal(c)
}

func codeOf(err error) confluent.ErrorCode {
	if e, ok := errors.AsType[confluent.Error](err); ok {
		return e.Code()
	}
	return confluent.ErrUnknown
}
