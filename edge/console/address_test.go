package console_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// lastSubscribe waits until the page is live and returns its newest subscribe.
func lastSubscribe(p *page, f *fakeEdge) request {
	p.t.Helper()
	p.awaitState("Live")
	subs := f.requests("subscribe")
	return subs[len(subs)-1]
}

// choose takes a start as a person does; what is the field's content, where the start has one.
func choose(p *page, kind, what string) {
	p.t.Helper()
	eval[any](p, fmt.Sprintf(`(() => {
		const start = document.getElementById('start');
		start.value = %[1]q;
		start.dispatchEvent(new Event('change', { bubbles: true }));
		const input = document.querySelector('#from input[name=%[1]s]');
		if (!input) return;
		input.value = %[2]q;
		input.dispatchEvent(new Event('input', { bubbles: true }));
		document.getElementById('from-go').click();
	})()`, kind, what))
}

func TestStarts(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 2)
	noon := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for i := range 10 {
		f.add(record{Topic: "demo", Partition: int32(i) % 2, Text: new("x"), Time: noon.Add(time.Duration(i) * time.Minute).UnixMilli()})
	}
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	local := eval[string](p, fmt.Sprintf(`(() => { const t = new Date(%d); return new Date(t - t.getTimezoneOffset() * 60e3).toISOString().slice(0, 19); })()`, noon.Add(6*time.Minute).UnixMilli()))
	bookmarks := map[string]string{} // address: start
	for _, tt := range []struct {
		kind, what, start, address string
		shown                      []string
	}{
		{"last", "1", `{"last":1}`, "last=1", []string{"0:4", "1:4"}},
		{"positions", "0:3, 1:4", `{"positions":{"0":3,"1":4},"missing":"earliest"}`, "positions=0%3A3%2C1%3A4", []string{"0:3", "0:4", "1:4"}},
		{"positions", "0:3:7 1:4", `{"positions":{"0":[3,7],"1":4},"missing":"earliest"}`, "positions=0%3A3%3A7%2C1%3A4", []string{"0:3", "0:4", "1:4"}},
		{"time", local, `{"time":"2026-11-30T12:06:00.000Z"}`, "time=2026-11-30T12%3A06%3A00.000Z", []string{"0:3", "0:4", "1:3", "1:4"}},
		{"earliest", "", `"earliest"`, "start=earliest", []string{"0:0", "0:1", "0:2", "0:3", "0:4", "1:0", "1:1", "1:2", "1:3", "1:4"}},
	} {
		sent := len(f.requests("subscribe"))
		choose(p, tt.kind, tt.what)
		awaitTrue(t, "a new subscribe", func() bool { return len(f.requests("subscribe")) > sent }, p.text)
		if got := string(lastSubscribe(p, f).Start); got != tt.start {
			t.Errorf("%s %s: started at %s, want %s", tt.kind, tt.what, got, tt.start)
		}
		p.await(fmt.Sprintf(`document.querySelectorAll('#records .row').length === %d`, len(tt.shown)))
		if got := slices.Sorted(slices.Values(p.shown())); !slices.Equal(got, tt.shown) {
			t.Errorf("%s %s: got %v, want %v", tt.kind, tt.what, got, tt.shown)
		}
		address := eval[string](p, `location.hash`)
		if want := "#topic=demo&" + tt.address; address != want {
			t.Errorf("%s %s: got address %s, want %s", tt.kind, tt.what, address, want)
		}
		bookmarks[address] = tt.start
	}
	sent := len(f.requests("subscribe"))
	for kind, wrong := range map[string]string{"last": "0", "positions": "0:x", "time": ""} {
		choose(p, kind, wrong)
		if !eval[bool](p, fmt.Sprintf(`!document.querySelector('#from input[name=%s]').validity.valid`, kind)) {
			t.Errorf("%s %q is not refused", kind, wrong)
		}
	}
	if got := len(f.requests("subscribe")); got != sent {
		t.Errorf("wrong starts made %d subscriptions", got-sent)
	}
	for address, start := range bookmarks { // at last: a tab behind another one draws nothing
		bookmark := openPage(t, f.url+"/"+address, look{})
		if got := string(lastSubscribe(bookmark, f).Start); got != start {
			t.Errorf("%s: a bookmark starts at %s, want %s", address, got, start)
		}
	}
}

// TestBackAndForward walks through topics and keys and back; an address that somebody wrote badly means latest, and the page says so.
func TestBackAndForward(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	f.topic("orders", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	follow(p, "k1")
	eval[any](p, `document.querySelectorAll('#topics button')[1].click()`)
	p.await(`document.getElementById('topic').textContent === 'orders' && document.querySelectorAll('#keys li').length === 0`)
	if got := lastSubscribe(p, f); got.Topic != "orders" || got.Keys != nil {
		t.Errorf("subscribed %+v", got)
	}
	eval[any](p, `history.back()`)
	p.await(`document.getElementById('topic').textContent === 'demo' && document.getElementById('keys').innerText.includes('k1')`)
	if got := lastSubscribe(p, f); got.Topic != "demo" || !slices.Equal(got.Keys, []string{"k1"}) {
		t.Errorf("back subscribed %+v", got)
	}
	eval[any](p, `history.back()`)
	p.await(`document.querySelectorAll('#keys li').length === 0 && document.getElementById('topic').textContent === 'demo'`)
	eval[any](p, `history.go(2)`)
	p.await(`document.getElementById('topic').textContent === 'orders'`)
	p.awaitState("Live")
	if title := eval[string](p, `document.title`); !strings.HasPrefix(title, "orders") {
		t.Errorf("got title %q", title)
	}
	choose(p, "positions", "0:0")
	p.await(`location.hash === '#topic=orders&positions=0%3A0'`)
	eval[any](p, `document.querySelectorAll('#topics button')[0].click()`) // positions are of a topic
	p.await(`location.hash === '#topic=demo'`)
	if got := lastSubscribe(p, f); got.Topic != "demo" || string(got.Start) != `"latest"` {
		t.Errorf("another topic subscribed %+v at %s", got, got.Start)
	}
	written := openPage(t, f.url+"/#topic=orders&key=a&key=%3Cb%3E&positions=zero", look{})
	got := lastSubscribe(written, f)
	if string(got.Start) != `"latest"` || got.Topic != "orders" || !slices.Equal(got.Keys, []string{"a", "<b>"}) {
		t.Errorf("the written address subscribed %+v at %s", got, got.Start)
	}
	const note = `document.querySelector('#records .note')?.textContent.includes('The start in the address cannot be read')`
	written.await(note)
	for _, start := range []string{"time=%2B275760-09-13T00:00:00Z", "time=-000001-01-01T00:00:00Z", "time=soon", "last=1e99", "last=-0", "positions=0:99999999999999999999", "positions=__proto__:1"} {
		odd := openPage(t, f.url+"/#topic=orders&"+start, look{})
		if got := lastSubscribe(odd, f); string(got.Start) != `"latest"` {
			t.Errorf("%s subscribed at %s", start, got.Start)
		}
		odd.await(note)
	}
	typo := openPage(t, f.url+"/#topic=orders&strat=earliest", look{})
	typo.awaitState("Live")
	typo.await(`document.querySelector('#records .note')?.textContent.includes('“strat”, which means nothing here')`)
}

// TestNoSuchTopic: an address of a topic that does not exist says so, and nothing waits for records of it.
func TestNoSuchTopic(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url+"/#topic=<i>nowhere", look{})
	p.awaitState("Not following")
	p.await(`document.getElementById('banner-text').textContent.startsWith('There is no topic “<i>nowhere”') && document.getElementById('empty-text').textContent === 'There is no topic “<i>nowhere”.'`)
	if eval[bool](p, `!document.getElementById('from-beginning').hidden`) {
		t.Error("it offers to read it from the beginning")
	}
	f.topic("<i>nowhere", 1)
	eval[any](p, `document.getElementById('retry').click()`)
	p.awaitState("Live")
}
