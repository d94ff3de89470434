package upstream

import (
	"context"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Bounds of what is remembered of logs.
const (
	describedAge  = time.Second
	describedMost = 1000 // topics
)

// describe returns what a service knows of a topic, or knew within the last second. Where a log begins may have moved on since: that is found out
// when it is read.
func (s *Source) describe(ctx context.Context, r *replica, topic string) (*tailracev1.Topic, error) {
	return s.described.ask(ctx, topic, func() (*tailracev1.Topic, error) {
		response, err := r.topic.CallUnary(ctx, connect.NewRequest(&tailracev1.GetTopicRequest{Topic: topic}))
		if err != nil {
			return nil, s.callError(ctx, r, topic, err)
		}
		return response.Msg.GetTopic(), nil
	})
}
