package console_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestFlood shows two thousand records in a few seconds: the page changes at most once per frame, keeps to its bounds, and tells a screen
// reader nothing of it.
func TestFlood(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 2)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	f.add(record{Topic: "demo", Text: new("first")})
	p.await(`document.querySelector('#records .row') !== null`)
	eval[any](p, `document.querySelector('#records .row').click()`)
	eval[any](p, `(() => {
		window.seen = { frames: 0, changes: 0, told: 0, most: 0 };
		const tick = () => { seen.frames++; requestAnimationFrame(tick); };
		requestAnimationFrame(tick);
		new MutationObserver(() => {
			seen.changes++;
			seen.most = Math.max(seen.most, document.querySelectorAll('body *').length);
		}).observe(document.getElementById('records'), { childList: true });
		for (const e of document.querySelectorAll('[role=status], [role=alert], output, [aria-live]:not([aria-live=off])'))
			new MutationObserver(() => seen.told++).observe(e, { childList: true, subtree: true, characterData: true });
	})()`)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	const batches, each = 250, 8
	for i := range batches {
		batch := make([]record, each)
		for j := range batch {
			batch[j] = record{Topic: "demo", Partition: int32(i % 2), Text: new(`{"a":1}`), Key: new(fmt.Sprint(j))}
		}
		f.add(batch...)
		<-tick.C
	}
	p.await(fmt.Sprintf(`document.querySelector('#records .row[data-at="1:%d"]') !== null`, batches*each/2-1))
	p.await(`document.getElementById('plot').querySelector('path').getAttribute('d').includes('v-24')`)
	p.await(`/^[1-9][\d,.]* records\/s$/.test(document.getElementById('fact-rate').textContent)`)
	p.await(`/^delay \d/.test(document.getElementById('fact-delay').textContent)`)
	seen := eval[struct{ Frames, Changes, Told, Most int }](p, `seen`)
	if seen.Changes > seen.Frames {
		t.Errorf("%d changes in %d frames", seen.Changes, seen.Frames)
	}
	if seen.Most > 500*8+500 {
		t.Errorf("the page had %d elements", seen.Most)
	}
	if seen.Told != 0 {
		t.Errorf("live regions changed %d times", seen.Told)
	}
	if got := len(p.shown()); got != 500 {
		t.Errorf("got %d rows, want 500", got)
	}
	if eval[bool](p, `document.getElementById('inspector').hidden || document.getElementById('table').hasAttribute('aria-activedescendant')`) {
		t.Error("the record that was chosen has passed: it is to stay open, and its row is not to be named any more")
	}
}

// TestPauseKeepsPositions pauses over more than the page keeps: what waits is counted, what passed is told, positions go on and a lost
// connection is resumed at them.
func TestPauseKeepsPositions(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	f.topic("other", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	add := func(n int) {
		batch := make([]record, n)
		for i := range batch {
			batch[i] = record{Topic: "demo", Text: new("x")}
		}
		f.add(batch...)
	}
	eval[any](p, `document.getElementById('partitions-toggle').click(); document.getElementById('pause').click()`)
	for range 5 {
		add(400)
	}
	p.await(`document.getElementById('newer').innerText.includes('2,000 newer rows')`)
	p.await(`document.querySelector('#partitions .position')?.textContent === '2,000'`)
	if got := p.shown(); len(got) != 0 {
		t.Errorf("the paused page shows %v", got)
	}
	f.cut()
	awaitTrue(t, "the page comes back", func() bool { return f.connections() == 2 }, p.text)
	p.awaitState("Live")
	if got := string(lastSubscribe(p, f).Start); got != `{"positions":{"0":2000},"missing":"earliest"}` {
		t.Errorf("resumed at %s", got)
	}
	add(3)
	p.await(`document.querySelector('#partitions .position').textContent === '2,003'`)
	eval[any](p, `document.getElementById('pause').click()`)
	p.await(`document.querySelector('#records .row')?.dataset.at === '0:2002'`)
	p.await(`[...document.querySelectorAll('#records .note')].some((n) => /rows passed unseen/.test(n.textContent))`)
	got := p.shown()
	slices.Reverse(got)
	for i, at := range got {
		if want := fmt.Sprintf("0:%d", 2003-len(got)+i); at != want {
			t.Fatalf("row %d is %s, want %s", i, at, want)
		}
	}
	if len(got) < 490 || len(got) > 500 {
		t.Errorf("got %d rows", len(got))
	}
}

// TestPauseIsBoundedInBytes pauses over large records: only the newest of them are kept, and the rest is told.
func TestPauseIsBoundedInBytes(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	eval[any](p, `document.getElementById('pause').click()`)
	large := strings.Repeat("x", 257<<10)
	const batches, each = 9, 10
	for range batches {
		batch := make([]record, each)
		for i := range batch {
			batch[i] = record{Topic: "demo", Text: &large}
			if i%2 == 0 { // of which the key and the headers are as large
				batch[i] = record{Topic: "demo", Text: new("x"), Key: new(large[:1<<10]), Headers: [][]any{{"h", large}}}
			}
		}
		f.add(batch...)
	}
	p.await(fmt.Sprintf(`document.getElementById('newer').innerText.includes('%d newer rows')`, batches*each))
	eval[any](p, `document.getElementById('pause').click()`)
	p.await(fmt.Sprintf(`document.querySelector('#records .row')?.dataset.at === '0:%d'`, batches*each-1))
	p.await(`[...document.querySelectorAll('#records .note')].some((n) => /rows passed unseen/.test(n.textContent))`)
	if got := len(p.shown()); got < 10 || got > 64 { // 16 Mi characters in values of 256 Ki
		t.Errorf("got %d rows", got)
	}
}

// TestPartitions opens the panel: it is asked for again by itself, and says so when nobody answers.
func TestPartitions(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 3)
	f.topic("wide", 400)
	f.add(record{Topic: "demo", Text: new("a")}, record{Topic: "demo", Partition: 2, Text: new("b")})
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	cells := `[...document.querySelectorAll('#partitions-body tr')].map((r) => [...r.children].map((c) => c.textContent).join(' '))`
	eval[any](p, `document.getElementById('partitions-toggle').click()`)
	p.await(`document.querySelectorAll('#partitions-body .leader').length === 3 && document.querySelector('#partitions-body .leader').textContent === '1'`)
	if got, want := eval[[]string](p, cells), []string{"0 1 0 1 1 1 0", "1 2 0 0 0 0 0", "2 none 0 1 1 3 0"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	f.set(func(f *fakeEdge) { f.logs["demo"][1] = make([]record, 7) }) // the page is not told: only the next answer has it
	p.await(cells + `[1] === '1 2 0 0 7 7 7'`)
	f.set(func(f *fakeEdge) { f.away = true })
	eval[any](p, `document.getElementById('partitions-toggle').click(); document.getElementById('partitions-toggle').click()`) // asks at once
	p.await(`document.getElementById('partitions-note').textContent.includes('the service does not answer')`)
	f.set(func(f *fakeEdge) { f.away = false })
	p.await(`document.getElementById('partitions-note').textContent === ''`)
	eval[any](p, `document.querySelectorAll('#topics button')[1].click()`)
	p.await(`document.querySelectorAll('#partitions-body tr').length === 200 && document.getElementById('partitions-note').textContent === 'and 200 partitions more'`)
	if got := eval[[]string](p, cells); got[199][:4] != "199 " {
		t.Errorf("the last row is %s", got[199])
	}
}
