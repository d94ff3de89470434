package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

func h2c(t *testing.T) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func TestTheProgramServesItsDemoByAllProtocols(t *testing.T) {
	p := boot(t, "-kafka", "embedded", "-demo")
	for name, options := range map[string][]connect.ClientOption{
		"connect": nil, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()}, "JSON": {connect.WithProtoJSON()},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		client := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc, options...)
		stream, err := client.Subscribe(ctx, &tailracev1.SubscribeRequest{
			Topic: "demo", Start: &tailracev1.Start{At: &tailracev1.Start_Earliest{}}, Stop: &tailracev1.Stop{Records: 3},
		})
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for stream.Receive() {
			for _, b := range stream.Msg().GetRecords().GetBatches() {
				n += len(b.GetRecords())
			}
		}
		if err := stream.Err(); err != nil || n != 3 {
			t.Errorf("%s: got %d records, %v", name, n, err)
		}
		_ = stream.Close()
		cancel()
	}

	topics := tailracev1connect.NewTopicServiceClient(h2c(t), "http://"+p.rpc)
	list, err := topics.ListTopics(t.Context(), &tailracev1.ListTopicsRequest{})
	if err != nil || len(list.GetTopics()) != 1 || list.GetTopics()[0].GetName() != "demo" {
		t.Errorf("got %v, %v", list, err)
	}
	topic, err := topics.GetTopic(t.Context(), &tailracev1.GetTopicRequest{Topic: "demo"})
	if err != nil || len(topic.GetTopic().GetPartitions()) != 4 {
		t.Errorf("got %v, %v", topic, err)
	}
	if code := status(t, "http://"+p.ops+"/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	if text := fetch(t, "http://"+p.ops+"/metrics"); !has(text, "tailrace_stream_records_sent_total{topic=\"demo\"} 12", "go_goroutines", "tailrace_stream_ended_total") {
		t.Errorf("metrics:\n%s", text)
	}
}

func fetch(t *testing.T, url string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestPublishedRecordsComeBack(t *testing.T) {
	p := boot(t, "-kafka", "embedded", "-demo")
	client := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc, connect.WithGRPC())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := client.Subscribe(ctx, &tailracev1.SubscribeRequest{Topic: "demo", Keys: [][]byte{[]byte("mine")}})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() || stream.Msg().GetStarted() == nil {
		t.Fatalf("got %v, %v", stream.Msg(), stream.Err())
	}
	answer, err := client.Publish(ctx, &tailracev1.PublishRequest{Topic: "demo", Records: []*tailracev1.PublishRecord{{Key: []byte("mine"), Value: []byte("v")}}})
	if err != nil || answer.GetResults()[0].GetPublished() == nil {
		t.Fatalf("got %v, %v", answer, err)
	}
	var got []*tailracev1.Record
	for len(got) == 0 && stream.Receive() {
		for _, b := range stream.Msg().GetRecords().GetBatches() {
			got = append(got, b.GetRecords()...)
		}
	}
	want := answer.GetResults()[0].GetPublished()
	if len(got) != 1 || string(got[0].GetValue()) != "v" || got[0].GetOffset() != want.GetOffset() || got[0].GetPartition() != want.GetPartition() {
		t.Errorf("got %v, want what was published at %v (%v)", got, want, stream.Err())
	}
}

func TestASignalDrainsAndExitsWithZero(t *testing.T) {
	p := boot(t, "-kafka", "embedded", "-demo")
	client := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc)
	stream, err := client.Subscribe(t.Context(), &tailracev1.SubscribeRequest{Topic: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	p.stop()
	for stream.Receive() {
	}
	if code := connect.CodeOf(stream.Err()); code != connect.CodeUnavailable {
		t.Errorf("got %v", stream.Err())
	}
	if code := p.exit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if !has(p.log.String(), "msg=draining", "reason=DRAINING", "msg=ended") {
		t.Errorf("log:\n%s", p.log)
	}
	if strings.Contains(p.log.String(), "level=ERROR") {
		t.Errorf("log:\n%s", p.log)
	}
}

func TestWithoutKafkaItRunsAndIsNotReady(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	log, code := &logBook{}, make(chan int, 1)
	go func() {
		code <- run(ctx, []string{"-log-format", "text", "-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0", "-kafka", "127.0.0.1:1"}, log, log)
	}()
	var ops string
	eventually(t, "it listens", func() (ok bool) {
		_, ops, ok = log.addresses()
		return ok
	})
	if code := status(t, "http://"+ops+"/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d", code)
	}
	if text := fetch(t, "http://"+ops+"/healthz"); !has(text, `"kafka":"not reached yet`) {
		t.Errorf("healthz: %s", text)
	}
	stop()
	if got := <-code; got != exitOK {
		t.Errorf("exit code %d, log:\n%s", got, log)
	}
}

func TestWrongUseIsToldAtOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tests := []struct {
		args []string
		code int
		word string
	}{
		{[]string{"-nonsense"}, exitUsage, "-nonsense"},
		{[]string{"-listen", ":1"}, exitUsage, "-insecure"},
		{[]string{"-listen", taken.Addr().String(), "-kafka", "embedded"}, exitFailed, "-listen"},
		{[]string{"-listen", "127.0.0.1:0", "-ops-listen", taken.Addr().String(), "-kafka", "embedded"}, exitFailed, "-ops-listen"},
		{[]string{"-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0", "-kafka.property", "no.such.property=1"}, exitUsage, "no.such.property"},
		{[]string{"-help"}, exitOK, "buf curl"},
	}
	for _, test := range tests {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		log := &logBook{}
		if code := run(ctx, test.args, log, log); code != test.code || !has(log.String(), test.word) {
			t.Errorf("%v: got %d, want %d and %q in the log:\n%s", test.args, code, test.code, test.word, log)
		}
		cancel()
	}
}

// The first SIGTERM waits for a call under way, the second does not.
func TestASecondSignalExitsAtOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-tailrace.main", "--", "-log-format", "text", "-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0", "-kafka", "embedded", "-drain-timeout", "1h")
	log := &logBook{}
	child.Stderr = log
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	defer func() {
		_ = child.Process.Kill()
	}()
	var rpc string
	eventually(t, "it listens", func() (ok bool) {
		rpc, _, ok = log.addresses()
		return ok
	})
	conn, err := net.Dial("tcp", rpc)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST /tailrace.v1.StreamService/Publish HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return has(log.String(), "msg=ready") })
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it drains", func() bool { return has(log.String(), "msg=draining") })
	select {
	case err := <-ended:
		t.Fatalf("it did not wait for the call under way: %v, log:\n%s", err, log)
	case <-time.After(300 * time.Millisecond):
	}
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if _, failed := errors.AsType[*exec.ExitError](err); !failed {
			t.Errorf("got %v, want an end by the signal", err)
		}
	case <-time.After(5 * time.Second):
		t.Errorf("it still runs, log:\n%s", log)
	}
}
