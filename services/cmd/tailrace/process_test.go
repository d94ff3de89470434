package main

import (
	"bytes"
	"context"
	"flag"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long anything may take before a test gives up: far more than it needs.
const patience = 60 * time.Second

// asMain makes the test binary the program itself, for tests that send it signals.
var asMain = flag.Bool("tailrace.main", false, "run the program with the arguments after --")

func TestMain(m *testing.M) {
	flag.Parse()
	if *asMain {
		os.Args = append(os.Args[:1], flag.Args()...)
		main()
	}
	goleak.VerifyTestMain(m)
}

// logBook is what the program writes to standard error.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var listening = regexp.MustCompile(`msg=listening rpc=(\S+) ops=(\S+)`)

// addresses are known once the program has said where it listens.
func (l *logBook) addresses() (rpc, ops string, ok bool) {
	m := listening.FindStringSubmatch(l.String())
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

// program runs in this process.
type program struct {
	t        *testing.T
	log      *logBook
	rpc, ops string // host:port
	stop     context.CancelFunc
	code     chan int
}

// boot starts the program on free ports and waits until it is ready.
func boot(t *testing.T, args ...string) *program {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	p := &program{t: t, log: &logBook{}, stop: stop, code: make(chan int, 1)}
	args = append([]string{"-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0", "-log-format", "text"}, args...)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.code <- run(ctx, args, p.log, p.log)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		if t.Failed() {
			t.Logf("log:\n%s", p.log)
		}
	})
	eventually(t, "it listens", func() (ok bool) {
		p.rpc, p.ops, ok = p.log.addresses()
		return ok
	})
	eventually(t, "it is ready", func() bool { return status(t, "http://"+p.ops+"/readyz") == http.StatusOK })
	return p
}

// exit waits for the program's end and returns its exit code.
func (p *program) exit() int {
	p.t.Helper()
	select {
	case code := <-p.code:
		return code
	case <-time.After(patience):
		p.t.Fatal("the program did not end")
		return -1
	}
}

// status gets a URL over a connection of its own; 0 is no answer.
func status(t *testing.T, url string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get(url)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

func has(text string, words ...string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
