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

	"github.com/coder/websocket"
)

// dial opens a socket.
func dial(t *testing.T, p *program, path string) *websocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c, _, err := websocket.Dial(ctx, "ws://"+p.web+path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, Subprotocols: []string{"tailrace.v1.json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.CloseNow() })
	return c
}

// readUntil reads messages until one has all the words, and returns it.
func readUntil(t *testing.T, c *websocket.Conn, words ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, m, err := c.Read(ctx)
		if err != nil {
			t.Fatalf("waiting for %q: %v", words, err)
		}
		if has(string(m), words...) {
			return string(m)
		}
	}
}

func TestRecordsArePublishedAndComeBack(t *testing.T) {
	p := boot(t, "-upstream", newService(t)).ready()
	c := dial(t, p, "/ws/demo?start=earliest")
	readUntil(t, c, `"op":"started","id":"0","topic":"demo"`)
	if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"op":"publish","id":"p","topic":"demo","key":"k","value":{"a":1}}`)); err != nil {
		t.Fatal(err)
	}
	// In no fixed order: either may come first.
	both := map[string]bool{}
	for len(both) < 2 {
		m := readUntil(t, c, `"offset":0`)
		switch {
		case has(m, `"op":"records"`, `"key":"k","value":{"a":1}`):
			both["record"] = true
		case has(m, `{"op":"published","id":"p","partition":0,"offset":0`):
			both["published"] = true
		}
	}
	if code, body := get(t, "http://"+p.web+"/"); code != http.StatusOK || !has(body, "<html") {
		t.Errorf("page: %d %.100s", code, body)
	}
	if code, body := get(t, "http://"+p.web+"/api/topics"); code != http.StatusOK || strings.TrimSpace(body) != `{"topics":[{"name":"demo","partitions":1}]}` {
		t.Errorf("topics: %d %s", code, body)
	}
	if code, _ := get(t, "http://"+p.web+"/nothing"); code != http.StatusNotFound {
		t.Errorf("nothing: %d", code)
	}
	if _, body := get(t, "http://"+p.ops+"/metrics"); !has(body, "tailrace_edge_feeds 1", "tailrace_edge_upstream_up{", "go_goroutines") {
		t.Errorf("metrics:\n%s", body)
	}
	if _, body := get(t, "http://"+p.ops+"/healthz"); !has(body, `"upstream":"up"`) {
		t.Errorf("healthz: %s", body)
	}
}

func TestASignalDrainsAndExitsWithZero(t *testing.T) {
	p := boot(t, "-upstream", newService(t)).ready()
	c := dial(t, p, "/ws/demo")
	readUntil(t, c, `"op":"started"`)
	p.stop()
	readUntil(t, c, `{"op":"goodbye","code":4000,"reason":"draining","reconnectAfterMs":[0,5000]}`)
	if _, _, err := c.Read(t.Context()); websocket.CloseStatus(err) != 4000 {
		t.Errorf("got %v", err)
	}
	if code := p.exit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if !has(p.log.String(), "msg=draining sessions=1", "msg=ended") || has(p.log.String(), "level=ERROR") {
		t.Errorf("log:\n%s", p.log)
	}
}

func TestALogThatNobodyTakesHoldsUpNothing(t *testing.T) {
	p := boot(t, "-upstream", newService(t)).ready()
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	c := dial(t, p, "/ws/demo")
	readUntil(t, c, `"op":"started"`)
	p.stop()
	readUntil(t, c, `"op":"goodbye","code":4000`)
	_ = c.CloseNow()
	if code := p.exit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestWithoutAServiceItRunsAndIsNotReady(t *testing.T) {
	p := boot(t, "-upstream", "http://127.0.0.1:1")
	if code, _ := get(t, "http://"+p.ops+"/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d", code)
	}
	if _, body := get(t, "http://"+p.ops+"/healthz"); !has(body, `"upstream":"not reached yet"`) {
		t.Errorf("healthz: %s", body)
	}
	c := dial(t, p, "/ws")
	if err := c.Write(t.Context(), websocket.MessageText, []byte(`{"op":"subscribe","id":"a","topic":"demo"}`)); err != nil {
		t.Fatal(err)
	}
	readUntil(t, c, `"op":"error","re":"subscribe","id":"a","final":true,"code":"unavailable"`, `"retryable":true`)
	_ = c.CloseNow()
	p.stop()
	if code := p.exit(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestWrongUseIsToldAtOnce(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, test := range []struct {
		args []string
		code int
		word string
	}{
		{[]string{"-nonsense"}, exitUsage, "-nonsense"},
		{[]string{"-listen", ":1"}, exitUsage, "-insecure"},
		{[]string{"-listen", taken.Addr().String()}, exitFailed, "-listen"},
		{[]string{"-listen", "127.0.0.1:0", "-ops-listen", taken.Addr().String()}, exitFailed, "-ops-listen"},
		{[]string{"-help"}, exitOK, "websocat"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		log := &logBook{}
		if code := run(ctx, test.args, log, log); code != test.code || !has(log.String(), test.word) {
			t.Errorf("%v: got %d, want %d and %q in the log:\n%s", test.args, code, test.code, test.word, log)
		}
		cancel()
	}
}

// The first SIGTERM spreads its goodbyes over seconds, the second does not wait for them.
func TestASecondSignalExitsAtOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self, "-tailrace-edge.main", "--", "-log-format", "text", "-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0", "-upstream", newService(t))
	log := &logBook{}
	child.Stderr = log
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	defer func() { _ = child.Process.Kill() }()
	p := &program{t: t, log: log}
	eventually(t, "it listens", func() (ok bool) {
		p.web, p.ops, ok = log.addresses()
		return ok
	})
	p.ready()
	// A peer that never answers the close frame keeps the drain waiting.
	conn, err := net.Dial("tcp", p.web)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: "+p.web+"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session is there", func() bool { return has(log.String(), `msg="session started"`) })
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it drains", func() bool { return has(log.String(), "msg=draining") })
	select {
	case err := <-ended:
		t.Fatalf("it did not wait for the session: %v, log:\n%s", err, log)
	case <-time.After(200 * time.Millisecond):
	}
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			t.Errorf("got %v, want an end by the signal", err)
		}
	case <-time.After(patience):
		t.Errorf("it still runs, log:\n%s", log)
	}
}
