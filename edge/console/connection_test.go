package console_test

import (
	"slices"
	"strings"
	"testing"
)

func TestComesBackByCloseCode(t *testing.T) {
	f := newFakeEdge(t)
	p := openPage(t, f.url, look{})
	got := eval[[]int](p, `import('/console/closes.js').then(({ comesBack }) => Array.from({ length: 4200 }, (_, i) => 900 + i).filter(comesBack))`)
	var want []int
	for code := 900; code < 5100; code++ {
		if code == 1001 || code == 1005 || code == 1006 || 1011 <= code && code <= 1015 || 4000 <= code && code <= 4499 {
			want = append(want, code)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestStaysAway(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	f.goodbye(4503, "not for <b>you</b>", "")
	p.awaitState("Disconnected")
	if text := p.text(); !strings.Contains(text, "4503 not for <b>you</b>: not allowed") {
		t.Errorf("the page does not tell code and reason: %s", text)
	}
	eval[any](p, `dispatchEvent(new Event('online'))`)
	if got := f.connections(); got != 1 {
		t.Errorf("got %d connections, want 1", got)
	}
	eval[any](p, `document.getElementById('retry').click()`)
	p.awaitState("Live")
}

func TestTroubleIsTold(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 4)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	id := f.requests("subscribe")[0].ID
	tell := func(format string, args ...any) { f.each(func(s *fakeSession) { s.send(format, args...) }) }
	tell(`{"op":"heartbeat","time":1,"upstream":"unavailable"}`)
	p.await(`/^heartbeat \d+ s ago$/.test(document.getElementById('fact-beat').textContent)`)
	p.awaitState("Upstream unavailable")
	f.add(record{Topic: "demo", Text: new("back")})
	p.awaitState("Live")
	tell(`{"op":"heartbeat","time":1,"unavailable":{%q:[3]},"lag":{%q:12}}`, id, id)
	p.await(`document.getElementById('banner').innerText.includes('partition 3')`)
	p.await(`document.querySelector('.facts').innerText.includes('12 records behind')`)
	f.add(record{Topic: "demo", Partition: 3, Text: new("readable")})
	p.await(`document.getElementById('banner').hidden`)
	tell(`{"op":"heartbeat","time":1,"unavailable":{%q:[1]}}`, id)
	p.await(`document.getElementById('banner').innerText.includes('partition 1')`)
	p.awaitState("Partly stalled")
	tell(`{"op":"heartbeat","time":1,"unavailable":{%q:[0,1,2,3]}}`, id)
	p.awaitState("Stalled")
	p.await(`document.getElementById('banner').innerText.startsWith('Kafka, or the leader of every partition') && document.getElementById('state').dataset.tone === 'wait'`)
	tell(`{"op":"heartbeat","time":1}`)
	p.await(`document.getElementById('banner').hidden`)
	p.awaitState("Live")
	tell(`{"op":"gap","id":%q,"partition":2,"from":0,"to":900,"reason":"retention"}`, id)
	tell(`{"op":"topology","id":%q,"partitions":5}`, id)
	tell(`{"op":"a-new-op","id":%q}`, id)
	p.await(`['900 offsets (0 to 899) will not come · retention', '5 partitions'].every((s) => document.getElementById('records').innerText.includes(s))`)
	tell(`{"op":"error","re":"subscribe","id":%q,"final":true,"code":"unavailable","reason":"TOPIC_DELETED","message":"gone","retryable":false}`, id)
	p.await(`document.getElementById('banner').innerText.includes('gone (TOPIC_DELETED)')`)
	p.awaitState("Not following")
	f.set(func(f *fakeEdge) { f.refuse = true })
	f.cut()
	p.await(`document.getElementById('banner').innerText.includes('Connection lost (1006: the connection broke')`)
	f.set(func(f *fakeEdge) { f.refuse = false })
	p.awaitState("Live")
	p.await(`/^reconnected \d+ s ago, after 1006: /.test(document.getElementById('fact-close').textContent)`)
	// partition 2 goes on after its gap
	subs := f.requests("subscribe")
	if start := string(subs[len(subs)-1].Start); !strings.Contains(start, `"2":900`) {
		t.Errorf("resumed at %s, want partition 2 at 900", start)
	}
}
