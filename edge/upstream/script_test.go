package upstream_test

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"tailrace.dev/tailrace/edge/upstream"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/hub"
)

var full = flag.Bool("upstream.full", false, "run the proofs at full size")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything may take before a test gives up: far more than it needs.
const patience = 30 * time.Second

type (
	subscribing = connect.ServerStream[tailracev1.SubscribeResponse]
	pipelined   = connect.BidiStream[tailracev1.PublishStreamRequest, tailracev1.PublishStreamResponse]
	// pipeline is one PublishStream as the test wants it answered.
	pipeline func(ctx context.Context, stream *pipelined) error
	worker   = connect.BidiStream[tailracev1.ConsumeRequest, tailracev1.ConsumeResponse]
	// consuming is one Consume as the test wants it answered.
	consuming func(ctx context.Context, stream *worker) error
	// step is one Subscribe call as the test wants it answered.
	step func(ctx context.Context, m *tailracev1.SubscribeRequest, out *subscribing) error
)

// script is a service whose every answer the test writes down.
type script struct {
	tailracev1connect.UnimplementedStreamServiceHandler
	tailracev1connect.UnimplementedTopicServiceHandler
	tailracev1connect.UnimplementedGroupServiceHandler

	address string
	server  *http.Server
	health  *grpchealth.StaticChecker

	mu        sync.Mutex
	steps     []step // of the calls to come; the last one stays
	asked     []*tailracev1.SubscribeRequest
	publishes []func(ctx context.Context, m *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) // likewise
	published int
	consumes  []consuming // of the Consumes to come; the last one stays
	pipelines []pipeline  // of the PublishStreams to come; the last one stays
	opened    int
	topic     *tailracev1.Topic // that GetTopic tells
	described int
	lists     int
	names     []string // of ListTopics, in pages of two

	groups                  []*tailracev1.Group // by name; nil: it has no GroupService
	groupLists, groupsAsked int
}

func newScript(t *testing.T, steps ...step) *script {
	t.Helper()
	s := &script{steps: steps}
	s.listen(t, "127.0.0.1:0")
	return s
}

// listen serves on an address until close, or the end of the test.
func (s *script) listen(t *testing.T, address string) {
	t.Helper()
	var ln net.Listener
	eventually(t, "the port is free", func() (ok bool) {
		var err error
		ln, err = net.Listen("tcp", address)
		return err == nil
	})
	mux := http.NewServeMux()
	mux.Handle(tailracev1connect.NewStreamServiceHandler(s))
	mux.Handle(tailracev1connect.NewTopicServiceHandler(s))
	mux.Handle(tailracev1connect.NewGroupServiceHandler(s))
	s.health = grpchealth.NewStaticChecker()
	mux.Handle(grpchealth.NewHandler(s.health))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	s.server = &http.Server{
		Handler: mux, Protocols: protocols, ReadHeaderTimeout: patience,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 10_000}, // as a service has: else many streams at once make more connections, which stay
	}
	s.address = ln.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.server.Serve(ln)
	}()
	server := s.server
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}

// close resets all connections and stops listening.
func (s *script) close() { _ = s.server.Close() }

func (s *script) Subscribe(ctx context.Context, m *tailracev1.SubscribeRequest, out *subscribing) error {
	s.mu.Lock()
	s.asked = append(s.asked, m)
	do := s.steps[0]
	if len(s.steps) > 1 {
		s.steps = s.steps[1:]
	}
	s.mu.Unlock()
	return do(ctx, m, out)
}

func (s *script) Publish(ctx context.Context, m *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
	s.mu.Lock()
	s.published++
	do := s.publishes[0]
	if len(s.publishes) > 1 {
		s.publishes = s.publishes[1:]
	}
	s.mu.Unlock()
	return do(ctx, m)
}

func (s *script) PublishStream(ctx context.Context, stream *pipelined) error {
	s.mu.Lock()
	s.opened++
	do := s.pipelines[0]
	if len(s.pipelines) > 1 {
		s.pipelines = s.pipelines[1:]
	}
	s.mu.Unlock()
	return do(ctx, stream)
}

func (s *script) Consume(ctx context.Context, stream *worker) error {
	s.mu.Lock()
	do := s.consumes[0]
	if len(s.consumes) > 1 {
		s.consumes = s.consumes[1:]
	}
	s.mu.Unlock()
	return do(ctx, stream)
}

func (s *script) GetTopic(context.Context, *tailracev1.GetTopicRequest) (*tailracev1.GetTopicResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.described++
	if s.topic == nil {
		return nil, failure(connect.CodeUnavailable, "KAFKA_UNAVAILABLE", nil)
	}
	return &tailracev1.GetTopicResponse{Topic: s.topic}, nil
}

func (s *script) ListTopics(_ context.Context, m *tailracev1.ListTopicsRequest) (*tailracev1.ListTopicsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	page := &tailracev1.ListTopicsResponse{}
	for i, name := range s.names {
		if name <= m.GetPageToken() {
			continue
		}
		page.Topics = append(page.Topics, &tailracev1.TopicSummary{Name: name, Partitions: int32(i + 1)})
		if len(page.Topics) == 2 && i < len(s.names)-1 {
			page.NextPageToken = name
			break
		}
	}
	return page, nil
}

// requests are the Subscribe calls so far.
func (s *script) requests() []*tailracev1.SubscribeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*tailracev1.SubscribeRequest(nil), s.asked...)
}

// says sends these and waits until the caller leaves.
func says(ms ...*tailracev1.SubscribeResponse) step {
	return func(ctx context.Context, _ *tailracev1.SubscribeRequest, out *subscribing) error {
		for _, m := range ms {
			if err := out.Send(m); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// ends sends these and ends with err.
func ends(err error, ms ...*tailracev1.SubscribeResponse) step {
	return func(_ context.Context, _ *tailracev1.SubscribeRequest, out *subscribing) error {
		for _, m := range ms {
			if err := out.Send(m); err != nil {
				return err
			}
		}
		return err
	}
}

// failure is an error as a service sends it.
func failure(code connect.Code, reason string, metadata map[string]string) error {
	err := connect.NewError(code, &textError{"it said no"})
	for _, m := range []*connect.ErrorDetail{
		detail(&errdetails.ErrorInfo{Domain: "tailrace.dev", Reason: reason, Metadata: metadata}),
		detail(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}),
		detail(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: "f", Description: "is wrong"}}}),
	} {
		err.AddDetail(m)
	}
	return err
}

func detail(m proto.Message) *connect.ErrorDetail {
	d, err := connect.NewErrorDetail(m)
	if err != nil {
		panic(err)
	}
	return d
}

type textError struct{ text string }

func (e *textError) Error() string { return e.text }

func started(id string, count int32, ps ...*tailracev1.StartedPartition) *tailracev1.SubscribeResponse {
	return &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_Started{Started: &tailracev1.Started{TopicId: id, PartitionCount: count, Partitions: ps}}}
}

func from(partition int32, start, end int64) *tailracev1.StartedPartition {
	return &tailracev1.StartedPartition{Partition: partition, Start: start, End: end}
}

// records are batches of partition 0: each of these offsets, and the position after them.
func records(next, end int64, offsets ...int64) *tailracev1.SubscribeResponse {
	return recordsOf(0, next, end, offsets...)
}

func recordsOf(partition int32, next, end int64, offsets ...int64) *tailracev1.SubscribeResponse {
	batch := &tailracev1.RecordBatch{Partition: partition, Next: next, End: end}
	for _, o := range offsets {
		epoch := int32(3)
		batch.Records = append(batch.Records, &tailracev1.Record{Topic: "t", Partition: partition, Offset: o, Key: []byte("k"), LeaderEpoch: &epoch})
	}
	return &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_Records{Records: &tailracev1.Records{Batches: []*tailracev1.RecordBatch{batch}}}}
}

func gap(from, to int64, reason tailracev1.GapReason) *tailracev1.SubscribeResponse {
	return &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_Gap{Gap: &tailracev1.Gap{From: from, To: to, Reason: reason}}}
}

func topology(n int32) *tailracev1.SubscribeResponse {
	return &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_Topology{Topology: &tailracev1.Topology{Partitions: n}}}
}

func beat(moved []*tailracev1.Position, unavailable ...int32) *tailracev1.SubscribeResponse {
	return &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_Heartbeat{
		Heartbeat: &tailracev1.Heartbeat{Positions: moved, UnavailablePartitions: unavailable},
	}}
}

func caughtUp() *tailracev1.SubscribeResponse {
	return &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_CaughtUp{CaughtUp: &tailracev1.CaughtUp{}}}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// newSource is a running source over services at these addresses, hasty enough for tests.
func newSource(t *testing.T, change func(*upstream.Config), addresses ...string) *upstream.Source {
	t.Helper()
	cfg := upstream.Config{
		Logger: quiet(), RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond, ProbeEvery: 50 * time.Millisecond,
	}
	for _, a := range addresses {
		cfg.Addresses = append(cfg.Addresses, "http://"+a)
	}
	if change != nil {
		change(&cfg)
	}
	s, err := upstream.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// told is a topic that keeps what it is told.
type told struct {
	mu    sync.Mutex
	id    string
	count int32
	es    []*hub.Entry
	calls int
}

func (t *told) Name() string { return "t" }

func (t *told) ID() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

func (t *told) Count() int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}

func (t *told) Append(batch ...*hub.Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls++
	for _, e := range batch {
		t.es = append(t.es, e)
		switch e.Kind {
		case hub.Topology:
			t.count = e.Count
		case hub.Recreated:
			t.id = e.TopicID
			if e.Count > 0 {
				t.count = min(t.count, e.Count)
			}
		default:
		}
	}
}

func (t *told) entries() []*hub.Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]*hub.Entry(nil), t.es...)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(time.Millisecond)
	}
}
