package kafka

import (
	"fmt"
	"strconv"
	"strings"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// The metadata of a commit says of which log it is: a front of one means nothing in another of the same name. And it says how many partitions the
// topic had when the group began: those have commits soon, or begin where the group begins; the others were added since, and begin at their first
// record. Without it a process that comes a moment after another, in one generation, could not tell which.
const (
	topicMark = "topic-id="
	firstMark = " partitions="
)

// topicLog is a topic as its partitions were placed.
type topicLog struct {
	id    string
	first int32 // partitions that it had when the group began
}

// logOf finds out how many partitions the topic had when the group began: as commits of this log say, or as it has now where there are none.
func (m *member) logOf(topic string, info topicInfo, commits []confluent.TopicPartition) topicLog {
	log := topicLog{id: info.id, first: info.count}
	if known, ok := m.past.logs[topic]; ok {
		log.first = known.first
	}
	for _, c := range commits {
		if c.Offset < 0 || foreignTo(c, info.id) {
			continue
		}
		log.first = min(log.first, firstOf(c))
	}
	return log
}

func (m *member) mark(topic string) *string {
	mark := markOf(m.past.logs[topic])
	return &mark
}

func markOf(log topicLog) string { return fmt.Sprint(topicMark, log.id, firstMark, log.first) }

// foreignTo says that a commit is of another log. One that does not say so, made by other tools, is believed.
func foreignTo(c confluent.TopicPartition, id string) bool {
	if c.Metadata == nil {
		return false
	}
	of, ok := strings.CutPrefix(*c.Metadata, topicMark)
	of, _, _ = strings.Cut(of, " ")
	return ok && of != "" && of != id
}

// firstOf is how many partitions the topic had at the group's beginning, as a commit says; one that does not say it is of a group that has begun,
// all of whose partitions had their commits.
func firstOf(c confluent.TopicPartition) int32 {
	if c.Metadata == nil {
		return 0
	}
	_, text, _ := strings.Cut(*c.Metadata, firstMark)
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int32(n)
}
