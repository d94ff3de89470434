package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// Headers of a dead letter, beside those of the record.
const (
	headerTopic     = "tailrace-topic"
	headerPartition = "tailrace-partition"
	headerOffset    = "tailrace-offset"
	headerGroup     = "tailrace-group"
	headerAttempts  = "tailrace-attempts"
	headerReason    = "tailrace-reason"
	headerDead      = "tailrace-time"      // RFC 3339, when it became a dead letter
	headerCut       = "tailrace-truncated" // how many bytes of the value there were, where it was cut
)

// Bury is group.DeadLetters'.
func (c *Client) Bury(ctx context.Context, l group.Letter, done func(error)) { done(c.bury(ctx, l)) }

func (c *Client) bury(ctx context.Context, l group.Letter) error {
	record := &tailracev1.Record{}
	if err := proto.Unmarshal(l.Record.Body, record); err != nil {
		return fmt.Errorf("dead letter: %w", err)
	}
	letter := &tailracev1.PublishRecord{Key: record.Key, Value: record.Value, Headers: record.GetHeaders()}
	add := func(name, value string) {
		letter.Headers = append(letter.Headers, &tailracev1.Header{Name: name, Value: []byte(value)})
	}
	add(headerTopic, l.Topic)
	add(headerPartition, strconv.Itoa(int(l.Partition.Partition)))
	add(headerOffset, strconv.FormatInt(l.Record.Offset, 10))
	add(headerGroup, l.Group)
	add(headerAttempts, strconv.Itoa(l.Attempts))
	add(headerReason, l.Reason)
	add(headerDead, l.Time.UTC().Format(time.RFC3339Nano))
	err := c.send(ctx, l.To, letter)
	if errors.Is(err, hub.ErrUnknownTopic) && c.cfg.CreateDeadLetters {
		if err = c.admin.create(ctx, l.To); err == nil {
			err = c.send(ctx, l.To, letter)
		}
	}
	if errors.Is(err, errTooLarge) && letter.Value != nil {
		add(headerCut, strconv.Itoa(len(letter.Value)))
		for keep := len(letter.Value) / 2; errors.Is(err, errTooLarge); keep /= 2 {
			letter.Value = letter.Value[:keep]
			if err = c.send(ctx, l.To, letter); keep == 0 {
				break
			}
		}
	}
	return err
}

var errTooLarge = errors.New("record too large")

// send publishes one record and waits for its acknowledgement.
func (c *Client) send(ctx context.Context, topic string, r *tailracev1.PublishRecord) error {
	results, err := c.PublishAs(ctx, "dead letters", topic, []*tailracev1.PublishRecord{r})
	if err != nil {
		return err
	}
	f := results[0].GetFailure()
	switch {
	case f == nil:
		return nil
	case f.GetReason() == "RECORD_TOO_LARGE":
		return fmt.Errorf("%w: %s", errTooLarge, f.GetMessage())
	default:
		return fmt.Errorf("publish: %s: %s", f.GetReason(), f.GetMessage())
	}
}

// create creates a topic with the broker's defaults.
func (a *admin) create(ctx context.Context, topic string) error {
	return a.call(ctx, "create topic", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		rs, err := c.CreateTopics(ctx, []confluent.TopicSpecification{{Topic: topic, NumPartitions: 1}}, confluent.SetAdminOperationTimeout(limit))
		if err != nil {
			return err
		}
		for _, r := range rs {
			if code := r.Error.Code(); code != confluent.ErrNoError && code != confluent.ErrTopicAlreadyExists {
				return r.Error
			}
		}
		return nil
	})
}
