package ops_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"tailrace.dev/tailrace/services/ops"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newServer(t *testing.T) *ops.Server {
	t.Helper()
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "tailrace_test_total", Help: "Counts."})
	reg.MustRegister(c)
	c.Add(7)
	return ops.New(ops.Config{
		Gatherer: reg,
		Detail:   func() map[string]string { return map[string]string{"kafka": "unavailable"} },
		Logger:   slog.New(slog.DiscardHandler),
	})
}

func get(h http.Handler, path, from string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr, r.Host = from, "localhost:7071"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const (
	near = "127.0.0.1:4000"
	far  = "192.0.2.1:4000"
)

func TestReadinessNeedsReachedAndEndsWithDrain(t *testing.T) {
	s := newServer(t)
	steps := []struct {
		name string
		do   func()
		code int
		text string
	}{
		{"at first", func() {}, http.StatusServiceUnavailable, "starting"},
		{"reached", s.Reached, http.StatusOK, "ready"},
		{"reached again", s.Reached, http.StatusOK, "ready"},
		{"drained", s.Drain, http.StatusServiceUnavailable, "draining"},
		{"reached while draining", s.Reached, http.StatusServiceUnavailable, "draining"},
	}
	for _, step := range steps {
		step.do()
		w := get(s.Handler(), "/readyz", far)
		if w.Code != step.code || strings.TrimSpace(w.Body.String()) != step.text {
			t.Errorf("%s: got %d %q, want %d %q", step.name, w.Code, w.Body.String(), step.code, step.text)
		}
	}
}

func TestHealthTellsDetailsAndIsNeverUnwell(t *testing.T) {
	s := newServer(t)
	w := get(s.Handler(), "/healthz", far)
	var got struct {
		Status string
		Ready  bool
		Detail map[string]string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatalf("healthz: %v in %q", err, w.Body.String())
	}
	if w.Code != http.StatusOK || got.Status != "ok" || got.Ready || got.Detail["kafka"] != "unavailable" {
		t.Errorf("got %d %+v", w.Code, got)
	}
}

func TestThePageLinksToWhatThereIs(t *testing.T) {
	h := newServer(t).Handler()
	w := get(h, "/", far)
	links := regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(w.Body.String(), -1)
	for _, link := range links {
		if get(h, "/"+link[1], near).Code == http.StatusNotFound {
			t.Errorf("%s: got 404", link[1])
		}
	}
	if w.Code != http.StatusOK || len(links) < 4 {
		t.Errorf("got %d and the links %v, want at least 4", w.Code, links)
	}
	if w := get(h, "/nothing", far); w.Code != http.StatusNotFound {
		t.Errorf("/nothing: got %d, want 404", w.Code)
	}
}

func TestMetricsAreServedToAll(t *testing.T) {
	w := get(newServer(t).Handler(), "/metrics", far)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "tailrace_test_total 7") {
		t.Errorf("got %d %q", w.Code, w.Body.String())
	}
}

func TestProfilesAreForLoopbackOnly(t *testing.T) {
	s := newServer(t)
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/goroutine", "/debug/pprof/symbol"} {
		for from, want := range map[string]int{
			near: http.StatusOK, "[::1]:4000": http.StatusOK, "[::ffff:127.0.0.1]:4000": http.StatusOK,
			far: http.StatusForbidden, "[2001:db8::1]:4000": http.StatusForbidden, "pipe": http.StatusForbidden,
		} {
			if got := get(s.Handler(), path, from).Code; got != want {
				t.Errorf("%s from %s: got %d, want %d", path, from, got, want)
			}
		}
	}
}

// TestProfilesAreNotForReboundPages: a page whose name was rebound to this machine comes from loopback, under its own name.
func TestProfilesAreNotForReboundPages(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/debug/pprof/", nil)
	r.RemoteAddr, r.Host = near, "rebound.example:7071"
	w := httptest.NewRecorder()
	newServer(t).Handler().ServeHTTP(w, r)
	if w.Code != http.StatusForbidden {
		t.Errorf("got %d", w.Code)
	}
}

func TestRunServesUntilItsContextEnds(t *testing.T) {
	s := newServer(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ln) }()

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Get("http://" + ln.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("got %d, want 200", res.StatusCode)
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v after the context's end, want nil", err)
	}
	if _, err := net.DialTimeout("tcp", ln.Addr().String(), time.Second); err == nil {
		t.Error("the listener is still open")
	}
}
