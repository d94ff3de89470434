package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// stream is a Subscribe stream of any client library: Receive returns io.EOF at its end.
type stream func() (*tailracev1.SubscribeResponse, error)

// subscriber opens Subscribe streams in one protocol; the stream ends when ctx does.
type subscriber func(ctx context.Context, req *tailracev1.SubscribeRequest) (stream, error)

// subscribers are all the ways to subscribe to the service at host:port.
func subscribers(t testing.TB, address string) map[string]subscriber {
	return map[string]subscriber{
		"grpc-go":        grpcSubscriber(t, address),
		"grpc":           connectSubscriber(h2c(t), address, connect.WithGRPC()),
		"connect":        connectSubscriber(h2c(t), address),
		"connect-http11": connectSubscriber(http11(t), address),
		"grpc-web":       connectSubscriber(http11(t), address, connect.WithGRPCWeb()),
	}
}

func h2c(t testing.TB) *http.Client {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func http11(t testing.TB) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func connectSubscriber(client *http.Client, address string, options ...connect.ClientOption) subscriber {
	service := tailracev1connect.NewStreamServiceClient(client, "http://"+address, options...)
	return func(ctx context.Context, req *tailracev1.SubscribeRequest) (stream, error) {
		s, err := service.Subscribe(ctx, req)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(ctx, func() { s.Close() })
		return func() (*tailracev1.SubscribeResponse, error) {
			if s.Receive() {
				return s.Msg(), nil
			}
			if err := s.Err(); err != nil {
				return nil, err
			}
			return nil, io.EOF
		}, nil
	}
}

func grpcConn(t testing.TB, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func grpcSubscriber(t testing.TB, address string) subscriber {
	conn := grpcConn(t, address)
	return func(ctx context.Context, req *tailracev1.SubscribeRequest) (stream, error) {
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, tailracev1connect.StreamServiceSubscribeProcedure)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(s.SendMsg(req), s.CloseSend()); err != nil {
			return nil, err
		}
		return func() (*tailracev1.SubscribeResponse, error) {
			var resp tailracev1.SubscribeResponse
			err := s.RecvMsg(&resp)
			return &resp, err
		}, nil
	}
}

// request is the next request of a reader: from its positions where it has some, else as start says.
func (r *reader) request(start *tailracev1.Start) *tailracev1.SubscribeRequest {
	next, epoch := r.positions()
	req := &tailracev1.SubscribeRequest{Topic: r.topic, Start: start}
	if len(next) == 0 {
		return req
	}
	positions := &tailracev1.Positions{Missing: tailracev1.MissingPosition_MISSING_POSITION_EARLIEST}
	for p, at := range next {
		position := &tailracev1.Position{Partition: p, Offset: at}
		if e, known := epoch[p]; known {
			position.LeaderEpoch = &e
		}
		positions.Positions = append(positions.Positions, position)
	}
	req.Start = &tailracev1.Start{At: &tailracev1.Start_Positions{Positions: positions}}
	req.TopicId = r.topicID
	return req
}

func earliest() *tailracev1.Start {
	return &tailracev1.Start{At: &tailracev1.Start_Earliest{Earliest: &tailracev1.Earliest{}}}
}

// follow reads a stream into a reader until the stream ends or until says stop.
func (r *reader) follow(receive stream, until func() bool) error {
	defer r.disconnected()
	for !until() {
		resp, err := receive()
		if err != nil {
			return err
		}
		if err := r.take(resp); err != nil {
			return &sessionError{err}
		}
	}
	return nil
}

// take applies one message of the RPC.
func (r *reader) take(resp *tailracev1.SubscribeResponse) error {
	switch event := resp.GetEvent().(type) {
	case *tailracev1.SubscribeResponse_Started:
		parts := make([]startedAt, len(event.Started.GetPartitions()))
		for i, p := range event.Started.GetPartitions() {
			parts[i] = startedAt{partition: p.GetPartition(), start: p.GetStart(), end: p.GetEnd()}
		}
		return r.onStarted(event.Started.GetTopicId(), parts)
	case *tailracev1.SubscribeResponse_Records:
		for _, batch := range event.Records.GetBatches() {
			if err := r.takeBatch(batch); err != nil {
				return err
			}
		}
	case *tailracev1.SubscribeResponse_CaughtUp:
		return r.onCaughtUp()
	case *tailracev1.SubscribeResponse_Gap:
		g := event.Gap
		return r.onGap(gap{partition: g.GetPartition(), from: g.GetFrom(), to: g.GetTo(), reason: g.GetReason().String()})
	case *tailracev1.SubscribeResponse_Topology:
		return r.onTopology(event.Topology.GetPartitions())
	case *tailracev1.SubscribeResponse_Heartbeat:
		for _, p := range event.Heartbeat.GetPositions() {
			if err := r.onPosition(p.GetPartition(), p.GetOffset(), epochOf(p.LeaderEpoch)); err != nil {
				return err
			}
		}
	default:
		return fmt.Errorf("unknown event %T", event)
	}
	return nil
}

func (r *reader) takeBatch(batch *tailracev1.RecordBatch) error {
	for _, m := range batch.GetRecords() {
		if m.GetPartition() != batch.GetPartition() {
			return fmt.Errorf("record of partition %d in a batch of %d", m.GetPartition(), batch.GetPartition())
		}
		if err := r.onRecord(m.GetTopic(), recordOf(m), epochOf(m.LeaderEpoch)); err != nil {
			return err
		}
	}
	return r.onPosition(batch.GetPartition(), batch.GetNext(), -1)
}

func epochOf(epoch *int32) int32 {
	if epoch == nil {
		return -1
	}
	return *epoch
}

func recordOf(m *tailracev1.Record) *record {
	rec := &record{partition: m.GetPartition(), offset: m.GetOffset(), time: -1, key: m.Key, value: m.Value}
	if m.GetTime() != nil {
		rec.time = m.GetTime().AsTime().UnixMilli()
	}
	for _, h := range m.GetHeaders() {
		rec.headers = append(rec.headers, header{name: h.GetName(), value: h.Value})
	}
	return rec
}
