package stream_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

// reasonsOf are the values of the constants Reason… in a file.
func reasonsOf(t *testing.T, path string) (values []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Reason") {
			return true
		}
		if literal, ok := spec.Values[0].(*ast.BasicLit); ok {
			value, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
		return true
	})
	return values
}

// TestEveryReasonIsProvoked: what is in the table can be met, over the wire where a caller can be told.
func TestEveryReasonIsProvoked(t *testing.T) {
	s, q := startQueue(t, false)
	client := s.client(connect.WithGRPC())
	one := &tailracev1.PublishRequest{Topic: "orders", Records: []*tailracev1.PublishRecord{{}}}
	failing := func(err error) func(t *testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			s.kafka.publish = func(context.Context, string, []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
				return nil, err
			}
			_, err := client.Publish(t.Context(), one)
			return read(t, err).reason
		}
	}
	judged := func(n int) func(t *testing.T) string { // nobody is there to be told, or nobody is denied anything yet
		return func(*testing.T) string {
			return stream.Judge(stream.OwnErrors(errors.New("no such right"))[n], "t").Reason
		}
	}
	counted := func(reason string, call func(ctx context.Context)) func(t *testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			s.kafka.publish = func(ctx context.Context, _ string, _ []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			call(t.Context())
			eventually(t, "the call is counted: "+reason, func() bool {
				return s.metric("tailrace_rpc_handled_total", tailracev1connect.StreamServicePublishProcedure, reason) > 0
			})
			return reason
		}
	}
	result := func(ms ...*tailracev1.PublishStreamRequest) func(t *testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			q.fail["fails"] = &tailracev1.PublishFailure{Reason: "UNKNOWN_TOPIC"}
			p := openPublisher(t, client)
			p.send(ms...)
			_, results := p.results(len(ms) - 1)
			return results["last"].GetFailure().GetReason()
		}
	}
	provoked := map[string]func(t *testing.T) string{
		stream.ReasonUnknownTopic:     failing(hub.ErrUnknownTopic),
		stream.ReasonUnknownPartition: failing(&hub.UnknownPartitionError{Topic: "orders", Partition: 9, Count: 3}),
		stream.ReasonTopicDeleted:     failing(hub.ErrTopicDeleted),
		stream.ReasonOffsetOutOfRange: failing(&hub.OffsetOutOfRangeError{Topic: "orders"}),
		stream.ReasonLagged:           failing(&hub.LaggedError{Records: 1}),
		stream.ReasonLimit:            failing(&hub.LimitError{Limit: "x"}),
		stream.ReasonUnavailable:      failing(hub.ErrUnavailable),
		stream.ReasonDraining:         failing(hub.ErrDraining),
		stream.ReasonInternal:         failing(errors.New("a bug")),
		stream.ReasonStalled:          judged(0),
		stream.ReasonConnectionLost:   judged(1),
		stream.ReasonForbidden:        judged(2),
		stream.ReasonInvalidArgument: func(t *testing.T) string {
			t.Helper()
			_, err := client.Publish(t.Context(), &tailracev1.PublishRequest{})
			return read(t, err).reason
		},
		stream.ReasonUnimplemented: func(t *testing.T) string {
			t.Helper()
			_, err := tailracev1connect.NewGroupServiceClient(h2c(t, nil), s.url).ListGroups(t.Context(), &tailracev1.ListGroupsRequest{})
			return read(t, err).reason
		},
		stream.ReasonCanceled: counted(stream.ReasonCanceled, func(ctx context.Context) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(50*time.Millisecond, cancel)
			_, _ = client.Publish(ctx, one)
		}),
		stream.ReasonDeadline: failing(context.DeadlineExceeded),
		stream.ReasonGroupSettings: func(*testing.T) string {
			return stream.Judge(&group.SettingsError{Current: group.Settings{Group: "g"}}, "").Reason
		},
		stream.ReasonUnknownGroup:   func(*testing.T) string { return stream.Judge(group.ErrUnknown, "").Reason },
		stream.ReasonGroupActive:    func(*testing.T) string { return stream.Judge(group.ErrActive, "").Reason },
		stream.ReasonDone:           func(*testing.T) string { return stream.Judge(nil, "").Reason },
		stream.ReasonRecordTooLarge: result(startEvent(false), publishOne("last", strings.Repeat("x", 5<<20))),
		stream.ReasonStopped:        result(startEvent(true), publishOne("first", "fails"), publishOne("last", "x")),
	}
	all := reasonsOf(t, "errors.go")
	if len(all) < 21 {
		t.Fatalf("found only %v", all)
	}
	for _, reason := range all {
		provoke := provoked[reason]
		if provoke == nil {
			t.Errorf("%s is not provoked", reason)
			continue
		}
		if got := provoke(t); got != reason {
			t.Errorf("got %s, want %s", got, reason)
		}
	}
}
