package kafka

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Client is one connection to a Kafka cluster in all its roles. It is a hub.Source, a stream.Publisher and a stream.Topics. Its methods may be called
// concurrently, also before Run, and then wait for it.
type Client struct{}

var _ hub.Source = (*Client)(nil)

// New returns an idle client; Run makes it work. reg may be nil: no metrics.
func New(cfg Config, logger *slog.Logger, reg prometheus.Registerer) (*Client, error) {
	panic("in the making")
}

// Run creates the Kafka clients, serves, and closes them all before it returns: nil when ctx ended, an error when a property is wrong.
func (c *Client) Run(ctx context.Context) error { panic("in the making") }

// Reached is closed once Kafka has answered for the first time.
func (c *Client) Reached() <-chan struct{} { panic("in the making") }

// Health is the state of the connection to Kafka.
type Health struct {
	Reached bool   // at least once
	Up      bool   // at the last look
	Error   string // why not
}

// Health tells the current state.
func (c *Client) Health() Health { panic("in the making") }

// Resolve is hub.Source's.
func (c *Client) Resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	panic("in the making")
}

// Follow is hub.Source's.
func (c *Client) Follow(t *hub.Topic, partition int32, from int64) (unfollow func()) {
	panic("in the making")
}

// ReadAt is hub.Source's.
func (c *Client) ReadAt(ctx context.Context, id hub.ChunkID, to int64, max int, only *hub.Terms) (es []*hub.Entry, next int64, err error) {
	panic("in the making")
}

// FiltersHistory is hub.Source's: Kafka knows no keys.
func (c *Client) FiltersHistory() bool { return false }

// Publish appends records to a topic and returns one result for each, in order. See stream.Publisher.
func (c *Client) Publish(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	panic("in the making")
}

// ListTopics returns all topics but Kafka's internal ones, ordered by name.
func (c *Client) ListTopics(ctx context.Context) ([]*tailracev1.TopicSummary, error) {
	panic("in the making")
}

// GetTopic describes one topic, all but local_subscribers.
func (c *Client) GetTopic(ctx context.Context, topic string) (*tailracev1.Topic, error) {
	panic("in the making")
}
