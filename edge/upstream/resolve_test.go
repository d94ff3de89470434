package upstream_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"tailrace.dev/tailrace/edge/upstream"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

func resolvedPartition(p int32, oldest, start, end int64) hub.ResolvedPartition {
	return hub.ResolvedPartition{Partition: p, Oldest: oldest, Start: start, End: end}
}

func TestResolveTakesWhatStartedSays(t *testing.T) {
	log := &tailracev1.Topic{TopicId: "A", Partitions: []*tailracev1.Partition{{Partition: 0, Start: 5, End: 20}, {Partition: 1, Start: 7, End: 30}}}
	positions := func(ps ...hub.Position) hub.Start { return hub.Start{Kind: hub.AtPositions, Positions: ps} }
	for name, c := range map[string]struct {
		query   hub.Query
		started *tailracev1.SubscribeResponse
		want    []hub.ResolvedPartition
	}{
		"latest": {
			hub.Query{}, started("A", 2, from(0, 20, 20), from(1, 30, 30)),
			[]hub.ResolvedPartition{resolvedPartition(0, 5, 20, 20), resolvedPartition(1, 7, 30, 30)},
		},
		"earliest": {
			hub.Query{Start: hub.Start{Kind: hub.Earliest}}, started("A", 2, from(0, 6, 20), from(1, 7, 30)), // trimmed meanwhile
			[]hub.ResolvedPartition{resolvedPartition(0, 6, 6, 20), resolvedPartition(1, 7, 7, 30)},
		},
		"positions in the log": {
			hub.Query{TopicID: "A", Start: positions(hub.Position{Partition: 0, Offset: 10, Epoch: -1})}, started("A", 2, from(0, 10, 20)),
			[]hub.ResolvedPartition{resolvedPartition(0, 5, 10, 20)},
		},
		"positions before it": {
			hub.Query{TopicID: "A", Start: positions(hub.Position{Partition: 0, Offset: 2, Epoch: -1})}, started("A", 2, from(0, 5, 20)),
			[]hub.ResolvedPartition{resolvedPartition(0, 5, 2, 20)},
		},
		"positions behind it": {
			hub.Query{TopicID: "A", Start: positions(hub.Position{Partition: 0, Offset: 99, Epoch: -1})}, started("A", 2, from(0, 5, 20)),
			[]hub.ResolvedPartition{resolvedPartition(0, 5, 99, 20)},
		},
		"a time": {
			hub.Query{Start: hub.Start{Kind: hub.AtTime, Time: time.Unix(1764504000, 0)}}, started("A", 2, from(0, 9, 20), from(1, 30, 30)),
			[]hub.ResolvedPartition{resolvedPartition(0, 5, 9, 20), resolvedPartition(1, 7, 30, 30)},
		},
		"the last, of which not all were found": {
			hub.Query{Start: hub.Start{Kind: hub.Last, Last: 4}}, started("A", 2, from(0, 16, 20), incomplete(from(1, 28, 30))),
			[]hub.ResolvedPartition{resolvedPartition(0, 5, 16, 20), {Partition: 1, Oldest: 7, Start: 28, End: 30, Incomplete: true}},
		},
		"the last of a key, in the partition that has it": {
			hub.Query{Keys: [][]byte{[]byte("k")}, Start: hub.Start{Kind: hub.Last, Last: 4}}, started("A", 2, from(1, 11, 30)),
			[]hub.ResolvedPartition{resolvedPartition(1, 7, 11, 30)},
		},
		"a position in a branch that is lost": {
			hub.Query{TopicID: "A", Start: positions(hub.Position{Partition: 0, Offset: 16, Epoch: 3})}, started("A", 2, from(0, 12, 20)),
			[]hub.ResolvedPartition{{Partition: 0, Oldest: 5, Start: 16, End: 20, Lost: 4}},
		},
		"another log": {
			hub.Query{TopicID: "Z", Start: positions(hub.Position{Partition: 0, Offset: 10, Epoch: 2})}, started("B", 2, from(0, 1, 3)),
			[]hub.ResolvedPartition{resolvedPartition(0, 1, 10, 3)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newScript(t, says(c.started, records(1, 1)))
			svc.topic = log
			got, err := newSource(t, nil, svc.address).Resolve(t.Context(), "t", c.query)
			want := hub.Resolved{TopicID: c.started.GetStarted().GetTopicId(), Count: 2, Partitions: c.want}
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("\n got %+v, %v\nwant %+v", got, err, want)
			}
			if m := svc.requests()[0]; m.GetTopicId() != c.query.TopicID || m.GetOnOutOfRange() != tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_EARLIEST {
				t.Errorf("asked %v", m)
			}
		})
	}
}

func incomplete(p *tailracev1.StartedPartition) *tailracev1.StartedPartition {
	p.Incomplete = true
	return p
}

// TestManyResolvesDescribeOnce: clients that come back all at once must not each cost the service what only tells where the log begins; nor must pages.
func TestManyResolvesDescribeOnce(t *testing.T) {
	const clients = 50
	svc := newScript(t, says(started("A", 1, from(0, 10, 20))))
	svc.topic = &tailracev1.Topic{Name: "t", TopicId: "A", Partitions: []*tailracev1.Partition{{Start: 5, End: 20}}}
	source := newSource(t, nil, svc.address)
	var all sync.WaitGroup
	began := time.Now()
	for range clients {
		all.Go(func() {
			got, err := source.Resolve(t.Context(), "t", hub.Query{Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Offset: 10, Epoch: -1}}}})
			if err != nil || len(got.Partitions) != 1 || got.Partitions[0].Oldest != 5 {
				t.Errorf("got %+v, %v, want the oldest offset 5", got, err)
			}
		})
	}
	all.Wait()
	page := httptest.NewRecorder()
	source.TopicsHandler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/api/topics?topic=t", nil))
	if page.Code != http.StatusOK || !strings.Contains(page.Body.String(), `"start":5`) {
		t.Errorf("the page is told %d %s", page.Code, page.Body)
	}
	took := time.Since(began)
	if _, err := source.Resolve(t.Context(), "t", hub.Query{Start: hub.Start{Kind: hub.Earliest}}); err != nil {
		t.Error(err)
	}
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if most := 1 + int(took/time.Second); svc.described < 1 || svc.described > most {
		t.Errorf("%d resolves in %v have asked for the log %d times, want at most %d", clients, took, svc.described, most)
	}
}

func TestResolveAsksForTheSame(t *testing.T) {
	svc := newScript(t, says(started("A", 9, from(4, 1, 2))))
	source := newSource(t, nil, svc.address)
	noon := time.Unix(1764504000, 0).UTC()
	for i, q := range []hub.Query{
		{Partitions: []int32{4, 5}, Keys: [][]byte{{}, []byte("k")}, KeyScope: hub.KeyScopeAll, Start: hub.Start{Kind: hub.Last, Last: 7}},
		{KeyScope: hub.KeyScopeHashed, Start: hub.Start{Kind: hub.AtTime, Time: noon}},
		{Start: hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 4, Offset: 3, Epoch: 6}}, Missing: hub.MissingLatest}},
	} {
		if _, err := source.Resolve(t.Context(), "t", q); err != nil {
			t.Fatal(err)
		}
		m := svc.requests()[i]
		start := m.GetStart()
		ok := false
		switch q.Start.Kind {
		case hub.Last:
			ok = start.GetLast() == 7 && slices.Equal(m.GetPartitions(), q.Partitions) && reflect.DeepEqual(m.GetKeys(), q.Keys) &&
				m.GetKeyScope() == tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS
		case hub.AtTime:
			ok = start.GetTime().AsTime().Equal(noon) && m.GetKeyScope() == tailracev1.KeyScope_KEY_SCOPE_HASHED
		case hub.AtPositions:
			p := start.GetPositions().GetPositions()[0]
			ok = p.GetPartition() == 4 && p.GetOffset() == 3 && p.GetLeaderEpoch() == 6 && start.GetPositions().GetMissing() == tailracev1.MissingPosition_MISSING_POSITION_LATEST
		default:
		}
		if !ok || m.GetStop().GetRecords() != 1 {
			t.Errorf("%+v: asked %v", q, m)
		}
	}
}

func TestResolveWaitsForTheService(t *testing.T) {
	svc := newScript(t,
		ends(errCut), ends(failure(connect.CodeUnavailable, "DRAINING", nil)), ends(nil), ends(nil, records(1, 1)),
		says(started("A", 1, from(0, 1, 2))))
	got, err := newSource(t, nil, svc.address).Resolve(t.Context(), "t", hub.Query{})
	if err != nil || got.TopicID != "A" {
		t.Errorf("got %+v, %v", got, err)
	}

	source := newSource(t, nil, "127.0.0.1:1")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := source.Resolve(ctx, "t", hub.Query{}); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := source.Resolve(ctx, "t", hub.Query{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// facts are the metadata of every reason.
var facts = map[string]string{"topic": "t", "partition": "3", "count": "2", "offset": "9", "oldest": "10", "end": "20", "limit": "readers", "value": "5"}

func TestErrorsOfTheServiceBecomeThoseOfTheHub(t *testing.T) {
	for reason, want := range map[string]error{
		stream.ReasonInvalidArgument:  &hub.InvalidError{Field: "f", Problem: "is wrong"},
		stream.ReasonUnknownTopic:     hub.ErrUnknownTopic,
		stream.ReasonTopicDeleted:     hub.ErrTopicDeleted,
		stream.ReasonUnknownPartition: &hub.UnknownPartitionError{Topic: "t", Partition: 3, Count: 2},
		stream.ReasonOffsetOutOfRange: &hub.OffsetOutOfRangeError{Topic: "t", Partition: 3, Offset: 9, Oldest: 10, End: 20},
		stream.ReasonLimit:            &hub.LimitError{Limit: "readers", Value: 5, Retry: time.Second},
		stream.ReasonUnimplemented:    hub.ErrUnimplemented,
	} {
		svc := newScript(t, ends(failure(connect.CodeInternal, reason, facts))) // never trust the code
		_, err := newSource(t, nil, svc.address).Resolve(t.Context(), "t", hub.Query{})
		if !reflect.DeepEqual(err, want) {
			t.Errorf("%s: got %#v, want %#v", reason, err, want)
		}
	}
	for _, reason := range []string{
		stream.ReasonUnavailable, stream.ReasonDraining, stream.ReasonInternal, stream.ReasonCanceled, stream.ReasonDeadline, stream.ReasonStalled,
		stream.ReasonConnectionLost, stream.ReasonLagged, "", "NEW",
	} {
		if err := upstream.HubError(reason, facts); !errors.Is(err, hub.ErrUnavailable) {
			t.Errorf("%s: got %v, want another try", reason, err)
		}
	}
	if err := upstream.HubError(stream.ReasonForbidden, facts); !errors.As(err, new(*hub.ForbiddenError)) {
		t.Errorf("got %v", err)
	}
}
