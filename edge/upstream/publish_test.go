package upstream_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"tailrace.dev/tailrace/edge/upstream"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/stream"
)

func two() []*tailracev1.PublishRecord {
	return []*tailracev1.PublishRecord{{Key: []byte("a"), Value: []byte("1")}, {Value: []byte("2")}}
}

// published answers every record with its place in the request.
func published(_ context.Context, m *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
	answer := &tailracev1.PublishResponse{}
	for i := range m.GetRecords() {
		answer.Results = append(answer.Results, &tailracev1.PublishResult{Result: &tailracev1.PublishResult_Published{
			Published: &tailracev1.Published{Offset: int64(i)},
		}})
	}
	return answer, nil
}

func (s *script) answers(fs ...func(context.Context, *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error)) *script {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.publishes = fs
	return s
}

func (s *script) publishCalls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published
}

func refusing(err error) func(context.Context, *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
	return func(context.Context, *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
		return nil, err
	}
}

// wantFailures checks that both records failed alike.
func wantFailures(t *testing.T, results []*tailracev1.PublishResult, err error, reason string, outcome tailracev1.PublishOutcome) {
	t.Helper()
	if err != nil || len(results) != 2 {
		t.Fatalf("got %v, %v", results, err)
	}
	for _, r := range results {
		if f := r.GetFailure(); f.GetReason() != reason || f.GetOutcome() != outcome || f.GetCode() == "" || f.GetMessage() == "" {
			t.Errorf("got %v, want %s, %s", r, reason, outcome)
		}
	}
}

const (
	refused = tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED
	unknown = tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN
)

func TestPublishedRecordsHaveTheirResults(t *testing.T) {
	svc := newScript(t).answers(published)
	results, err := newSource(t, nil, svc.address).Publish(t.Context(), "t", two())
	if err != nil || len(results) != 2 || results[1].GetPublished().GetOffset() != 1 {
		t.Errorf("got %v, %v", results, err)
	}
}

func TestRefusedIsRefusedAndNothingElse(t *testing.T) {
	for _, reason := range []string{
		stream.ReasonInvalidArgument, stream.ReasonForbidden, stream.ReasonUnknownTopic, stream.ReasonUnknownPartition, stream.ReasonTopicDeleted,
		stream.ReasonLimit, stream.ReasonUnavailable, stream.ReasonUnimplemented,
	} {
		svc := newScript(t).answers(refusing(failure(connect.CodeNotFound, reason, nil)))
		results, err := newSource(t, nil, svc.address).Publish(t.Context(), "t", two())
		wantFailures(t, results, err, reason, refused)
		if f := results[0].GetFailure(); f.GetCode() != "not_found" || f.GetRetryAfter().AsDuration() != time.Second || svc.publishCalls() != 1 {
			t.Errorf("%s: got %v after %d calls", reason, f, svc.publishCalls())
		}
	}
	for _, reason := range []string{stream.ReasonInternal, stream.ReasonDeadline, stream.ReasonCanceled, stream.ReasonStalled, "", "NEW"} {
		svc := newScript(t).answers(refusing(failure(connect.CodeInvalidArgument, reason, nil)))
		results, err := newSource(t, nil, svc.address).Publish(t.Context(), "t", two())
		wantFailures(t, results, err, "OUTCOME_UNKNOWN", unknown)
		if svc.publishCalls() != 1 {
			t.Errorf("%s: sent %d times", reason, svc.publishCalls())
		}
	}
}

func TestADrainingServiceIsLeftForAnother(t *testing.T) {
	svc := newScript(t).answers(refusing(failure(connect.CodeUnavailable, "DRAINING", nil)), published)
	results, err := newSource(t, nil, svc.address).Publish(t.Context(), "t", two())
	if err != nil || results[0].GetPublished() == nil {
		t.Errorf("got %v, %v", results, err)
	}
}

func TestAPublishWaitsForAnAbsentService(t *testing.T) {
	svc := newScript(t).answers(published)
	source := newSource(t, nil, svc.address)
	if _, err := source.Publish(t.Context(), "t", two()); err != nil { // a connection is there, and lost
		t.Fatal(err)
	}
	eventually(t, "its presence is seen", source.Available)
	svc.close()
	eventually(t, "its absence is seen", func() bool { return !source.Available() })
	var wg sync.WaitGroup
	wg.Go(func() {
		results, err := source.Publish(t.Context(), "t", two())
		if err != nil || results[0].GetPublished() == nil {
			t.Errorf("got %v, %v", results, err)
		}
	})
	<-time.After(20 * time.Millisecond) // some tries, most likely
	svc.listen(t, svc.address)
	wg.Wait()
}

func TestAnAbsentServiceIsUnavailable(t *testing.T) {
	brief := func(c *upstream.Config) { c.PublishWait = 50 * time.Millisecond }
	source := newSource(t, brief, "127.0.0.1:1")
	if results, err := source.Publish(t.Context(), "t", two()); !errors.Is(err, hub.ErrUnavailable) || results != nil {
		t.Errorf("got %v, %v", results, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if results, err := source.Publish(ctx, "t", two()); !errors.Is(err, context.Canceled) || results != nil {
		t.Errorf("got %v, %v", results, err)
	}
}

// What the network does after a request has left can't be told from what the service did.
func TestALostAnswerIsUnknownAndNeverSentAgain(t *testing.T) {
	t.Run("cut", func(t *testing.T) {
		var svc *script
		svc = newScript(t).answers(func(ctx context.Context, _ *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
			go svc.close() // it waits for us
			<-ctx.Done()
			return nil, ctx.Err()
		})
		results, err := newSource(t, nil, svc.address).Publish(t.Context(), "t", two())
		wantFailures(t, results, err, "OUTCOME_UNKNOWN", unknown)
		if svc.publishCalls() != 1 {
			t.Errorf("sent %d times", svc.publishCalls())
		}
	})
	t.Run("late", func(t *testing.T) {
		svc := newScript(t).answers(func(ctx context.Context, _ *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		results, err := newSource(t, nil, svc.address).Publish(ctx, "t", two())
		wantFailures(t, results, err, "OUTCOME_UNKNOWN", unknown)
		if svc.publishCalls() != 1 {
			t.Errorf("sent %d times", svc.publishCalls())
		}
	})
	t.Run("a result short", func(t *testing.T) {
		svc := newScript(t).answers(func(context.Context, *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
			return &tailracev1.PublishResponse{Results: []*tailracev1.PublishResult{{}}}, nil
		})
		results, err := newSource(t, nil, svc.address).Publish(t.Context(), "t", two())
		wantFailures(t, results, err, "OUTCOME_UNKNOWN", unknown)
	})
	t.Run("a service that takes the request and hangs up", func(t *testing.T) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		defer wg.Wait()
		defer ln.Close()
		wg.Go(func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				// Preface, settings and head have come; our settings let it go on.
				_, _ = conn.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0})
				_, _ = io.CopyN(io.Discard, conn, 200)
				_ = conn.Close()
			}
		})
		source, err := upstream.New(upstream.Config{ // nobody asks for its health
			Addresses: []string{"http://" + ln.Addr().String()}, Logger: quiet(), RetryMin: time.Millisecond, PublishWait: 100 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		results, err := source.Publish(t.Context(), "t", two())
		wantFailures(t, results, err, "OUTCOME_UNKNOWN", unknown)
	})
}

func TestTopicsAreListedForThePage(t *testing.T) {
	svc := newScript(t)
	svc.names = []string{"a", "b", "c", "d", "e"}
	source := newSource(t, nil, svc.address)
	h := source.TopicsHandler()
	get := func(method string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/api/topics", nil))
		return w
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			w := get(http.MethodGet)
			const want = `{"topics":[{"name":"a","partitions":1},{"name":"b","partitions":2},{"name":"c","partitions":3},{"name":"d","partitions":4},{"name":"e","partitions":5}]}`
			if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != want || w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
			}
		})
	}
	wg.Wait()
	svc.mu.Lock()
	if svc.lists != 3 {
		t.Errorf("twenty pages cost %d calls, want 3", svc.lists)
	}
	svc.mu.Unlock()
	if w := get(http.MethodPost); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
		t.Errorf("got %d", w.Code)
	}
	if w := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		newSource(t, nil, "127.0.0.1:1").TopicsHandler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/topics", nil))
		return w
	}(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("got %d", w.Code)
	}
}

func TestTopicIsDescribedForThePage(t *testing.T) {
	svc := newScript(t)
	svc.topic = &tailracev1.Topic{Name: "a b", TopicId: "id", Partitions: []*tailracev1.Partition{
		{Partition: 0, Leader: 2, Start: 3, End: 8, HighWatermark: 9}, {Partition: 1, Leader: -1},
	}}
	h := newSource(t, nil, svc.address).TopicsHandler()
	began := time.Now()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/topics?topic=a+b", nil))
			const want = `{"name":"a b","topicId":"id","partitions":[{"partition":0,"leader":2,"start":3,"end":8,"highWatermark":9},{"partition":1,"leader":-1,"start":0,"end":0,"highWatermark":0}]}`
			if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != want || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("got %d %v %s", w.Code, w.Header(), w.Body)
			}
		})
	}
	wg.Wait()
	svc.mu.Lock()
	if most := 1 + int(time.Since(began)/time.Second); svc.described > most {
		t.Errorf("twenty pages cost %d calls, want at most %d", svc.described, most)
	}
	svc.mu.Unlock()
	lost := newScript(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	w := httptest.NewRecorder()
	newSource(t, nil, lost.address).TopicsHandler().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/topics?topic=t", nil))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestHealthIsTheServicesOwnWord(t *testing.T) {
	svc := newScript(t)
	source := newSource(t, nil, svc.address)
	select {
	case <-source.Reached():
	case <-time.After(patience):
		t.Fatal("never reached")
	}
	eventually(t, "it is available", source.Available)
	svc.health.SetStatus("", 2) // not serving: it drains
	eventually(t, "it is not available", func() bool { return !source.Available() })
	svc.health.SetStatus("", 1)
	eventually(t, "it is available again", source.Available)
}

func TestAddressesAreChecked(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:7070", "ftp://x", "http://", "http://x/path", "http://x?q=1", "http://u@x", "http://x:port", "http://x:", "http://x:0", "http://x:99999", "http://:80", "http://x#f"} {
		if got, err := upstream.CheckAddress(bad); err == nil {
			t.Errorf("%q: accepted as %q", bad, got)
		}
		if _, err := upstream.New(upstream.Config{Addresses: []string{bad}, Logger: quiet()}); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
	if _, err := upstream.New(upstream.Config{Logger: quiet()}); err == nil {
		t.Error("no address is accepted")
	}
	if got, err := upstream.CheckAddress("https://example.org:7070/"); err != nil || got != "https://example.org:7070" {
		t.Errorf("got %q, %v", got, err)
	}
}
