package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMakeRun is what `make run` does once both programs are built: each line of their logs says whose it is; the first Ctrl-C ends both in order, the
// second one at once, though a client does not let go; addresses that are none, or taken, are told before anything starts.
func TestMakeRun(t *testing.T) {
	root := t.TempDir()
	for _, folder := range []string{".ci", ".tmp/bin"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("../../.ci/run-both.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, ".ci/run-both.sh"), script, 0o755); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	built := binaries(t, false)
	for _, name := range []string{"tailrace", "tailrace-edge"} {
		if err := os.Symlink(filepath.Join(built, name), filepath.Join(root, ".tmp/bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	addresses := map[string]string{}
	for _, name := range []string{"RPC", "RPC_OPS", "PAGE", "PAGE_OPS"} {
		addresses[name] = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	}
	command := func(kafka string, changes ...string) *exec.Cmd {
		cmd := exec.Command("bash", filepath.Join(root, ".ci/run-both.sh"), kafka)
		cmd.Env = os.Environ()
		for name, address := range addresses {
			cmd.Env = append(cmd.Env, name+"="+address)
		}
		cmd.Env = append(cmd.Env, changes...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	for change, want := range map[string]string{"PAGE=18080": "PAGE=18080: want host:port", "PAGE=" + addresses["RPC"]: "an address each"} {
		if out, err := command("embedded", change).CombinedOutput(); err == nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "|") {
			t.Errorf("%s: %v %s", change, err, out)
		}
	}
	for interrupts := 1; interrupts <= 2; interrupts++ {
		var mu sync.Mutex
		var log bytes.Buffer
		text := func() string {
			mu.Lock()
			defer mu.Unlock()
			return log.String()
		}
		cmd := command("embedded")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stderr = cmd.Stdout
		if err := onForkThread(cmd.Start); err != nil {
			t.Fatal(err)
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				mu.Lock()
				fmt.Fprintln(&log, lines.Text())
				mu.Unlock()
			}
		}()
		await(t, time.Minute, "it runs", func() bool { return strings.Contains(text(), "Tailrace is running") })
		if out, err := command("check").CombinedOutput(); err == nil || !strings.Contains(string(out), "is taken") {
			t.Errorf("beside another: %v %s", err, out)
		}
		s, err := dialSession(t.Context(), addresses["PAGE"], "/ws", nil, dialOptions{}) // which answers no close frame
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		signal := func() {
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		}
		signal()
		await(t, time.Minute, "the edge drains", func() bool {
			return strings.Contains(text(), "edge    | ") && strings.Contains(text(), "msg=draining sessions=1")
		})
		if interrupts == 2 {
			signal()
		}
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("it ended with %v", err)
		}
		if drained := strings.Count(text(), "msg=ended"); drained != 2*(2-interrupts) {
			t.Errorf("after %d interrupts %d processes say that they ended in order", interrupts, drained)
		}
		for line := range strings.SplitSeq(strings.TrimSpace(text()), "\n") {
			if strings.Contains(line, "level=") && !strings.HasPrefix(line, "service | ") && !strings.HasPrefix(line, "edge    | ") {
				t.Errorf("nobody's line: %s", line)
			}
		}
		s.conn.Close()
		proof(t, "%d Ctrl-C: both ended after %v", interrupts, time.Since(began).Round(time.Millisecond))
		if _, err := http.Get("http://" + addresses["RPC_OPS"] + "/healthz"); err == nil {
			t.Error("the service runs on")
		}
	}
}
