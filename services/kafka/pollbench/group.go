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

// newMember subscribes to a topic as a member of a group that begins at the topic's start, and commits what was read once a second and when it is
// closed. assigned is called when it gets partitions.
func newMember(brokers, group, topic string, assigned func()) (*confluent.Consumer, error) {
	consumer, err := newConsumer(brokers, confluent.ConfigMap{
		"group.id":                      group,
		"partition.assignment.strategy": "cooperative-sticky",
		"auto.offset.reset":             "earliest",
		"enable.auto.commit":            true,
		"auto.commit.interval.ms":       1000,
	})
	if err != nil {
		return nil, err
	}
	err = consumer.SubscribeTopics([]string{topic}, func(_ *confluent.Consumer, event confluent.Event) error {
		if e, ok := event.(confluent.AssignedPartitions); ok && len(e.Partitions) > 0 {
			assigned()
		}
		return nil // the binding assigns
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing to %q: %w", topic, err), consumer.Close())
	}
	return consumer, nil
}

// readAsMember reads as a member of a group; its time begins before there is a consumer and ends with what was read committed.
func readAsMember(s *settings) error {
	m := meter{settings: s, cpu: cpuTime(), began: time.Now()}
	consumer, err := newMember(s.brokers, s.group, s.topic, func() {
		if s.latency {
			fmt.Println("assigned")
		}
	})
	if err != nil {
		return err
	}
	err = m.poll(consumer)
	if err == nil {
		_, err = consumer.Commit()
	}
	if err = errors.Join(err, consumer.Close()); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(m.result())
}

// joins becomes a member of each group that a line of input names, and answers with the milliseconds from the consumer's creation to its first record.
func joins(s *settings, in io.Reader) error {
	for lines := bufio.NewScanner(in); ; {
		if !lines.Scan() {
			return lines.Err()
		}
		began := time.Now()
		consumer, err := newMember(s.brokers, strings.TrimSpace(lines.Text()), s.topic, func() {})
		if err != nil {
			return err
		}
		err = firstOf(consumer)
		took := time.Since(began)
		if err = errors.Join(err, consumer.Close()); err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(milliseconds(took)); err != nil {
			return err
		}
	}
}
