package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// tab is a page in headless Chromium.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string
}

func openTab(t *testing.T, url string) *tab {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		t.Fatal("no Chromium in PATH: install it (Debian: apt-get install chromium)")
	}
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.NoFirstRun, chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir())}
	for _, name := range []string{"disable-quic", "disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage"} {
		options = append(options, chromedp.Flag(name, true))
	}
	allocator, stopAllocator := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	ctx, stop := chromedp.NewContext(allocator)
	b := &tab{t: t, ctx: ctx}
	t.Cleanup(func() {
		stop()
		stopAllocator()
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.faults) > 0 {
			t.Errorf("the page's faults:\n%s", strings.Join(b.faults, "\n"))
		}
	})
	if err := chromedp.Run(ctx); err != nil {
		t.Fatal(err)
	}
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			b.faults = append(b.faults, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Source == log.SourceSecurity {
				b.faults = append(b.faults, e.Entry.Text)
			}
		}
	})
	b.run(log.Enable(), chromedp.EmulateViewport(1280, 800), chromedp.Navigate(url))
	return b
}

func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

func evaluate[T any](b *tab, expression string) (value T) {
	b.t.Helper()
	b.run(chromedp.Evaluate(expression, &value))
	return value
}

func (b *tab) await(what, expression string) {
	b.t.Helper()
	if !eventually(b.t.Context(), time.Minute, func() bool { return evaluate[bool](b, expression) }) {
		b.t.Fatalf("not within a minute: %s; the page says:\n%s", what, evaluate[string](b, `document.body.innerText`))
	}
}

func (b *tab) awaitState(text string) {
	b.t.Helper()
	b.await("state "+text, fmt.Sprintf(`document.getElementById('state-text').textContent === %q`, text))
}

// screenshot writes .tmp/screenshots/name.png, for people to look at.
func (b *tab) screenshot(name string) {
	b.t.Helper()
	var png []byte
	b.run(chromedp.CaptureScreenshot(&png))
	dir := filepath.Join("..", "..", ".tmp", "screenshots")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) look(width, height int64, scheme string) {
	b.t.Helper()
	b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}), chromedp.EmulateViewport(width, height))
}

const rowCount = `document.querySelectorAll('#records .row').length`

// TestPage is a person at the page that the edge serves, with the embedded broker and its demo topic: live records, a publish that comes
// back, and a service that is killed and started again meanwhile.
func TestPage(t *testing.T) {
	p := startPair(t, pairOptions{kafka: "embedded", service: []string{"-demo", "-kafka.data-dir", t.TempDir()}})
	b := openTab(t, "http://"+p.ws+"/")
	b.awaitState("Live")
	b.await("live records", rowCount+` >= 8`)
	b.screenshot("live-desktop")

	b.run(chromedp.SendKeys(`#publish-form [name=key]`, "from-the-page"),
		chromedp.SetValue(`#publish-form [name=value]`, `{"hello":"mill"}`),
		chromedp.SendKeys(`#publish-form [name=header]`, "by"), chromedp.SendKeys(`#publish-form [name=headerValue]`, "a person"),
		chromedp.Click(`#publish-form button[type=submit]`))
	b.await("the publish is acknowledged", `document.getElementById('published').textContent.startsWith('Acknowledged')`)
	b.await("the published record comes back", `!!document.querySelector('#records .row.mine') &&
		document.querySelector('#records .row.mine').textContent.includes('from-the-page') && document.querySelector('#records .row.mine').textContent.includes('by: a person')`)
	b.screenshot("published-desktop")

	b.run(chromedp.Click(`#publish-form [value=tombstone]`), chromedp.Click(`#publish-form button[type=submit]`))
	b.await("the tombstone comes back", `[...document.querySelectorAll('#records .row.mine .value')].some((v) => v.textContent === 'tombstone')`)
	b.run(chromedp.Click(`#partitions-toggle`))
	b.await("leaders and watermarks are told", `document.querySelectorAll('#partitions-body tr').length > 0 && [...document.querySelectorAll('#partitions-body tr')].every((r) =>
		['leader', 'start', 'position', 'end', 'watermark'].every((c) => /^[\d,]+$/.test(r.querySelector('.' + c).textContent)))`)
	b.screenshot("partitions-desktop")

	p.service.kill()
	b.awaitState("Upstream unavailable")
	b.screenshot("unavailable-desktop")
	before := evaluate[int](b, rowCount)
	p.startService()
	b.awaitState("Live")
	b.await("records after the restart", fmt.Sprintf(`%s > %d`, rowCount, before+8))
	if notes := evaluate[string](b, `[...document.querySelectorAll('#records .note')].map((n) => n.textContent).join('\n')`); strings.Contains(notes, "Connection lost") || strings.Contains(notes, "Gap") {
		t.Errorf("the socket did not survive the restart of the service:\n%s", notes)
	}
	b.await("the partitions are told again", `document.getElementById('partitions-note').textContent === ''`)
	checkContiguous(t, evaluate[[]string](b, `[...document.querySelectorAll('#records .row')].map((r) => r.dataset.at)`))
	b.look(1280, 800, "dark")
	b.screenshot("live-dark")
	b.look(390, 844, "light")
	b.screenshot("live-phone")
	if wide := evaluate[float64](b, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
		t.Errorf("the page sticks out by %v pixels on a phone", wide)
	}
	b.look(390, 844, "dark")
	b.screenshot("live-phone-dark")
	proof(t, "the page in Chromium: live records, a publish came back, the service's SIGKILL and restart survived on one socket with every offset shown (%d rows)", evaluate[int](b, rowCount))
}

// checkContiguous checks partition:offset of the rows, newest first: no offset may be missing between two of a partition.
func checkContiguous(t *testing.T, places []string) {
	t.Helper()
	slices.Reverse(places)
	last := map[int]int{}
	for _, place := range places {
		var partition, offset int
		if _, err := fmt.Sscanf(place, "%d:%d", &partition, &offset); err != nil {
			t.Fatalf("row at %q: %v", place, err)
		}
		if before, seen := last[partition]; seen && offset != before+1 {
			t.Errorf("partition %d: offset %d is followed by %d", partition, before, offset)
		}
		last[partition] = offset
	}
}
