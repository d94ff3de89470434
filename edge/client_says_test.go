package edge_test

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge/frame/frametest"
)

func (r *rig) dial(t testing.TB, path string) *client {
	t.Helper()
	c, err := dial(r.addr, path, clientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	c.deadline(t)
	return c
}

// deadline gives the reads that follow their time.
func (c *client) deadline(t testing.TB) {
	t.Helper()
	if err := c.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
}

// say sends a message, given in JSON.
func (c *client) say(t testing.TB, text string) {
	t.Helper()
	payload := []byte(text)
	if c.proto {
		var err error
		if payload, err = frametest.Client(payload); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.write(c.opcode(), payload); err != nil {
		t.Fatal(err)
	}
}

// expect returns the next message, which must be of an op.
func (c *client) expect(t testing.TB, op string) *message {
	t.Helper()
	c.deadline(t)
	m, err := c.next()
	if err != nil {
		t.Fatalf("waiting for %s: %v", op, err)
	}
	if m.Op != op {
		t.Fatalf("got %+v, want %s", m, op)
	}
	return m
}

// until skips messages up to one of an op.
func (c *client) until(t testing.TB, op string) *message {
	t.Helper()
	c.deadline(t)
	for {
		m, err := c.next()
		if err != nil {
			t.Fatalf("waiting for %s: %v", op, err)
		}
		if m.Op == op {
			return m
		}
	}
}

// expectClose skips messages up to the close frame, which must have a code, answers it and demands the end of the stream.
func (c *client) expectClose(t testing.TB, code int) {
	t.Helper()
	c.deadline(t)
	for {
		_, err := c.next()
		if err == nil {
			continue
		}
		var e *closeFrame
		if !errors.As(err, &e) {
			t.Fatalf("waiting for close %d: %v", code, err)
		}
		if e.code != code {
			t.Fatalf("got %v, want code %d", e, code)
		}
		break
	}
	_ = c.write(opClose, binary.BigEndian.AppendUint16(nil, uint16(min(code, 4999))))
	if _, _, err := c.read(); !errors.Is(err, io.EOF) {
		t.Errorf("behind the close frame: %v, want EOF", err)
	}
	c.conn.Close()
}
