package edge_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge"
)

func TestAddressOf(t *testing.T) {
	t.Parallel()
	for remote, want := range map[string]string{
		"127.0.0.1:80":              "127.0.0.1",
		"[::ffff:10.1.2.3]:80":      "10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:80": "2001:db8:1:2::",
		"[2001:db8:1:2:ffff::1]:81": "2001:db8:1:2::",
		"[2001:db8:1:3:ffff::1]:81": "2001:db8:1:3::",
		"[fe80::1%eth0]:80":         "fe80::",
		"[::1]:80":                  "::",
		"nothing":                   "invalid IP",
	} {
		if got := edge.AddressOf(remote); got != want {
			t.Errorf("%s: got %s, want %s", remote, got, want)
		}
	}
}

// dialFrom dials from an address of the loopback network.
func (r *rig) dialFrom(t *testing.T, from string) (*client, error) {
	t.Helper()
	c, err := dial(r.addr, "/ws", clientOptions{from: from})
	if err == nil {
		t.Cleanup(func() { c.conn.Close() })
		c.deadline(t)
	}
	return c, err
}

// TestSocketsPerAddress: an address has so many sockets and no more, told before the upgrade; others are not concerned.
func TestSocketsPerAddress(t *testing.T) {
	cfg := config()
	cfg.MaxPerAddress = 2
	r := start(t, cfg)
	var mine []*client
	for range 2 {
		c, err := r.dialFrom(t, "127.0.0.2")
		if err != nil {
			t.Fatal(err)
		}
		c.expect(t, "welcome")
		mine = append(mine, c)
	}
	_, err := r.dialFrom(t, "127.0.0.2")
	var no *refusal
	if !errors.As(err, &no) || no.status != 429 || no.header.Get("Retry-After") == "" || !strings.Contains(no.body, "address") {
		t.Fatalf("got %v, want 429 with Retry-After", err)
	}
	if got := r.metric(t, "tailrace_edge_upgrades_refused_total", "429"); got != 1 {
		t.Errorf("%v refusals with 429 are counted, want 1", got)
	}
	other, err := r.dialFrom(t, "127.0.0.3")
	if err != nil {
		t.Fatal(err)
	}
	other.expect(t, "welcome")
	mine[0].conn.Close()
	await(t, "there is room again", func() bool {
		_, err := r.dialFrom(t, "127.0.0.2")
		return err == nil
	})
}

// TestSlowHeads: connections that say nothing, or say it slowly, keep nobody out; they give way to others, first those of the address that has most.
func TestSlowHeads(t *testing.T) {
	cfg := config()
	cfg.MaxHandshakes = 8
	cfg.HandshakeTimeout = 5 * time.Minute
	r := start(t, cfg)
	slow := func(from string) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: loc"); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	honest := slow("127.0.0.2")
	for range 7 {
		slow("127.0.0.3")
	}
	for range 5 {
		c, err := r.dialFrom(t, "127.0.0.4")
		if err != nil {
			t.Fatal(err)
		}
		c.expect(t, "welcome")
		slow("127.0.0.3") // takes the place again
	}
	// The slow one of an address that has only this is still served.
	if _, err := io.WriteString(honest, "alhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = honest.SetReadDeadline(time.Now().Add(patience))
	status := make([]byte, 12)
	if _, err := io.ReadFull(honest, status); err != nil || string(status) != "HTTP/1.1 101" {
		t.Errorf("got %q, %v, want 101", status, err)
	}
}

// TestUnfinishedMessagesEnd: messages that are never finished do not hold the room for ever: others find it free again.
func TestUnfinishedMessagesEnd(t *testing.T) {
	cfg := config()
	cfg.HeartbeatInterval = time.Second
	cfg.MaxInputBytes = 1 << 20
	cfg.MessageTimeout = 500 * time.Millisecond
	r := start(t, cfg)
	half := maskedFrame(fin|opText, bytes.Repeat([]byte(" "), 200<<10))[:120<<10]
	var holders []*client
	for range 3 {
		c := r.dial(t, "/ws")
		c.expect(t, "welcome")
		if err := c.writeRaw(half); err != nil {
			t.Fatal(err)
		}
		holders = append(holders, c)
	}
	for _, c := range holders {
		if m := c.until(t, "goodbye"); fmt.Sprint(m.Code) != "4029" || m.Reason != "message was not finished in time" {
			t.Errorf("got %s", m.raw)
		}
		c.expectClose(t, 4029)
	}
	await(t, "nothing is held", func() bool { return r.metric(t, "tailrace_edge_input_bytes", "") == 0 })
	// One that comes in pieces, but in time, is taken; and the time is that of each message.
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	for i := range 3 {
		text := fmt.Sprintf(`{"op":"ping","id":"%d"}`, i)
		if err := c.writeRaw(maskedFrame(opText, []byte(text[:9])), maskedFrame(fin, []byte(text[9:]))); err != nil {
			t.Fatal(err)
		}
		c.until(t, "pong")
	}
}

// TestKeysOfASession: the keys of all its subscriptions count together, and are given back.
func TestKeysOfASession(t *testing.T) {
	cfg := config()
	cfg.MaxKeys = 3
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	ask := func(id, keys string) *message {
		c.say(t, fmt.Sprintf(`{"op":"subscribe","id":"%s","topic":"orders","keys":[%s]}`, id, keys))
		for {
			if m, err := c.next(); err != nil || m.Op != "caughtup" {
				return m
			}
		}
	}
	if m := ask("a", `"1","2"`); m == nil || m.Op != "started" {
		t.Fatalf("got %+v", m)
	}
	if m := ask("b", `"1","2"`); m == nil || m.Reason != "LIMIT" || !m.Final || m.ID != "b" {
		t.Fatalf("got %+v, want LIMIT", m)
	}
	if m := ask("b", `"1"`); m == nil || m.Op != "started" {
		t.Fatalf("got %+v", m)
	}
	c.say(t, `{"op":"unsubscribe","id":"a"}`)
	c.until(t, "unsubscribed")
	if m := ask("c", `"1","2"`); m == nil || m.Op != "started" {
		t.Fatalf("got %+v", m)
	}
}

// TestMessageRate: who asks too much is told so, for each message, and served again after a while. What it has is not touched.
func TestMessageRate(t *testing.T) {
	cfg := config()
	cfg.MaxMessageRate = 2 // and 20 at once
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	c := r.dial(t, "/ws/orders")
	c.until(t, "caughtup")
	for i := range 20 {
		c.say(t, fmt.Sprintf(`{"op":"ping","id":"%d"}`, i))
	}
	for range 20 {
		c.expect(t, "pong")
	}
	for _, k := range []struct {
		send, re, id string
		final        bool
	}{
		{`{"op":"ping","id":"p"}`, "frame", "p", false},
		{`{"op":"subscribe","id":"a","topic":"orders"}`, "subscribe", "a", true},
		{`{"op":"unsubscribe","id":"0"}`, "unsubscribe", "0", false},
		{`{"op":"fly"}`, "frame", "", false},
		{`{"op":"consume","id":"q","topics":["x"],"group":"g"}`, "consume", "q", true},
	} {
		c.say(t, k.send)
		if m := c.expect(t, "error"); m.Reason != "LIMIT" || m.Code != "resource_exhausted" || m.Re != k.re || m.ID != k.id || m.Final != k.final || !m.Retryable {
			t.Errorf("%s: got %s", k.send, m.raw)
		}
	}
	c.say(t, `{"op":"publish","id":"x","topic":"orders","text":"v"}`) // has limits of its own
	c.expect(t, "published")
	await(t, "it is served again", func() bool {
		c.say(t, `{"op":"ping","id":"again"}`)
		m, err := c.next()
		return err == nil && m.Op == "pong"
	})
}
