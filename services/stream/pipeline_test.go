package stream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// queue is a Publisher whose records wait until the test lets them go.
type queue struct {
	mu      sync.Mutex
	hold    bool
	next    int64
	waiting []func()
	values  []string // in the order in which they were handed over
	ctx     context.Context
	fail    map[string]*tailracev1.PublishFailure // by value
}

func (q *queue) begin(ctx context.Context, _ string, r *tailracev1.PublishRecord, done func(*tailracev1.PublishResult)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ctx = ctx
	q.values = append(q.values, string(r.GetValue()))
	result := &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{Partition: r.GetPartition(), Offset: q.next}}}
	if f := q.fail[string(r.GetValue())]; f != nil {
		result = &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: f}}
	}
	q.next++
	if q.hold {
		q.waiting = append(q.waiting, func() { done(result) })
	} else {
		done(result)
	}
}

// release lets go what waits, the last first, and what comes.
func (q *queue) release() {
	q.mu.Lock()
	q.hold = false
	waiting := q.waiting
	q.waiting = nil
	q.mu.Unlock()
	for _, do := range slices.Backward(waiting) {
		do()
	}
}

func (q *queue) handed() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.values)
}

func startQueue(t *testing.T, hold bool, options ...option) (*service, *queue) {
	t.Helper()
	s := start(t, patience, options...)
	q := &queue{hold: hold, fail: map[string]*tailracev1.PublishFailure{}}
	s.kafka.begin = q.begin
	t.Cleanup(q.release)
	return s, q
}

func publishOne(id, value string) *tailracev1.PublishStreamRequest {
	return &tailracev1.PublishStreamRequest{Event: &tailracev1.PublishStreamRequest_Publish{Publish: &tailracev1.PublishOne{
		Id: id, Topic: "orders", Record: &tailracev1.PublishRecord{Value: []byte(value)},
	}}}
}

func startEvent(stop bool) *tailracev1.PublishStreamRequest {
	return &tailracev1.PublishStreamRequest{Event: &tailracev1.PublishStreamRequest_Start{Start: &tailracev1.PublishStreamStart{StopOnError: stop}}}
}

// publisher is an open PublishStream.
type publisher struct {
	t      *testing.T
	stream *connect.BidiStreamForClientSimple[tailracev1.PublishStreamRequest, tailracev1.PublishStreamResponse]
	cancel context.CancelFunc
}

func openPublisher(t *testing.T, client tailracev1connect.StreamServiceClient) *publisher {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	opened, err := client.PublishStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = opened.CloseRequest()
		_ = opened.CloseResponse()
	})
	return &publisher{t, opened, cancel}
}

func (p *publisher) send(ms ...*tailracev1.PublishStreamRequest) {
	p.t.Helper()
	for _, m := range ms {
		if err := p.stream.Send(m); err != nil && !errors.Is(err, io.EOF) { // the service has ended the stream: why, is received
			p.t.Fatal(err)
		}
	}
}

// results reads n results, by their ids in the order in which they came.
func (p *publisher) results(n int) (ids []string, results map[string]*tailracev1.PublishResult) {
	p.t.Helper()
	results = map[string]*tailracev1.PublishResult{}
	for range n {
		m, err := p.stream.Receive()
		if err != nil {
			p.t.Fatalf("after %d results of %d: %v", len(ids), n, err)
		}
		ids = append(ids, m.GetId())
		results[m.GetId()] = m.GetResult()
	}
	return ids, results
}

// end reads the end of the stream: nil, or its error.
func (p *publisher) end() error {
	p.t.Helper()
	m, err := p.stream.Receive()
	if err == nil {
		p.t.Fatalf("got %v, want the end", m)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func TestPublishStreamOverAllProtocols(t *testing.T) {
	for name, options := range map[string][]connect.ClientOption{
		"connect":      nil,
		"connect JSON": {connect.WithProtoJSON()},
		"gRPC":         {connect.WithGRPC()},
		"gRPC JSON":    {connect.WithGRPC(), connect.WithProtoJSON()},
		"gRPC-Web":     {connect.WithGRPCWeb()},
		"compressed":   {connect.WithSendGzip()},
	} {
		t.Run(name, func(t *testing.T) {
			s, q := startQueue(t, true)
			p := openPublisher(t, s.client(options...))
			p.send(startEvent(false))
			var want []string
			for i := range 100 {
				p.send(publishOne(fmt.Sprint(i), fmt.Sprint("v", i)))
				want = append(want, fmt.Sprint("v", i))
			}
			eventually(t, "all are handed over, before any has a result", func() bool { return q.handed() == 100 })
			if err := p.stream.CloseRequest(); err != nil {
				t.Fatal(err)
			}
			q.release()
			ids, results := p.results(100)
			if ids[0] != "99" || len(results) != 100 || results["42"].GetPublished().GetOffset() != 42 {
				t.Errorf("got %d results, first that of %s: %v", len(results), ids[0], results["42"])
			}
			if err := p.end(); err != nil {
				t.Errorf("got %v, want OK", err)
			}
			if !slices.Equal(q.values, want) {
				t.Errorf("handed over in the order %v", q.values)
			}
			eventually(t, "the stream's end is counted", func() bool {
				return s.metric("tailrace_stream_ended_total", tailracev1connect.StreamServicePublishStreamProcedure, "DONE") == 1
			})
			if n := len(s.log.lines("session ended", "PublishStream", "records=100")); n != 1 {
				t.Errorf("%d lines tell of its end", n)
			}
		})
	}
}

func TestPublishStreamWithGRPCGo(t *testing.T) {
	s, q := startQueue(t, false)
	q.fail["bad"] = &tailracev1.PublishFailure{Code: "not_found", Reason: "UNKNOWN_TOPIC", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED}
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	open := func() grpc.ClientStream {
		call, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, tailracev1connect.StreamServicePublishStreamProcedure)
		if err != nil {
			t.Fatal(err)
		}
		return call
	}
	call := open()
	for _, m := range []*tailracev1.PublishStreamRequest{publishOne("same", "a"), publishOne("same", "bad"), publishOne("c", "c")} {
		if err := call.SendMsg(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := call.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for {
		m := &tailracev1.PublishStreamResponse{}
		if err := call.RecvMsg(m); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			break
		}
		got = append(got, m.GetId()+" "+m.GetResult().GetFailure().GetReason())
	}
	if want := []string{"same ", "same UNKNOWN_TOPIC", "c "}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q: ids are the caller's matter, and a failed record stops nobody", got, want)
	}
	call = open()
	if err := call.SendMsg(&tailracev1.PublishStreamRequest{}); err != nil {
		t.Fatal(err)
	}
	err = call.RecvMsg(&tailracev1.PublishStreamResponse{})
	if st := status.Convert(err); st.Code() != codes.InvalidArgument || len(st.Details()) != 2 {
		t.Errorf("got %v with %v", err, st.Details())
	}
}

func TestStopOnErrorAppendsNothingBehindAFailure(t *testing.T) {
	s, q := startQueue(t, true)
	q.fail["2"] = &tailracev1.PublishFailure{Code: "unavailable", Reason: "OUTCOME_UNKNOWN", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN}
	p := openPublisher(t, s.client())
	p.send(startEvent(true))
	for i := range 6 {
		p.send(publishOne(fmt.Sprint(i), fmt.Sprint(i)))
	}
	if err := p.stream.CloseRequest(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first is handed over", func() bool { return q.handed() == 1 })
	q.release()
	ids, results := p.results(6)
	for i, id := range ids {
		want := map[string]string{"2": "OUTCOME_UNKNOWN", "3": "STOPPED", "4": "STOPPED", "5": "STOPPED"}[id]
		if f := results[id].GetFailure(); id != fmt.Sprint(i) || f.GetReason() != want {
			t.Errorf("result %d: %s, %v", i, id, results[id])
		}
	}
	if err := p.end(); err != nil || strings.Join(q.values, "") != "012" {
		t.Errorf("handed over %v, end %v", q.values, err)
	}
}

func TestABadPublishStreamEnds(t *testing.T) {
	for name, test := range map[string]struct {
		messages []*tailracev1.PublishStreamRequest
		field    string
	}{
		"neither":     {[]*tailracev1.PublishStreamRequest{{}}, "event"},
		"second":      {[]*tailracev1.PublishStreamRequest{startEvent(false), publishOne("a", "a"), startEvent(false)}, "start"},
		"late start":  {[]*tailracev1.PublishStreamRequest{publishOne("a", "a"), startEvent(false)}, "start"},
		"without id":  {[]*tailracev1.PublishStreamRequest{publishOne("a", "a"), publishOne("", "b")}, "publish.id"},
		"of 33 runes": {[]*tailracev1.PublishStreamRequest{publishOne("a", "a"), publishOne(strings.Repeat("ü", 33), "b")}, "publish.id"},
	} {
		t.Run(name, func(t *testing.T) {
			s, q := startQueue(t, true)
			p := openPublisher(t, s.client(connect.WithGRPC()))
			p.send(test.messages...)
			if want := len(test.messages) - 1; want > 0 {
				eventually(t, "what came before is handed over", func() bool { return q.handed() > 0 })
				q.release()
				p.results(1) // what was taken has its result first
			}
			if told := read(t, p.end()); told.code != connect.CodeInvalidArgument || told.reason != "INVALID_ARGUMENT" || !slices.Equal(told.fields, []string{test.field}) {
				t.Errorf("got %+v", told)
			}
		})
	}
}

func TestRecordsAreRefusedByThemselves(t *testing.T) {
	s, q := startQueue(t, false)
	p := openPublisher(t, s.client())
	noTopic, noRecord, large := publishOne("topic", "x"), publishOne("record", "x"), publishOne("large", strings.Repeat("x", 5<<20))
	noTopic.GetPublish().Topic = ""
	noRecord.GetPublish().Record = nil
	p.send(noTopic, noRecord, large, publishOne(strings.Repeat("ü", 32), "good"))
	_, results := p.results(4)
	for id, want := range map[string]string{"topic": "INVALID_ARGUMENT", "record": "INVALID_ARGUMENT", "large": "RECORD_TOO_LARGE"} {
		f := results[id].GetFailure()
		if f.GetReason() != want || f.GetCode() != "invalid_argument" || f.GetOutcome() != tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED {
			t.Errorf("%s: got %v", id, results[id])
		}
	}
	if results[strings.Repeat("ü", 32)].GetPublished() == nil || q.handed() != 1 {
		t.Errorf("got %v", results)
	}
}
