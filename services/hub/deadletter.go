package hub

import "fmt"

// maxTopicName is the longest name of a topic.
const maxTopicName = 249

// LegalTopic says whether there may be a topic of a name, by Kafka's rule (org.apache.kafka.common.internals.Topic): 1 to 249 of a-z A-Z 0-9 . _ -,
// and neither "." nor "..".
func LegalTopic(name string) bool {
	if name == "" || len(name) > maxTopicName || name == "." || name == ".." {
		return false
	}
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return true
}

// internal are the topics that Kafka lets nobody but itself write to (org.apache.kafka.common.internals.Topic).
var internal = map[string]bool{"__consumer_offsets": true, "__transaction_state": true, "__share_group_state": true}

// DeadLetterTopic is where the dead letters of a topic go in a group that names a topic for them, or none.
func DeadLetterTopic(topic, named string) string {
	if named != "" {
		return named
	}
	return topic + ".dlq"
}

// DeadLetterTopics are all topics that the dead letters of a group go to, each once.
func DeadLetterTopics(topics []string, named string) (to []string) {
	seen := map[string]struct{}{}
	for _, topic := range topics {
		t := DeadLetterTopic(topic, named)
		if _, twice := seen[t]; !twice {
			seen[t] = struct{}{}
			to = append(to, t)
		}
	}
	return to
}

// DeadLetterProblem says what is wrong with where the dead letters of a group go, which may have named a topic; empty: nothing. There must be able to be
// such a topic, and the group must not read it: what it can't process would come round again and again. A topic that cannot exist has no dead letters.
func DeadLetterProblem(topics []string, named string) string {
	if named != "" && !LegalTopic(named) {
		return fmt.Sprintf(`is not a topic's name: that is 1 to %d of a-z A-Z 0-9 . _ -, and not "." or ".."`, maxTopicName)
	}
	read := make(map[string]bool, len(topics))
	for _, topic := range topics {
		read[topic] = true
	}
	for _, topic := range topics {
		switch to := DeadLetterTopic(topic, named); {
		case !LegalTopic(topic):
		case !LegalTopic(to):
			return fmt.Sprintf("is required: %q has more than %d characters", to, maxTopicName)
		case internal[to]:
			return fmt.Sprintf("would be %q, which is Kafka's own: nobody else may write there", to)
		case read[to]:
			return fmt.Sprintf("would be %q, which is one of the topics: no group reads its own dead letters", to)
		}
	}
	return ""
}
