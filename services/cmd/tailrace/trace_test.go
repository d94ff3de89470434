package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// TestTracesLeaveByTheLastMoment: what a program has not exported when it is told to end is exported then; a receiver that is away costs it neither its
// answers nor its end.
func TestTracesLeaveByTheLastMoment(t *testing.T) {
	var mu sync.Mutex
	var got strings.Builder
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got.WriteString(r.URL.Path)
		got.Write(body) // names are plain text in it
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	defer receiver.Close()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	for name, endpoint := range map[string]string{"there": receiver.URL, "away": "http://" + gone.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			p := boot(t, "-kafka", "embedded", "-demo", "-trace.endpoint", endpoint)
			client := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc, connect.WithGRPC())
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			answer, err := client.Publish(ctx, &tailracev1.PublishRequest{Topic: "demo", Records: []*tailracev1.PublishRecord{{Key: []byte("k")}}})
			if err != nil || answer.GetResults()[0].GetPublished() == nil {
				t.Fatalf("got %v, %v", answer, err)
			}
			p.stop()
			if code := p.exit(); code != exitOK {
				t.Errorf("exit code %d, log:\n%s", code, p.log)
			}
			if name == "away" {
				if !has(p.log.String(), "spans can't be exported") {
					t.Errorf("log:\n%s", p.log)
				}
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if !has(got.String(), "/v1/traces", "send demo", "service.name", "acknowledged") {
				t.Errorf("the receiver got %q", got.String())
			}
		})
	}
}
