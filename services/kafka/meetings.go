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
