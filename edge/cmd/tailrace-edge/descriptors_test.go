package main

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tailrace.dev/tailrace/edge"
)

// TestFewOpenFiles: a process that may have few files open refuses sockets beyond with 503, which it says when it starts, and goes on serving.
func TestFewOpenFiles(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sh", "-c", `ulimit -n 128 && exec "$0" "$@"`, self, "-tailrace-edge.main", "--",
		"-max-sessions", "18000", "-log-format", "text", "-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0", "-upstream", newService(t))
	log := &logBook{}
	child.Stderr = log
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
		if t.Failed() {
			t.Logf("log:\n%s", log)
		}
	}()
	p := &program{t: t, log: log}
	eventually(t, "it listens", func() (ok bool) {
		p.web, p.ops, ok = log.addresses()
		return ok
	})
	p.ready()
	const reachable = 128 - ownDescriptors - serviceDescriptors - 2*7
	if !has(log.String(), "level=WARN", "-max-sessions cannot be reached", "max_sessions=18000 reachable=42 open_files=128") || reachable != 42 {
		t.Errorf("not told what can be reached, %d", reachable)
	}
	var open []net.Conn
	knock := func() *http.Response {
		conn, err := net.Dial("tcp", p.web)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		if _, err := conn.Write([]byte("GET /ws HTTP/1.1\r\nHost: " + p.web + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("after %d sockets: %v", len(open), err)
		}
		if resp.StatusCode == http.StatusSwitchingProtocols {
			open = append(open, conn)
		} else {
			_ = conn.Close()
		}
		return resp
	}
	for n := range 200 {
		want := http.StatusSwitchingProtocols
		if n >= reachable {
			want = http.StatusServiceUnavailable
		}
		if resp := knock(); resp.StatusCode != want || want == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "" {
			t.Fatalf("socket %d: got %s %v, want %d", n, resp.Status, resp.Header, want)
		}
	}
	if code, _ := get(t, "http://"+p.web+"/"); code != http.StatusOK {
		t.Errorf("page: %d", code)
	}
	_ = open[0].Close()
	eventually(t, "there is room again", func() bool { return knock().StatusCode == http.StatusSwitchingProtocols })
	if strings.Contains(log.String(), "too many open files") {
		t.Error("it ran out of them")
	}
}

// TestSettingsThatFitStay: what is reachable is neither lowered nor told.
func TestSettingsThatFitStay(t *testing.T) {
	cfg := edge.DefaultConfig()
	cfg.MaxSessions, cfg.MaxHandshakes, cfg.MaxRequests = 20, 10, 10
	want := cfg
	log := &logBook{}
	if err := fitDescriptors(context.Background(), &cfg, true, 1, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		t.Fatal(err)
	}
	if cfg.MaxSessions != want.MaxSessions || cfg.MaxHandshakes != want.MaxHandshakes || cfg.MaxRequests != want.MaxRequests || log.String() != "" {
		t.Errorf("got %+v, log %s", cfg, log)
	}
}

// TestTheDefaultAdapts: what nobody asked for is lowered to what is reachable, and told without a warning.
func TestTheDefaultAdapts(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for asked, level := range map[bool]string{false: "INFO", true: "WARN"} {
		cfg := edge.DefaultConfig()
		cfg.MaxSessions = int(min(limit.Cur, 10_000_000))
		wanted := cfg.MaxSessions
		log := &logBook{}
		if err := fitDescriptors(context.Background(), &cfg, asked, 1, slog.New(slog.NewTextHandler(log, nil))); err != nil {
			t.Fatal(err)
		}
		if cfg.MaxSessions >= wanted || !has(log.String(), "level="+level, "ulimit -n") {
			t.Errorf("asked for: %t: got %d of %d sessions, log %s", asked, cfg.MaxSessions, wanted, log)
		}
	}
}
