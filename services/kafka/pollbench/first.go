package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// waits are milliseconds, one for each topic.
type waits struct {
	Warm  []float64 `json:"warm"`  // of a consumer that is there and knows the topic: from assign
	Fresh []float64 `json:"fresh"` // of one that is created for it: from its creation
}

// first reads the first record of topics, named on one line of input, from their start.
func first(brokers string, in io.Reader) (err error) {
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return fmt.Errorf("reading the names of topics: %w", err)
	}
	one, err := newConsumer(brokers, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, one.Close()) }()
	var out waits
	for topic := range strings.FieldsSeq(line) {
		began := time.Now()
		fresh, err := newConsumer(brokers, nil)
		if err == nil {
			err = firstRecord(fresh, topic)
		}
		took := time.Since(began)
		if err == nil {
			err = fresh.Close()
		}
		if err != nil {
			return err
		}
		out.Fresh = append(out.Fresh, milliseconds(took))

		partitions, err := assignment(one, topic, false)
		if err != nil {
			return err
		}
		began = time.Now()
		if err := assigned(one, partitions); err != nil {
			return err
		}
		out.Warm = append(out.Warm, milliseconds(time.Since(began)))
		if err := one.Unassign(); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func firstRecord(consumer *confluent.Consumer, topic string) error {
	partitions, err := assignment(consumer, topic, false)
	if err != nil {
		return err
	}
	return assigned(consumer, partitions)
}

// assigned assigns and waits for a record.
func assigned(consumer *confluent.Consumer, partitions []confluent.TopicPartition) error {
	if err := consumer.Assign(partitions); err != nil {
		return fmt.Errorf("assigning: %w", err)
	}
	return firstOf(consumer)
}

// firstOf waits for a record.
func firstOf(consumer *confluent.Consumer) error {
	for until := time.Now().Add(time.Minute); time.Now().Before(until); {
		switch event := consumer.Poll(100).(type) {
		case *confluent.Message:
			return nil
		case confluent.Error:
			return fmt.Errorf("polling: %w", event)
		}
	}
	return errors.New("no record within a minute")
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
