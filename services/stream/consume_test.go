package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

// oneLog is a group.Cluster with one partition of "orders", and a group.DeadLetters that takes everything.
type oneLog struct {
	members chan *group.Group
	buried  atomic.Int32
}

func (*oneLog) Check(_ context.Context, topics []string) error {
	if !slices.Equal(topics, []string{"orders"}) {
		return hub.ErrUnknownTopic
	}
	return nil
}

func (l *oneLog) Join(ctx context.Context, _ group.Settings, g *group.Group) error {
	g.Assign([]group.Place{{Partition: group.Partition{Topic: "orders"}}})
	l.members <- g
	<-ctx.Done()
	return nil
}

func (l *oneLog) Bury(_ context.Context, _ group.Letter, done func(error)) {
	l.buried.Add(1)
	done(nil)
}

// startGroups is start with queue mode on a log of its own.
func startGroups(t *testing.T, options ...option) (*service, *oneLog) {
	t.Helper()
	l := &oneLog{members: make(chan *group.Group, 10)}
	gs := group.New(group.Config{Cluster: l, DeadLetters: l, Linger: time.Minute})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = gs.Run(ctx) }()
	s := start(t, patience, append(options, func(c *stream.Config) { c.Groups = gs })...)
	t.Cleanup(func() { s.stop(); cancel(); <-ended })
	return s, l
}

// appendRecords puts so many records behind what is there.
func appendRecords(t *testing.T, g *group.Group, from, n int64) {
	t.Helper()
	b := group.Batch{Partition: group.Partition{Topic: "orders"}, Next: from + n}
	for i := range n {
		body, err := proto.Marshal(&tailracev1.Record{Topic: "orders", Offset: from + i, Key: []byte("k"), Value: fmt.Appendf(nil, "v%d", from+i)})
		if err != nil {
			t.Fatal(err)
		}
		b.Records = append(b.Records, group.Record{Offset: from + i, Epoch: -1, Key: []byte("k"), Body: body})
	}
	g.Append(b)
}

// work is an open Consume.
type work struct {
	t *testing.T
	*connect.BidiStreamForClientSimple[tailracev1.ConsumeRequest, tailracev1.ConsumeResponse]
}

func consume(t *testing.T, client tailracev1connect.StreamServiceClient, m *tailracev1.ConsumeStart) *work {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	opened, err := client.Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = opened.CloseRequest()
		_ = opened.CloseResponse()
	})
	w := &work{t, opened}
	w.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: m}})
	return w
}

func (w *work) send(m *tailracev1.ConsumeRequest) {
	w.t.Helper()
	if err := w.Send(m); err != nil && !errors.Is(err, io.EOF) { // at the end the error is received
		w.t.Fatal(err)
	}
}

func (w *work) ack(upTo int64, tags ...int64) {
	w.t.Helper()
	w.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: tags, UpTo: upTo}}})
}

func (w *work) next() *tailracev1.ConsumeResponse {
	w.t.Helper()
	m, err := w.Receive()
	if err != nil {
		w.t.Fatal(err)
	}
	return m
}

// deliveries reads n of them, as offset, tag, attempt.
func (w *work) deliveries(n int) (got []string) {
	w.t.Helper()
	for len(got) < n {
		for _, d := range w.next().GetDeliveries().GetDeliveries() {
			if want := fmt.Sprintf("v%d", d.GetRecord().GetOffset()); string(d.GetRecord().GetValue()) != want {
				w.t.Errorf("got %v, want value %s", d, want)
			}
			got = append(got, fmt.Sprintf("%d:%d:%d", d.GetRecord().GetOffset(), d.GetTag(), d.GetAttempt()))
		}
	}
	return got
}

func starting() *tailracev1.ConsumeStart {
	return &tailracev1.ConsumeStart{Group: "billing", Topics: []string{"orders"}}
}

// committed waits for a front.
func committed(t *testing.T, g *group.Group, want int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("the front is %d", want), func() bool {
		places := g.Turn().Commit
		g.Committed(places, nil)
		return len(places) == 1 && places[0].Offset == want
	})
}

func TestConsume(t *testing.T) {
	for name, options := range map[string][]connect.ClientOption{
		"connect": nil, "gRPC": {connect.WithGRPC()}, "JSON": {connect.WithProtoJSON()},
	} {
		t.Run(name, func(t *testing.T) {
			s, l := startGroups(t)
			w := consume(t, s.client(options...), starting())
			settings := w.next().GetStarted().GetSettings()
			if settings.GetMaxInFlight() != 100 || settings.GetMaxAttempts() != 5 || settings.GetAckTimeout().AsDuration() != 30*time.Second ||
				settings.GetOrdering() != tailracev1.Ordering_ORDERING_KEY {
				t.Errorf("got settings %v", settings)
			}
			g := <-l.members
			appendRecords(t, g, 0, 3)
			if got, want := w.deliveries(3), []string{"0:1:1", "1:2:1", "2:3:1"}; !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
			w.ack(0, 1, 7)
			if got := w.next().GetAckRefused().GetTags(); !slices.Equal(got, []int64{7}) {
				t.Errorf("got %v refused", got)
			}
			w.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Nack{Nack: &tailracev1.Nack{Tags: []int64{2}, Reason: "busy"}}})
			if got, want := w.deliveries(2), []string{"1:4:2", "2:5:2"}; !slices.Equal(got, want) { // the later one of its key comes along
				t.Errorf("got %v, want %v", got, want)
			}
			w.ack(0, 3) // it is held under another tag now
			if got := w.next().GetAckRefused().GetTags(); !slices.Equal(got, []int64{3}) {
				t.Errorf("got %v refused", got)
			}
			w.ack(5)
			committed(t, g, 3)
			g.Gap(group.Gap{Partition: group.Partition{Topic: "orders"}, From: 3, To: 9, Reason: hub.GapRetention})
			if got := w.next().GetGap(); got.GetTopic() != "orders" || got.GetGap().GetTo() != 9 || got.GetGap().GetReason() != tailracev1.GapReason_GAP_REASON_RETENTION {
				t.Errorf("got %v", got)
			}
			if err := w.CloseRequest(); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Receive(); !errors.Is(err, io.EOF) {
				t.Errorf("after the half-close: got %v", err)
			}
		})
	}
}

func TestConsumeIsRefused(t *testing.T) {
	s, _ := startGroups(t, func(c *stream.Config) {
		stream.SetAllow(c, func(_ context.Context, ask access.Request) error {
			if ask.Action == access.ActionPublish && (ask.Topic == "secret" || ask.Group == "spies") {
				return fmt.Errorf("not to %s", ask.Topic)
			}
			return nil
		})
	})
	client := s.client()
	first := consume(t, client, starting())
	first.next()
	for name, c := range map[string]struct {
		start        *tailracev1.ConsumeStart
		code         connect.Code
		reason, word string
	}{
		"empty":              {&tailracev1.ConsumeStart{}, connect.CodeInvalidArgument, "INVALID_ARGUMENT", "start.topics"},
		"timeout":            {&tailracev1.ConsumeStart{Group: "g", Topics: []string{"orders"}, AckTimeout: durationpb.New(1)}, connect.CodeInvalidArgument, "INVALID_ARGUMENT", "start.ack_timeout"},
		"topic":              {&tailracev1.ConsumeStart{Group: "g", Topics: []string{"nowhere"}}, connect.CodeNotFound, "UNKNOWN_TOPIC", "nowhere"},
		"settings":           {&tailracev1.ConsumeStart{Group: "billing", Topics: []string{"orders"}, MaxAttempts: 3}, connect.CodeFailedPrecondition, "GROUP_SETTINGS", "max_attempts 5"},
		"dead letters":       {&tailracev1.ConsumeStart{Group: "g", Topics: []string{"orders"}, DeadLetterTopic: "a/b"}, connect.CodeInvalidArgument, "INVALID_ARGUMENT", "start.dead_letter_topic"},
		"own dead letters":   {&tailracev1.ConsumeStart{Group: "g", Topics: []string{"orders", "orders.dlq"}}, connect.CodeInvalidArgument, "INVALID_ARGUMENT", "start.dead_letter_topic"},
		"may not bury there": {&tailracev1.ConsumeStart{Group: "g", Topics: []string{"orders"}, DeadLetterTopic: "secret"}, connect.CodePermissionDenied, "FORBIDDEN", "not to secret"},
		"nor by default":     {&tailracev1.ConsumeStart{Group: "spies", Topics: []string{"orders"}}, connect.CodePermissionDenied, "FORBIDDEN", "not to orders.dlq"},
		"no start":           {nil, connect.CodeInvalidArgument, "INVALID_ARGUMENT", "start"},
	} {
		t.Run(name, func(t *testing.T) {
			w := consume(t, client, c.start)
			_, err := w.Receive()
			if told := read(t, err); told.code != c.code || told.reason != c.reason || !strings.Contains(err.Error(), c.word) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A request that was half-closed is served on: so buf curl reads a group.
func TestConsumeHalfClosed(t *testing.T) {
	s, l := startGroups(t)
	m := starting()
	m.AutoAck = true
	w := consume(t, s.client(), m)
	if err := w.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	w.next()
	g := <-l.members
	appendRecords(t, g, 0, 2)
	w.deliveries(2)
	committed(t, g, 2)
	appendRecords(t, g, 2, 2)
	w.deliveries(2)
}

// A worker that ends gives back what it holds, at once.
func TestConsumeEndsWithItsStream(t *testing.T) {
	s, l := startGroups(t)
	ctx, cancel := context.WithCancel(t.Context())
	opened, err := s.client().Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	gone := &work{t, opened}
	gone.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: starting()}})
	gone.next()
	appendRecords(t, <-l.members, 0, 2)
	gone.deliveries(2)
	other := consume(t, s.client(), starting())
	other.next()
	cancel()
	_ = opened.CloseResponse() // its HTTP client notices only now
	if got, want := other.deliveries(2), []string{"0:1:2", "1:2:2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestConsumeDrains(t *testing.T) {
	s, l := startGroups(t)
	w := consume(t, s.client(), starting())
	w.next()
	g := <-l.members
	appendRecords(t, g, 0, 1)
	w.deliveries(1)
	s.stop()
	w.ack(1) // within the grace
	_, err := w.Receive()
	if told := read(t, err); told.code != connect.CodeUnavailable || told.reason != "DRAINING" {
		t.Errorf("got %v", err)
	}
	committed(t, g, 1)
}

// The shadow of ConsumeResponse has its numbers.
func TestConsumeShadow(t *testing.T) {
	real := (&tailracev1.ConsumeResponse{}).ProtoReflect().Descriptor().Fields()
	shadow := (&wirev1.ConsumeResponse{}).ProtoReflect().Descriptor().Fields()
	if real.Len() != shadow.Len() {
		t.Fatalf("got %d fields, want %d", shadow.Len(), real.Len())
	}
	for i := range real.Len() {
		want := real.Get(i)
		if got := shadow.ByNumber(want.Number()); got == nil || got.Name() != want.Name() {
			t.Errorf("number %d: got %v, want %s", want.Number(), got, want.Name())
		}
	}
}
