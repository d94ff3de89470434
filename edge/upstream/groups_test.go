package upstream_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// ListGroups tells the groups of the test, in pages of a hundred.
func (s *script) ListGroups(_ context.Context, m *tailracev1.ListGroupsRequest) (*tailracev1.ListGroupsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groupLists++
	if s.groups == nil {
		return nil, failure(connect.CodeUnimplemented, "UNIMPLEMENTED", nil)
	}
	page := &tailracev1.ListGroupsResponse{}
	for _, g := range s.groups {
		if g.GetGroup() <= m.GetPageToken() {
			continue
		}
		if len(page.Groups) == 100 {
			page.NextPageToken = page.Groups[99].GetGroup()
			break
		}
		page.Groups = append(page.Groups, &tailracev1.GroupSummary{Group: g.GetGroup()})
	}
	return page, nil
}

// GetGroup describes one of them; one whose state is a reason fails with it.
func (s *script) GetGroup(_ context.Context, m *tailracev1.GetGroupRequest) (*tailracev1.GetGroupResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groupsAsked++
	i, found := slices.BinarySearchFunc(s.groups, m.GetGroup(), func(g *tailracev1.Group, name string) int { return cmp.Compare(g.GetGroup(), name) })
	if !found {
		return nil, failure(connect.CodeNotFound, "UNKNOWN_GROUP", nil)
	}
	switch g := s.groups[i]; g.GetState() {
	case "KAFKA_UNAVAILABLE":
		return nil, failure(connect.CodeUnavailable, g.GetState(), nil)
	case "UNKNOWN_GROUP", "FORBIDDEN":
		return nil, failure(connect.CodeNotFound, g.GetState(), nil)
	default:
		return &tailracev1.GetGroupResponse{Group: proto.CloneOf(g)}, nil
	}
}

// reads is a group with a member for partitions 0 to n - 1 of a topic, which are 1, 2, … behind.
func reads(name, topic string, n int) *tailracev1.Group {
	g := &tailracev1.Group{Group: name, State: "Stable", Members: []*tailracev1.Member{{Process: "p"}}}
	for p := range int32(n) {
		g.Members[0].Partitions = append(g.Members[0].Partitions, &tailracev1.TopicPartition{Topic: topic, Partition: p})
		g.Partitions = append(g.Partitions, &tailracev1.GroupPartition{Topic: topic, Partition: p, Committed: 4, End: int64(5 + p), Lag: int64(1 + p)})
	}
	return g
}

func ask(h http.Handler, method, query string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "/api/groups"+query, nil))
	return w
}

// groupsPage is what a page needs of an answer.
type groupsPage struct {
	Groups []struct {
		Name           string
		Lag, InFlight  int64
		MemberCount    int
		PartitionCount int
		Members        []struct {
			Process        string
			Workers        int
			PartitionCount int
			Partitions     []int32
		}
		Partitions []struct{ Partition, InFlight int }
	}
	Next   string
	Failed int
}

func page(t *testing.T, w *httptest.ResponseRecorder) (got groupsPage) {
	t.Helper()
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Cache-Control") != "no-store" {
		t.Fatalf("got %d %v %s", w.Code, w.Header(), w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestGroupsOfATopicForThePage: those that read it, with what is about that topic; however many pages ask, each group is asked about once.
func TestGroupsOfATopicForThePage(t *testing.T) {
	svc := newScript(t)
	both := reads("a", "t", 2)
	both.Partitions[0].InFlight, both.Members[0].Workers = 3, 2
	both.Partitions[1].Committed, both.Partitions[1].Lag = -1, -1
	both.Partitions = append(both.Partitions, &tailracev1.GroupPartition{Topic: "u", Lag: 100, InFlight: 100})
	both.Members = append(both.Members, &tailracev1.Member{Process: "q", Partitions: []*tailracev1.TopicPartition{{Topic: "u"}}})
	svc.groups = []*tailracev1.Group{both, reads("b", "u", 1), {Group: "c", State: "UNKNOWN_GROUP"}, {Group: "d", State: "FORBIDDEN"}}
	h := newSource(t, nil, svc.address).GroupsHandler()
	const want = `{"groups":[{"name":"a","state":"Stable","lag":1,"inFlight":3,"memberCount":2,` +
		`"members":[{"process":"p","workers":2,"partitionCount":2,"partitions":[0,1]},{"process":"q","workers":0,"partitionCount":0,"partitions":[]}],` +
		`"partitionCount":2,"partitions":[{"partition":0,"committed":4,"end":5,"lag":1,"inFlight":3},{"partition":1,"committed":-1,"end":6,"lag":-1,"inFlight":0}]}],"failed":0}`
	began := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			w := ask(h, http.MethodGet, "?topic=t")
			if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != want {
				t.Errorf("got %d %s, want %s", w.Code, w.Body, want)
			}
		})
	}
	wg.Wait()
	svc.mu.Lock()
	if most := 1 + int(time.Since(began)/time.Second); svc.groupLists > most || svc.groupsAsked > 4*most {
		t.Errorf("twenty pages cost %d lists and %d groups, want at most %d and %d", svc.groupLists, svc.groupsAsked, most, 4*most)
	}
	svc.mu.Unlock()
	if got := page(t, ask(h, http.MethodGet, "?topic=nobody-reads-it")); len(got.Groups) != 0 || got.Next != "" {
		t.Errorf("got %+v", got)
	}
	for query, want := range map[string]int{"": http.StatusBadRequest, "?after=a": http.StatusBadRequest} {
		if w := ask(h, http.MethodGet, query); w.Code != want {
			t.Errorf("%q: got %d %s", query, w.Code, w.Body)
		}
	}
	if w := ask(h, http.MethodPost, "?topic=t"); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
		t.Errorf("got %d", w.Code)
	}
	if w := ask(newSource(t, nil, newScript(t).address).GroupsHandler(), http.MethodGet, "?topic=t"); w.Code != http.StatusNotImplemented {
		t.Errorf("a service without groups: got %d %s", w.Code, w.Body)
	}
	if w := ask(newSource(t, nil, "127.0.0.1:1").GroupsHandler(), http.MethodGet, "?topic=t"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("no service: got %d %s", w.Code, w.Body)
	}
}

// TestGroupsHaveBounds: many groups come by pages, and those of other topics are not asked about again and again; of a large group the worst is told.
func TestGroupsHaveBounds(t *testing.T) {
	svc := newScript(t)
	var want []string
	for i := range 1300 {
		g := reads(fmt.Sprintf("g%04d", i), "other", 1)
		if i%20 == 0 || i < 10 {
			g = reads(g.GetGroup(), "t", 1)
			want = append(want, g.GetGroup())
		}
		svc.groups = append(svc.groups, g)
	}
	svc.groups[0] = reads("g0000", "t", 250)
	svc.groups[0].Partitions[7].Lag = 1000
	for range 60 {
		svc.groups[0].Members = append(svc.groups[0].Members, &tailracev1.Member{Process: "idle"})
	}
	h := newSource(t, nil, svc.address).GroupsHandler()
	asked := func() int {
		svc.mu.Lock()
		defer svc.mu.Unlock()
		return svc.groupsAsked
	}
	var got []string
	for after, more := "", true; more; more = after != "" {
		before := asked()
		p := page(t, ask(h, http.MethodGet, "?topic=t&after="+after))
		for _, g := range p.Groups {
			got = append(got, g.Name)
		}
		if n := asked() - before; len(p.Groups) > 20 || n > 510 {
			t.Errorf("an answer had %d groups and cost %d questions", len(p.Groups), n)
		}
		after = p.Next
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	before := asked()
	p := page(t, ask(h, http.MethodGet, "?topic=t"))
	if n := asked() - before; n > 40 {
		t.Errorf("the first page costs %d questions the second time", n)
	}
	large := p.Groups[0]
	shown := []int{7}
	for n := 151; n < 250; n++ {
		shown = append(shown, n)
	}
	var told []int
	for _, p := range large.Partitions {
		told = append(told, p.Partition)
	}
	if large.PartitionCount != 250 || !slices.Equal(told, shown) || large.Lag != 250*251/2-8+1000 {
		t.Errorf("got %d partitions, lag %d: %v", large.PartitionCount, large.Lag, told)
	}
	if m := large.Members; len(m) != 50 || large.MemberCount != 61 || m[0].PartitionCount != 250 || len(m[0].Partitions) != 100 {
		t.Errorf("got %d members of %d: %v", len(m), large.MemberCount, m[0])
	}
}

// TestGroupsOfSeveralServices: each knows what its own workers do; one that has nothing to say does not hide what others say.
func TestGroupsOfSeveralServices(t *testing.T) {
	one, two := newScript(t), newScript(t)
	for i, svc := range []*script{one, two} {
		g := reads("a", "t", 2)
		g.Members = append(g.Members, &tailracev1.Member{Process: "q"})
		g.Members[i].Workers, g.Partitions[i].InFlight = int32(5+i), int32(7+i)
		svc.groups = []*tailracev1.Group{g}
	}
	source := newSource(t, nil, one.address, two.address)
	h := source.GroupsHandler()
	check := func(what, want string) {
		t.Helper()
		eventually(t, what+": "+want, func() bool { // an answer is a second old
			got := page(t, ask(h, http.MethodGet, "?topic=t")).Groups
			return len(got) == 1 && fmt.Sprint(got[0].Members[0].Workers, got[0].Members[1].Workers, got[0].Partitions[0].InFlight, got[0].Partitions[1].InFlight) == want
		})
	}
	check("both are added up", "5 6 7 8")
	two.mu.Lock()
	two.groups[0].State = "KAFKA_UNAVAILABLE"
	two.mu.Unlock()
	check("one of them fails", "5 0 7 0")
	one.mu.Lock()
	one.groups[0].State = "KAFKA_UNAVAILABLE"
	one.groups = append(one.groups, reads("b", "t", 1))
	one.mu.Unlock()
	eventually(t, "a group that fails hides no other", func() bool {
		w := ask(h, http.MethodGet, "?topic=t")
		if w.Code != http.StatusOK {
			return false // b was not listed a moment ago
		}
		got := page(t, w)
		return len(got.Groups) == 1 && got.Groups[0].Name == "b" && got.Failed == 1
	})
	one.mu.Lock()
	one.groups = one.groups[:1]
	one.mu.Unlock()
	eventually(t, "all fail", func() bool { return ask(h, http.MethodGet, "?topic=t").Code == http.StatusServiceUnavailable })
}
