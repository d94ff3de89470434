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
	deeds = append(deeds, badBinary()...)
	deeds = append(deeds, badPosts()...)
	known := map[string]bool{}
	for _, d := range deeds {
		if known[d.name] {
			t.Errorf("%q comes twice", d.name)
		}
		known[d.name] = true
	}
	if len(known) < 80 {
		t.Errorf("only %d misdeeds", len(known))
	}
	t.Run("once", func(t *testing.T) {
		for _, d := range deeds {
			t.Run(d.name, func(t *testing.T) {
				t.Parallel()
				d.judge(t, w)
			})
		}
	})
	// Once more, or one in three of them, and nothing may be left behind.
	before := w.burden(t)
	again := 0
	for i := range size(len(deeds)/3, 10*len(deeds)) {
		deeds[(i*3+i*3/len(deeds))%len(deeds)].judge(t, w)
		again++
	}
	after := w.burden(t)
	if after.heap > before.heap+4<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before.heap, after.heap)
	}
	n := b.end(t)
	proof(t, "%d misdeeds, and %d again; a bystander got %d records without a hole; heap %d KiB before, %d after; goroutines %d, %d; descriptors %d, %d",
		len(deeds), again, n, before.heap>>10, after.heap>>10, before.goroutines, after.goroutines, before.descriptors, after.descriptors)
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
}

// lastRecord ends what a bystander reads.
const lastRecord = "last"

func newBystander(t *testing.T, w *world) *bystander {
	t.Helper()
	w.cluster.CreateTopic(t, "watched", 1, nil)
	s, err := dialSocket(w.web, "/ws/watched?start=earliest&as=text", protocolJSON, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &bystander{socket: s, stop: make(chan struct{}), result: make(chan error, 1)}
	put := func(text string) {
		if err := w.kafka.append(t.Context(), "watched", 0, hubtest.Text("k", text)); err != nil {
			t.Errorf("append: %v", err)
		}
	}
	b.writing.Go(func() {
		for {
			select {
			case <-b.stop:
				put(lastRecord)
				return
			case <-time.After(2 * time.Millisecond):
			}
			put(fmt.Sprint(b.appended))
			b.appended++
		}
	})
	b.writing.Go(func() { b.result <- b.read() })
	t.Cleanup(func() { s.conn.Close() })
	return b
}

// read reads up to the last record.
func (b *bystander) read() error {
	for next := 0; ; {
		in, err := b.socket.read()
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
		if op := m["op"]; op == "gap" || op == "error" || op == "unsubscribed" {
			return fmt.Errorf("bystander: got %s", in.payload)
		}
		records, _ := m["records"].([]any)
		for _, r := range records {
			r, _ := r.(map[string]any)
			if r["text"] == lastRecord {
				return nil
			}
			if r["text"] != fmt.Sprint(next) {
				return fmt.Errorf("bystander: got %v, want record %d", r, next)
			}
			next++
		}
	}
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
		b.socket.conn.Close()
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
	var sending sync.WaitGroup
	sending.Go(func() { _ = s.raw(bytes.Join(data, nil)) }) // it may be cut off
	got, err := listen(s, want)
	s.conn.Close()
	sending.Wait()
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
