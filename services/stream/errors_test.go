package stream_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

// told is what a caller can read from an error.
type told struct {
	code   connect.Code
	reason string
	retry  time.Duration
	fields []string
	meta   map[string]string
}

func read(t *testing.T, err error) told {
	t.Helper()
	coded := new(connect.Error)
	if !errors.As(err, &coded) {
		t.Fatalf("%v is no connect error", err)
	}
	got := told{code: coded.Code()}
	for _, d := range coded.Details() {
		m, problem := d.Value()
		if problem != nil {
			t.Fatal(problem)
		}
		switch m := m.(type) {
		case *errdetails.ErrorInfo:
			if m.GetDomain() != "tailrace.dev" {
				t.Errorf("domain %q", m.GetDomain())
			}
			got.reason, got.meta = m.GetReason(), m.GetMetadata()
		case *errdetails.RetryInfo:
			got.retry = m.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			for _, v := range m.GetFieldViolations() {
				got.fields = append(got.fields, v.GetField())
			}
		}
	}
	return got
}

// table has a case for each error of the hub, by the name that it has there.
var table = map[string]struct {
	err    error
	code   connect.Code
	reason string
}{
	"ErrUnknownTopic":       {hub.ErrUnknownTopic, connect.CodeNotFound, "UNKNOWN_TOPIC"},
	"UnknownTopicError":     {&hub.UnknownTopicError{Topic: "t"}, connect.CodeNotFound, "UNKNOWN_TOPIC"},
	"ErrUnavailable":        {hub.ErrUnavailable, connect.CodeUnavailable, "KAFKA_UNAVAILABLE"},
	"ErrTopicDeleted":       {hub.ErrTopicDeleted, connect.CodeNotFound, "TOPIC_DELETED"},
	"ErrDraining":           {hub.ErrDraining, connect.CodeUnavailable, "DRAINING"},
	"ErrUnimplemented":      {hub.ErrUnimplemented, connect.CodeUnimplemented, "UNIMPLEMENTED"},
	"ErrClosed":             {hub.ErrClosed, connect.CodeInternal, "INTERNAL"},
	"InvalidError":          {&hub.InvalidError{Field: "start", Problem: "no"}, connect.CodeInvalidArgument, "INVALID_ARGUMENT"},
	"UnknownPartitionError": {&hub.UnknownPartitionError{Topic: "t", Partition: 9, Count: 4}, connect.CodeNotFound, "UNKNOWN_PARTITION"},
	"OffsetOutOfRangeError": {&hub.OffsetOutOfRangeError{Topic: "t", Offset: 1, Oldest: 5, End: 9}, connect.CodeOutOfRange, "OFFSET_OUT_OF_RANGE"},
	"LaggedError":           {&hub.LaggedError{Records: 3}, connect.CodeResourceExhausted, "LAGGED"},
	"ForbiddenError":        {&hub.ForbiddenError{Problem: "no"}, connect.CodePermissionDenied, "FORBIDDEN"},
	"GroupSettingsError":    {&hub.GroupSettingsError{Problem: "others"}, connect.CodeFailedPrecondition, "GROUP_SETTINGS"},
	"LimitError":            {&hub.LimitError{Limit: "subscriptions", Value: 7, Retry: time.Minute}, connect.CodeResourceExhausted, "LIMIT"},
}

// hubErrors are the exported errors in the hub's source: sentinels, and types whose name ends in Error.
func hubErrors(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../hub/errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for _, name := range n.Names {
				if strings.HasPrefix(name.Name, "Err") {
					names = append(names, name.Name)
				}
			}
		case *ast.TypeSpec:
			if strings.HasSuffix(n.Name.Name, "Error") && n.Name.IsExported() {
				names = append(names, n.Name.Name)
			}
		case *ast.FuncDecl:
			return false
		}
		return true
	})
	return names
}

func TestErrorTableIsCompleteOverTheHub(t *testing.T) {
	names := hubErrors(t)
	if len(names) < 10 {
		t.Fatalf("found only %v in the hub's source", names)
	}
	for _, name := range names {
		want, ok := table[name]
		if !ok {
			t.Errorf("hub.%s has no case here", name)
			continue
		}
		for wrapping, err := range map[string]error{"bare": want.err, "wrapped": fmt.Errorf("subscribe: resolve: %w", want.err)} {
			got := read(t, stream.Judge(err, "orders").Err)
			if got.code != want.code || got.reason != want.reason {
				t.Errorf("hub.%s %s: got %v %s, want %v %s", name, wrapping, got.code, got.reason, want.code, want.reason)
			}
			if got.meta["topic"] == "" {
				t.Errorf("hub.%s %s: the topic is not told: %v", name, wrapping, got.meta)
			}
		}
	}
}

// An edge rebuilds the hub's errors from what it is told.
func TestErrorsTellTheirFacts(t *testing.T) {
	tests := []struct {
		err  error
		want map[string]string
	}{
		{
			&hub.OffsetOutOfRangeError{Topic: "t", Partition: 2, Offset: 1, Oldest: 5, End: 9},
			map[string]string{"topic": "t", "partition": "2", "offset": "1", "oldest": "5", "end": "9"},
		},
		{&hub.UnknownPartitionError{Topic: "t", Partition: 9, Count: 4}, map[string]string{"topic": "t", "partition": "9", "count": "4"}},
		{&hub.LaggedError{Records: 3}, map[string]string{"topic": "orders", "records": "3"}},
		{&hub.LimitError{Limit: "streams", Value: 7}, map[string]string{"topic": "orders", "limit": "streams", "value": "7"}},
	}
	for _, test := range tests {
		got := read(t, stream.Judge(test.err, "orders").Err).meta
		if fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%v: got %v, want %v", test.err, got, test.want)
		}
	}
}

func TestErrorsCarryRetryHints(t *testing.T) {
	for err, want := range map[error]time.Duration{
		hub.ErrUnavailable: time.Second,
		hub.ErrDraining:    time.Second,
		&hub.LimitError{Limit: "streams", Retry: time.Minute}: time.Minute,
		&hub.LimitError{Limit: "streams"}:                     0,
		hub.ErrUnknownTopic:                                   0,
	} {
		if got := read(t, stream.Judge(err, "t").Err).retry; got != want {
			t.Errorf("%v: got %v, want %v", err, got, want)
		}
	}
}

func TestOwnErrorsAreInTheTable(t *testing.T) {
	want := []struct {
		code   connect.Code
		reason string
		client bool
	}{
		{connect.CodeAborted, "STALLED", false},
		{connect.CodeCanceled, "CONNECTION_LOST", true},
		{connect.CodePermissionDenied, "FORBIDDEN", false},
		{connect.CodeInvalidArgument, "INVALID_ARGUMENT", false},
	}
	for i, err := range stream.OwnErrors(errors.New("no such right")) {
		judged := stream.Judge(err, "t")
		got := read(t, judged.Err)
		if got.code != want[i].code || got.reason != want[i].reason || judged.Client != want[i].client {
			t.Errorf("%v: got %v %s %v, want %+v", err, got.code, got.reason, judged.Client, want[i])
		}
	}
}

func TestContextErrorsAreTheCallers(t *testing.T) {
	for err, want := range map[error]connect.Code{
		context.Canceled:                      connect.CodeCanceled,
		context.DeadlineExceeded:              connect.CodeDeadlineExceeded,
		fmt.Errorf("x: %w", context.Canceled): connect.CodeCanceled,
	} {
		judged := stream.Judge(err, "")
		if judged.Err.Code() != want || !judged.Client {
			t.Errorf("%v: got %v, client %v", err, judged.Err.Code(), judged.Client)
		}
	}
}

func TestUnknownErrorsAreWithheld(t *testing.T) {
	secret := errors.New("dial 10.0.0.3: password wrong")
	for _, err := range []error{secret, connect.NewError(connect.CodeInternal, secret), connect.NewError(connect.CodeUnknown, secret)} {
		got := stream.Judge(err, "").Err
		if strings.Contains(got.Error(), "10.0.0.3") {
			t.Errorf("%v reached the caller", got)
		}
		if code := got.Code(); code != connect.CodeInternal && code != connect.CodeUnknown {
			t.Errorf("got %v", code)
		}
		if read(t, got).reason == "" {
			t.Error("no reason")
		}
	}
	// Inner causes of known errors stay here too.
	got := stream.Judge(fmt.Errorf("resolve: dial 10.0.0.3: %w", hub.ErrUnavailable), "t").Err
	if strings.Contains(got.Error(), "10.0.0.3") {
		t.Errorf("%v reached the caller", got)
	}
}
