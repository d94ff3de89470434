package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// forks starts processes on one thread that lives as long as this binary: Pdeathsig fires when the thread that forked dies.
var forks = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

func onForkThread(call func() error) error {
	done := make(chan error, 1)
	forks() <- func() { done <- call() }
	return <-done
}

// binaries builds both commands once for each flavour and returns their folder.
func binaries(t testing.TB, withRace bool) string {
	t.Helper()
	build := buildPlain
	if withRace {
		build = buildRace
	}
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var (
	buildPlain = sync.OnceValues(func() (string, error) { return build("plain") })
	buildRace  = sync.OnceValues(func() (string, error) { return build("race", "-race") })
)

func build(flavour string, flags ...string) (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".tmp", "e2e", flavour)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	args := append([]string{"build", "-o", dir + "/"}, flags...)
	args = append(args, "./services/cmd/tailrace", "./edge/cmd/tailrace-edge")
	if flavour == "plain" {
		args = append(args, "./services/kafka/pollbench")
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return dir, nil
}

// process is a child process that can be killed, frozen and started again with the same arguments. It dies with the test binary.
type process struct {
	t    testing.TB
	name string
	path string
	args []string
	log  string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when the process was waited for
	err  error         // of Wait, valid after done
}

// newProcess describes a process; start runs it. At the end of the test it is killed, its log is searched for races and panics, and
// shown if the test failed.
func newProcess(t testing.TB, name, path string, args ...string) *process {
	t.Helper()
	dir := *logs
	if dir == "" {
		dir = t.TempDir()
	}
	p := &process{t: t, name: name, path: path, args: args, log: filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "-")+"-"+name+".log")}
	t.Cleanup(func() {
		p.kill()
		p.audit()
	})
	return p
}

func (p *process) start() {
	p.t.Helper()
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := onForkThread(cmd.Start); err != nil {
		p.t.Fatalf("starting %s: %v", p.name, err)
	}
	done := make(chan struct{})
	p.mu.Lock()
	p.cmd, p.done = cmd, done
	p.mu.Unlock()
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		close(done)
	}()
}

func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("sending %v to %s: %v", sig, p.name, err)
	}
}

// kill ends the process with SIGKILL and waits for it. It may be dead, or never have run.
func (p *process) kill() {
	p.mu.Lock()
	cmd, done := p.cmd, p.done
	p.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGCONT)
	_ = cmd.Process.Kill()
	<-done
}

// exit waits for the process to end by itself and returns its exit code.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	select {
	case <-done:
	case <-time.After(within):
		p.t.Fatalf("%s did not exit within %v", p.name, within)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if failed, ok := errors.AsType[*exec.ExitError](p.err); ok {
		return failed.ExitCode()
	}
	if p.err != nil {
		p.t.Fatalf("waiting for %s: %v", p.name, p.err)
	}
	return 0
}

func (p *process) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// audit fails the test for what must never be in a log, and shows the log's end if the test failed.
func (p *process) audit() {
	p.t.Helper()
	log, err := os.ReadFile(p.log)
	if err != nil {
		return
	}
	for _, bad := range []string{"DATA RACE", "panic: ", "fatal error: "} {
		if bytes.Contains(log, []byte(bad)) {
			p.t.Errorf("the log of %s has a %q", p.name, bad)
		}
	}
	if !p.t.Failed() {
		return
	}
	const shown = 16 << 10
	if at := bytes.Index(log, []byte("DATA RACE")); at > 0 {
		p.t.Logf("%s, first race:\n%s", p.name, log[at:min(at+shown, len(log))])
	}
	p.t.Logf("%s %s, end of its log:\n%s", p.name, strings.Join(p.args, " "), log[max(0, len(log)-shown):])
}

// cpu is the processor time that the process has used, user and system.
func (p *process) cpu() time.Duration {
	p.t.Helper()
	return cpuOf(p.t, p.pid())
}

// cpuOf reads the kernel's CPU-time clock of a process (clock_getcpuclockid(3): the complement of the pid, and CPUCLOCK_SCHED).
func cpuOf(t testing.TB, pid int) time.Duration {
	t.Helper()
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &used); err != nil {
		t.Fatalf("CPU time of process %d: %v", pid, err)
	}
	return time.Duration(used.Nano())
}

// rss is the resident memory of the process in bytes.
func (p *process) rss() int64 {
	p.t.Helper()
	return rssOf(p.t, p.pid())
}

func rssOf(t testing.TB, pid int) int64 {
	t.Helper()
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(statm))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

var lastPort atomic.Int32

// freePort returns a loopback port below the ephemeral range: a port that a killed process must get back must not be taken by a
// client's socket meanwhile, and a dialler must not meet itself on it.
func freePort(t testing.TB) int {
	t.Helper()
	for range 10_000 {
		port := 20_000 + (os.Getpid()*37+int(lastPort.Add(1)))%12_000
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}
