package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// describesAtOnce is how many requests for single topics are answered at once; others wait.
const describesAtOnce = 4

// topicsHandler keeps the last list for a moment, as the source does descriptions, so that a thousand pages that open at once cost a few calls.
type topicsHandler struct {
	source *Source
	asking chan struct{} // one slot: who holds it may use the next three fields
	list   []*tailracev1.TopicSummary
	err    error
	at     time.Time

	describing chan struct{} // describesAtOnce slots
}

// TopicsHandler answers GET with the topics that the caller may read: {"topics":[{"name":"demo","partitions":4}]}, ordered by name. With ?topic=demo
// it describes one: {"name":"demo","topicId":"…","partitions":[{"partition":0,"leader":1,"start":0,"end":9,"highWatermark":9}]}; a partition
// without a leader has -1. Answers are at most a second old. 403 and 404 for a topic that the caller may not describe or that does not exist,
// 503 while no service answers. It may be called concurrently.
func (s *Source) TopicsHandler() http.Handler {
	return &topicsHandler{source: s, asking: make(chan struct{}, 1), describing: make(chan struct{}, describesAtOnce)}
}

type topicJSON struct {
	Name       string `json:"name"`
	Partitions int32  `json:"partitions"`
}

type topicsJSON struct {
	Topics []topicJSON `json:"topics"`
}

type partitionJSON struct {
	Partition     int32 `json:"partition"`
	Leader        int32 `json:"leader"`
	Start         int64 `json:"start"`
	End           int64 `json:"end"`
	HighWatermark int64 `json:"highWatermark"`
}

type descriptionJSON struct {
	Name       string          `json:"name"`
	TopicID    string          `json:"topicId"`
	Partitions []partitionJSON `json:"partitions"`
}

func (h *topicsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), topicsTimeout)
	defer cancel()
	name := r.URL.Query().Get("topic")
	denied := name != "" && access.Allow(ctx, access.Request{Action: access.ActionDescribe, Topic: name}) != nil
	var answer any
	var err error
	switch {
	case denied:
	case name != "":
		answer, err = h.describe(ctx, name)
	default:
		answer, err = h.all(ctx)
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch {
	case errors.Is(err, hub.ErrUnavailable):
		w.Header().Set("Retry-After", "1")
		http.Error(w, h.source.Problem(), http.StatusServiceUnavailable)
	case errors.Is(err, hub.ErrUnknownTopic):
		http.Error(w, "unknown topic", http.StatusNotFound)
	case denied:
		http.Error(w, "not allowed", http.StatusForbidden)
	case err != nil:
		http.Error(w, "the service refused", http.StatusBadGateway)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // the caller left: nobody to tell
	}
}

func (h *topicsHandler) all(ctx context.Context) (topicsJSON, error) {
	list, err := h.fresh(ctx)
	answer := topicsJSON{Topics: make([]topicJSON, 0, len(list))}
	for _, t := range list {
		if access.Allow(ctx, access.Request{Action: access.ActionDescribe, Topic: t.GetName()}) == nil {
			answer.Topics = append(answer.Topics, topicJSON{Name: t.GetName(), Partitions: t.GetPartitions()})
		}
	}
	return answer, err
}

// fresh returns an answer that is at most a moment old, also where it is an error. One request asks, the others wait for its answer.
func (h *topicsHandler) fresh(ctx context.Context) ([]*tailracev1.TopicSummary, error) {
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

func (h *topicsHandler) describe(ctx context.Context, name string) (*descriptionJSON, error) {
	select {
	case h.describing <- struct{}{}:
		defer func() { <-h.describing }()
	case <-ctx.Done():
		return nil, hub.ErrUnavailable
	}
	topic, err := h.source.Topic(ctx, name)
	if err != nil {
		return nil, err
	}
	answer := &descriptionJSON{Name: topic.GetName(), TopicID: topic.GetTopicId(), Partitions: make([]partitionJSON, 0, len(topic.GetPartitions()))}
	for _, p := range topic.GetPartitions() {
		answer.Partitions = append(answer.Partitions, partitionJSON{
			Partition: p.GetPartition(), Leader: p.GetLeader(), Start: p.GetStart(), End: p.GetEnd(), HighWatermark: p.GetHighWatermark(),
		})
	}
	return answer, nil
}
