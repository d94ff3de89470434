package transcript_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

// misdeed is something that a client must not do, and what it is told.
type misdeed struct {
	name string
	do   func(w *world) (got string, err error) // what came of it
	want string                                 // in got
}

// TestBadInput lets clients misbehave, over sockets, HTTP and RPC, under the eyes of one that does not: each gets the documented answer, nobody else
// notices, and nothing of it stays.
func TestBadInput(t *testing.T) {
	set := defaultSettings()
	set.edge.HandshakeTimeout = time.Second
	set.edge.MaxSubscriptions = 500
	w := newWorld(t, set)
	w.cluster.CreateTopic(t, "orders", 2, nil)
	b := newBystander(t, w)

	deeds := badFrames()
	deeds = append(deeds, badMessages()...)
	deeds = append(deeds, badHandshakes()...)
	deeds = append(deeds, badRequests()...)
	deeds = append(deeds, badCalls()...)
	known := map[string]bool{}
	for _, d := range deeds {
		if known[d.name] {
			t.Errorf("%q comes twice", d.name)
		}
		known[d.name] = true
		t.Run(d.name, func(t *testing.T) { d.judge(t, w) })
	}
	// Once more, and nothing may be left behind.
	before := w.burden(t)
	rounds := 1
	if *full {
		rounds = 20
	}
	for range rounds {
		for _, d := range deeds {
			d.judge(t, w)
		}
	}
	after := w.burden(t)
	if after.heap > before.heap+4<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before.heap, after.heap)
	}
	n := b.end(t)
	proof(t, "%d misdeeds, each %d times; a bystander got %d records without a hole; heap %d KiB before, %d after; goroutines %d, %d; descriptors %d, %d",
		len(deeds), rounds+1, n, before.heap>>10, after.heap>>10, before.goroutines, after.goroutines, before.descriptors, after.descriptors)
	if after.goroutines > before.goroutines+5 || after.descriptors > before.descriptors+5 {
		t.Error("goroutines or descriptors are left")
	}
}

func (d *misdeed) judge(t *testing.T, w *world) {
	t.Helper()
	got, err := d.do(w)
	if err != nil {
		t.Errorf("%s: %v (after %.500s), want %s", d.name, err, got, d.want)
	} else if !strings.Contains(got, d.want) {
		t.Errorf("%s: got %.500q, want %q", d.name, got, d.want)
	}
}

// burden is what a process carries.
type burden struct {
	heap                    uint64
	goroutines, descriptors int
}

// burden is what is there once all connections but the bystander's have ended.
func (w *world) burden(t *testing.T) burden {
	t.Helper()
	await(t, "one socket is left", func() bool { return w.edge.Sessions() == 1 })
	var b burden
	// What others end in the background ends soon: the least of several looks.
	for range 10 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		open, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		now := burden{m.HeapAlloc, runtime.NumGoroutine(), len(open)}
		if b.heap == 0 {
			b = now
		}
		b = burden{min(b.heap, now.heap), min(b.goroutines, now.goroutines), min(b.descriptors, now.descriptors)}
		<-time.After(50 * time.Millisecond)
	}
	return b
}

// bystander reads a topic into which one record after the other is put, and demands each, in order.
type bystander struct {
	socket   *socket
	stop     chan struct{}
	writing  sync.WaitGroup
	appended int
	result   chan error
	last     chan int
}

func newBystander(t *testing.T, w *world) *bystander {
	t.Helper()
	w.cluster.CreateTopic(t, "watched", 1, nil)
	s, err := dialSocket(w.web, "/ws/watched?start=earliest&as=text", protocolJSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &bystander{socket: s, stop: make(chan struct{}), result: make(chan error, 1), last: make(chan int, 1)}
	b.writing.Go(func() {
		for {
			select {
			case <-b.stop:
				b.last <- b.appended
				return
			case <-time.After(2 * time.Millisecond):
			}
			if err := w.kafka.append(t.Context(), "watched", 0, hubtest.Text("k", fmt.Sprint(b.appended))); err != nil {
				t.Errorf("append: %v", err)
			}
			b.appended++
		}
	})
	b.writing.Go(func() { b.result <- b.read() })
	t.Cleanup(func() { s.conn.Close() })
	return b
}

// read reads until the last record is there.
func (b *bystander) read() error {
	next, last := 0, -1
	for next != last {
		_ = b.socket.conn.SetReadDeadline(time.Now().Add(time.Second))
		in, err := b.socket.read()
		if errors.Is(err, os.ErrDeadlineExceeded) { // between frames: the next look is at whether all is over
			select {
			case last = <-b.last:
			default:
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("bystander at record %d: %w", next, err)
		}
		if in.opcode == opPing {
			if err := b.socket.write(opPong, in.payload); err != nil {
				return err
			}
		}
		if in.opcode != opText {
			continue
		}
		m, _, err := decodeMessage(protocolJSON, in.payload)
		if err != nil {
			return err
		}
		records, _ := m["records"].([]any)
		for _, r := range records {
			r, _ := r.(map[string]any)
			if r["text"] != fmt.Sprint(next) {
				return fmt.Errorf("bystander: got %v, want record %d", r, next)
			}
			next++
		}
		if op := m["op"]; op == "gap" || op == "error" || op == "unsubscribed" {
			return fmt.Errorf("bystander: got %s", in.payload)
		}
		if last < 0 {
			select {
			case last = <-b.last:
			default:
			}
		}
	}
	return nil
}

// end waits for the rest and returns the number of records.
func (b *bystander) end(t *testing.T) int {
	t.Helper()
	close(b.stop)
	select {
	case err := <-b.result:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("the bystander does not get the rest")
	}
	b.writing.Wait()
	return b.appended
}

// converse sends bytes over a socket and returns what comes; see listen.
func converse(w *world, path, protocol, want string, data ...[]byte) (string, error) {
	s, err := dialSocket(w.web, path, protocol, nil)
	if err != nil {
		return "", err
	}
	defer s.conn.Close()
	if err := s.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	sent := make(chan error, 1)
	go func() { sent <- s.raw(bytes.Join(data, nil)) }()
	got, err := listen(s, want)
	s.conn.Close()
	<-sent // it may have been cut off
	return got, err
}

// listen gathers what comes up to a close frame, or the pong of "last" if what is wanted has come then; else until it comes.
func listen(s *socket, want string) (string, error) {
	var got strings.Builder
	lives := false
	for {
		if lives && strings.Contains(got.String(), want) {
			return got.String(), nil
		}
		in, err := s.read()
		switch {
		case errors.Is(err, io.EOF):
			return got.String() + " end", nil
		case err != nil:
			return got.String(), err
		case in.opcode == opClose:
			code, reason, err := parseClose(in.payload)
			fmt.Fprintf(&got, " close %d %q", code, reason)
			if err != nil {
				return got.String(), err
			}
			_ = s.write(opClose, in.payload)
			if _, err := s.read(); !errors.Is(err, io.EOF) {
				return got.String(), fmt.Errorf("behind the close frame: %w", err)
			}
			return got.String(), nil
		case in.opcode == opPing:
			_ = s.write(opPong, in.payload)
		case in.opcode == opPong:
			if string(in.payload) == "last" {
				lives = true
				got.WriteString(" lives")
			}
		default:
			text, err := brief(s, in.payload)
			if err != nil {
				return got.String(), err
			}
			if got.Len() < 1000 || strings.Contains(text, want) {
				got.WriteString(" " + text)
			}
		}
	}
}

// brief is what matters of a message.
func brief(s *socket, payload []byte) (string, error) {
	protocol := protocolJSON
	if s.opcode == opBinary {
		protocol = protocolProto
	}
	m, _, err := decodeMessage(protocol, payload)
	if err != nil {
		return "", err
	}
	if m["op"] != "error" {
		return fmt.Sprint(m["op"]), nil
	}
	return fmt.Sprintf("%v: %v: %v", m["re"], m["reason"], m["message"]), nil
}

// lastPing asks for a sign that the connection goes on.
func lastPing() []byte { return masked(fin|opPing, []byte("last")) }
