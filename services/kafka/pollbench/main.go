// Command pollbench is the reference that Tailrace is measured against: a bare loop around Poll of the same Kafka client, in a process
// of its own. It reads a topic from its start and prints one line of JSON; with -latency it reads live records instead, whose values
// begin with the time of their sending in Unix nanoseconds.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// result is what is printed.
type result struct {
	Records    int     `json:"records"`
	Bytes      int     `json:"bytes"`
	Seconds    float64 `json:"seconds"`    // from assign to the last record
	CPUSeconds float64 `json:"cpuSeconds"` // user and system, in that time
	P50        float64 `json:"p50"`        // milliseconds; with -latency
	P99        float64 `json:"p99"`        // milliseconds; with -latency
}

func main() {
	brokers := flag.String("brokers", "127.0.0.1:9092", "bootstrap servers")
	topic := flag.String("topic", "", "topic to read")
	records := flag.Int("records", 1_000_000, "records to read before the end")
	latency := flag.Bool("latency", false, "read live records and measure their delay")
	flag.Parse()
	if err := run(*brokers, *topic, *records, *latency); err != nil {
		fmt.Fprintln(os.Stderr, "pollbench:", err)
		os.Exit(1)
	}
}

func run(brokers, topic string, records int, latency bool) (err error) {
	consumer, err := confluent.NewConsumer(&confluent.ConfigMap{
		"bootstrap.servers":      brokers,
		"group.id":               "pollbench", // demanded by the client; assign joins no group
		"enable.auto.commit":     false,
		"enable.metrics.push":    false,
		"fetch.queue.backoff.ms": 1, // the default, 1000, stalls bulk reads
		"fetch.wait.max.ms":      100,
	})
	if err != nil {
		return fmt.Errorf("creating the consumer: %w", err)
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	metadata, err := consumer.GetMetadata(&topic, false, 10_000)
	if err != nil {
		return fmt.Errorf("describing %q: %w", topic, err)
	}
	var assignment []confluent.TopicPartition
	for _, p := range metadata.Topics[topic].Partitions {
		low, high, err := consumer.QueryWatermarkOffsets(topic, p.ID, 10_000)
		if err != nil {
			return fmt.Errorf("asking for the offsets of partition %d: %w", p.ID, err)
		}
		at := confluent.Offset(low)
		if latency {
			at = confluent.Offset(high)
		}
		assignment = append(assignment, confluent.TopicPartition{Topic: &topic, Partition: p.ID, Offset: at})
	}
	var out result
	var delays []float64
	cpu, began := cpuTime(), time.Now()
	if err := consumer.Assign(assignment); err != nil {
		return fmt.Errorf("assigning: %w", err)
	}
	if latency {
		fmt.Println("assigned")
	}
	for out.Records < records {
		switch event := consumer.Poll(100).(type) {
		case *confluent.Message:
			out.Records++
			out.Bytes += len(event.Value)
			if latency {
				delays = append(delays, delay(event.Value))
			}
		case confluent.Error:
			return fmt.Errorf("polling: %w", event)
		}
	}
	out.Seconds = time.Since(began).Seconds()
	out.CPUSeconds = (cpuTime() - cpu).Seconds()
	if latency {
		slices.Sort(delays)
		out.P50, out.P99 = delays[len(delays)/2], delays[len(delays)*99/100]
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

// delay is the time since a value was sent, in milliseconds.
func delay(value []byte) float64 {
	stamp, _, _ := strings.Cut(string(value), " ")
	sent, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return 0
	}
	return float64(time.Now().UnixNano()-sent) / 1e6
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
