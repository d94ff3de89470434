package stream_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

// invalid returns the fields that an error complains of.
func invalid(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	return read(t, stream.Judge(err, "").Err).fields
}

func positions(n int) []*tailracev1.Position {
	ps := make([]*tailracev1.Position, n)
	for i := range ps {
		ps[i] = &tailracev1.Position{Partition: int32(i)}
	}
	return ps
}

func at(ps ...*tailracev1.Position) *tailracev1.Start {
	return &tailracev1.Start{At: &tailracev1.Start_Positions{Positions: &tailracev1.Positions{Positions: ps}}}
}

func TestSubscribeRequestsAreValidated(t *testing.T) {
	numbers := make([]int32, 10_001)
	for i := range numbers {
		numbers[i] = int32(i)
	}
	keys := make([][]byte, 1001)
	last := func(n int32) *tailracev1.Start { return &tailracev1.Start{At: &tailracev1.Start_Last{Last: n}} }
	tests := []struct {
		name   string
		change func(m *tailracev1.SubscribeRequest)
		fields []string // none: it is valid
	}{
		{"topic alone", func(*tailracev1.SubscribeRequest) {}, nil},
		{"no topic", func(m *tailracev1.SubscribeRequest) { m.Topic = "" }, []string{"topic"}},
		{"10000 partitions", func(m *tailracev1.SubscribeRequest) { m.Partitions = numbers[:10_000] }, nil},
		{"10001 partitions", func(m *tailracev1.SubscribeRequest) { m.Partitions = numbers }, []string{"partitions"}},
		{"a negative partition", func(m *tailracev1.SubscribeRequest) { m.Partitions = []int32{-1} }, []string{"partitions"}},
		{"a partition twice", func(m *tailracev1.SubscribeRequest) { m.Partitions = []int32{1, 2, 1} }, []string{"partitions"}},
		{"1000 keys", func(m *tailracev1.SubscribeRequest) { m.Keys = keys[:1000] }, nil},
		{"1001 keys", func(m *tailracev1.SubscribeRequest) { m.Keys = keys }, []string{"keys"}},
		{"64 KiB of keys", func(m *tailracev1.SubscribeRequest) { m.Keys = [][]byte{make([]byte, 65_000), make([]byte, 536)} }, nil},
		{"more than 64 KiB of keys", func(m *tailracev1.SubscribeRequest) { m.Keys = [][]byte{make([]byte, 65_000), make([]byte, 537)} }, []string{"keys"}},
		{"10000 positions", func(m *tailracev1.SubscribeRequest) { m.Start = at(positions(10_000)...) }, nil},
		{"10001 positions", func(m *tailracev1.SubscribeRequest) { m.Start = at(positions(10_001)...) }, []string{"start.positions"}},
		{"no positions", func(m *tailracev1.SubscribeRequest) { m.Start = at() }, nil},
		{"a position twice", func(m *tailracev1.SubscribeRequest) {
			m.Start = at(&tailracev1.Position{Offset: 1}, &tailracev1.Position{Offset: 2})
		}, []string{"start.positions"}},
		{"a negative offset", func(m *tailracev1.SubscribeRequest) { m.Start = at(&tailracev1.Position{Offset: -2}) }, []string{"start.positions"}},
		{"unknown missing", func(m *tailracev1.SubscribeRequest) {
			m.Start = at()
			m.GetStart().GetPositions().Missing = 9
		}, []string{"start.positions.missing"}},
		{"last 1", func(m *tailracev1.SubscribeRequest) { m.Start = last(1) }, nil},
		{"last 100000", func(m *tailracev1.SubscribeRequest) { m.Start = last(100_000) }, nil},
		{"last 0", func(m *tailracev1.SubscribeRequest) { m.Start = last(0) }, []string{"start.last"}},
		{"last 100001", func(m *tailracev1.SubscribeRequest) { m.Start = last(100_001) }, []string{"start.last"}},
		{"no time", func(m *tailracev1.SubscribeRequest) { m.Start = &tailracev1.Start{At: &tailracev1.Start_Time{}} }, []string{"start.time"}},
		{"heartbeat 1 s", func(m *tailracev1.SubscribeRequest) { m.HeartbeatInterval = durationpb.New(time.Second) }, nil},
		{"heartbeat 5 min", func(m *tailracev1.SubscribeRequest) { m.HeartbeatInterval = durationpb.New(5 * time.Minute) }, nil},
		{"heartbeat 999 ms", func(m *tailracev1.SubscribeRequest) { m.HeartbeatInterval = durationpb.New(999 * time.Millisecond) }, []string{"heartbeat_interval"}},
		{"heartbeat 0", func(m *tailracev1.SubscribeRequest) { m.HeartbeatInterval = &durationpb.Duration{} }, []string{"heartbeat_interval"}},
		{"heartbeat over 5 min", func(m *tailracev1.SubscribeRequest) { m.HeartbeatInterval = durationpb.New(5*time.Minute + 1) }, []string{"heartbeat_interval"}},
		{"heartbeat beyond all", func(m *tailracev1.SubscribeRequest) {
			m.HeartbeatInterval = &durationpb.Duration{Seconds: math.MaxInt64}
		}, []string{"heartbeat_interval"}},
		{"negative sizes", func(m *tailracev1.SubscribeRequest) {
			m.MaxBatchBytes, m.MaxRecordBytes = -1, -1
			m.Stop = &tailracev1.Stop{Records: -1, Bytes: -1, Positions: []*tailracev1.Position{{Offset: -1}}}
		}, []string{"max_batch_bytes", "max_record_bytes", "stop.records", "stop.bytes", "stop.positions"}},
		{"unknown enums", func(m *tailracev1.SubscribeRequest) {
			m.KeyScope, m.OnOutOfRange, m.SlowPolicy = 77, 77, 77
		}, []string{"key_scope", "on_out_of_range", "slow_policy"}},
	}
	for _, test := range tests {
		m := &tailracev1.SubscribeRequest{Topic: "orders"}
		test.change(m)
		_, _, _, err := stream.ParseSubscribe(m)
		if got := invalid(t, err); !slices.Equal(got, test.fields) {
			t.Errorf("%s: got %v, want %v (%v)", test.name, got, test.fields, err)
		}
	}
}

func TestViolationsAreBounded(t *testing.T) {
	m := &tailracev1.SubscribeRequest{Partitions: slices.Repeat([]int32{-1}, 20_000)}
	_, _, _, err := stream.ParseSubscribe(m)
	if got := invalid(t, err); len(got) != 16 || got[0] != "topic" {
		t.Errorf("got %d violations, want 16 that begin with the topic", len(got))
	}
}

func TestSubscribeRequestBecomesTheHubs(t *testing.T) {
	epoch := int32(4)
	when := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	starts := []struct {
		start *tailracev1.Start
		want  hub.Start
	}{
		{nil, hub.Start{Kind: hub.Latest}},
		{&tailracev1.Start{}, hub.Start{Kind: hub.Latest}},
		{&tailracev1.Start{At: &tailracev1.Start_Latest{}}, hub.Start{Kind: hub.Latest}},
		{&tailracev1.Start{At: &tailracev1.Start_Earliest{}}, hub.Start{Kind: hub.Earliest}},
		{&tailracev1.Start{At: &tailracev1.Start_Time{Time: timestamppb.New(when)}}, hub.Start{Kind: hub.AtTime, Time: when}},
		{&tailracev1.Start{At: &tailracev1.Start_Last{Last: 3}}, hub.Start{Kind: hub.Last, Last: 3}},
		{
			at(&tailracev1.Position{Partition: 1, Offset: 5}, &tailracev1.Position{Partition: 2, Offset: 6, LeaderEpoch: &epoch}),
			hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 1, Offset: 5, Epoch: -1}, {Partition: 2, Offset: 6, Epoch: 4}}},
		},
	}
	for _, test := range starts {
		r, heartbeat, batch, err := stream.ParseSubscribe(&tailracev1.SubscribeRequest{Topic: "orders", Start: test.start})
		if err != nil {
			t.Errorf("%v: %v", test.start, err)
		}
		got, want := r.Start, test.want
		if got.Kind != want.Kind || got.Last != want.Last || !got.Time.Equal(want.Time) || !slices.Equal(got.Positions, want.Positions) {
			t.Errorf("%v: got %+v, want %+v", test.start, got, want)
		}
		if heartbeat != 15_000 || batch != 256<<10 {
			t.Errorf("got heartbeat %d ms and batch %d bytes by default", heartbeat, batch)
		}
	}
	_, _, batch, _ := stream.ParseSubscribe(&tailracev1.SubscribeRequest{Topic: "orders", MaxBatchBytes: 1 << 30})
	if batch != 2<<20 {
		t.Errorf("got a batch of %d bytes, want 2 MiB at most", batch)
	}
	r, _, _, err := stream.ParseSubscribe(&tailracev1.SubscribeRequest{
		Topic: "orders", TopicId: "id", KeyScope: tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS,
		OnOutOfRange: tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_FAIL, SlowPolicy: tailracev1.SlowPolicy_SLOW_POLICY_CONFLATE,
		MaxRecordBytes: 9, Stop: &tailracev1.Stop{AtEnd: true, Records: 3, Bytes: 4, Positions: positions(1)},
		Start: &tailracev1.Start{At: &tailracev1.Start_Positions{Positions: &tailracev1.Positions{Missing: tailracev1.MissingPosition_MISSING_POSITION_SKIP}}},
	})
	if err != nil || r.TopicID != "id" || r.KeyScope != hub.KeyScopeAll || r.OnOutOfRange != hub.OutOfRangeFail || r.Slow != hub.SlowConflate ||
		r.MaxRecordBytes != 9 || !r.Stop.AtEnd || r.Stop.Records != 3 || r.Stop.Bytes != 4 || len(r.Stop.Positions) != 1 || r.Start.Missing != hub.MissingSkip {
		t.Errorf("got %+v, %v", r, err)
	}
}

func TestPublishRequestsAreValidated(t *testing.T) {
	records := func(n int) []*tailracev1.PublishRecord { return make([]*tailracev1.PublishRecord, n) }
	tests := []struct {
		m      *tailracev1.PublishRequest
		bytes  int
		fields []string
	}{
		{&tailracev1.PublishRequest{Topic: "t", Records: records(10_000)}, 4 << 20, nil},
		{&tailracev1.PublishRequest{Topic: "t", Records: records(10_001)}, 0, []string{"records"}},
		{&tailracev1.PublishRequest{Topic: "t", Records: records(1)}, 4<<20 + 1, []string{"records"}},
		{&tailracev1.PublishRequest{}, 0, []string{"topic", "records"}},
	}
	for _, test := range tests {
		if got := invalid(t, stream.ParsePublish(test.m, test.bytes)); !slices.Equal(got, test.fields) {
			t.Errorf("%d records, %d bytes: got %v, want %v", len(test.m.GetRecords()), test.bytes, got, test.fields)
		}
	}
}
