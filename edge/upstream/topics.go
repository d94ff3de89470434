package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
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

// topicsHandler keeps the last answer for a moment, so that a thousand pages that open at once cost one call.
type topicsHandler struct {
	source *Source
	asking chan struct{} // one slot: who holds it may use the fields below
	list   []*tailracev1.TopicSummary
	err    error
	at     time.Time
}

// TopicsHandler answers GET with the topics that the caller may read: {"topics":[{"name":"demo","partitions":4}]}, ordered by name. 503 while no
// service answers.
func (s *Source) TopicsHandler() http.Handler {
	return &topicsHandler{source: s, asking: make(chan struct{}, 1)}
}

type topicJSON struct {
	Name       string `json:"name"`
	Partitions int32  `json:"partitions"`
}

func (h *topicsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	list, err := h.fresh(r.Context())
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case errors.Is(err, hub.ErrUnavailable):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the service does not answer", http.StatusServiceUnavailable)
		return
	case err != nil:
		http.Error(w, "the service refused", http.StatusBadGateway)
		return
	}
	answer := struct {
		Topics []topicJSON `json:"topics"`
	}{Topics: make([]topicJSON, 0, len(list))}
	for _, t := range list {
		if access.Allow(r.Context(), access.Request{Action: access.ActionDescribe, Topic: t.GetName()}) == nil {
			answer.Topics = append(answer.Topics, topicJSON{Name: t.GetName(), Partitions: t.GetPartitions()})
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the caller left: nobody to tell
}

// fresh returns an answer that is at most a moment old, also where it is an error. One request asks, the others wait for its answer.
func (h *topicsHandler) fresh(ctx context.Context) ([]*tailracev1.TopicSummary, error) {
	ctx, cancel := context.WithTimeout(ctx, topicsTimeout)
	defer cancel()
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
	case <-ctx.Done():
		return nil, hub.ErrUnavailable
	}
	if time.Since(h.at) < topicsFresh {
		return h.list, h.err
	}
	list, err := h.source.Topics(ctx)
	if !errors.Is(err, context.Canceled) { // the one that asked has left
		h.list, h.err, h.at = list, err, time.Now()
	}
	return list, err
}
