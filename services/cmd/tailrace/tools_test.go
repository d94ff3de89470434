package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
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
	groups := "http://" + p.rpc + "/tailrace.v1.GroupService/"
	readUntil(t, func(line string) bool { return strings.Contains(line, `"readers"`) }, path, "curl", "--http2-prior-knowledge", groups+"ListGroups")
	readUntil(t, func(line string) bool { return strings.Contains(line, `"committed"`) },
		path, "curl", "--http2-prior-knowledge", "-d", `{"group":"readers"}`, groups+"GetGroup")
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
