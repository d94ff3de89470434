package stream_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoreflect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/hub"
)

func TestListTopicsIsPaged(t *testing.T) {
	s := start(t, patience)
	var names []string
	var all []*tailracev1.TopicSummary
	for i := range 250 {
		name := fmt.Sprintf("t%03d", i)
		names = append(names, name)
		all = append(all, &tailracev1.TopicSummary{Name: name, TopicId: "id-" + name, Partitions: 3})
	}
	s.kafka.list = func() ([]*tailracev1.TopicSummary, error) { return all, nil }
	client := tailracev1connect.NewTopicServiceClient(h2c(t, nil), s.url)
	for size, pages := range map[int32]int{0: 3, 1: 250, 100: 3, 125: 2, 249: 2, 250: 1, 1000: 1, 5000: 1} {
		var got []string
		token, n := "", 0
		for {
			page, err := client.ListTopics(t.Context(), &tailracev1.ListTopicsRequest{PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			for _, topic := range page.GetTopics() {
				got = append(got, topic.GetName())
			}
			n++
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if !slices.Equal(got, names) || n != pages {
			t.Errorf("size %d: got %d topics on %d pages, want 250 on %d", size, len(got), n, pages)
		}
	}
	_, err := client.ListTopics(t.Context(), &tailracev1.ListTopicsRequest{PageSize: -1, PageToken: "?"})
	if told := read(t, err); told.code != connect.CodeInvalidArgument || !slices.Equal(told.fields, []string{"page_size", "page_token"}) {
		t.Errorf("got %v: %+v", err, told)
	}
	s.kafka.list = func() ([]*tailracev1.TopicSummary, error) { return nil, hub.ErrUnavailable }
	_, err = client.ListTopics(t.Context(), &tailracev1.ListTopicsRequest{})
	if told := read(t, err); told.code != connect.CodeUnavailable || told.reason != "KAFKA_UNAVAILABLE" {
		t.Errorf("got %v", err)
	}
}

func TestGetTopicCountsSubscribersHere(t *testing.T) {
	s := start(t, patience)
	s.kafka.get = func(topic string) (*tailracev1.Topic, error) {
		if topic != "orders" {
			return nil, hub.ErrUnknownTopic
		}
		return &tailracev1.Topic{Name: topic, Partitions: []*tailracev1.Partition{{Leader: 1, End: 5}}}, nil
	}
	client := tailracev1connect.NewTopicServiceClient(http1(t), s.url)
	for range 2 {
		subscribe(t, s.client(), orders()).started()
	}
	got, err := client.GetTopic(t.Context(), &tailracev1.GetTopicRequest{Topic: "orders"})
	if err != nil || got.GetTopic().GetLocalSubscribers() != 2 || got.GetTopic().GetPartitions()[0].GetEnd() != 5 {
		t.Errorf("got %v, %v", got, err)
	}
	_, err = client.GetTopic(t.Context(), &tailracev1.GetTopicRequest{Topic: "nowhere"})
	if told := read(t, err); told.code != connect.CodeNotFound || told.reason != "UNKNOWN_TOPIC" || told.meta["topic"] != "nowhere" {
		t.Errorf("got %v", err)
	}
	_, err = client.GetTopic(t.Context(), &tailracev1.GetTopicRequest{})
	if told := read(t, err); told.code != connect.CodeInvalidArgument || !slices.Equal(told.fields, []string{"topic"}) {
		t.Errorf("got %v", err)
	}
}

func TestHealthTellsOfTheDrain(t *testing.T) {
	s := start(t, patience)
	client := grpchealth.NewClient(h2c(t, nil), s.url, connect.WithGRPC())
	for _, service := range []string{"", "tailrace.v1.StreamService", "tailrace.v1.TopicService"} {
		got, err := client.Check(t.Context(), &grpchealth.CheckRequest{Service: service})
		if err != nil || got.Status != grpchealth.StatusServing {
			t.Errorf("%q: got %v, %v", service, got, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watch := watchHealth(ctx, t, s)
	if got := <-watch; got != grpchealth.StatusServing {
		t.Errorf("got %v", got)
	}
	s.stop()
	if got := <-watch; got != grpchealth.StatusNotServing {
		t.Errorf("got %v", got)
	}
	if err := <-s.done; err != nil { // a watch does not hold up the drain
		t.Error(err)
	}
	for range watch {
	}
	if ctx.Err() != nil {
		t.Error("the drain took too long")
	}
}

// watchHealth streams the status of the whole service.
func watchHealth(ctx context.Context, t *testing.T, s *service) <-chan grpchealth.Status {
	t.Helper()
	out := make(chan grpchealth.Status, 8)
	client := connect.NewClient[healthv1.HealthCheckRequest, healthv1.HealthCheckResponse](h2c(t, nil), s.url+"/grpc.health.v1.Health/Watch", connect.WithGRPC())
	stream, err := client.CallServerStream(ctx, connect.NewRequest(&healthv1.HealthCheckRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(out)
		defer stream.Close()
		for stream.Receive() {
			out <- grpchealth.Status(stream.Msg().GetStatus())
		}
	}()
	return out
}

func TestReflectionKnowsTheServices(t *testing.T) {
	s := start(t, patience)
	client := grpcreflect.NewClient(h2c(t, nil), s.url, connect.WithGRPC())
	stream := client.NewStream(t.Context())
	defer stream.Close()
	names, err := stream.ListServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"tailrace.v1.StreamService", "tailrace.v1.TopicService", "tailrace.v1.GroupService", "grpc.health.v1.Health"} {
		if !slices.ContainsFunc(names, func(n protoreflect.FullName) bool { return string(n) == want }) {
			t.Errorf("%s is not among %v", want, names)
		}
	}
	files, err := stream.FileContainingSymbol("tailrace.v1.StreamService")
	if err != nil || len(files) == 0 {
		t.Errorf("got %d files, %v", len(files), err)
	}
}

func TestManyStreamsShareOneConnection(t *testing.T) {
	s := start(t, patience)
	client := tailracev1connect.NewStreamServiceClient(h2c(t, &http.HTTP2Config{StrictMaxConcurrentRequests: true}), s.url)
	var subs []*subscription
	for range 600 { // the default limit of net/http is 250
		subs = append(subs, subscribe(t, client, orders()))
	}
	for _, sub := range subs {
		sub.started()
	}
	if n := s.hub.Subscribers("orders"); n != 600 {
		t.Errorf("%d subscribers", n)
	}
}
