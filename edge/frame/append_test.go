package frame_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"tailrace.dev/tailrace/edge/frame"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

func TestFramesAreAsTheProtocolSays(t *testing.T) {
	at := time.UnixMilli(1764518400000)
	refused := &tailracev1.PublishFailure{
		Code: "not_found", Reason: "UNKNOWN_TOPIC", Message: "no", Outcome: tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED, RetryAfter: durationpb.New(time.Second),
	}
	for want, got := range map[string][]byte{
		`{"op":"welcome","session":"s1","protocol":1,"features":[],"heartbeatMs":15000,"maxMessageBytes":2097152}`: frame.AppendWelcome(nil, "s1", 15*time.Second, 2<<20),
		`{"op":"started","id":"a","topic":"orders","topicId":"T","partitions":[{"partition":0,"start":12,"end":40},{"partition":1,"start":0,"end":0,"incomplete":true}]}`: frame.AppendStarted(nil, "a", "orders", hub.Started{
			TopicID: "T", Count: 2, Partitions: []hub.StartedPartition{{Partition: 0, Start: 12, End: 40}, {Partition: 1, Incomplete: true}},
		}),
		`{"op":"started","id":"a","topic":"orders","topicId":"","partitions":[]}`:                  frame.AppendStarted(nil, "a", "orders", hub.Started{}),
		`{"op":"caughtup","id":"a\"\u0001é"}`:                                                      frame.AppendCaughtUp(nil, "a\"\x01é"),
		`{"op":"gap","id":"a","partition":0,"from":12,"to":900,"reason":"retention"}`:              frame.AppendGap(nil, "a", 0, 12, 900, hub.GapRetention, ""),
		`{"op":"gap","id":"a","partition":0,"from":12,"to":0,"reason":"recreated","topicId":"t2"}`: frame.AppendGap(nil, "a", 0, 12, 0, hub.GapRecreated, "t2"),
		`{"op":"topology","id":"a","partitions":12}`:                                               frame.AppendTopology(nil, "a", 12),
		`{"op":"heartbeat","time":1764518400000}`:                                                  frame.AppendHeartbeat(nil, &frame.Heartbeat{Time: at}),
		`{"op":"published","id":"p1","partition":3,"offset":99,"time":1764518400000}`:              frame.AppendPublished(nil, "p1", &tailracev1.Published{Partition: 3, Offset: 99, Time: timestamppb.New(at)}),
		`{"op":"published","id":"p1","partition":0,"offset":0}`:                                    frame.AppendPublished(nil, "p1", &tailracev1.Published{}),
		`{"op":"unsubscribed","id":"a","reason":"until"}`:                                          frame.AppendUnsubscribed(nil, "a", "until"),
		`{"op":"pong","id":"x"}`:                                                                   frame.AppendPong(nil, "x"),
		`{"op":"goodbye","code":4000,"reason":"draining","reconnectAfterMs":[0,5000]}`:             frame.AppendGoodbye(nil, 4000, "draining", 0, 5*time.Second),
		`{"op":"goodbye","code":4500,"reason":"bad frame"}`:                                        frame.AppendGoodbye(nil, 4500, "bad frame", 0, -1),
		`{"op":"records","id":"a","records":[`:                                                     frame.AppendRecordsPrefix(nil, "a"),
		`{"op":"heartbeat","time":1764518400000,"positions":{"a":{"0":41,"2":[7,3]},"c":{"1":1}},"lag":{"a":0,"b":5},"upstream":"unavailable","unavailable":{"b":[3,4]}}`: frame.AppendHeartbeat(nil, &frame.Heartbeat{
			Time: at, UpstreamUnavailable: true, Subscriptions: []frame.SubscriptionHeartbeat{
				{ID: "a", Positions: []hub.Position{{Partition: 0, Offset: 41, Epoch: -1}, {Partition: 2, Offset: 7, Epoch: 3}}},
				{ID: "b", Lag: 5, Unavailable: []int32{3, 4}},
				{ID: "c", Lag: -1, Positions: []hub.Position{{Partition: 1, Offset: 1, Epoch: -1}}},
			},
		}),
		`{"op":"error","re":"publish","id":"p1","final":false,"code":"not_found","reason":"UNKNOWN_TOPIC","message":"no","retryable":true,"outcome":"refused","retryAfterMs":1000}`: frame.AppendResult(nil, "p1",
			&tailracev1.PublishResult{Result: &tailracev1.PublishResult_Failure{Failure: refused}}),
		`{"op":"published","id":"p1","partition":1,"offset":2}`: frame.AppendResult(nil, "p1",
			&tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{Partition: 1, Offset: 2}}}),
		`{"op":"error","re":"ack","id":"q","final":false,"code":"","reason":"NOT_HELD","message":"","retryable":false,"tags":[1,2]}`: frame.AppendError(nil,
			&frame.Error{Re: "ack", ID: "q", Reason: "NOT_HELD", Tags: []int64{1, 2}}),
		`{"op":"error","re":"auth","final":true,"code":"unimplemented","reason":"UNIMPLEMENTED","message":"this build does not have the op auth","retryable":false}`: frame.AppendError(nil,
			(&frame.Unbuilt{Op: "auth"}).Refusal()),
	} {
		if string(got) != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
		if !strings.HasSuffix(want, "[") && !json.Valid(got) {
			t.Errorf("not JSON: %s", got)
		}
	}
}

func TestControlPartsBecomeFrames(t *testing.T) {
	part := func(e *hub.Entry, from, next int64) *hub.Part { return &hub.Part{Entry: e, From: from, Next: next} }
	for want, p := range map[string]*hub.Part{
		`{"op":"gap","id":"a","partition":2,"from":5,"to":9,"reason":"retention"}`:                part(&hub.Entry{Kind: hub.Gap, Reason: hub.GapRetention, Partition: 2, From: 1, Next: 9}, 5, 9),
		`{"op":"gap","id":"a","partition":2,"from":5,"to":0,"reason":"recreated","topicId":"T2"}`: part(&hub.Entry{Kind: hub.Recreated, Partition: 2, TopicID: "T2"}, 5, 0),
		`{"op":"gap","id":"a","partition":2,"from":5,"to":9,"reason":"conflated","records":3}`: part(
			&hub.Entry{Kind: hub.Gap, Reason: hub.GapConflated, Partition: 2, From: 5, Next: 9, Left: 3}, 5, 9),
		`{"op":"topology","id":"a","partitions":7}`: part(&hub.Entry{Kind: hub.Topology, Count: 7}, 5, 5),
	} {
		if got := string(frame.AppendControl(nil, "a", p)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, k := range []hub.Kind{hub.Unavailable, hub.Available, hub.Deleted} {
		if got := frame.AppendControl(nil, "a", part(&hub.Entry{Kind: k}, 5, 5)); len(got) > 0 {
			t.Errorf("kind %d: got %s, want nothing", k, got)
		}
	}
}

func TestGapReasonsAreThoseOfTheSchema(t *testing.T) {
	for number, name := range tailracev1.GapReason_name {
		want := strings.ToLower(strings.TrimPrefix(name, "GAP_REASON_"))
		if got := frame.GapReason(hub.GapReason(number)); got != want {
			t.Errorf("%d: got %s, want %s", number, got, want)
		}
	}
}

// hubErrors has one of every error that the hub exports.
func hubErrors() map[string]error {
	return map[string]error{
		"ErrUnknownTopic":       hub.ErrUnknownTopic,
		"UnknownTopicError":     &hub.UnknownTopicError{Topic: "t"},
		"ErrUnavailable":        hub.ErrUnavailable,
		"ErrTopicDeleted":       hub.ErrTopicDeleted,
		"ErrDraining":           hub.ErrDraining,
		"ErrUnimplemented":      hub.ErrUnimplemented,
		"ErrClosed":             hub.ErrClosed,
		"InvalidError":          &hub.InvalidError{Field: "start", Problem: "is wrong"},
		"UnknownPartitionError": &hub.UnknownPartitionError{Topic: "t", Partition: 9, Count: 3},
		"OffsetOutOfRangeError": &hub.OffsetOutOfRangeError{Topic: "t", Offset: 9, Oldest: 10, End: 20},
		"LaggedError":           &hub.LaggedError{Records: 5},
		"LimitError":            &hub.LimitError{Limit: "subscriptions", Value: 5, Retry: time.Second},
		"ForbiddenError":        &hub.ForbiddenError{Problem: "not this group"},
		"GroupSettingsError":    &hub.GroupSettingsError{Problem: "the group has other settings"},
	}
}

func TestEveryErrorOfTheHubHasAnEntry(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../services/hub/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			name := ""
			switch s := spec.(type) {
			case *ast.ValueSpec:
				name = s.Names[0].Name
			case *ast.TypeSpec:
				name = s.Name.Name
			}
			if !ast.IsExported(name) {
				continue
			}
			names++
			if hubErrors()[name] == nil {
				t.Errorf("hub.%s is missing in this test", name)
			}
		}
	}
	if names != len(hubErrors()) {
		t.Errorf("the hub has %d errors, this test %d", names, len(hubErrors()))
	}
	reasons := map[string]string{}
	for name, err := range hubErrors() {
		e := frame.ErrorOf("subscribe", "a", fmt.Errorf("subscribe: %w", err))
		if e.Reason == "INTERNAL" || e.Code == "" || e.Message == "" || !e.Final || e.ID != "a" || e.Outcome != "" {
			t.Errorf("%s: got %+v", name, e)
		}
		if other, twice := reasons[e.Reason]; twice && !errors.Is(err, hubErrors()[other]) && !errors.Is(hubErrors()[other], err) {
			t.Errorf("%s and %s have the same reason %s", name, other, e.Reason)
		}
		reasons[e.Reason] = name
	}
}

func TestErrorsOfOthers(t *testing.T) {
	if e := frame.ErrorOf("publish", "p", errors.New("secret path")); e.Reason != "INTERNAL" || strings.Contains(e.Message, "secret") || e.Final {
		t.Errorf("got %+v", e)
	}
	if e := frame.ErrorOf("publish", "p", hub.ErrUnavailable); e.Outcome != "refused" || !e.Retryable || e.RetryAfterMs <= 0 {
		t.Errorf("got %+v", e)
	}
	if e := frame.ErrorOf("subscribe", "a", context.DeadlineExceeded); e.Code != "deadline_exceeded" {
		t.Errorf("got %+v", e)
	}
	if e := frame.ErrorOf("subscribe", "a", context.Canceled); e.Code != "canceled" {
		t.Errorf("got %+v", e)
	}
	if e := frame.IDInUse("subscribe", "a"); e.Final || e.Reason != "ID_IN_USE" {
		t.Errorf("got %+v", e)
	}
	if e := frame.Denied("publish", "p", errors.New("not yours")); e.Outcome != "refused" || e.Code != "permission_denied" || e.Message != "not yours" {
		t.Errorf("got %+v", e)
	}
	if e := frame.ErrorOfFailure("p", nil); e.Outcome != "unknown" {
		t.Errorf("a failure that says nothing: got %+v", e)
	}
}
