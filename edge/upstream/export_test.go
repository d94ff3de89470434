package upstream

import "tailrace.dev/tailrace/services/hub"

// Topic is what a feed appends to.
type Topic = topic

// FollowTopic is Follow for a topic of the test's own.
func (s *Source) FollowTopic(t Topic, partition int32, from int64) (unfollow func()) {
	return s.follow(t, partition, from)
}

// ReadRecords cuts an encoded tailrace.v1.Records into entries.
func ReadRecords(b []byte) ([]*hub.Entry, error) { return readRecords(b) }

// HubError is what an error with this reason and these facts means to the hub.
func HubError(reason string, metadata map[string]string) error {
	a := answer{reason: reason, metadata: metadata, text: "text"}
	return a.hubError("t")
}

// Refuses says whether an answer with this reason makes certain that nothing was appended.
func Refuses(reason string) bool { return refuses(reason) }
