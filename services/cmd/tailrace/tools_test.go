package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// buf returns the path of the buf that the Makefile installs.
func buf(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../../../.tmp/bin/buf")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("buf is missing, run make tools: %v", err)
	}
	return path
}

// readUntil runs a command until a line of its output is wanted, and then ends it.
func readUntil(t *testing.T, wanted func(line string) bool, name string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	// buf from npm is a script that starts the program: both must end, or the pipe stays open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	stderr := &logBook{}
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen []string
	found := false
	for lines := bufio.NewScanner(out); !found && lines.Scan(); {
		seen = append(seen, lines.Text())
		found = wanted(lines.Text())
	}
	cancel()
	_ = cmd.Wait() // it was killed
	if !found {
		t.Errorf("%s %s: not what was wanted:\n%s\n%s", name, strings.Join(args, " "), strings.Join(seen, "\n"), stderr)
	}
}

func TestBufCurlNeedsNoSchema(t *testing.T) {
	path := buf(t)
	p := boot(t, "-kafka", "embedded", "-demo")
	url := "http://" + p.rpc + "/tailrace.v1.StreamService/"
	isRecord := func(line string) bool { return strings.Contains(line, `"value"`) }
	readUntil(t, isRecord, path, "curl", "--http2-prior-knowledge", "-d", `{"topic":"demo"}`, url+"Subscribe")
	readUntil(t, isRecord, path, "curl", "--protocol", "grpc", "--http2-prior-knowledge", "-d", `{"topic":"demo","start":{"earliest":{}}}`, url+"Subscribe")
	readUntil(t, func(line string) bool { return strings.Contains(line, `"published"`) },
		path, "curl", "--http2-prior-knowledge", "-d", `{"topic":"demo","records":[{"key":"aw==","value":"aGVsbG8="}]}`, url+"Publish")
	readUntil(t, isRecord, path, "curl", "--http2-prior-knowledge", "-d", `{"start":{"group":"readers","topics":["demo"],"autoAck":true}}`, url+"Consume")
	messages := filepath.Join(t.TempDir(), "messages")
	if err := os.WriteFile(messages, []byte(`{"start":{}} {"publish":{"id":"a","topic":"demo","record":{"value":"aGVsbG8="}}} {"publish":{"id":"b","topic":"nowhere","record":{}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	var told []string
	readUntil(t, func(line string) bool {
		told = append(told, line)
		return has(strings.Join(told, " "), `"a"`, `"published"`, `"b"`, `"UNKNOWN_TOPIC"`)
	}, path, "curl", "--http2-prior-knowledge", "-d", "@"+messages, url+"PublishStream")
	readUntil(t, func(line string) bool { return strings.Contains(line, `"demo"`) },
		path, "curl", "--http2-prior-knowledge", "http://"+p.rpc+"/tailrace.v1.TopicService/ListTopics")
}

// curl runs buf curl to its end, and returns what it printed, the error too.
func curl(t *testing.T, url, request string) (printed string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, buf(t), "curl", "--http2-prior-knowledge", "-d", request, url)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	text, err := cmd.CombinedOutput()
	return string(text), err == nil
}

// TestBufCurlLooksAfterGroups is an operator: who works, what is behind, from the beginning again, dead letters back to where they came from.
func TestBufCurlLooksAfterGroups(t *testing.T) {
	p := boot(t, "-kafka", "embedded", "-demo", "-group-names", "readers|nobody")
	groups := "http://" + p.rpc + "/tailrace.v1.GroupService/"
	want := func(method, request string, parts ...string) {
		t.Helper()
		if got, ok := curl(t, groups+method, request); !ok || !has(got, parts...) {
			t.Errorf("%s %s: got %s, want %q", method, request, got, parts)
		}
	}
	refused := func(method, request string, parts ...string) {
		t.Helper()
		if got, ok := curl(t, groups+method, request); ok || !has(got, parts...) {
			t.Errorf("%s %s: got %s, want the error %q", method, request, got, parts)
		}
	}

	// A worker that acknowledges all but its first record, which is a dead letter then.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	worker, err := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc).Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	leave := func() { _, _ = worker.CloseRequest(), worker.CloseResponse() }
	defer leave()
	send := func(m *tailracev1.ConsumeRequest) {
		t.Helper()
		if err := worker.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: &tailracev1.ConsumeStart{Group: "readers", Topics: []string{"demo"}, MaxAttempts: 1}}})
	for got := 0; got < 4; {
		m, err := worker.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range m.GetDeliveries().GetDeliveries() {
			if got++; got == 1 {
				send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Nack{Nack: &tailracev1.Nack{Tags: []int64{d.GetTag()}}}})
			} else {
				send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: []int64{d.GetTag()}}}})
			}
		}
	}
	eventually(t, "the group is described", func() bool {
		got, ok := curl(t, groups+"GetGroup", `{"group":"readers"}`)
		return ok && has(got, `"state": "Stable"`, `"process": "tailrace-group-`, `"workers": 1`, `"topic": "demo"`, `"committed": "`, `"end": "`)
	})
	want("ListGroups", `{"pageSize":1}`, `"group": "readers"`, `"state": "Stable"`)
	const earliest = `{"group":"readers","topic":"demo","earliest":true,"dryRun":%t}`
	refused("ResetOffsets", fmt.Sprintf(earliest, true), "GROUP_ACTIVE", "failed_precondition")
	refused("ResetOffsets", fmt.Sprintf(earliest, false), "GROUP_ACTIVE", "failed_precondition")
	refused("GetGroup", `{"group":"nobody"}`, "UNKNOWN_GROUP", "not_found")
	refused("GetGroup", `{"group":"others"}`, "FORBIDDEN", "permission_denied")
	leave()

	const letters = `{"group":"readers","deadLetterTopic":"demo.dlq","dryRun":%t}`
	eventually(t, "dead letters would be redriven", func() bool { // with it, what the worker held
		got, ok := curl(t, groups+"RedriveDeadLetters", fmt.Sprintf(letters, true))
		return ok && has(got, `"topic": "demo"`, `"records": "`, `"done": true`)
	})
	want("RedriveDeadLetters", fmt.Sprintf(letters, false), `"topic": "demo"`, `"records": "`, `"done": true`)
	eventually(t, "the group is empty, and would be reset", func() bool {
		got, ok := curl(t, groups+"ResetOffsets", fmt.Sprintf(earliest, true))
		return ok && strings.Count(got, `"after"`) == 0 && has(got, `"before": "`) // zeros are not printed
	})
	want("ResetOffsets", fmt.Sprintf(earliest, false), `"before": "`)
	if got, ok := curl(t, groups+"GetGroup", `{"group":"readers"}`); !ok || !has(got, `"state": "Empty"`) || strings.Contains(got, `"committed"`) {
		t.Errorf("after the reset: got %s", got)
	}
}

func TestCurlPublishesAndSubscribes(t *testing.T) {
	p := boot(t, "-kafka", "embedded", "-demo")
	url := "http://" + p.rpc + "/tailrace.v1.StreamService/"
	answer, err := exec.CommandContext(t.Context(), "curl", "-sS", "-m", "30", "-H", "Content-Type: application/json",
		"-d", `{"topic":"demo","records":[{"key":"aw==","value":"aGVsbG8=","headers":[{"name":"h"}]}]}`, url+"Publish").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	var got struct {
		Results []struct {
			Published struct {
				Time string
			}
		}
	}
	if err := json.Unmarshal(answer, &got); err != nil || len(got.Results) != 1 || got.Results[0].Published.Time == "" {
		t.Errorf("got %s, %v", answer, err)
	}

	// A stream wants its request in an envelope: a zero, and the length in four bytes.
	request := filepath.Join(t.TempDir(), "request")
	body := `{"topic":"demo","start":{"earliest":{}},"stop":{"records":2}}`
	if err := os.WriteFile(request, append([]byte{0, 0, 0, 0, byte(len(body))}, body...), 0o600); err != nil {
		t.Fatal(err)
	}
	stream, err := exec.CommandContext(t.Context(), "curl", "-sS", "-m", "30", "-N", "-H", "Content-Type: application/connect+json",
		"--data-binary", "@"+request, url+"Subscribe").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, stream)
	}
	if !has(string(stream), `"started"`, `"partitionCount":4`, `"value"`, `"timeType"`) {
		t.Errorf("got %q", stream)
	}
}
