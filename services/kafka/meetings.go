package kafka

import "time"

// meetings are the topics whose leaders a consumer has asked for: when it asked in vain, or zero.
type meetings map[string]time.Time

// due says whether to ask: for the first time, or again, since it was in vain.
func (m meetings) due(topic string, again time.Duration) bool {
	failed, asked := m[topic]
	return !asked || !failed.IsZero() && time.Since(failed) >= again
}

func (m meetings) note(topic string, err error) {
	if len(m) >= infoTopics {
		clear(m)
	}
	m[topic] = time.Time{}
	if err != nil {
		m[topic] = time.Now()
	}
}

// met says whether it was not in vain.
func (m meetings) met(topic string) bool {
	failed, asked := m[topic]
	return asked && failed.IsZero()
}

// topicLogs are the ids of the topics that a consumer has read. It must not read another log under the same name: once it knows a leader epoch of a
// partition it takes lower ones for outdated, for ever, and asks with its own, which the leaders of a topic that was created anew refuse
// (UNKNOWN_LEADER_EPOCH). librdkafka tells nobody. Another consumer can read it.
type topicLogs map[string]string

// isAnother notes the id of a topic (empty: unknown), and says whether the consumer has read another log under its name.
func (l topicLogs) isAnother(topic, id string) bool {
	was := l[topic]
	if id == "" || was == id {
		return false
	}
	if len(l) >= infoTopics {
		clear(l)
	}
	l[topic] = id
	return was != ""
}
