package e2e_test

import (
	"bytes"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// unread is a socket that takes nothing until it is told to, and then counts.
type unread struct {
	*socket
	bytes   int64   // of frames
	borders []int64 // bytes at the end of each frame
	records int64
	gaps    map[string]int64 // by reason
	closed  int              // close code; 0: none came
	latest  map[string]bool  // keys of records since the last gap
}

var (
	gapReason = regexp.MustCompile(`^\{"op":"gap",.*"reason":"(\w+)"`)
	recordKey = regexp.MustCompile(`"offset":\d+,.*?"key":"(\w+)"`)
)

func dialUnread(t *testing.T, p *pair, path string) *unread {
	t.Helper()
	s, err := dialSocket(t.Context(), p.ws, path, dialOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.abort(true) })
	u := &unread{socket: s, gaps: map[string]int64{}, latest: map[string]bool{}}
	for !u.frame(t, `{"op":"caughtup"`) { // it is live, so that its policy counts from here
	}
	return u
}

// frame takes one frame, and says whether it begins so.
func (u *unread) frame(t *testing.T, begin string) bool {
	t.Helper()
	_ = u.conn.SetReadDeadline(time.Now().Add(time.Minute))
	_, op, payload, err := u.readFrame()
	if err != nil {
		t.Fatalf("after %d records: %v", u.records, err)
	}
	switch n := len(payload); {
	case n < 126:
		u.bytes += 2
	case n < 1<<16:
		u.bytes += 4
	default:
		u.bytes += 10
	}
	u.bytes += int64(len(payload))
	u.borders = append(u.borders, u.bytes)
	if op == opClose {
		end, err := parseClose(payload)
		if err != nil {
			t.Fatal(err)
		}
		u.closed = end.code
	}
	if m := gapReason.FindSubmatch(payload); m != nil {
		u.gaps[string(m[1])]++
		clear(u.latest)
	}
	u.records += int64(bytes.Count(payload, []byte(`"offset":`)))
	for _, m := range recordKey.FindAllSubmatch(payload, -1) {
		u.latest[string(m[1])] = true
	}
	return bytes.HasPrefix(payload, []byte(begin))
}

// rested waits until no more moves: figures that workers hand over once a while are as they stay.
func (f *figures) rested(what string, names ...string) []float64 {
	f.Helper()
	var last []float64
	same := 0
	await(f.T, time.Minute, what, func() bool {
		now := make([]float64, len(names))
		for i, name := range names {
			now[i] = f.edge(name)
		}
		if fmt.Sprint(now) == fmt.Sprint(last) {
			same++
		} else {
			same, last = 0, now
		}
		pause(f.Context(), 100*time.Millisecond)
		return same == 15
	})
	return last
}

// TestFiguresOfThoseWhoTakeNothing stalls a socket of each slow policy beside one that reads, and holds the figures of what was written, held, left out
// and ended against what the sockets find when they read at last. Then many sockets make the workers rest.
func TestFiguresOfThoseWhoTakeNothing(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(1)
	const slowAfter, large = 500 * time.Millisecond, 200_000
	p := startPair(t, pairOptions{kafka: kafka, edge: []string{"-slow-after", slowAfter.String(), "-heartbeat-interval", "2m", "-stall-timeout", "10m"}})
	f := &figures{t, p}
	reader := countSocket(t, p, "/ws/"+topic) // answers no pings
	written := int64(0)
	write := func(key string, size int) {
		t.Helper()
		j.write(&kgo.Record{Topic: topic, Key: []byte(key), Value: letters(size)})
		written++
		reader.await(t, written)
	}
	stall := func(sockets int) {
		t.Helper()
		for i := 0; f.edge("tailrace_edge_blocked_sessions") < float64(sockets); i++ {
			if i == 100 {
				t.Fatalf("the kernel takes all of %d large records, %v sockets take nothing", i, f.edge("tailrace_edge_blocked_sessions"))
			}
			write("big", large)
			if i%5 == 4 {
				pause(t.Context(), 300*time.Millisecond) // the figure is handed over once a while
			}
		}
	}

	// One socket alone: what it was sent and what is held for it end with a whole frame, and nothing is between.
	catchUp := dialUnread(t, p, "/ws/"+topic)
	stall(1)
	at := f.rested("the first socket's bytes", "tailrace_edge_sent_bytes_total", "tailrace_edge_held_bytes", "tailrace_edge_blocked_sessions")
	sent, held := int64(at[0])-reader.bytes.Load(), int64(at[1])
	if held <= 0 || held > large+64<<10 || at[2] != 1 {
		t.Errorf("%d bytes are held for %v sockets, want some, and no more than an unfinished write", held, at[2])
	}
	first := catchUp

	// The policies.
	sockets := map[string]*unread{"catchup": catchUp}
	for _, policy := range []string{"skip", "conflate", "fail"} {
		sockets[policy] = dialUnread(t, p, "/ws/"+topic+"?slow="+policy)
	}
	stall(len(sockets))
	before := written
	at = f.rested("the other sockets' bytes", "tailrace_edge_held_bytes", "tailrace_edge_blocked_sessions")
	if at[0] <= float64(held) || at[0] > float64(len(sockets)*(large+64<<10)) || at[1] != float64(len(sockets)) {
		t.Errorf("%v bytes are held for %v sockets, want more than for one, and no more than their unfinished writes", at[0], at[1])
	}
	for began, i := time.Now(), 0; time.Since(began) < 3*slowAfter; i++ {
		write(fmt.Sprintf("k%d", i%5), 10)
		pause(t.Context(), 20*time.Millisecond)
	}
	for policy, u := range sockets {
		for done := false; !done; {
			u.frame(t, "")
			switch policy {
			case "catchup":
				done = u.records == written
			case "fail":
				done = u.closed != 0
			default: // at the end of the log, however it came there
				done = len(u.latest) >= 5 || u.gaps["slow"] > 0
			}
		}
	}
	f.become("sockets that take nothing", func() float64 { return f.edge("tailrace_edge_blocked_sessions") }, 0)
	f.become("bytes held", func() float64 { return f.edge("tailrace_edge_held_bytes") }, 0)
	if end := sent + held; !slices.Contains(first.borders, end) {
		t.Errorf("%d bytes were sent and %d held, which ends within a frame", sent, held)
	}
	slow := func(action string) float64 { return f.edge("tailrace_hub_slow_readers_total", `action="`+action+`"`) }
	if got := slow("skip"); got != float64(sockets["skip"].gaps["slow"]) || got == 0 {
		t.Errorf("the figure says %v skips, the socket was told of %d", got, sockets["skip"].gaps["slow"])
	}
	if got, gaps := slow("conflate"), sockets["conflate"].gaps["conflated"]; got < 1 || gaps < 1 || got > float64(gaps) {
		t.Errorf("the figure says %v conflations, the socket was told of %d gaps", got, gaps)
	}
	if got, code := slow("fail"), sockets["fail"].closed; got != 1 || code != 4001 {
		t.Errorf("the figure says %v failures, the socket was closed with %d", got, code)
	}
	f.become("ends", func() float64 {
		return f.edge("tailrace_edge_sessions_ended_total", `reason="lagged"`, `initiator="server"`)
	}, 1)
	if slow("spill") != 0 || len(catchUp.gaps) != 0 {
		t.Errorf("%v spills; the socket that catches up was told of gaps %v", slow("spill"), catchUp.gaps)
	}
	// All that was written was counted, to whoever it went.
	for _, policy := range []string{"skip", "conflate"} { // what is still on its way
		u := sockets[policy]
		if err := u.hangUp(); err != nil {
			t.Fatal(err)
		}
		for u.closed == 0 {
			u.frame(t, "")
		}
	}
	records, bytes := reader.records.Load(), reader.bytes.Load()
	for _, u := range sockets {
		records, bytes = records+u.records, bytes+u.bytes
	}
	f.become("records to sockets", func() float64 { return f.edge("tailrace_edge_records_sent_total") }, float64(records))
	f.become("bytes to sockets", func() float64 { return f.edge("tailrace_edge_sent_bytes_total") }, float64(bytes))
	restFigures(f, topic, write)
	proof(t, "%d records; %d bytes were held for one socket, %.0f for four of which %d records more were written; %.0f skips, %.0f conflations, %.0f failures",
		written, held, at[0], written-before, slow("skip"), slow("conflate"), slow("fail"))
}

// restFigures makes the workers rest: a record that many sockets wait for takes a pass which is long.
func restFigures(f *figures, topic string, write func(key string, size int)) {
	f.Helper()
	const bursts = 20
	sockets := 100 * runtime.GOMAXPROCS(0) // as many as workers, so that each has enough to do
	crowd := make([]*counted, sockets)
	for i := range crowd {
		crowd[i] = countSocket(f.T, f.p, "/ws/"+topic)
	}
	f.become("subscriptions", func() float64 { return f.edge("tailrace_hub_subscriptions", `topic="`+topic+`"`) }, float64(sockets+2))
	count, sum, passes := f.edge("tailrace_edge_rest_seconds_count"), f.edge("tailrace_edge_rest_seconds_sum"), f.edge("tailrace_edge_passes_total")
	for n := range int64(bursts) {
		write("k", 100)
		for _, c := range crowd {
			c.await(f.T, n+1)
		}
	}
	f.become("the last passes", func() float64 {
		if f.edge("tailrace_edge_rest_seconds_count")-count >= bursts {
			return 1
		}
		return 0
	}, 1)
	passes = f.edge("tailrace_edge_passes_total") - passes
	count, sum = f.edge("tailrace_edge_rest_seconds_count")-count, f.edge("tailrace_edge_rest_seconds_sum")-sum
	// A pass of at least 0.2 ms is followed by a rest that is as long, but no longer than 25 ms.
	if least, most := count*0.0002, count*0.025; count > passes || sum < least || sum > most+1e-9 {
		f.Errorf("%v rests of %v s together after %v passes, want from %v to %v s", count, sum, passes, least, most)
	}
}
