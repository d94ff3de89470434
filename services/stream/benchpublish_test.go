package stream_test

import (
	"context"
	"testing"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// BenchmarkPublish is one record to a publisher that does nothing: by Publish, and by a PublishStream that is open. Client and service are one
// process, so allocations are those of both.
func BenchmarkPublish(b *testing.B) {
	published := &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{Partition: 1, Offset: 2}}}
	record := &tailracev1.PublishRecord{Key: []byte("key"), Value: make([]byte, 128)}
	begin := func(b *testing.B) *service {
		s := start(b, patience)
		s.kafka.publish = func(context.Context, string, []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
			return []*tailracev1.PublishResult{published}, nil
		}
		s.kafka.begin = func(_ context.Context, _ string, _ *tailracev1.PublishRecord, done func(*tailracev1.PublishResult)) {
			done(published)
		}
		b.ReportAllocs()
		return s
	}
	b.Run("unary", func(b *testing.B) {
		client := begin(b).client(connect.WithGRPC())
		m := &tailracev1.PublishRequest{Topic: "orders", Records: []*tailracev1.PublishRecord{record}}
		for b.Loop() {
			if _, err := client.Publish(b.Context(), m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stream", func(b *testing.B) {
		client := begin(b).client(connect.WithGRPC())
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()
		stream, err := client.PublishStream(ctx)
		if err != nil {
			b.Fatal(err)
		}
		m := &tailracev1.PublishStreamRequest{Event: &tailracev1.PublishStreamRequest_Publish{Publish: &tailracev1.PublishOne{
			Id: "a", Topic: "orders", Record: record,
		}}}
		for b.Loop() {
			if err := stream.Send(m); err != nil {
				b.Fatal(err)
			}
			if _, err := stream.Receive(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkDeliver is one record from the source to a subscriber that waits for it.
func BenchmarkDeliver(b *testing.B) {
	s := start(b, patience)
	sub := subscribe(b, s.client(connect.WithGRPC()), orders())
	sub.started()
	b.ReportAllocs()
	for b.Loop() {
		s.source.Append("orders", 0, hubtest.Text("key", "value"))
		sub.records(1)
	}
}
