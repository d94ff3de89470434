package e2e_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// rpcWorker is one worker of a group over RPC, which acknowledges nothing until it is told to.
type rpcWorker struct {
	t    *testing.T
	send func(*tailracev1.ConsumeRequest) error
	next func() (*tailracev1.ConsumeResponse, error)
	held int
	done int
}

func startWorker(ctx context.Context, t *testing.T, address string, start *tailracev1.ConsumeStart) *rpcWorker {
	t.Helper()
	s, err := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+address).Consume(ctx)
	if err != nil {
		t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { _ = s.CloseResponse() })
	w := &rpcWorker{t: t, send: s.Send, next: s.Receive}
	if err := w.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	return w
}

// hold receives until it holds so many.
func (w *rpcWorker) hold(n int) {
	w.t.Helper()
	for w.held < n {
		m, err := w.next()
		if err != nil {
			w.t.Fatal(err)
		}
		w.held += len(m.GetDeliveries().GetDeliveries())
	}
}

// ack acknowledges all that it holds.
func (w *rpcWorker) ack() {
	w.t.Helper()
	w.done, w.held = w.done+w.held, 0
	if err := w.send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{UpTo: int64(w.done)}}}); err != nil {
		w.t.Fatal(err)
	}
}

// TestGroupsOnThePage looks at a group at work on a real Kafka: what the page tells is what Kafka and the worker know.
func TestGroupsOnThePage(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(2)
	group := topic + "-group"
	second := startPair(t, pairOptions{kafka: kafka, withoutEdge: true})
	p := startPair(t, pairOptions{kafka: kafka, edge: []string{"-upstream", "http://" + second.rpc}})
	write := func(n int) {
		var records []*kgo.Record
		for i := range n {
			records = append(records, &kgo.Record{Topic: topic, Partition: int32(i % 2), Value: fmt.Append(nil, i)})
		}
		j.write(records...)
	}
	write(20)
	b := openTab(t, "http://"+p.ws+"/#topic="+topic)
	b.awaitState("Live")
	b.run(chromedp.Click(`#groups-toggle`))
	b.await("nobody reads it", `document.getElementById('groups-note').textContent === 'No consumer group reads this topic.'`)

	ctx, leave := context.WithTimeout(t.Context(), 3*time.Minute)
	defer leave()
	w := startWorker(ctx, t, p.rpc, &tailracev1.ConsumeStart{Group: group, Topics: []string{topic}, MaxInFlight: 5})
	w.hold(5)
	const rows = `[...document.querySelectorAll('#groups-table tbody tr')]`
	cells := func(what, name, inFlight, lag string) {
		t.Helper()
		b.await(what, fmt.Sprintf(`%s.some((r) => r.classList.contains('group') && r.querySelector('bdi').textContent === %q && r.querySelector('.in-flight').textContent === %q && /^(%s)$/.test(r.querySelector('.lag').textContent))`,
			rows, name, inFlight, lag))
	}
	b.await("the group is found, and who works", fmt.Sprintf(`%s.some((r) => r.classList.contains('members') && /^tailrace-group-.* · 1 worker · partitions 0–1$/.test(r.textContent))`, rows))
	cells("five are in flight, nothing is done", group, "5", "–|20")
	w.ack()
	w.hold(5)
	cells("fifteen are left", group, "5", "15")
	for w.done < 15 {
		w.ack()
		w.hold(5)
	}
	w.ack()
	cells("all is done", group, "0", "0")
	b.await("the committed offsets are Kafka's", fmt.Sprintf(`%s.filter((r) => r.querySelector('.committed')?.textContent === '10' && r.querySelector('.end').textContent === '10').length === 2`, rows))
	commits, err := j.admin.FetchOffsets(ctx, group)
	if err != nil {
		t.Fatal(err)
	}
	for partition := range int32(2) {
		if at, ok := commits.Lookup(topic, partition); !ok || at.At != 10 {
			t.Errorf("Kafka has %v for partition %d", at, partition)
		}
	}
	// A worker at another process: each of them knows its own.
	startWorker(ctx, t, second.rpc, &tailracev1.ConsumeStart{Group: group, Topics: []string{topic}, MaxInFlight: 5})
	b.await("two processes share the partitions", fmt.Sprintf(`[...document.querySelectorAll('#groups-table .members li')].map((m) => /^tailrace-group-.* · 1 worker · partition (.)$/.exec(m.textContent)?.[1]).sort().join() === '0,1' && %s.some((r) => r.textContent.includes('2 members · 2 workers'))`, rows))
	write(20)
	cells("each process has five in flight", group, "10", "20")
	b.screenshot("groups-two-desktop")
	leave()
	cells("what nobody does is behind", group, "0", "20")
	b.await("nobody is left", fmt.Sprintf(`%s.some((r) => r.classList.contains('group') && r.textContent.includes('Empty · no members'))`, rows))
	b.screenshot("groups-desktop")
	b.look(390, 844, "dark")
	b.screenshot("groups-phone-dark")
	if wide := evaluate[float64](b, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
		t.Errorf("the page sticks out by %v pixels on a phone", wide)
	}
	proof(t, "a group on the page: found, 1 worker, 5 in flight, lag 15 to 0 as it worked, committed offsets as Kafka has them, a second process with its own worker, 20 behind once both had left")
}
