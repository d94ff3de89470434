package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/stream"
)

// patience is how long anything may take before a test gives up: far more than it needs.
const patience = 60 * time.Second

// asMain makes the test binary the program itself, for tests that send it signals.
var asMain = flag.Bool("tailrace-edge.main", false, "run the program with the arguments after --")

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

var listening = regexp.MustCompile(`msg=listening web=(\S+) ops=(\S+)`)

// addresses are known once the program has said where it listens.
func (l *logBook) addresses() (web, ops string, ok bool) {
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
	web, ops string // host:port
	stop     context.CancelFunc
	code     chan int
}

// boot starts the program on free ports and waits until it listens.
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
		p.web, p.ops, ok = p.log.addresses()
		return ok
	})
	return p
}

// ready waits until the program is.
func (p *program) ready() *program {
	p.t.Helper()
	eventually(p.t, "it is ready", func() bool {
		code, _ := get(p.t, "http://"+p.ops+"/readyz")
		return code == http.StatusOK
	})
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

// get gets a URL over a connection of its own; 0 is no answer.
func get(t *testing.T, url string) (code int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Get(url)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
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

// kafka is a store in memory with the topic "demo", as a service knows Kafka.
type kafka struct{ *hubtest.Source }

func (k kafka) PublishAs(_ context.Context, _, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	results := make([]*tailracev1.PublishResult, len(records))
	for i, r := range records {
		offset := k.Append(topic, 0, hubtest.Record{Key: r.GetKey(), Value: r.GetValue(), Headers: r.GetHeaders()})
		results[i] = &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{Offset: offset}}}
	}
	return results, nil
}

func (k kafka) Begin(ctx context.Context, caller, topic string, r *tailracev1.PublishRecord, done func(*tailracev1.PublishResult)) {
	results, _ := k.PublishAs(ctx, caller, topic, []*tailracev1.PublishRecord{r}) // it never fails
	done(results[0])
}

func (k kafka) ListTopics(context.Context) ([]*tailracev1.TopicSummary, error) {
	return []*tailracev1.TopicSummary{{Name: "demo", Partitions: 1}}, nil
}

func (k kafka) GetTopic(context.Context, string) (*tailracev1.Topic, error) {
	return nil, hub.ErrUnimplemented
}

// newService is a running service; it returns its address.
func newService(t *testing.T) string {
	t.Helper()
	source := hubtest.New()
	source.CreateTopic("demo", 1)
	quiet := slog.New(slog.DiscardHandler)
	h := hub.New(source, hub.Config{Logger: quiet, Linger: time.Millisecond})
	server := stream.New(stream.Config{Hub: h, Publisher: kafka{source}, Topics: kafka{source}, Logger: quiet, Registerer: prometheus.NewRegistry()})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Run(ctx, ln, time.Millisecond) })
	wg.Go(func() { _ = h.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return "http://" + ln.Addr().String()
}
