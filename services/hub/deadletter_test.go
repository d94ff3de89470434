package hub_test

import (
	"slices"
	"strings"
	"testing"

	"tailrace.dev/tailrace/services/hub"
)

func TestDeadLetterTopics(t *testing.T) {
	long := strings.Repeat("t", 246)
	for _, c := range []struct {
		topics []string
		named  string
		to     []string
		word   string // of the problem; empty: there is none
	}{
		{[]string{"a", "b", "a"}, "", []string{"a.dlq", "b.dlq"}, ""},
		{[]string{"a", "b"}, "D_e-a.d9", []string{"D_e-a.d9"}, ""},
		{[]string{long[:245]}, "", []string{long[:245] + ".dlq"}, ""},
		{[]string{"a", long}, "", []string{"a.dlq", long + ".dlq"}, "249"},
		{[]string{long}, "dead", []string{"dead"}, ""},
		{[]string{"no/topic"}, "", []string{"no/topic.dlq"}, ""}, // there is none that could have dead letters
		{[]string{"a"}, long + "long", []string{long + "long"}, "249"},
		{[]string{"a"}, ".", []string{"."}, "name"},
		{[]string{"a"}, "..", []string{".."}, "name"},
		{[]string{"a"}, "a/b", []string{"a/b"}, "name"},
		{[]string{"a"}, "dé", []string{"dé"}, "name"},
		{[]string{"a"}, "__consumer_offsets", []string{"__consumer_offsets"}, "Kafka's own"},
		{[]string{"a", "b"}, "b", []string{"b"}, "one of the topics"},
		{[]string{"a.dlq", "a"}, "", []string{"a.dlq.dlq", "a.dlq"}, "one of the topics"},
	} {
		if got := hub.DeadLetterTopics(c.topics, c.named); !slices.Equal(got, c.to) {
			t.Errorf("%v, named %q: got %v, want %v", c.topics, c.named, got, c.to)
		}
		if got := hub.DeadLetterProblem(c.topics, c.named); !strings.Contains(got, c.word) || (got == "") != (c.word == "") {
			t.Errorf("%v, named %q: got %q, want %q", c.topics, c.named, got, c.word)
		}
	}
}
