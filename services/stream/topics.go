package stream

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// Page sizes of lists.
const (
	defaultPageSize = 100
	maxPageSize     = 1000
)

// topicService is TopicService.
type topicService struct{ server *Server }

// ListTopics lists the topics that the caller may see, by name. A page token holds the last name of the page before, so that a page is
// right whatever was created or deleted in between.
func (h *topicService) ListTopics(ctx context.Context, m *tailracev1.ListTopicsRequest) (*tailracev1.ListTopicsResponse, error) {
	c := &checker{}
	c.require(m.GetPageSize() >= 0, "page_size", "is negative")
	after, err := base64.RawURLEncoding.DecodeString(m.GetPageToken())
	c.require(err == nil, "page_token", "is not a token of this service")
	if err := c.found.or(nil); err != nil {
		return nil, err
	}
	size := min(int(m.GetPageSize()), maxPageSize)
	if size == 0 {
		size = defaultPageSize
	}
	all, err := h.server.cfg.Topics.ListTopics(ctx)
	if err != nil {
		return nil, err
	}
	from, found := slices.BinarySearchFunc(all, string(after), func(t *tailracev1.TopicSummary, name string) int {
		return strings.Compare(t.GetName(), name)
	})
	if found {
		from++
	}
	page := &tailracev1.ListTopicsResponse{}
	for _, t := range all[from:] {
		if access.Allow(ctx, access.Request{Action: access.ActionDescribe, Topic: t.GetName()}) != nil {
			continue
		}
		if len(page.Topics) == size {
			page.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(page.Topics[size-1].GetName()))
			break
		}
		page.Topics = append(page.Topics, t)
	}
	return page, nil
}

// GetTopic describes one topic.
func (h *topicService) GetTopic(ctx context.Context, m *tailracev1.GetTopicRequest) (*tailracev1.GetTopicResponse, error) {
	callFrom(ctx).topic = m.GetTopic()
	if m.GetTopic() == "" {
		return nil, &hub.InvalidError{Field: "topic", Problem: "is required"}
	}
	err := access.Allow(ctx, access.Request{Action: access.ActionDescribe, Topic: m.GetTopic()})
	if err != nil {
		return nil, &deniedError{err}
	}
	topic, err := h.server.cfg.Topics.GetTopic(ctx, m.GetTopic())
	if err != nil {
		return nil, err
	}
	topic.LocalSubscribers = int32(h.server.cfg.Hub.Subscribers(m.GetTopic())) //nolint:gosec // far below 2^31
	return &tailracev1.GetTopicResponse{Topic: topic}, nil
}
