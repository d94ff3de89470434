package kafka

import (
	"tailrace.dev/tailrace/services/hub"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// Appender is what a follower needs of a hub.Topic.
type Appender = appender

// FollowTo is Follow with a stand-in for the hub's topic.
func (c *Client) FollowTo(t Appender, partition int32, from int64) (unfollow func()) {
	return c.follow(t, partition, from)
}

// EncodeRecords is encodeRecords.
func EncodeRecords(msgs []*confluent.Message) ([]byte, []hub.Meta) { return encodeRecords(msgs) }

// OwnProperties are the properties that are refused.
var OwnProperties = ownProperties
