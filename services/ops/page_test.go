package ops_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/ops"
)

var (
	chromium    = flag.String("ops.chromium", "", "path of Chromium; empty: looked for in PATH")
	screenshots = flag.String("ops.screenshots", "", "folder that screenshots are written to")
)

// patience bounds every wait for the page.
const patience = 60 * time.Second

// tab opens an address in a browser of its own. The test fails if a script of the page throws, or anything violates its policy.
func tab(t *testing.T, url string, width, height int64) context.Context {
	t.Helper()
	path := *chromium
	if path == "" {
		var err error
		if path, err = exec.LookPath("chromium"); err != nil {
			t.Fatalf("install Chromium (Debian: apt-get install chromium) or name it with -ops.chromium: %v", err)
		}
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.NoFirstRun, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU}
	for _, name := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars"} {
		options = append(options, chromedp.Flag(name, true))
	}
	allocator, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	ctx, closeTab := chromedp.NewContext(allocator)
	var mu sync.Mutex
	var faults []string
	chromedp.ListenTarget(ctx, func(e any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := e.(type) {
		case *runtime.EventExceptionThrown:
			faults = append(faults, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Source == log.SourceSecurity {
				faults = append(faults, e.Entry.Text)
			}
		}
	})
	t.Cleanup(func() {
		closeTab()
		mu.Lock()
		defer mu.Unlock()
		if len(faults) > 0 {
			t.Errorf("the page's faults: %q", faults)
		}
	})
	if err := chromedp.Run(ctx, log.Enable(), chromedp.EmulateViewport(width, height), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	return ctx
}

func eval[T any](t *testing.T, ctx context.Context, expression string) (value T) {
	t.Helper()
	if err := chromedp.Run(ctx, chromedp.Evaluate(expression, &value)); err != nil {
		t.Fatal(err)
	}
	return value
}

func await(t *testing.T, ctx context.Context, expression string) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !eval[bool](t, ctx, expression); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s\nthe page says: %s", patience, expression, eval[string](t, ctx, "document.body.innerText"))
		}
	}
}

// value is the script for what a figure says of a name, as text.
func value(figure, name string) string {
	return fmt.Sprintf(`([...document.querySelectorAll('[data-figure=%q] .line')].find((l) => l.querySelector('.name').textContent === %q)?.querySelector('.value').textContent || '')`, figure, name)
}

// TestThePageShowsFigures gives a process metrics that grow in a known way, and looks at what the page makes of them.
func TestThePageShowsFigures(t *testing.T) {
	began := time.Now()
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tailrace_kafka_records_total", Help: "In."}, func() float64 { return 500 * time.Since(began).Seconds() }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "tailrace_kafka_bytes_total", Help: "In."}, func() float64 { return 2048 * 500 * time.Since(began).Seconds() }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tailrace_hub_topics", Help: "Three."}, func() float64 { return 3 }),
	)
	lag := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailrace_hub_lag_records", Help: "By topic."}, []string{"topic"})
	delay := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "tailrace_stream_delivery_delay_seconds", Help: "In two buckets.", Buckets: []float64{.001, .002, .004, .1}})
	reg.MustRegister(lag, delay)
	up := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailrace_edge_upstream_up", Help: "By address."}, []string{"upstream"})
	up.WithLabelValues("http://127.0.0.1:7070").Set(1)
	open := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tailrace_stream_open", Help: "By procedure."}, []string{"procedure"})
	open.WithLabelValues("/tailrace.v1.StreamService/Subscribe").Set(7)
	reg.MustRegister(up, open)
	for n := range 9 {
		lag.WithLabelValues(fmt.Sprintf("topic-%d", n)).Set(float64(n))
	}
	for range 90 {
		delay.Observe(.003)
	}
	for range 10 {
		delay.Observe(.05)
	}
	var lost atomic.Bool
	kafka := func() map[string]string {
		if lost.Load() {
			return map[string]string{"kafka": "lost: no answer"}
		}
		return map[string]string{"kafka": "up"}
	}
	s := ops.New(ops.Config{Gatherer: reg, Logger: slog.New(slog.DiscardHandler), Detail: kafka})
	s.Reached()
	var hangs, fails atomic.Bool
	var failed atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/metrics" && fails.Load():
			failed.Add(1)
			http.Error(w, "no metrics", http.StatusInternalServerError)
		case r.URL.Path == "/metrics" && hangs.Load():
			<-r.Context().Done()
		default:
			s.Handler().ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	ctx := tab(t, server.URL, 390, 844)

	await(t, ctx, `document.getElementById('state').textContent === 'ready, kafka up' && document.getElementById('process').textContent === 'service'`)
	// 90 of 100 lie between 2 and 4 ms: the median is 5/9 of the way, the 99th is 9/10 of the way from 4 to 100 ms.
	for name, want := range map[string]string{"p50": "3.11 ms", "p90": "4 ms", "p99": "90.4 ms"} {
		await(t, ctx, fmt.Sprintf(`%s === %q`, value("Delivery delay", name), want))
	}
	await(t, ctx, fmt.Sprintf(`%s === '1' && %s === '7'`, value("Services that answer", "http://127.0.0.1:7070"), value("Streams open", "Subscribe")))
	await(t, ctx, fmt.Sprintf(`Math.abs(parseFloat(%s) - 500) < 50`, value("Records", "in, live")))
	await(t, ctx, fmt.Sprintf(`/^(9\d\d|10[0-4]\d) KiB\/s$/.test(%s)`, value("Bytes", "in, live")))
	await(t, ctx, fmt.Sprintf(`%s === '8' && document.querySelector('[data-figure="Lag of all"]').innerText.includes('and 3 more')`, value("Lag of all", "topic-8")))
	await(t, ctx, `document.querySelector('[data-figure="Records"] polyline')?.getAttribute('points').split(' ').length >= 2`)
	if hidden := eval[bool](t, ctx, `document.querySelector('[data-figure="Feeds"]').offsetParent === null`); !hidden {
		t.Error("a figure that the process does not have is shown")
	}
	if wide := eval[float64](t, ctx, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
		t.Errorf("the page sticks out by %v pixels", wide)
	}
	lost.Store(true)
	await(t, ctx, `document.getElementById('state').textContent === 'ready, kafka lost: no answer' && document.getElementById('state').className === 'bad'`)
	lost.Store(false)
	s.Drain()
	await(t, ctx, `document.getElementById('state').textContent === 'not ready, kafka up'`)
	hangs.Store(true)
	await(t, ctx, `document.getElementById('state').textContent.startsWith('does not answer since ')`)
	since := eval[string](t, ctx, `document.getElementById('state').textContent`)
	fails.Store(true)
	for deadline := time.Now().Add(patience); failed.Load() < 2; <-time.After(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the page has not asked again")
		}
	}
	if now := eval[string](t, ctx, `document.getElementById('state').textContent`); now != since {
		t.Errorf("got %q, want %q still", now, since)
	}
	hangs.Store(false)
	fails.Store(false)
	await(t, ctx, `document.getElementById('state').textContent === 'not ready, kafka up'`)
	if *screenshots != "" {
		var png []byte
		if err := chromedp.Run(ctx, chromedp.CaptureScreenshot(&png)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(*screenshots+"/ops.png", png, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
