package stream_test

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// echo acknowledges every record at the offset that its place in the request is.
func echo(_ context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	if topic != "orders" {
		return nil, hub.ErrUnknownTopic
	}
	results := make([]*tailracev1.PublishResult, len(records))
	for i := range records {
		results[i] = &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{
			Published: &tailracev1.Published{Partition: records[i].GetPartition(), Offset: int64(i)},
		}}
	}
	return results, nil
}

// odd are records that are easily damaged.
func odd() []hubtest.Record {
	return []hubtest.Record{
		{Key: []byte("k"), Value: []byte("v")},
		{}, // a tombstone without key
		{Key: []byte{}, Value: []byte{}, Headers: []*tailracev1.Header{{Name: "h", Value: []byte("1")}, {Name: "h"}, {Name: "", Value: []byte{}}}},
		{Key: []byte{0xff, 0}, Value: bytes.Repeat([]byte{0xfe}, 70_000), Time: hubtest.NoTime},
	}
}

func TestAllProtocolsReadAndPublish(t *testing.T) {
	s := start(t, patience)
	s.kafka.publish = echo
	s.source.Append("orders", 1, odd()...)

	clients := map[string]struct {
		http    func(testing.TB) *http.Client
		options []connect.ClientOption
	}{
		"connect, HTTP/2":       {func(t testing.TB) *http.Client { return h2c(t, nil) }, nil},
		"connect, HTTP/1.1":     {http1, nil},
		"connect JSON, HTTP/2":  {func(t testing.TB) *http.Client { return h2c(t, nil) }, []connect.ClientOption{connect.WithProtoJSON()}},
		"connect JSON, 1.1":     {http1, []connect.ClientOption{connect.WithProtoJSON()}},
		"gRPC":                  {func(t testing.TB) *http.Client { return h2c(t, nil) }, []connect.ClientOption{connect.WithGRPC()}},
		"gRPC JSON":             {func(t testing.TB) *http.Client { return h2c(t, nil) }, []connect.ClientOption{connect.WithGRPC(), connect.WithProtoJSON()}},
		"gRPC-Web, HTTP/2":      {func(t testing.TB) *http.Client { return h2c(t, nil) }, []connect.ClientOption{connect.WithGRPCWeb()}},
		"gRPC-Web, HTTP/1.1":    {http1, []connect.ClientOption{connect.WithGRPCWeb()}},
		"without compression":   {http1, []connect.ClientOption{connect.WithAcceptCompression("gzip", nil, nil)}},
		"with sent compression": {http1, []connect.ClientOption{connect.WithSendGzip()}},
	}
	for name, c := range clients {
		t.Run(name, func(t *testing.T) {
			client := tailracev1connect.NewStreamServiceClient(c.http(t), s.url, c.options...)
			checkRead(t, client)
			checkPublish(t, client)
		})
	}
	s.released()
}

func checkRead(t *testing.T, client tailracev1connect.StreamServiceClient) {
	t.Helper()
	sub := subscribe(t, client, earliest(orders()))
	started := sub.started()
	if len(started.GetPartitions()) != 3 || started.GetPartitionCount() != 3 || started.GetTopicId() == "" {
		t.Errorf("got %v", started)
	}
	got := sub.records(len(odd()))[1]
	for i, r := range odd() {
		want := &tailracev1.RecordBatch{}
		if err := proto.Unmarshal(hubtest.Piece("orders", 1, int64(i), got[i].GetLeaderEpoch(), r), want); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got[i], want.GetRecords()[0]) {
			t.Errorf("record %d: got %v, want %v", i, got[i], want.GetRecords()[0])
		}
	}
	sub.cancel()

	bad := subscribe(t, client, &tailracev1.SubscribeRequest{Topic: "nowhere"})
	err := bad.end()
	if told := read(t, err); told.code != connect.CodeNotFound || told.reason != "UNKNOWN_TOPIC" || told.meta["topic"] != "nowhere" {
		t.Errorf("got %v: %+v", err, told)
	}
}

func checkPublish(t *testing.T, client tailracev1connect.StreamServiceClient) {
	t.Helper()
	two := int32(2)
	answer, err := client.Publish(t.Context(), &tailracev1.PublishRequest{
		Topic: "orders", Records: []*tailracev1.PublishRecord{{}, {Key: []byte("k"), Value: []byte("v"), Partition: &two}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.GetResults(); len(got) != 2 || got[1].GetPublished().GetPartition() != 2 || got[1].GetPublished().GetOffset() != 1 {
		t.Errorf("got %v", got)
	}
	_, err = client.Publish(t.Context(), &tailracev1.PublishRequest{Topic: "nowhere", Records: []*tailracev1.PublishRecord{{}}})
	if told := read(t, err); told.code != connect.CodeNotFound || told.reason != "UNKNOWN_TOPIC" {
		t.Errorf("got %v: %+v", err, told)
	}
	_, err = client.Publish(t.Context(), &tailracev1.PublishRequest{})
	if told := read(t, err); told.code != connect.CodeInvalidArgument || len(told.fields) != 2 {
		t.Errorf("got %v: %+v", err, told)
	}
}

func TestGRPCGoReadsAndPublishes(t *testing.T) {
	s := start(t, patience)
	s.kafka.publish = echo
	s.source.Append("orders", 0, hubtest.Text("k", "v0"), hubtest.Text("k", "v1"))
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	call, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, tailracev1connect.StreamServiceSubscribeProcedure)
	if err != nil {
		t.Fatal(err)
	}
	if err := call.SendMsg(earliest(orders())); err != nil {
		t.Fatal(err)
	}
	if err := call.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var values []string
	for len(values) < 2 {
		m := &tailracev1.SubscribeResponse{}
		if err := call.RecvMsg(m); err != nil {
			t.Fatal(err)
		}
		for _, b := range m.GetRecords().GetBatches() {
			for _, r := range b.GetRecords() {
				values = append(values, string(r.GetValue()))
			}
		}
	}
	if got := strings.Join(values, " "); got != "v0 v1" {
		t.Errorf("got %s", got)
	}

	answer := &tailracev1.PublishResponse{}
	err = conn.Invoke(ctx, tailracev1connect.StreamServicePublishProcedure,
		&tailracev1.PublishRequest{Topic: "orders", Records: []*tailracev1.PublishRecord{{Value: []byte("v")}}}, answer)
	if err != nil || len(answer.GetResults()) != 1 {
		t.Errorf("got %v, %v", answer, err)
	}
	err = conn.Invoke(ctx, tailracev1connect.StreamServicePublishProcedure, &tailracev1.PublishRequest{Topic: "nowhere", Records: []*tailracev1.PublishRecord{{}}}, answer)
	if st := status.Convert(err); st.Code() != codes.NotFound || len(st.Details()) != 1 {
		t.Errorf("got %v with %v", err, st.Details())
	}
	cancel()
	s.released()
}

func TestWhatIsNotBuiltIsUnimplemented(t *testing.T) {
	s := start(t, patience)
	client := s.client(connect.WithGRPC())
	consume, err := client.Consume(t.Context())
	if err == nil {
		_ = consume.Send(&tailracev1.ConsumeRequest{})
		_, err = consume.Receive()
		_ = consume.CloseRequest()
		_ = consume.CloseResponse()
	}
	if told := read(t, err); told.code != connect.CodeUnimplemented || told.reason != "UNIMPLEMENTED" {
		t.Errorf("Consume: got %v", err)
	}
	_, err = tailracev1connect.NewGroupServiceClient(h2c(t, nil), s.url).ListGroups(t.Context(), &tailracev1.ListGroupsRequest{})
	if told := read(t, err); told.code != connect.CodeUnimplemented || told.reason != "UNIMPLEMENTED" {
		t.Errorf("ListGroups: got %v", err)
	}
}

// A mistyped field must not be taken for its absence.
func TestJSONWithUnknownFieldsIsRefused(t *testing.T) {
	s := start(t, patience)
	s.kafka.publish = echo
	for _, kind := range []string{"application/json", "application/json; charset=utf-8"} {
		res, err := http1(t).Post(s.url+tailracev1connect.StreamServicePublishProcedure, kind, strings.NewReader(`{"topic":"orders","recrods":[{}]}`))
		if err != nil {
			t.Fatal(err)
		}
		body := new(bytes.Buffer)
		_, _ = body.ReadFrom(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(body.String(), "recrods") || !strings.Contains(body.String(), "invalid_argument") {
			t.Errorf("%s: got %d %s", kind, res.StatusCode, body)
		}
	}
}
