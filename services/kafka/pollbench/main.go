// Command pollbench is what Tailrace is measured against, in a process of its own. It prints its results as lines of JSON.
//
//	pollbench -topic T            a bare loop around Poll of the same Kafka client reads a topic from its start
//	pollbench -topic T -latency   the same, live: values begin with the time of their sending in Unix nanoseconds
//	pollbench -topic T -group G   the same, -latency or not, as a member of a consumer group that begins at the topic's start and commits
//	pollbench -topic T -joins     how long members of groups, that lines on standard input name, wait for a first record
//	pollbench -first              how long consumers wait for a first record, of each topic that a line on standard input names
//	pollbench -writes ADDRESS     a bare loop that writes ready WebSocket frames to all sockets, one after the other
//	pollbench -bridge ADDRESS     the naive bridge: a Kafka consumer for each WebSocket
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// settings are the flags.
type settings struct {
	brokers, topic string
	records, skip  int
	latency, first bool
	group          string
	joins          bool
	writes, bridge string
	sockets        int
}

func main() {
	var s settings
	flag.StringVar(&s.brokers, "brokers", "127.0.0.1:9092", "bootstrap servers")
	flag.StringVar(&s.topic, "topic", "", "topic to read")
	flag.IntVar(&s.records, "records", 1_000_000, "records to read before the end")
	flag.BoolVar(&s.latency, "latency", false, "read live records and measure their delay")
	flag.IntVar(&s.skip, "skip", 0, "records at the beginning whose delay does not count")
	flag.StringVar(&s.group, "group", "", "read as a member of this consumer `group`")
	flag.BoolVar(&s.joins, "joins", false, "measure the time to the first record of a member of each consumer group named on standard input")
	flag.BoolVar(&s.first, "first", false, "measure the time to the first record of each topic named on standard input")
	flag.StringVar(&s.writes, "writes", "", "write ready frames to the WebSockets that come to this `address`")
	flag.IntVar(&s.sockets, "sockets", 1, "how many sockets -writes waits for")
	flag.StringVar(&s.bridge, "bridge", "", "serve WebSockets on this `address`, with a consumer for each")
	flag.Parse()
	if err := run(&s); err != nil {
		fmt.Fprintln(os.Stderr, "pollbench:", err)
		os.Exit(1)
	}
}

func run(s *settings) error {
	switch {
	case s.first:
		return first(s.brokers, os.Stdin)
	case s.joins:
		return joins(s, os.Stdin)
	case s.group != "":
		return readAsMember(s)
	case s.writes != "":
		return writes(s.writes, s.sockets, os.Stdin)
	case s.bridge != "":
		return bridge(s.bridge, s.brokers)
	default:
		return read(s)
	}
}

// result of reading.
type result struct {
	Records    int     `json:"records"`
	Bytes      int     `json:"bytes"`
	Seconds    float64 `json:"seconds"`    // from assign, or the creation of a member, to the last record
	CPUSeconds float64 `json:"cpuSeconds"` // user and system, in that time; after -skip
	P50        float64 `json:"p50"`        // milliseconds; with -latency
	P99        float64 `json:"p99"`        // milliseconds; with -latency
}

func newConsumer(brokers string, more confluent.ConfigMap) (*confluent.Consumer, error) {
	config := confluent.ConfigMap{
		"bootstrap.servers":      brokers,
		"group.id":               "pollbench", // demanded by the client; assign joins no group
		"enable.auto.commit":     false,
		"enable.metrics.push":    false,
		"fetch.queue.backoff.ms": 1, // the default, 1000, stalls bulk reads
		"fetch.wait.max.ms":      100,
	}
	maps.Copy(config, more)
	consumer, err := confluent.NewConsumer(&config)
	if err != nil {
		return nil, fmt.Errorf("creating a consumer: %w", err)
	}
	return consumer, nil
}

// assignment is all partitions of a topic, at their starts or ends.
func assignment(consumer *confluent.Consumer, topic string, end bool) (all []confluent.TopicPartition, err error) {
	metadata, err := consumer.GetMetadata(&topic, false, 10_000)
	if err != nil {
		return nil, fmt.Errorf("describing %q: %w", topic, err)
	}
	for _, p := range metadata.Topics[topic].Partitions {
		low, high, err := consumer.QueryWatermarkOffsets(topic, p.ID, 10_000)
		if err != nil {
			return nil, fmt.Errorf("asking for the offsets of partition %d: %w", p.ID, err)
		}
		at := confluent.Offset(low)
		if end {
			at = confluent.Offset(high)
		}
		all = append(all, confluent.TopicPartition{Topic: &topic, Partition: p.ID, Offset: at})
	}
	return all, nil
}

func read(s *settings) (err error) {
	consumer, err := newConsumer(s.brokers, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, consumer.Close()) }()
	partitions, err := assignment(consumer, s.topic, s.latency)
	if err != nil {
		return err
	}
	m := meter{settings: s, cpu: cpuTime(), began: time.Now()}
	if err := consumer.Assign(partitions); err != nil {
		return fmt.Errorf("assigning: %w", err)
	}
	if s.latency {
		fmt.Println("assigned")
	}
	if err := m.poll(consumer); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m.result())
}

// meter measures reading.
type meter struct {
	*settings
	cpu            time.Duration
	began          time.Time
	records, bytes int
	delays         []float64
}

// poll reads until there are enough records.
func (m *meter) poll(consumer *confluent.Consumer) error {
	for m.records < m.settings.records {
		switch event := consumer.Poll(100).(type) {
		case *confluent.Message:
			m.records++
			m.bytes += len(event.Value)
			if m.latency {
				m.delays = append(m.delays, delay(event.Value))
				if m.records == m.skip {
					m.delays, m.cpu = m.delays[:0], cpuTime()
				}
			}
		case confluent.Error:
			return fmt.Errorf("polling: %w", event)
		}
	}
	return nil
}

func (m *meter) result() result {
	out := result{Records: m.records, Bytes: m.bytes, Seconds: time.Since(m.began).Seconds(), CPUSeconds: (cpuTime() - m.cpu).Seconds()}
	if m.latency {
		slices.Sort(m.delays)
		out.P50, out.P99 = m.delays[len(m.delays)/2], m.delays[len(m.delays)*99/100]
	}
	return out
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
