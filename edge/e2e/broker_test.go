package e2e_test

import (
	"flag"
	"testing"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

var kafkaAt = flag.String("e2e.kafka", "", "bootstrap servers of a running Kafka to use; empty: one is started")

// broker returns the bootstrap servers of a real Kafka that all tests of this run share; each test has topics of its own.
func broker(t testing.TB) string {
	t.Helper()
	if *kafkaAt != "" {
		return *kafkaAt
	}
	return kafkatest.Start(t).Bootstrap
}
