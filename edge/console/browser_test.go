package console_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

var (
	chromium    = flag.String("console.chromium", "", "path of Chromium; empty: looked for in PATH")
	screenshots = flag.String("console.screenshots", "", "folder that screenshots are written to")
)

// deadline bounds every wait for the page.
const deadline = 30 * time.Second

var theBrowser struct {
	once sync.Once
	ctx  context.Context
	stop func()
	err  error
}

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	if theBrowser.stop != nil {
		theBrowser.stop()
	}
	os.Exit(code)
}

// browser starts Chromium once for all tests.
func browser() (context.Context, error) {
	b := &theBrowser
	b.once.Do(func() {
		path, err := findChromium()
		if err != nil {
			b.err = err
			return
		}
		options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.NoFirstRun, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU}
		for _, name := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage", "hide-scrollbars"} {
			options = append(options, chromedp.Flag(name, true))
		}
		// without a UserDataDir the allocator makes a fresh one and removes it
		allocator, stopAllocator := chromedp.NewExecAllocator(context.Background(), options...)
		// it knows no events of the top layer, and would say so at each
		ctx, stopBrowser := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {}))
		b.err = chromedp.Run(ctx)
		b.ctx = ctx
		b.stop = func() {
			stopBrowser()
			stopAllocator()
		}
	})
	return b.ctx, b.err
}

func findChromium() (string, error) {
	if *chromium != "" {
		return *chromium, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no Chromium in PATH: install it (Debian: apt-get install chromium) or name it with -console.chromium")
}

// page is a tab.
type page struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string // exceptions and policy violations
}

type look struct {
	width, height int64
	dark          bool
}

// openPage opens an address in a new tab. The test fails if a script of the page throws, or anything violates its policy.
func openPage(t *testing.T, url string, l look) *page {
	t.Helper()
	b, err := browser()
	if err != nil {
		t.Fatal(err)
	}
	ctx, closeTab := chromedp.NewContext(b)
	if err := chromedp.Run(ctx); err != nil { // the tab lives as long as the context of this first call: no deadline on it
		t.Fatal(err)
	}
	p := &page{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, p.event)
	t.Cleanup(func() {
		closeTab()
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.faults) > 0 {
			t.Errorf("the page's faults:\n%s", strings.Join(p.faults, "\n"))
		}
	})
	if l.width == 0 {
		l = look{width: 1280, height: 800}
	}
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	p.run(log.Enable(),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.EmulateViewport(l.width, l.height),
		chromedp.Navigate(url))
	return p
}

func (p *page) event(e any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := e.(type) {
	case *runtime.EventExceptionThrown:
		p.faults = append(p.faults, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Source == log.SourceSecurity || strings.Contains(e.Entry.Text, "Content Security Policy") {
			p.faults = append(p.faults, e.Entry.Text)
		}
	}
}

func (p *page) run(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, deadline)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.t.Fatal(err)
	}
}

// eval returns the value of an expression or a promise.
func eval[T any](p *page, expression string) (value T) {
	p.t.Helper()
	p.run(chromedp.Evaluate(expression, &value, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	return value
}

// await polls until the expression is true.
func (p *page) await(expression string) {
	p.t.Helper()
	awaitTrue(p.t, expression+"\n"+"the page says: ", func() bool { return eval[bool](p, expression) }, p.text)
}

func (p *page) text() string { return eval[string](p, `document.body.innerText`) }

// awaitState waits for what the page says of its connection.
func (p *page) awaitState(text string) {
	p.t.Helper()
	p.await(fmt.Sprintf(`document.getElementById('state-text').textContent === %q`, text))
}

// shown returns partition:offset of the rows, newest first.
func (p *page) shown() []string {
	p.t.Helper()
	return eval[[]string](p, `[...document.querySelectorAll('#records .row')].map((r) => r.dataset.at)`)
}

// column returns one cell of each row, newest first.
func (p *page) column(class string) []string {
	p.t.Helper()
	return eval[[]string](p, fmt.Sprintf(`[...document.querySelectorAll('#records .row .%s')].map((c) => c.textContent)`, class))
}

func (p *page) screenshot(name string) {
	p.t.Helper()
	var png []byte
	p.run(chromedp.CaptureScreenshot(&png))
	if *screenshots == "" {
		return
	}
	if err := os.WriteFile(fmt.Sprintf("%s/%s.png", *screenshots, name), png, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

// awaitTrue polls until ok, and fails the test after the deadline with what and detail.
func awaitTrue(t *testing.T, what string, ok func() bool, detail func() string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(deadline)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not within %v: %s%s", deadline, what, detail())
		}
	}
}
