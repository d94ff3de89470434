package console_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

// TestPublishKinds sends JSON, text and a tombstone with several headers, and is told each outcome.
func TestPublishKinds(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	publish(p, "k", `{"a":1,}`, "", "")
	p.await(`document.getElementById('published').textContent.startsWith('Not sent: this is not JSON.')`)
	if n := len(f.requests("publish")); n != 0 {
		t.Fatalf("broken JSON was sent %d times", n)
	}
	eval[any](p, `document.getElementById('header-add').click(); document.getElementById('header-add').click();
		document.querySelectorAll('#headers [name=header]').forEach((e, i) => (e.value = ['a', '', 'a'][i]));
		document.querySelectorAll('#headers [name=headerValue]').forEach((e, i) => (e.value = ['1', 'lost', '<b>'][i]));
		document.querySelector('#publish-form [value=tombstone]').click()`)
	if !eval[bool](p, `document.getElementById('publish-value').hidden && !document.getElementById('publish-tombstone').hidden`) {
		t.Error("a tombstone asks for a value")
	}
	eval[any](p, `document.getElementById('publish-form').requestSubmit()`)
	p.await(`document.getElementById('published').textContent.startsWith('Acknowledged: partition 0, offset 0')`)
	r := f.requests("publish")[0]
	if !r.Dead || r.Text != nil || *r.Key != "k" || fmt.Sprint(r.Headers) != "[[a 1] [a <b>]]" {
		t.Errorf("the tombstone was sent as %+v", r)
	}
	p.await(`document.querySelector('#records .row.mine .value')?.textContent === 'tombstone'`)
	if got, want := p.column("headers")[0], "a: 1  a: <b>"; got != want {
		t.Errorf("got headers %q, want %q", got, want)
	}
	eval[any](p, `for (const e of document.querySelectorAll('#headers .remove')) e.click();
		document.querySelector('#publish-form [value=text]').click()`)
	eval[any](p, `document.getElementById('publish-form').requestSubmit()`) // as text the broken JSON is fine
	p.await(`document.getElementById('published').textContent.startsWith('Acknowledged: partition 0, offset 1')`)
	if r := f.requests("publish")[1]; *r.Text != `{"a":1,}` || r.Headers != nil || r.Dead {
		t.Errorf("the text was sent as %+v", r)
	}
	f.set(func(f *fakeEdge) { f.fail, f.outcome = "OUTCOME_UNKNOWN", "unknown" })
	eval[any](p, `document.getElementById('publish-form').requestSubmit()`)
	p.await(`document.getElementById('published').textContent === 'Unknown: no such topic (OUTCOME_UNKNOWN). The record may or may not be in the log.'`)
	eval[any](p, `for (let i = 0; i < 30; i++) document.getElementById('header-add').click()`)
	if got := eval[int](p, `document.querySelectorAll('#headers li').length`); got != 20 {
		t.Errorf("got %d lines for headers, want 20", got)
	}
}

// TestCloseCodesHaveMeanings holds the page's words against the table of the protocol.
func TestCloseCodesHaveMeanings(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`(?m)^\| ([14]\d{3}) \|`).FindAllSubmatch(readme, -1)
	if len(codes) < 15 {
		t.Fatalf("found %d codes in the table", len(codes))
	}
	p := openPage(t, newFakeEdge(t).url, look{})
	for _, code := range codes {
		got := eval[string](p, fmt.Sprintf(`import('/console/closes.js').then((m) => m.meaning(%s))`, code[1]))
		if got == "" || got == "come back" || got == "stay away" {
			t.Errorf("%s means %q", code[1], got)
		}
	}
}
