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

// burials is how many dead letters are under way at a time, of all groups.
const burials = 100

// caller of dead letters: they share its turns.
const buries = "dead letters"

// Bury is group.DeadLetters'. Up to burials letters are under way at once; who comes then waits. Those of one partition are stored in the order in
// which they come, except where one needs a second attempt.
func (c *Client) Bury(ctx context.Context, l group.Letter, done func(error)) {
	letter, err := letterRecord(l)
	if err != nil {
		done(err)
		return
	}
	select {
	case c.burials <- struct{}{}:
	case <-c.stopped:
		done(fmt.Errorf("dead letter: %w", hub.ErrDraining))
		return
	case <-ctx.Done():
		done(ctx.Err())
		return
	}
	end := func(err error) {
		<-c.burials
		done(err)
	}
	c.Begin(ctx, buries, l.To, letter, func(result *tailracev1.PublishResult) {
		err := whyNot(result)
		if c.hopeful(err) {
			go func() { end(c.bury(ctx, l, letter, err)) }() // Run awaits it: it has a place among the burials
			return
		}
		end(err)
	})
}

// hopeful says that another attempt may store what could not be stored.
func (c *Client) hopeful(err error) bool {
	return errors.Is(err, errTooLarge) || errors.Is(err, hub.ErrUnknownTopic) && c.cfg.CreateDeadLetters
}

// buried waits until no dead letter is under way, and lets none come.
func (c *Client) buried() {
	for range cap(c.burials) {
		c.burials <- struct{}{}
	}
}

// letterRecord is the record that a letter is stored as.
func letterRecord(l group.Letter) (*tailracev1.PublishRecord, error) {
	record := &tailracev1.Record{}
	if err := proto.Unmarshal(l.Record.Body, record); err != nil {
		return nil, fmt.Errorf("dead letter: %w", err)
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
	return letter, nil
}

// bury tries again with what could not be stored because of err: in a topic that is made for it, or with less of its value.
func (c *Client) bury(ctx context.Context, l group.Letter, letter *tailracev1.PublishRecord, err error) error {
	if errors.Is(err, hub.ErrUnknownTopic) && c.cfg.CreateDeadLetters {
		if err = c.admin.create(ctx, l.To); err == nil {
			err = c.send(ctx, l.To, letter)
		}
	}
	if errors.Is(err, errTooLarge) && letter.Value != nil {
		cut := []byte(strconv.Itoa(len(letter.Value)))
		letter = &tailracev1.PublishRecord{Key: letter.Key, Value: letter.Value, Headers: append(letter.Headers, &tailracev1.Header{Name: headerCut, Value: cut})}
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
	results, err := c.PublishAs(ctx, buries, topic, []*tailracev1.PublishRecord{r})
	if err != nil {
		return err
	}
	return whyNot(results[0])
}

// whyNot is why a record was not published.
func whyNot(r *tailracev1.PublishResult) error {
	f := r.GetFailure()
	switch {
	case f == nil:
		return nil
	case f.GetReason() == ReasonRecordTooLarge:
		return fmt.Errorf("%w: %s", errTooLarge, f.GetMessage())
	case f.GetReason() == ReasonUnknownTopic:
		return fmt.Errorf("%w: %s", hub.ErrUnknownTopic, f.GetMessage())
	default:
		return fmt.Errorf("publish: %s: %s", f.GetReason(), f.GetMessage())
	}
}

// create creates a topic with the broker's defaults. Who asks meanwhile waits for the same answer.
func (a *admin) create(ctx context.Context, topic string) error {
	_, err, _ := a.once.Do("create/"+topic, func() (any, error) { return nil, a.createOnce(ctx, topic) }) // no topic has a slash
	return err
}

func (a *admin) createOnce(ctx context.Context, topic string) error {
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
