package upstream

import (
	"context"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Bounds of the list of topics.
const (
	topicsTimeout = 5 * time.Second
	topicsFresh   = time.Second // an answer serves all who ask within this
	topicsPage    = 1000
	maxTopics     = 10_000 // the rest is left out
)

// Topics returns the topics that the service knows, by name; of more than 10,000 the first. While no service answers it waits until ctx ends: then
// the error is hub.ErrUnavailable.
func (s *Source) Topics(ctx context.Context) ([]*tailracev1.TopicSummary, error) {
	for failures := 1; ; failures++ {
		topics, err := s.listTopics(ctx)
		if err == nil || !isUnavailable(err) {
			return topics, err
		}
		if s.pause(ctx, failures) != nil {
			return nil, s.ended(ctx, err)
		}
	}
}

func (s *Source) listTopics(ctx context.Context) ([]*tailracev1.TopicSummary, error) {
	var all []*tailracev1.TopicSummary
	m := &tailracev1.ListTopicsRequest{PageSize: topicsPage}
	for {
		r := s.next()
		page, err := r.topics.CallUnary(ctx, connect.NewRequest(m))
		if err != nil {
			return nil, s.callError(ctx, r, "", err)
		}
		all = append(all, page.Msg.GetTopics()...)
		m.PageToken = page.Msg.GetNextPageToken()
		if m.GetPageToken() == "" || len(all) >= maxTopics {
			return all, nil
		}
	}
}

// Topic describes a topic as a service has seen it within the last second: leaders, oldest offsets, ends. While no service answers it waits until ctx ends: then the
// error is hub.ErrUnavailable. Errors also: hub.ErrUnknownTopic.
func (s *Source) Topic(ctx context.Context, name string) (*tailracev1.Topic, error) {
	for failures := 1; ; failures++ {
		topic, err := s.describe(ctx, s.next(), name)
		if err == nil || !isUnavailable(err) {
			return topic, err
		}
		if s.pause(ctx, failures) != nil {
			return nil, s.ended(ctx, err)
		}
	}
}
