package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// caller of dead letters: they share its turns.
const buries = "dead letters"

// Bury is group.DeadLetters'. So many letters are under way at once as slots says; who comes then waits. Those of one partition are stored in the order in
// which they come, except where one needs a second attempt.
func (c *Client) Bury(ctx context.Context, l group.Letter, done func(error)) {
	letter, err := newLetter(l)
	if err != nil {
		done(err)
		return
	}
	by := burier{l.Group, l.To}
	if err := c.burials.take(ctx, by); err != nil {
		done(err)
		return
	}
	end := func(err error) {
		c.burials.leave(by)
		done(err)
	}
	c.Begin(ctx, buries, l.To, letter.record(0, len(letter.value)), func(result *tailracev1.PublishResult) {
		err := whyNot(result)
		if c.hopeful(err) {
			go func() { end(c.bury(ctx, letter, err)) }() // Run awaits it: it has a slot
			return
		}
		end(err)
	})
}

// hopeful says that another attempt may store what could not be stored.
func (c *Client) hopeful(err error) bool {
	return unfit(err) || errors.Is(err, hub.ErrUnknownTopic) && c.cfg.CreateDeadLetters
}

// bury tries again with what could not be stored because of err: in a topic that is made for it, or with less of the record.
func (c *Client) bury(ctx context.Context, l *letter, err error) error {
	if errors.Is(err, hub.ErrUnknownTopic) && c.cfg.CreateDeadLetters {
		if err = c.admin.create(ctx, l.to); err == nil {
			err = c.send(ctx, l.to, l.record(0, len(l.value)))
		}
	}
	for strip := 0; strip <= stripAll && unfit(err); strip++ {
		keep := len(l.value)
		if strip > 0 {
			err = c.send(ctx, l.to, l.record(strip, keep))
		}
		for keep > 0 && errors.Is(err, errTooLarge) {
			keep /= 2
			err = c.send(ctx, l.to, l.record(strip, keep))
		}
	}
	return err
}

var (
	errTooLarge = errors.New("record too large")
	// errInvalid: such as a record without key for a topic that is compacted.
	errInvalid = errors.New("invalid record")
)

// unfit says that the topic will never take the record as it is.
func unfit(err error) bool { return errors.Is(err, errTooLarge) || errors.Is(err, errInvalid) }

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
	case f.GetReason() == ReasonInvalidRecord:
		return fmt.Errorf("%w: %s", errInvalid, f.GetMessage())
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
