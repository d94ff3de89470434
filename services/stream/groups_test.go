package stream_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

// fakeGroups fills stream.GroupAdmin. asked counts what would change something.
type fakeGroups struct {
	all   []*tailracev1.GroupSummary
	err   error
	asked int
}

func (f *fakeGroups) ListGroups(context.Context) ([]*tailracev1.GroupSummary, error) {
	return f.all, f.err
}

func (f *fakeGroups) GetGroup(_ context.Context, name string) (*tailracev1.Group, error) {
	return &tailracev1.Group{
		Group: name, State: "Stable",
		Members:    []*tailracev1.Member{{Process: "another"}, {Process: f.GroupMember()}},
		Partitions: []*tailracev1.GroupPartition{{Topic: "orders", Committed: 3, End: 9, Lag: 6}, {Topic: "orders", Partition: 1, Committed: -1, Lag: -1}},
	}, f.err
}

func (*fakeGroups) GroupMember() string { return "this" }

func (f *fakeGroups) ResetOffsets(context.Context, *tailracev1.ResetOffsetsRequest) ([]*tailracev1.ResetPartition, error) {
	f.asked++
	return []*tailracev1.ResetPartition{{Partition: 2, Before: -1, After: 7}}, f.err
}

func (f *fakeGroups) RedriveDeadLetters(_ context.Context, _ *tailracev1.RedriveDeadLettersRequest, allow func(string) error) (*tailracev1.RedriveDeadLettersResponse, error) {
	f.asked++
	if err := allow("orders"); err != nil {
		return nil, err
	}
	return &tailracev1.RedriveDeadLettersResponse{Skipped: 4}, f.err
}

// startAdmin is a service with GroupService over a stand-in; names of groups begin with "g", but for those of workers, which begin with "b".
func startAdmin(t *testing.T) (*fakeGroups, tailracev1connect.GroupServiceClient, *service, *oneLog) {
	t.Helper()
	f, l := &fakeGroups{}, &oneLog{members: make(chan *group.Group, 10)}
	gs := group.New(group.Config{Cluster: l, DeadLetters: l, Linger: time.Minute, Allowed: regexp.MustCompile("[gb].*")})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = gs.Run(ctx) }()
	s := start(t, patience, func(c *stream.Config) { c.Groups, c.GroupAdmin = gs, f })
	t.Cleanup(func() { s.stop(); cancel(); <-ended })
	return f, tailracev1connect.NewGroupServiceClient(h2c(t, nil), s.url), s, l
}

func TestListGroupsIsPaged(t *testing.T) {
	f, client, _, _ := startAdmin(t)
	var names []string
	for i := range 250 {
		f.all = append(f.all, &tailracev1.GroupSummary{Group: fmt.Sprintf("g%03d", i), State: "Empty"})
		names = append(names, f.all[i].GetGroup())
	}
	f.all = append(f.all, &tailracev1.GroupSummary{Group: "x is not for this service"})
	for size, pages := range map[int32]int{0: 3, 100: 3, 125: 2, 249: 2, 250: 1, 5000: 1} {
		var got []string
		m, n := &tailracev1.ListGroupsRequest{PageSize: size}, 0
		for ok := true; ok; ok = m.GetPageToken() != "" {
			page, err := client.ListGroups(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range page.GetGroups() {
				got = append(got, g.GetGroup())
			}
			n++
			m.PageToken = page.GetNextPageToken()
		}
		if !slices.Equal(got, names) || n != pages {
			t.Errorf("size %d: got %d groups on %d pages, want 250 on %d", size, len(got), n, pages)
		}
	}
	_, err := client.ListGroups(t.Context(), &tailracev1.ListGroupsRequest{PageSize: -1, PageToken: "?"})
	if told := read(t, err); told.code != connect.CodeInvalidArgument || !slices.Equal(told.fields, []string{"page_size", "page_token"}) {
		t.Errorf("got %v: %+v", err, told)
	}
	f.err = hub.ErrUnavailable
	_, err = client.ListGroups(t.Context(), &tailracev1.ListGroupsRequest{})
	if told := read(t, err); told.code != connect.CodeUnavailable || told.reason != "KAFKA_UNAVAILABLE" {
		t.Errorf("got %v", err)
	}
}

// TestGetGroupTellsWorkers: those of this process, and what they hold.
func TestGetGroupTellsWorkers(t *testing.T) {
	_, client, s, l := startAdmin(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	worker, err := s.client().Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: &tailracev1.ConsumeStart{Group: "billing", Topics: []string{"orders"}}}}); err != nil {
		t.Fatal(err)
	}
	appendRecords(t, <-l.members, 0, 3)
	var got *tailracev1.Group
	eventually(t, "three records are in flight", func() bool {
		r, err := client.GetGroup(ctx, &tailracev1.GetGroupRequest{Group: "billing"})
		if err != nil {
			t.Fatal(err)
		}
		got = r.GetGroup()
		return got.GetPartitions()[0].GetInFlight() == 3
	})
	if got.GetPartitions()[1].GetInFlight() != 0 || got.GetMembers()[0].GetWorkers() != 0 || got.GetMembers()[1].GetWorkers() != 1 {
		t.Errorf("got %v, want one worker of this process, which holds three of the first partition", got)
	}
}

// TestGroupRequestsAreJudged: what is wrong, or not for this service, is refused before Kafka is asked.
func TestGroupRequestsAreJudged(t *testing.T) {
	f, client, _, _ := startAdmin(t)
	ctx := t.Context()
	get := func(m *tailracev1.GetGroupRequest) error { _, err := client.GetGroup(ctx, m); return err }
	reset := func(m *tailracev1.ResetOffsetsRequest) error { _, err := client.ResetOffsets(ctx, m); return err }
	redrive := func(m *tailracev1.RedriveDeadLettersRequest) error {
		_, err := client.RedriveDeadLetters(ctx, m)
		return err
	}
	earliest := &tailracev1.ResetOffsetsRequest_Earliest{Earliest: true}
	positions := func(ps ...*tailracev1.Position) *tailracev1.ResetOffsetsRequest_Positions {
		return &tailracev1.ResetOffsetsRequest_Positions{Positions: &tailracev1.ResetPositions{Positions: ps}}
	}
	for _, test := range []struct {
		err    error
		fields []string
	}{
		{get(&tailracev1.GetGroupRequest{}), []string{"group"}},
		{get(&tailracev1.GetGroupRequest{Group: strings.Repeat("g", 250)}), []string{"group"}},
		{get(&tailracev1.GetGroupRequest{Group: "billing\x00-ro"}), []string{"group"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "billing\x00-ro", Topic: "orders", To: earliest}), []string{"group"}},
		{redrive(&tailracev1.RedriveDeadLettersRequest{Group: " ", DeadLetterTopic: "d"}), []string{"group"}},
		{reset(&tailracev1.ResetOffsetsRequest{}), []string{"group", "topic", "to"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: &tailracev1.ResetOffsetsRequest_Earliest{}}), []string{"earliest"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: &tailracev1.ResetOffsetsRequest_Latest{}}), []string{"latest"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: &tailracev1.ResetOffsetsRequest_Time{Time: &timestamppb.Timestamp{Nanos: -1}}}), []string{"time"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: positions()}), []string{"positions.positions"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: positions(&tailracev1.Position{Offset: -1})}), []string{"positions.positions"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: positions(&tailracev1.Position{}), Partitions: []int32{0}}), []string{"partitions"}},
		{reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: earliest, Partitions: []int32{1, 1, -1}}), []string{"partitions", "partitions"}},
		{redrive(&tailracev1.RedriveDeadLettersRequest{MaxRecords: -1}), []string{"dead_letter_topic", "group", "max_records"}},
		{redrive(&tailracev1.RedriveDeadLettersRequest{Group: "g", DeadLetterTopic: "d", Positions: []*tailracev1.Position{{}, {}}}), []string{"positions"}},
	} {
		if told := read(t, test.err); told.reason != "INVALID_ARGUMENT" || !slices.Equal(told.fields, test.fields) {
			t.Errorf("got %v %v, want %v", told.reason, told.fields, test.fields)
		}
	}
	for _, err := range []error{
		get(&tailracev1.GetGroupRequest{Group: "x"}),
		reset(&tailracev1.ResetOffsetsRequest{Group: "xg", Topic: "orders", To: earliest}),
		redrive(&tailracev1.RedriveDeadLettersRequest{Group: "x", DeadLetterTopic: "d"}),
	} {
		if told := read(t, err); told.code != connect.CodePermissionDenied || told.reason != "FORBIDDEN" {
			t.Errorf("a name that is not allowed: got %v", err)
		}
	}
	if f.asked != 0 {
		t.Errorf("Kafka was asked %d times", f.asked)
	}
	if r, err := client.ResetOffsets(ctx, &tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: earliest}); err != nil || r.GetPartitions()[0].GetAfter() != 7 {
		t.Errorf("got %v, %v", r, err)
	}
	if r, err := client.RedriveDeadLetters(ctx, &tailracev1.RedriveDeadLettersRequest{Group: "g", DeadLetterTopic: "d"}); err != nil || r.GetSkipped() != 4 {
		t.Errorf("got %v, %v", r, err)
	}
	for err, want := range map[error]told{
		group.ErrUnknown: {code: connect.CodeNotFound, reason: "UNKNOWN_GROUP"},
		group.ErrActive:  {code: connect.CodeFailedPrecondition, reason: "GROUP_ACTIVE"},
	} {
		f.err = fmt.Errorf("reset: %w", &group.NamedError{Group: "g", Err: err})
		refused := reset(&tailracev1.ResetOffsetsRequest{Group: "g", Topic: "orders", To: earliest})
		if got := read(t, refused); got.code != want.code || got.reason != want.reason || got.meta["group"] != "g" || !strings.Contains(refused.Error(), `group "g"`) {
			t.Errorf("%v: got %v, %+v", err, refused, got)
		}
	}
}
