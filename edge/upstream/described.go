package upstream

import (
	"context"
	"sync"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Bounds of what is remembered of logs.
const (
	describedAge  = time.Second
	describedMost = 1000 // topics; all are forgotten then
)

// descriptions are what services said of topics a moment ago. It costs them several questions to Kafka each time; when an edge has lost its
// memory all its clients come back at once, and many pages may be open. Where a log begins may have moved on since: that is found out when it is read.
type descriptions struct {
	mu     sync.Mutex
	topics map[string]*description
}

// description is one answer, also while it is waited for.
type description struct {
	asked time.Time
	done  chan struct{} // closed when the rest is valid
	topic *tailracev1.Topic
	err   error // as the hub knows it; nil: there is a topic
	left  bool  // the one who asked has gone; what it got is nobody else's answer
}

// describe returns what a service knows of a topic. All who ask within a second have one answer, also where it is that there is no such topic.
func (s *Source) describe(ctx context.Context, r *replica, topic string) (*tailracev1.Topic, error) {
	for {
		d, leads := s.described.of(topic)
		if leads {
			response, err := r.topic.CallUnary(ctx, connect.NewRequest(&tailracev1.GetTopicRequest{Topic: topic}))
			if err == nil {
				d.topic = response.Msg.GetTopic()
			} else {
				d.err = s.callError(ctx, r, topic, err)
			}
			d.left = err != nil && ctx.Err() != nil
			if d.left || isUnavailable(d.err) {
				s.described.forget(topic, d)
			}
			close(d.done)
			return d.topic, d.err
		}
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, hub.ErrUnavailable
		}
		if !d.left {
			return d.topic, d.err
		}
	}
}

// of returns the answer about a topic; leads: the caller is to get it.
func (ds *descriptions) of(topic string) (d *description, leads bool) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if d := ds.topics[topic]; d != nil && time.Since(d.asked) <= describedAge {
		return d, false
	}
	if ds.topics == nil || len(ds.topics) >= describedMost {
		ds.topics = map[string]*description{}
	}
	d = &description{asked: time.Now(), done: make(chan struct{})}
	ds.topics[topic] = d
	return d, true
}

func (ds *descriptions) forget(topic string, d *description) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	if ds.topics[topic] == d {
		delete(ds.topics, topic)
	}
}
