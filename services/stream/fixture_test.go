package stream_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/stream"
)

// patience is how long anything may take before a test gives up: far more than it needs.
const patience = 30 * time.Second

// fakeKafka fills stream.Publisher and stream.Topics.
type fakeKafka struct {
	publish func(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error)
	begin   func(ctx context.Context, topic string, record *tailracev1.PublishRecord, done func(*tailracev1.PublishResult))
	list    func() ([]*tailracev1.TopicSummary, error)
	get     func(topic string) (*tailracev1.Topic, error)
}

func (f *fakeKafka) PublishAs(ctx context.Context, _, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
	return f.publish(ctx, topic, records)
}

func (f *fakeKafka) Begin(ctx context.Context, _, topic string, record *tailracev1.PublishRecord, done func(*tailracev1.PublishResult)) {
	f.begin(ctx, topic, record, done)
}

func (f *fakeKafka) ListTopics(context.Context) ([]*tailracev1.TopicSummary, error) { return f.list() }

func (f *fakeKafka) GetTopic(_ context.Context, topic string) (*tailracev1.Topic, error) {
	return f.get(topic)
}

// logBook is a log that tests read.
type logBook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines returns the lines that have all the words.
func (l *logBook) lines(words ...string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
line:
	for line := range strings.Lines(l.text.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue line
			}
		}
		found = append(found, line)
	}
	return found
}

// service is a running stream.Server over a hub over a topic store in memory, on loopback.
type service struct {
	t        testing.TB
	source   *hubtest.Source
	hub      *hub.Hub
	kafka    *fakeKafka
	log      *logBook
	registry *prometheus.Registry
	url      string
	addr     string
	stop     context.CancelFunc // begins the drain
	done     chan error         // Run's result
	ended    sync.WaitGroup
}

type option func(*stream.Config)

// slowly is how far behind a reader may be in startSlow's service.
const slowly = 400 * time.Millisecond

// startSlow is start with readers that are slow soon.
func startSlow(t testing.TB) *service {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startHub(t, ln, patience, hub.Config{SlowAfter: slowly})
}

// start starts a service with the topic "orders" of three partitions.
func start(t testing.TB, grace time.Duration, options ...option) *service {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, ln, grace, options...)
}

func startOn(t testing.TB, ln net.Listener, grace time.Duration, options ...option) *service {
	t.Helper()
	return startHub(t, ln, grace, hub.Config{}, options...)
}

func startHub(t testing.TB, ln net.Listener, grace time.Duration, hubCfg hub.Config, options ...option) *service {
	t.Helper()
	s := &service{
		t: t, source: hubtest.New(), kafka: &fakeKafka{}, log: &logBook{}, registry: prometheus.NewRegistry(),
		addr: ln.Addr().String(), url: "http://" + ln.Addr().String(), done: make(chan error, 1),
	}
	s.source.CreateTopic("orders", 3)
	logger := slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	hubCfg.Logger, hubCfg.Linger, hubCfg.Registerer = logger, time.Millisecond, s.registry
	s.hub = hub.New(s.source, hubCfg)
	cfg := stream.Config{Hub: s.hub, Publisher: s.kafka, Topics: s.kafka, Logger: logger, Registerer: s.registry}
	for _, o := range options {
		o(&cfg)
	}
	server := stream.New(cfg)
	serving, stop := context.WithCancel(t.Context())
	s.stop = stop
	hubLife, endHub := context.WithCancel(context.WithoutCancel(t.Context()))
	s.ended.Go(func() {
		if err := s.hub.Run(hubLife); err != nil {
			t.Errorf("hub: %v", err)
		}
	})
	s.ended.Go(func() { s.done <- server.Run(serving, ln, grace) })
	t.Cleanup(func() {
		stop()
		endHub()
		s.ended.Wait()
		s.auditLog()
		if v := s.source.Violations(); len(v) > 0 {
			t.Errorf("the hub broke its contract with the source: %v", v)
		}
	})
	return s
}

// ended is what the line of a session's end has, in its order.
var ended = regexp.MustCompile(`^time=\S+ level=(DEBUG|INFO|ERROR) msg="session ended" session=(\w+) kind=\w+ procedure=\S+ protocol=\S+ peer=\S+ (topic=\S+ )?` +
	`code=[a-z_]+ reason=[A-Z_]+ initiator=(client|server) (cause=("([^"\\]|\\.)*"|\S+) )?duration=\S+ records=\d+ bytes=\d+\n$`)

// auditLog holds every test's log against the table of services/README.md: each session has one line of its start and one of its end, with the documented
// attributes.
func (s *service) auditLog() {
	// Handlers of connections that were cut off end a moment later than the server.
	eventually(s.t, "every session has ended", func() bool {
		return len(s.log.lines(`msg="session started"`)) <= len(s.log.lines(`msg="session ended"`))
	})
	open := map[string]bool{}
	for _, line := range s.log.lines(`msg="session started"`) {
		_, rest, _ := strings.Cut(line, " session=")
		name, _, _ := strings.Cut(rest, " ")
		if open[name] {
			s.t.Errorf("two sessions are %q: %s", name, line)
		}
		open[name] = true
	}
	for _, line := range s.log.lines(`msg="session ended"`) {
		m := ended.FindStringSubmatch(line)
		switch {
		case m == nil:
			s.t.Errorf("not as documented: %s", line)
		case !open[m[2]]:
			s.t.Errorf("the end of a session that did not start, or ended before: %s", line)
		default:
			delete(open, m[2])
		}
	}
}

// h2c and http1 return clients of their own connections.
func h2c(t testing.TB, config *http.HTTP2Config) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, HTTP2: config}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func http1(t testing.TB) *http.Client {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// clientOn is client with its own windows.
func (s *service) clientOn(config *http.HTTP2Config) tailracev1connect.StreamServiceClient {
	s.t.Helper()
	return tailracev1connect.NewStreamServiceClient(h2c(s.t, config), s.url)
}

func (s *service) client(options ...connect.ClientOption) tailracev1connect.StreamServiceClient {
	s.t.Helper()
	return tailracev1connect.NewStreamServiceClient(h2c(s.t, nil), s.url, options...)
}

// subscription is an open Subscribe whose messages are read one by one.
type subscription struct {
	t      testing.TB
	stream *connect.ServerStreamForClient[tailracev1.SubscribeResponse]
	cancel context.CancelFunc
}

func subscribe(t testing.TB, client tailracev1connect.StreamServiceClient, m *tailracev1.SubscribeRequest) *subscription {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	timer := time.AfterFunc(patience, cancel)
	opened, err := client.Subscribe(ctx, m)
	if err != nil {
		t.Fatal(err)
	}
	s := &subscription{t: t, stream: opened, cancel: cancel}
	t.Cleanup(func() {
		timer.Stop()
		cancel()
		_ = opened.Close()
	})
	return s
}

// next returns the next message; at the end of the stream it fails the test.
func (s *subscription) next() *tailracev1.SubscribeResponse {
	s.t.Helper()
	if !s.stream.Receive() {
		s.t.Fatalf("the stream ended: %v", s.stream.Err())
	}
	return s.stream.Msg()
}

// started returns the first message.
func (s *subscription) started() *tailracev1.Started {
	s.t.Helper()
	m := s.next()
	if m.GetStarted() == nil {
		s.t.Fatalf("got %v, want started first", m)
	}
	return m.GetStarted()
}

// records reads n records of all partitions and returns them by partition. Other messages are skipped.
func (s *subscription) records(n int) map[int32][]*tailracev1.Record {
	s.t.Helper()
	got := map[int32][]*tailracev1.Record{}
	for n > 0 {
		for _, b := range s.next().GetRecords().GetBatches() {
			got[b.GetPartition()] = append(got[b.GetPartition()], b.GetRecords()...)
			n -= len(b.GetRecords())
		}
	}
	if n < 0 {
		s.t.Fatalf("%d records too many", -n)
	}
	return got
}

// until reads messages until one is wanted, and returns it.
func (s *subscription) until(wanted func(*tailracev1.SubscribeResponse) bool) *tailracev1.SubscribeResponse {
	s.t.Helper()
	for {
		if m := s.next(); wanted(m) {
			return m
		}
	}
}

// end reads to the end of the stream and returns its error.
func (s *subscription) end() error {
	s.t.Helper()
	for s.stream.Receive() {
	}
	return s.stream.Err()
}

// eventually polls until ok.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		pause()
	}
}

// pause gives way between two looks.
func pause() { <-time.After(2 * time.Millisecond) }

// metric sums a counter or gauge over the samples whose labels include all of the given values.
func (s *service) metric(name string, values ...string) (sum float64) {
	s.t.Helper()
	families, err := s.registry.Gather()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	sample:
		for _, m := range f.GetMetric() {
			for _, v := range values {
				if !hasLabel(m.GetLabel(), v) {
					continue sample
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}

func hasLabel[L interface{ GetValue() string }](labels []L, value string) bool {
	for _, l := range labels {
		if l.GetValue() == value {
			return true
		}
	}
	return false
}

// drained waits for the end of Run.
func (s *service) drained() {
	s.t.Helper()
	select {
	case err := <-s.done:
		if err != nil {
			s.t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		s.t.Fatal("the drain did not end")
	}
}

// released waits until no subscription of "orders" is left.
func (s *service) released() {
	s.t.Helper()
	eventually(s.t, "all subscriptions released", func() bool { return s.hub.Subscribers("orders") == 0 })
}

func earliest(m *tailracev1.SubscribeRequest) *tailracev1.SubscribeRequest {
	m.Start = &tailracev1.Start{At: &tailracev1.Start_Earliest{Earliest: &tailracev1.Earliest{}}}
	return m
}

func orders() *tailracev1.SubscribeRequest { return &tailracev1.SubscribeRequest{Topic: "orders"} }

func codeOf(err error) connect.Code {
	coded := new(connect.Error)
	if errors.As(err, &coded) {
		return coded.Code()
	}
	return 0
}
