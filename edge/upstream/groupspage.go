package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// Bounds of GroupsHandler.
const (
	groupsShown        = 20     // groups in an answer
	groupsLookedAt     = 500    // groups that one request looks at, to find those of its topic
	groupsAtOnce       = 8      // of them, at a time
	groupPartitions    = 100    // partitions of a group in an answer, and of a member
	groupMembers       = 50     // members of a group in an answer
	groupsRemembered   = 1000   // answers about a group
	strangersMost      = 20_000 // groups that are known to have nothing to do with a topic; all are forgotten then
	strangersAge       = 30 * time.Second
	groupsRequests     = 4 // requests that are answered at once; others wait
	groupsRequestsTime = 5 * time.Second
)

// groupsHandler asks the services about each group once in a while, however many pages show it.
type groupsHandler struct {
	source   *Source
	requests chan struct{} // groupsRequests slots
	names    memory[[]string]
	groups   memory[*groupJSON] // by topic and name

	mu        sync.Mutex
	strangers map[string]time.Time // by topic and name: when they had nothing to do with each other
}

// GroupsHandler answers GET with the consumer groups that have a member or an offset in a topic, ordered by name, as ?topic=demo asks:
//
//	{"groups":[{"name":"g","state":"Stable","lag":6,"inFlight":2,"memberCount":1,"members":[{"process":"p","workers":3,"partitionCount":1,"partitions":[0]}],
//	"partitionCount":1,"partitions":[{"partition":0,"committed":4,"end":10,"lag":6,"inFlight":2}]}],"next":"g","failed":0}
//
// All is about that topic alone; lag is the sum over all its partitions, of those where it is known, else it is -1 as committed and end are. Workers and
// inFlight are those of all services of this edge; workers 0: not known. An answer has at most 20 groups, each with at most 50 members and 100 partitions:
// those with the most partitions, and lag. With a next there may be more: ?topic=demo&after=<next> goes on behind it. failed is how many groups could not be described at the
// moment. What is told is at most a second old; a group that begins with a topic is found within 30 s. 400 without a topic, 403 for one that the caller may not
// describe, 501 if the services have no groups, 503 while none answers. It may be called concurrently.
func (s *Source) GroupsHandler() http.Handler {
	h := &groupsHandler{source: s, requests: make(chan struct{}, groupsRequests), strangers: map[string]time.Time{}}
	h.names.age, h.names.most = topicsFresh, 1
	h.groups.age, h.groups.most = topicsFresh, groupsRemembered
	return h
}

type groupJSON struct {
	Name           string               `json:"name"`
	State          string               `json:"state"`
	Lag            int64                `json:"lag"`
	InFlight       int64                `json:"inFlight"`
	MemberCount    int                  `json:"memberCount"`
	Members        []groupMemberJSON    `json:"members"`
	PartitionCount int                  `json:"partitionCount"`
	Partitions     []groupPartitionJSON `json:"partitions"`
}

type groupMemberJSON struct {
	Process        string  `json:"process"`
	Workers        int32   `json:"workers"`
	PartitionCount int     `json:"partitionCount"`
	Partitions     []int32 `json:"partitions"`
}

type groupPartitionJSON struct {
	Partition int32 `json:"partition"`
	Committed int64 `json:"committed"`
	End       int64 `json:"end"`
	Lag       int64 `json:"lag"`
	InFlight  int32 `json:"inFlight"`
}

type groupsJSON struct {
	Groups []*groupJSON `json:"groups"`
	Next   string       `json:"next,omitempty"`
	Failed int          `json:"failed"`
}

func (h *groupsHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	ctx, cancel := context.WithTimeout(r.Context(), groupsRequestsTime)
	defer cancel()
	topic := r.URL.Query().Get("topic")
	if topic == "" {
		http.Error(w, "topic is required", http.StatusBadRequest)
		return
	}
	if access.Allow(ctx, access.Request{Action: access.ActionDescribe, Topic: topic}) != nil {
		http.Error(w, "not allowed", http.StatusForbidden)
		return
	}
	answer, err := h.answer(ctx, topic, r.URL.Query().Get("after"))
	switch {
	case errors.Is(err, hub.ErrUnavailable):
		w.Header().Set("Retry-After", "1")
		http.Error(w, h.source.Problem(), http.StatusServiceUnavailable)
	case errors.Is(err, hub.ErrUnimplemented):
		http.Error(w, "the service has no groups", http.StatusNotImplemented)
	case err != nil:
		http.Error(w, "the service refused", http.StatusBadGateway)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // the caller left: nobody to tell
	}
}

func (h *groupsHandler) answer(ctx context.Context, topic, after string) (*groupsJSON, error) {
	select {
	case h.requests <- struct{}{}:
		defer func() { <-h.requests }()
	case <-ctx.Done():
		return nil, hub.ErrUnavailable
	}
	names, err := h.names.ask(ctx, "", func() ([]string, error) { return h.source.listGroups(ctx) })
	if err != nil {
		return nil, err
	}
	from, found := slices.BinarySearch(names, after)
	if found {
		from++
	}
	return h.look(ctx, topic, names[from:])
}

// look goes through names until the answer is full, or has cost enough.
func (h *groupsHandler) look(ctx context.Context, topic string, names []string) (*groupsJSON, error) {
	answer := &groupsJSON{Groups: []*groupJSON{}}
	var failure error
	for looked := 0; len(names) > 0; {
		var some []string
		for len(names) > 0 && len(some) < groupsAtOnce {
			name := names[0]
			names = names[1:]
			if !h.stranger(topic, name) && access.Allow(ctx, access.Request{Action: access.ActionDescribe, Topic: topic, Group: name}) == nil {
				some = append(some, name)
			}
		}
		groups, errs := h.describe(ctx, topic, some)
		for i, name := range some {
			switch err := errs[i]; {
			case errors.Is(err, errNoGroup):
			case err != nil:
				answer.Failed++
				failure = err
			case groups[i] != nil:
				answer.Groups = append(answer.Groups, groups[i])
			}
			if len(answer.Groups) == groupsShown && (i < len(some)-1 || len(names) > 0) {
				answer.Next = name
				return answer, nil
			}
		}
		if looked += len(some); looked >= groupsLookedAt && len(names) > 0 {
			answer.Next = some[len(some)-1]
			return answer, nil
		}
	}
	if len(answer.Groups) == 0 && failure != nil {
		return nil, failure
	}
	return answer, nil
}

// describe asks about some groups at once. nil: it has nothing to do with the topic.
func (h *groupsHandler) describe(ctx context.Context, topic string, names []string) ([]*groupJSON, []error) {
	groups, errs := make([]*groupJSON, len(names)), make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() {
			groups[i], errs[i] = h.groups.ask(ctx, together(topic, name), func() (*groupJSON, error) {
				g, err := h.source.getGroup(ctx, name)
				if err != nil {
					return nil, err
				}
				return groupIn(topic, g), nil
			})
			if groups[i] == nil && errs[i] == nil {
				h.estrange(topic, name)
			}
		})
	}
	all.Wait()
	return groups, errs
}

// together is a key: no topic has a zero in its name.
func together(topic, name string) string { return topic + "\x00" + name }

func (h *groupsHandler) stranger(topic, name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.strangers[together(topic, name)]
	return ok && time.Since(at) < strangersAge
}

func (h *groupsHandler) estrange(topic, name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.strangers) >= strangersMost {
		clear(h.strangers)
	}
	h.strangers[together(topic, name)] = time.Now()
}

// groupIn is what is told of a group in a topic; nil: it has nothing to do with it.
func groupIn(topic string, g *tailracev1.Group) *groupJSON {
	out := &groupJSON{Name: g.GetGroup(), State: g.GetState(), Lag: -1, Members: []groupMemberJSON{}, Partitions: []groupPartitionJSON{}, MemberCount: len(g.GetMembers())}
	for _, p := range g.GetPartitions() {
		if p.GetTopic() != topic {
			continue
		}
		out.Partitions = append(out.Partitions, groupPartitionJSON{
			Partition: p.GetPartition(), Committed: p.GetCommitted(), End: p.GetEnd(), Lag: p.GetLag(), InFlight: p.GetInFlight(),
		})
		out.InFlight += int64(p.GetInFlight())
		if p.GetLag() >= 0 {
			out.Lag = max(out.Lag, 0) + p.GetLag()
		}
	}
	if out.PartitionCount = len(out.Partitions); out.PartitionCount == 0 {
		return nil
	}
	if out.PartitionCount > groupPartitions {
		slices.SortStableFunc(out.Partitions, func(a, b groupPartitionJSON) int { return cmp.Compare(b.Lag, a.Lag) })
		out.Partitions = slices.Clone(out.Partitions[:groupPartitions])
		slices.SortFunc(out.Partitions, func(a, b groupPartitionJSON) int { return cmp.Compare(a.Partition, b.Partition) })
	}
	for _, m := range g.GetMembers() {
		member := groupMemberJSON{Process: m.GetProcess(), Workers: m.GetWorkers(), Partitions: []int32{}}
		for _, p := range m.GetPartitions() {
			if p.GetTopic() != topic {
				continue
			}
			if member.PartitionCount++; member.PartitionCount <= groupPartitions {
				member.Partitions = append(member.Partitions, p.GetPartition())
			}
		}
		out.Members = append(out.Members, member)
	}
	if len(out.Members) > groupMembers {
		slices.SortStableFunc(out.Members, func(a, b groupMemberJSON) int { return cmp.Compare(b.PartitionCount, a.PartitionCount) })
		out.Members = slices.Clone(out.Members[:groupMembers])
	}
	return out
}
