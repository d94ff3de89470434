package e2e_test

import (
	"flag"
	"testing"
)

var kafkaAt = flag.String("e2e.kafka", "", "bootstrap servers of a running Kafka to use instead of starting one")

// broker returns the bootstrap servers of a real Kafka that all tests of this run share; each test has topics of its own.
func broker(t testing.TB) string {
	t.Helper()
	if *kafkaAt == "" {
		t.Fatal("no kafka")
	}
	return *kafkaAt
}
