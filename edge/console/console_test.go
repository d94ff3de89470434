package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"tailrace.dev/tailrace/edge/console"
)

func TestHandler(t *testing.T) {
	server := httptest.NewServer(console.Handler())
	defer server.Close()
	get := func(method, path, tag string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tag != "" {
			r.Header.Set("If-None-Match", tag)
		}
		response, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response
	}
	paths := []string{"/"}
	files, err := os.ReadDir("assets")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if file.Name() != "index.html" {
			paths = append(paths, "/console/"+file.Name())
		}
	}
	for _, path := range paths {
		first := get("GET", path, "")
		if first.StatusCode != http.StatusOK {
			t.Errorf("GET %s: got %d, want 200", path, first.StatusCode)
		}
		if csp := first.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("GET %s: got policy %q", path, csp)
		}
		if again := get("GET", path, first.Header.Get("Etag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("GET %s again: got %d, want 304", path, again.StatusCode)
		}
		if post := get("POST", path, ""); post.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: got %d, want 405", path, post.StatusCode)
		}
	}
	for _, path := range []string{"/favicon.ico", "/console/", "/console/index.html", "/assets/console.js"} {
		if r := get("GET", path, ""); r.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: got %d, want 404", path, r.StatusCode)
		}
	}
}

func TestLiveRecordsAppear(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 2)
	f.add(record{Topic: "demo", Key: new("old"), Text: new("before the page")})
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	f.add(record{Topic: "demo", Key: new("k1"), Text: new(`{"n": 1.0}`), Headers: [][]any{{"h", "v"}, {"h", nil}, {"b", map[string]string{"base64": "/wA="}}}})
	f.add(record{Topic: "demo", Partition: 1, Text: new("")}, record{Topic: "demo", Partition: 1, Key: new(""), Tombstone: true})
	p.await(`document.querySelectorAll('#records .row').length === 3`)
	for class, want := range map[string][]string{
		"partition": {"1", "1", "0"},
		"offset":    {"1", "0", "1"},
		"key":       {"empty", "–", "k1"},
		"value":     {"tombstone", "empty", `{"n": 1.0}`},
		"headers":   {"", "", "h: v  h: null  b: 0xff00"},
	} {
		if got := p.column(class); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", class, got, want)
		}
	}
	for _, delay := range p.column("delay") {
		if !strings.HasSuffix(delay, " ms") && !strings.HasSuffix(delay, " s") {
			t.Errorf("got delay %q", delay)
		}
	}
	if topics := eval[string](p, `document.getElementById('topics').innerText`); !strings.Contains(topics, "demo") {
		t.Errorf("got topics %q", topics)
	}
}

func TestKeyFilter(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	f.add(record{Topic: "demo", Key: new("k1"), Text: new("a")}, record{Topic: "demo", Key: new("k2"), Text: new("b")})
	p.await(`document.querySelectorAll('#records .row').length === 2`)
	follow(p, "k2")
	p.awaitState("Live")
	subs := f.requests("subscribe")
	if got := subs[len(subs)-1].Keys; !slices.Equal(got, []string{"k2"}) {
		t.Errorf("got keys %q, want k2", got)
	}
	f.add(record{Topic: "demo", Key: new("k1"), Text: new("c")}, record{Topic: "demo", Key: new("k2"), Text: new("d")})
	p.await(`document.querySelectorAll('#records .row').length >= 2`)
	if got, want := p.column("value"), []string{"d", "b"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	eval[any](p, `document.querySelector('#keys button').click()`)
	p.await(`document.querySelectorAll('#keys li').length === 0`)
	p.awaitState("Live")
	f.add(record{Topic: "demo", Key: new("k1"), Text: new("e")})
	p.await(`document.querySelector('#records .row .value').textContent === 'e'`)
	if sent, ended := len(f.requests("subscribe")), len(f.requests("unsubscribe")); sent != ended+1 {
		t.Errorf("%d subscriptions were made and %d given up", sent, ended)
	}
}

// follow types a key into the filter.
func follow(p *page, key string) {
	p.t.Helper()
	eval[any](p, fmt.Sprintf(`(() => { document.getElementById('key-input').value = %s; document.getElementById('filter').requestSubmit(); })()`, quote(p.t, key)))
	p.await(`[...document.querySelectorAll('#keys li span')].some((s) => s.textContent === ` + quote(p.t, key) + `)`)
}

func quote(t *testing.T, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// publish fills the form in and sends it.
func publish(p *page, key, value, header, headerValue string) {
	p.t.Helper()
	kind := "text"
	if strings.HasPrefix(value, "{") {
		kind = "json"
	}
	for name, v := range map[string]string{"key": key, "kind": kind, "value": value, "header": header, "headerValue": headerValue} {
		eval[any](p, fmt.Sprintf(`void (document.getElementById('publish-form').elements[%q].value = %s)`, name, quote(p.t, v)))
	}
	eval[any](p, `document.getElementById('publish-form').requestSubmit()`)
}

func TestPublishComesBack(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	publish(p, "me", "{\"exact\":  1e400}\n", "h", "v")
	p.await(`document.getElementById('published').textContent.startsWith('Acknowledged: partition 0, offset 0')`)
	p.await(`document.querySelector('#records .row.mine')?.dataset.at === '0:0'`)
	r := f.requests("publish")[0]
	if *r.Text != "{\"exact\":  1e400}\n" || *r.Key != "me" || fmt.Sprint(r.Headers) != "[[h v]]" {
		t.Errorf("the page sent %q %q %v", *r.Key, *r.Text, r.Headers)
	}
	publish(p, "", "", "", "")
	p.await(`document.getElementById('published').textContent.includes('offset 1')`)
	if r := f.requests("publish")[1]; r.Key != nil || *r.Text != "" || r.Headers != nil {
		t.Errorf("an empty form was sent as %+v", r)
	}
	f.set(func(f *fakeEdge) { f.fail = "UNKNOWN_TOPIC" })
	publish(p, "", "x", "", "")
	p.await(`document.getElementById('published').textContent === 'Refused: no such topic (UNKNOWN_TOPIC). The record is not in the log.'`)
	f.set(func(f *fakeEdge) { f.fail, f.mute = "", true })
	publish(p, "", "y", "", "")
	awaitTrue(t, "the publish arrives", func() bool { return len(f.requests("publish")) == 4 }, p.text)
	f.cut()
	p.await(`document.getElementById('published').textContent.includes('may or may not be in the log')`)
}

// TestResume cuts the connection again and again while records come: what the page shows is the log, nothing twice.
func TestResume(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 3)
	p := openPage(t, f.url+"/#topic=demo&start=earliest", look{})
	p.awaitState("Live")
	const cuts, between = 5, 60
	for i := range cuts * between {
		f.add(record{Topic: "demo", Partition: int32(i) % 3, Text: new(fmt.Sprint(i)), Epoch: int32(i) % 2})
		if i%between == between/2 {
			if i%4 == 0 {
				f.cut()
			} else {
				f.goodbye(4000, "draining", `,"reconnectAfterMs":[0,50]`)
			}
		}
		if i%between == between-1 {
			awaitTrue(t, "the page comes back", func() bool { return f.connections() == i/between+2 }, p.text)
			p.awaitState("Live")
		}
	}
	p.awaitState("Live")
	p.await(fmt.Sprintf(`document.querySelectorAll('#records .row').length >= %d`, cuts*between))
	var want []string
	for i := range cuts * between {
		want = append(want, fmt.Sprintf("%d:%d", i%3, i/3))
	}
	got := p.shown()
	// the order is promised within a partition only
	slices.Reverse(got)
	byPartition := func(a, b string) int { return strings.Compare(a[:1], b[:1]) }
	slices.SortStableFunc(got, byPartition)
	slices.SortStableFunc(want, byPartition)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	subs := f.requests("subscribe")
	if last := subs[len(subs)-1]; last.TopicID != "t1" || !strings.Contains(string(last.Start), "positions") {
		t.Errorf("the last subscribe was %+v", last)
	}
}

// TestHostileRecords shows records that would be markup, scripts, huge, binary or confusing as what they are: text.
func TestHostileRecords(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	elements := eval[int](p, `document.querySelectorAll('body *').length`)
	hostile := []string{
		`<img src=x onerror="window.owned=1">`,
		`<script>window.owned=1</script>`,
		`{"a":"</script><svg onload=window.owned=1>"}`,
		`"><iframe srcdoc="<script>parent.owned=1</script>">`,
		`javascript:window.owned=1`,
		"\x1b[31mred\x1b[0m \u202egnp.exe\u202c \x00 \u2066x\u2069",
		strings.Repeat("[", 20000) + strings.Repeat("]", 20000),
		`{"__proto__":{"owned":1},"constructor":"<b>"}`,
	}
	for _, h := range hostile {
		f.add(record{Topic: "demo", Key: &h, Text: &h, Headers: [][]any{{h[:min(len(h), 200)], h[:min(len(h), 200)]}}})
	}
	huge := strings.Repeat("<b>é", 300_000)
	f.add(record{Topic: "demo", Text: &huge}, record{Topic: "demo", KeyBase64: "/wD+", Base64: strings.Repeat("AP8K", 100_000)})
	p.await(`document.querySelectorAll('#records .row').length === 10`)
	many := record{Topic: "demo", Key: &huge, Text: new("x")}
	for range 5000 {
		many.Headers = append(many.Headers, []any{"h", "v"})
	}
	many.Headers[0][1] = huge
	f.add(many)
	p.await(`document.querySelectorAll('#records .row').length === 11`)
	eval[any](p, `document.querySelector('#records .row').click()`)
	if got := eval[int](p, `document.querySelectorAll('#inspect-facts dd').length`); got < 100 || got > 110 {
		t.Errorf("5000 headers are shown as %d facts", got)
	}
	if got := eval[int](p, `document.querySelector('#inspect-facts').textContent.length + document.querySelector('#records .row').textContent.length`); got > 20_000 {
		t.Errorf("a huge key and a huge header make %d characters", got)
	}
	eval[any](p, `document.querySelector('#records .row').remove()`)
	for row := range 10 {
		eval[any](p, fmt.Sprintf(`document.querySelectorAll('#records .row')[%d].click()`, row))
		p.await(fmt.Sprintf(`document.querySelectorAll('#records .row')[%d].getAttribute('aria-selected') === 'true'`, row))
	}
	values := p.column("value")
	for i, h := range hostile[:5] {
		if got := values[9-i]; got != h {
			t.Errorf("got %q, want %q", got, h)
		}
	}
	if got := values[4]; strings.ContainsAny(got, "\x00\x1b\u202e\u2066") {
		t.Errorf("control characters reach the page: %q", got)
	}
	if got := values[1]; len(got) > 2000 {
		t.Errorf("a huge value makes a line of %d bytes", len(got))
	}
	if got, want := values[0], "293.0 KiB binary · 00ff0a"; !strings.HasPrefix(got, want) {
		t.Errorf("got %.40q, want %q", got, want)
	}
	if got := p.column("key")[0]; got != "0xff00fe" {
		t.Errorf("got key %q", got)
	}
	eval[any](p, `document.getElementById('inspect-close').click()`)
	// a row has seven cells; a header shown in the inspector is two elements
	if added := eval[int](p, `document.querySelectorAll('#records .row *').length`); added != 70 {
		t.Errorf("ten rows hold %d elements, want 70", added)
	}
	if now := eval[int](p, `document.querySelectorAll('body *').length`); now > elements+10*8+20 {
		t.Errorf("the page grew from %d to %d elements", elements, now)
	}
	if eval[bool](p, `window.owned !== undefined || document.querySelectorAll('img, iframe, script:not([src])').length > 0`) {
		t.Error("a record became markup")
	}
}

// TestBounded floods the page: it keeps the newest rows, and holds still while it is paused.
func TestBounded(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	add := func(n int) {
		batch := make([]record, n)
		for i := range batch {
			batch[i] = record{Topic: "demo", Text: new("x")}
		}
		f.add(batch...)
	}
	for range 50 {
		add(400)
	}
	p.await(`document.querySelector('#records .row')?.dataset.at === '0:19999'`)
	if got := len(p.shown()); got != 500 {
		t.Errorf("got %d rows, want 500", got)
	}
	eval[any](p, `document.getElementById('pause').click()`)
	add(7)
	p.await(`document.getElementById('newer').innerText.includes('7 newer rows')`)
	if got := p.shown()[0]; got != "0:19999" {
		t.Errorf("the paused page moved to %s", got)
	}
	eval[any](p, `document.getElementById('newer').click()`)
	p.await(`document.querySelector('#records .row').dataset.at === '0:20006'`)
	if got := len(p.shown()); got != 500 {
		t.Errorf("got %d rows, want 500", got)
	}
}
