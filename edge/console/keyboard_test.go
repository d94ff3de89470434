package console_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func (p *page) keys(keys string, modifiers ...input.Modifier) {
	p.t.Helper()
	p.run(chromedp.KeyEvent(keys, chromedp.KeyModifiers(modifiers...)))
}

// press is one key as a keyboard has it: its character comes only where the page lets it.
func (p *page) press(key string) {
	p.t.Helper()
	p.run(input.DispatchKeyEvent(input.KeyDown).WithKey(key).WithText(key), input.DispatchKeyEvent(input.KeyUp).WithKey(key))
}

// pressCtrlEnter is press of that.
func (p *page) pressCtrlEnter() {
	p.t.Helper()
	e := func(kind input.KeyType) *input.DispatchKeyEventParams {
		return input.DispatchKeyEvent(kind).WithKey("Enter").WithCode("Enter").WithWindowsVirtualKeyCode(13).WithModifiers(input.ModifierCtrl)
	}
	p.run(e(input.KeyDown).WithText("\r"), e(input.KeyUp))
}

func (p *page) focused() string {
	p.t.Helper()
	return eval[string](p, `document.activeElement.id || document.activeElement.name || document.activeElement.className || document.activeElement.tagName`)
}

// TestKeyboard does all of a visit without a pointer.
func TestKeyboard(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	p.keys(kb.Tab)
	if got := p.focused(); got != "skip" {
		t.Errorf("Tab leads first to %s", got)
	}
	p.keys(kb.Enter)
	if got := p.focused(); got != "table" || eval[string](p, `document.getElementById('topic').textContent`) != "demo" {
		t.Errorf("the first button leads to %s and %s", got, p.text())
	}
	p.press("n")
	p.keys("npt?") // into the key's field: none of them is a shortcut there
	if got := p.focused(); got != "key" {
		t.Fatalf("n leads to %s", got)
	}
	p.keys(kb.Tab) // the kinds
	p.keys(" ")    // JSON stays chosen
	p.keys(kb.Tab) // the value
	p.keys("a", input.ModifierCtrl)
	p.keys(`{"by":"hand"}`)
	p.keys(kb.Enter, input.ModifierCtrl)
	p.await(`document.getElementById('published').textContent.startsWith('Acknowledged: partition 0, offset 0')`)
	r := f.requests("publish")[0]
	if *r.Key != "npt?" || *r.Text != `{"by":"hand"}` {
		t.Errorf("published %q %q", *r.Key, *r.Text)
	}
	if n := len(f.requests("publish")); n != 1 {
		t.Errorf("sent %d times", n)
	}
	for _, want := range []string{"header", "headerValue", "remove", "header-add", "primary"} {
		p.keys(kb.Tab)
		if got := p.focused(); got != want {
			t.Errorf("Tab leads to %s, want %s", got, want)
		}
	}
	for i, where := range []string{"[name=key]", "#header-add", ".primary"} { // each does something of its own at Enter
		eval[any](p, `document.querySelector('#publish-form `+where+`').focus()`)
		p.pressCtrlEnter()
		p.await(fmt.Sprintf(`document.getElementById('published').textContent.startsWith('Acknowledged: partition 0, offset %d')`, i+1))
	}
	eval[any](p, `document.getElementById('publish-form').requestSubmit()`) // by now a second one would have come
	p.await(`document.getElementById('published').textContent.startsWith('Acknowledged: partition 0, offset 4')`)
	p.press("r")
	p.keys(kb.ArrowDown)
	p.await(`!document.getElementById('inspector').hidden`)
	p.keys(kb.Escape)
	p.await(`document.getElementById('inspector').hidden`)
	p.press("p")
	p.await(`document.getElementById('pause').textContent === 'Resume'`)
	p.press("p")
	p.await(`document.getElementById('pause').textContent === 'Pause'`)
	p.press("t")
	p.await(`!document.getElementById('partitions').hidden`)
	p.press("?")
	p.await(`document.getElementById('help').open`)
	p.press("p")
	if eval[string](p, `document.getElementById('pause').textContent`) != "Pause" {
		t.Error("a shortcut acts behind the list of shortcuts")
	}
	p.keys(kb.Escape)
	p.await(`!document.getElementById('help').open`)
	listed := eval[string](p, `[...document.querySelectorAll('#help dt')].map((e) => e.textContent).join(' ')`)
	if listed != "p / s t g r n Esc ?" {
		t.Errorf("listed are %s", listed)
	}
	p.press("s")
	if got := p.focused(); got != "start" {
		t.Errorf("s leads to %s", got)
	}
	eval[any](p, `document.activeElement.blur()`)
	p.press("/")
	p.keys("npt?\r")
	p.await(`document.querySelector('#keys li span').textContent === 'npt?'`)
}
