package kafka

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// denials are the errors by which Kafka refuses a group to its members until somebody changes what they are refused for. librdkafka asks again
// for ever, so that without this the workers would wait for ever and not know why.
var denials = []confluent.ErrorCode{
	confluent.ErrGroupAuthorizationFailed, confluent.ErrTopicAuthorizationFailed,
	confluent.ErrInvalidGroupID, confluent.ErrInconsistentGroupProtocol, confluent.ErrGroupIDNotFound,
	confluent.ErrUnsupportedAssignor, confluent.ErrUnsupportedVersion,
}

// denial is what the workers of a group are told where an error of its member says that Kafka refuses it; nil: it does not say so.
func denial(s group.Settings, err error) error {
	e, ok := errors.AsType[confluent.Error](err)
	if !ok || !slices.Contains(denials, e.Code()) {
		return nil
	}
	switch e.Code() {
	case confluent.ErrGroupAuthorizationFailed:
		return forbidden(fmt.Sprintf("read as group %q", s.Group), "group")
	case confluent.ErrTopicAuthorizationFailed:
		return forbidden("read of "+strings.Join(s.Topics, ", "), "topic")
	case confluent.ErrInvalidGroupID:
		return &hub.InvalidError{Field: "start.group", Problem: "is a name that Kafka refuses"}
	case confluent.ErrInconsistentGroupProtocol, confluent.ErrGroupIDNotFound: // the latter by KIP-848, where a group of the name is of another type
		return &hub.GroupSettingsError{Problem: fmt.Sprintf("group %q has members in Kafka that share partitions in another way than tailrace does "+
			"(cooperative-sticky, or the server's of -kafka.group-protocol consumer): stop them, or use another group", s.Group)}
	default:
		return &hub.GroupSettingsError{Problem: fmt.Sprintf("Kafka does not serve group %q as -kafka.group-protocol asks for it: %s", s.Group, e.Code())}
	}
}

// forbidden is what callers are told of what Kafka does not let this service do.
func forbidden(what, resource string) error {
	return &hub.ForbiddenError{Problem: fmt.Sprintf("Kafka does not let this service %s: give its user READ and DESCRIBE on the %s", what, resource)}
}
