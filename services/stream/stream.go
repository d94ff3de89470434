// Package stream is the RPC face of the service: StreamService, TopicService and GroupService over Connect, gRPC and gRPC-Web, on HTTP/1.1 and HTTP/2
// without TLS. A handler goroutine, started by net/http, owns its hub.Subscription and is the only sender of its stream. The package
// keeps no record and no position, knows no Kafka, and translates Go errors into codes and reasons in one table.
package stream

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// Publisher appends records; Kafka's producer fills it. It may be called concurrently. Callers, by their names, have turns where there is not
// room for all.
type Publisher interface {
	// PublishAs appends records to a topic and returns one result for each, in order. It waits within ctx's deadline and a bound of its
	// own. An error means that certainly no record was appended: hub.ErrUnknownTopic, hub.ErrUnavailable, hub.ErrDraining, *hub.LimitError.
	PublishAs(ctx context.Context, caller, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error)
	// Begin appends one record, and returns once it is in the queue, for which it waits within ctx. done is told the outcome, once, within a
	// bound of the publisher's own; it does not block. A caller's records keep their order within a partition.
	Begin(ctx context.Context, caller, topic string, record *tailracev1.PublishRecord, done func(*tailracev1.PublishResult))
}

// Topics describes topics; Kafka's admin side fills it. It may be called concurrently. Errors: hub.ErrUnknownTopic, hub.ErrUnavailable.
type Topics interface {
	// ListTopics returns all topics, ordered by name.
	ListTopics(ctx context.Context) ([]*tailracev1.TopicSummary, error)
	// GetTopic describes one topic, all but local_subscribers, which the stream adds.
	GetTopic(ctx context.Context, topic string) (*tailracev1.Topic, error)
}

// GroupAdmin looks after consumer groups; Kafka's admin side fills it. It may be called concurrently, with requests that are valid. Errors, beside
// hub.ErrUnavailable: group.ErrUnknown, group.ErrActive, and those that the hub has for topics, partitions and offsets.
type GroupAdmin interface {
	// ListGroups returns all groups, ordered by name.
	ListGroups(ctx context.Context) ([]*tailracev1.GroupSummary, error)
	// GetGroup describes a group, all but workers and what they hold, which the stream adds.
	GetGroup(ctx context.Context, name string) (*tailracev1.Group, error)
	// GroupMember is the name of this process among the members of a group.
	GroupMember() string
	// ResetOffsets moves a group's committed offsets.
	ResetOffsets(ctx context.Context, m *tailracev1.ResetOffsetsRequest) ([]*tailracev1.ResetPartition, error)
	// RedriveDeadLetters publishes dead letters to where they came from, if allow returns nil for that topic.
	RedriveDeadLetters(ctx context.Context, m *tailracev1.RedriveDeadLettersRequest, allow func(topic string) error) (*tailracev1.RedriveDeadLettersResponse, error)
}

// Defaults and limits of Subscribe and Publish, as tailrace.v1 promises them.
const (
	defaultHeartbeat  = 15 * time.Second
	minHeartbeat      = time.Second
	maxHeartbeat      = 5 * time.Minute
	defaultBatchBytes = 256 << 10
	maxBatchBytes     = 2 << 20

	maxPartitions     = 10_000
	maxKeys           = 1000
	maxKeyBytes       = 64 << 10
	maxLast           = 100_000
	maxPublishRecords = 10_000
	maxPublishBytes   = 4 << 20
	// JSON makes bytes a third longer; what is decoded is held to maxPublishBytes.
	maxRequestBytes = 2 * maxPublishBytes
)

// Config of a Server. Zero durations take the defaults.
type Config struct {
	Hub       *hub.Hub
	Publisher Publisher
	Topics    Topics
	// Groups is queue mode; nil: Consume is unimplemented.
	Groups *group.Groups
	// GroupAdmin is asked by GroupService, which is unimplemented without it and Groups.
	GroupAdmin GroupAdmin
	Logger     *slog.Logger
	// Registerer gets the metrics tailrace_stream_… and tailrace_rpc_…. Required.
	Registerer prometheus.Registerer
	// Tracer makes spans of publishes and of subscriptions' first records; nil: there are none.
	Tracer *trace.Tracer

	// MaxInputBytes bounds what requests hold together, as they come over the wire (decoding makes it two to three times as much): until they are
	// answered, a Subscribe until its stream begins, each message of a PublishStream until it is handed over. What exceeds it is refused, and a
	// PublishStream ended, with LIMIT. Requests and messages of up to 16 KiB are not. Default 64 MiB.
	MaxInputBytes int64
	// BodyTimeout bounds how long the request of a unary or server-stream call may take to arrive; default 10 s.
	BodyTimeout time.Duration
	// ResolveTimeout bounds how long Subscribe waits for Kafka before it answers KAFKA_UNAVAILABLE; default 10 s.
	ResolveTimeout time.Duration
	// StallTimeout ends a stream whose peer takes nothing for this long while something waits to be sent; default 2 min.
	StallTimeout time.Duration
	// PingTimeout is how long an HTTP/2 connection may be silent before it is pinged, and then how long the answer may take. A peer
	// that vanished without a word is noticed within twice this; default 5 s.
	PingTimeout time.Duration

	allow func(context.Context, access.Request) error // access.Allow, but in tests
}

func (c Config) withDefaults() Config {
	fill := func(d *time.Duration, otherwise time.Duration) {
		if *d <= 0 {
			*d = otherwise
		}
	}
	if c.MaxInputBytes <= 0 {
		c.MaxInputBytes = 64 << 20
	}
	if c.allow == nil {
		c.allow = access.Allow
	}
	fill(&c.BodyTimeout, 10*time.Second)
	fill(&c.ResolveTimeout, 10*time.Second)
	fill(&c.StallTimeout, 2*time.Minute)
	fill(&c.PingTimeout, 5*time.Second)
	return c
}
