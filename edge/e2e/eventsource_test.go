package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// eventSource is the page's script: all that a page needs in order to get each record once.
const eventSource = `
window.got = []; window.told = []; window.opened = 0;
window.follow = (url) => {
	const es = new EventSource(url, { withCredentials: true });
	es.onopen = () => { opened++; };
	es.onmessage = (e) => { for (const r of JSON.parse(e.data)) got.push([r.partition, r.offset]); };
	for (const name of ['started', 'gap', 'caughtup', 'topology', 'unsubscribed', 'goodbye']) {
		es.addEventListener(name, (e) => told.push(JSON.parse(e.data).op));
	}
	window.es = es;
};
true`

// TestEventSource is a page of another origin with nothing but the browser's own EventSource: it goes on by itself after its connection was cut,
// after the edge was drained and started again, and after it was killed; each record comes once. A stream that has ended stays closed.
func TestEventSource(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 3
	topic := j.topic(partitions)
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write([]byte(`<!doctype html><title>page</title><link rel="icon" href="data:,"><body>page</body>`))
	}))
	t.Cleanup(page.Close)
	p := startPair(t, pairOptions{kafka: kafka, edge: []string{"-allowed-origins", page.URL}})
	cuts := newRelay(t, p.ws)
	l := j.startLoad(topic, partitions, 50, 20)
	b := openTab(t, page.URL)
	evaluate[bool](b, eventSource)
	evaluate[bool](b, fmt.Sprintf(`follow('http://%s/sse/%s?start=earliest'); true`, cuts.address, topic))

	opened := 0
	goesOn := func(what string) {
		t.Helper()
		opened++
		b.await("the stream is open again after "+what, fmt.Sprintf(`opened >= %d && es.readyState === 1`, opened))
		opened = evaluate[int](b, `opened`)
		b.await("records after "+what, fmt.Sprintf(`got.length > %d`, evaluate[int](b, `got.length`)))
	}
	goesOn("the start")
	for range size(2, 10) {
		cuts.cut()
		goesOn("a cut")
	}
	p.edge.signal(syscall.SIGTERM)
	if code := p.edge.exit(time.Minute); code != 0 {
		t.Errorf("the edge exited with %d", code)
	}
	b.await("goodbye", `told.includes('goodbye')`)
	p.startEdge()
	goesOn("a drain")
	p.edge.kill()
	p.startEdge()
	goesOn("a kill")

	ends := l.stop()
	total := int64(0)
	for _, end := range ends {
		total += end
	}
	b.await("the end of the log", fmt.Sprintf(`got.length >= %d`, total))
	next := map[int]int{}
	for i, at := range evaluate[[][2]int](b, `got`) {
		if at[1] != next[at[0]] {
			t.Fatalf("record %d is %d of partition %d, want %d", i, at[1], at[0], next[at[0]])
		}
		next[at[0]]++
	}
	if told := evaluate[[]string](b, `told.filter((op) => op === 'gap')`); len(told) > 0 {
		t.Errorf("%d gaps", len(told))
	}

	// A publish of a page of another origin, which the browser asks for first.
	var answer struct {
		Op        string
		Partition int32
		Offset    int64
	}
	evaluate[string](b, fmt.Sprintf(`window.answer = ''; fetch('http://%s/publish/%s?partition=1', {
		method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{"by":"a page"}' }).then((r) => r.text()).then((t) => { answer = t; }); ''`, p.ws, topic))
	b.await("the publish is answered", `answer !== ''`)
	if text := evaluate[string](b, `answer`); json.Unmarshal([]byte(text), &answer) != nil || answer.Op != "published" || answer.Partition != 1 || answer.Offset != ends[1] {
		t.Errorf("published: %s", text)
	}
	b.await("the published record", fmt.Sprintf(`got.length >= %d`, total+1))

	// A stream with an end: EventSource comes back once, and is told to stay away.
	evaluate[bool](b, fmt.Sprintf(`es.close(); got = []; told = []; follow('http://%s/sse/%s?start=earliest&until=end'); true`, cuts.address, topic))
	b.await("EventSource has stopped", `es.readyState === 2`)
	if n := evaluate[int64](b, `got.length`); n != total+1 {
		t.Errorf("until the end: %d records, want %d", n, total+1)
	}
	if told := evaluate[string](b, `told.join(' ')`); told != "started caughtup unsubscribed goodbye" {
		t.Errorf("until the end: told %q", told)
	}
	proof(t, "EventSource in Chromium, of another origin: %d connections over cuts, a drain and a kill of the edge, each of %d records once; a stream that had ended was not opened again", opened, total)
}
