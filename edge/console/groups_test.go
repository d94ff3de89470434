package console_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// groups is what a fake edge tells of consumer groups.
type groups struct {
	of     map[string]map[string][]map[string]any // by topic and after
	next   map[string]string                      // by after
	failed int
	asked  []string // queries
}

// group has a member for all partitions but the last one; a lag of -1: nothing is committed there.
func group(name string, inFlight int64, lags ...int64) map[string]any {
	const end = 5000
	sum, partitions, numbers := int64(0), []map[string]any{}, []int{}
	for p, lag := range lags {
		committed := end - lag
		if lag < 0 {
			committed = -1
		}
		sum += max(lag, 0)
		partitions = append(partitions, map[string]any{"partition": p, "committed": committed, "end": end, "lag": lag, "inFlight": 0})
		if p < len(lags)-1 {
			numbers = append(numbers, p)
		}
	}
	partitions[0]["inFlight"] = inFlight
	return map[string]any{
		"name": name, "state": "Stable", "lag": sum, "inFlight": inFlight, "memberCount": 2, "members": []map[string]any{
			{"process": "tailrace-group-" + name + "-1", "workers": 3, "partitionCount": len(numbers), "partitions": numbers},
			{"process": "other-client", "workers": 0, "partitionCount": 1, "partitions": []int{len(lags) - 1}},
		},
		"partitionCount": len(lags), "partitions": partitions,
	}
}

func (f *fakeEdge) listGroups(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups.asked = append(f.groups.asked, r.URL.RawQuery)
	if f.away {
		http.Error(w, "the service does not answer", http.StatusServiceUnavailable)
		return
	}
	after := r.URL.Query().Get("after")
	all := f.groups.of[r.URL.Query().Get("topic")][after]
	if all == nil {
		all = []map[string]any{}
	}
	if err := json.NewEncoder(w).Encode(map[string]any{"groups": all, "next": f.groups.next[after], "failed": f.groups.failed}); err != nil {
		f.t.Error(err)
	}
}

func (f *fakeEdge) groupsAsked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.groups.asked)
}

func (f *fakeEdge) setGroups(topic string, all ...map[string]any) {
	f.set(func(f *fakeEdge) { f.groups.of[topic] = map[string][]map[string]any{"": all} })
}

// groupRows are the rows of the panel that are seen, a line each.
func (p *page) groupRows() string {
	p.t.Helper()
	return eval[string](p, `[...document.querySelectorAll('#groups-table tbody tr')].filter((r) => r.offsetHeight).map((r) => [...r.cells].map((c) => c.textContent).join('|')).join('\n')`)
}

func (p *page) awaitGroups(want string) {
	p.t.Helper()
	awaitTrue(p.t, "groups\n"+want, func() bool { return p.groupRows() == want }, func() string { return "\nthe page says:\n" + p.groupRows() + "\n" + p.text() })
}

// TestGroups: the panel tells who reads the topic and how far they are, while it is open and seen.
func TestGroups(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 3)
	f.topic("orders", 12)
	quiet := group("audit", 0, 7)
	quiet["state"], quiet["memberCount"], quiet["members"] = "Empty", 0, []any{}
	large := group("large", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	large["partitionCount"], large["memberCount"] = 400, 60
	f.setGroups("demo", quiet, group("billing", 5, 12, 0, -1), large)
	p := openPage(t, f.url+"/#topic=demo", look{})
	p.awaitState("Live")
	if n := f.groupsAsked(); n != 0 {
		t.Errorf("a closed panel asked %d times", n)
	}
	p.run(chromedp.Click("#groups-toggle"))
	const audit = "audit" + "Empty · no members|0|7|\n0|4,993|5,000|0|7|\n"
	const billing = "billingStable · 2 members · 3 workers|5|12|\ntailrace-group-billing-1 · 3 workers · partitions 0–1other-client · partition 2\n" +
		"0|4,988|5,000|5|12|\n1|5,000|5,000|0|0|\n2|–|5,000|0|–|\n"
	const folded = "largeStable · 2 members · 3 workers|0|45|"
	p.awaitGroups(audit + billing + strings.Replace(folded, "2 members", "60 members", 1))
	label := func(nth int) string {
		return eval[string](p, fmt.Sprintf(`document.querySelectorAll('#groups-table .plot')[%d].getAttribute('aria-label')`, nth))
	}
	if got := label(0); got != "Lag of audit in the last 2 minutes, at most 7" {
		t.Errorf("the plot is called %q", got)
	}

	// It moves, and the plot remembers the highest.
	path := `document.querySelector('#groups-table tbody:nth-of-type(2) .plot path').getAttribute('d')`
	before := eval[string](p, path)
	f.setGroups("demo", group("billing", 1, 3, 0, 0))
	p.awaitGroups("billingStable · 2 members · 3 workers|1|3|\ntailrace-group-billing-1 · 3 workers · partitions 0–1other-client · partition 2\n" +
		"0|4,997|5,000|1|3|\n1|5,000|5,000|0|0|\n2|5,000|5,000|0|0|")
	if got := label(0); got != "Lag of billing in the last 2 minutes, at most 12" || !strings.HasPrefix(before, "M") {
		t.Errorf("the plot is called %q, and was %q", got, before)
	}
	p.await(`document.querySelector('#groups-table .plot path').getAttribute('d').split('M').length > 2`)

	// Nobody looks: nobody asks.
	eval[any](p, `Object.defineProperty(document, 'hidden', { value: true, configurable: true }); document.dispatchEvent(new Event('visibilitychange'))`)
	n := f.groupsAsked()
	eval[any](p, `new Promise((done) => setTimeout(done, 2500))`)
	if now := f.groupsAsked(); now != n {
		t.Errorf("a page that is not seen asked %d times", now-n)
	}
	eval[any](p, `delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))`)
	awaitTrue(t, "it asks again", func() bool { return f.groupsAsked() > n }, p.text)

	// No service, then one with a broker that is away.
	f.set(func(f *fakeEdge) { f.away = true })
	p.await(`document.getElementById('groups-note').textContent === 'Groups are not to be had: the service does not answer'`)
	f.set(func(f *fakeEdge) { f.away, f.groups.failed = false, 2 })
	p.await(`document.getElementById('groups-note').textContent === "2 groups can't be described at the moment."`)
	f.set(func(f *fakeEdge) { f.groups.failed = 0 })
	p.await(`document.getElementById('groups-note').textContent === ''`)

	// Another topic, and pages of its groups; names are text.
	const hostile = "<img src=x onerror=alert(1)>\u202ex"
	f.setGroups("orders", group("one", 0, 1))
	f.set(func(f *fakeEdge) {
		f.groups.of["orders"]["one"] = []map[string]any{group(hostile, 0, 2)}
		f.groups.next = map[string]string{"": "one"}
	})
	eval[any](p, `[...document.querySelectorAll('#topics button')].find((b) => b.textContent.startsWith('orders')).click()`)
	p.await(`document.querySelector('#groups-table .fold')?.textContent === 'one' && !document.getElementById('groups-next').hidden`)
	p.run(chromedp.Click("#groups-next"))
	p.await(`document.querySelector('#groups-table .fold')?.textContent === '<img src=x onerror=alert(1)>\\u202ex' && document.getElementById('groups-next').hidden`)
	if eval[int](p, `document.querySelectorAll('#groups img').length`) > 0 {
		t.Error("a name became markup")
	}
	p.run(chromedp.Click("#groups-first"))
	p.await(`document.querySelector('#groups-table .fold')?.textContent === 'one' && document.getElementById('groups-first').hidden`)
	f.set(func(f *fakeEdge) { f.groups.next = nil })
	f.setGroups("orders")
	p.await(`document.getElementById('groups-note').textContent === 'No consumer group reads this topic.' && !document.querySelector('#groups-table tbody')`)
	p.run(chromedp.Click("#groups-toggle"))
	p.await(`document.getElementById('groups').hidden`)
}

// TestGroupsByKeyboard opens the panel, and folds and unfolds a group.
func TestGroupsByKeyboard(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	f.setGroups("demo", group("g", 0, 1, 2), group("large", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	p.press("g")
	const shown = `[...document.querySelectorAll('#groups-table tbody')].map((b) => [...b.rows].filter((r) => r.offsetHeight).length).join()`
	p.await(shown + ` === '4,1'`)
	eval[any](p, `document.getElementById('groups').focus()`)
	p.keys(kb.Tab)
	p.keys(kb.Enter)
	p.await(shown + ` === '1,1' && document.activeElement.getAttribute('aria-expanded') === 'false'`)
	p.keys(kb.Tab)
	p.keys(" ")
	p.await(shown + ` === '1,11' && document.activeElement.getAttribute('aria-expanded') === 'true'`)
	f.setGroups("demo", group("another", 0, 1), group("g", 0, 1, 2), group("large", 0, 1, 2, 3, 4, 5, 6, 7, 8, 9))
	p.await(shown + ` === '3,1,11'`)
	if got := p.focused(); got != "fold" || eval[string](p, `document.activeElement.textContent`) != "large" {
		t.Errorf("the focus went to %s when a group was added", got)
	}
	p.press("g")
	p.await(`document.getElementById('groups').hidden`)
}
