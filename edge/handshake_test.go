package edge_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge"
)

// ask sends a raw request and returns the answer.
func ask(t *testing.T, addr, request string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestHandshake(t *testing.T) {
	cfg := config()
	cfg.AllowedHosts = []string{"edge.example.org"}
	cfg.AllowedOrigins = []string{"https://app.example.org"}
	r := start(t, cfg)
	const key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	const up = "Upgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
	const version = "Sec-WebSocket-Version: 13\r\n"
	const host = "Host: localhost:8080\r\n"
	for _, c := range []struct {
		name    string
		line    string
		headers string
		status  int
		header  [2]string // one that the answer has
		body    string    // part of it
	}{
		{"plain", "GET /ws HTTP/1.1", host + up + version + key, 101, [2]string{"Sec-Websocket-Accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="}, ""},
		{"no subprotocol offered", "GET /ws HTTP/1.1", host + up + version + key, 101, [2]string{"Sec-Websocket-Protocol", ""}, ""},
		{"loopback", "GET /ws HTTP/1.1", "Host: 127.0.0.1:99\r\n" + up + version + key, 101, [2]string{}, ""},
		{"loopback of IPv6", "GET /ws HTTP/1.1", "Host: [::1]\r\n" + up + version + key, 101, [2]string{}, ""},
		{"allowed host", "GET /ws HTTP/1.1", "Host: Edge.Example.org.\r\n" + up + version + key, 101, [2]string{}, ""},
		{"absolute form", "GET http://localhost/ws HTTP/1.1", host + up + version + key, 101, [2]string{}, ""},
		{"subprotocol", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Protocol: x, tailrace.v1.json\r\n", 101, [2]string{"Sec-Websocket-Protocol", "tailrace.v1.json"}, ""},
		{"subprotocol in a second line", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Protocol: x\r\nSec-WebSocket-Protocol: tailrace.v1.json\r\n", 101, [2]string{"Sec-Websocket-Protocol", "tailrace.v1.json"}, ""},
		{"extensions are declined", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Extensions: permessage-deflate\r\n", 101, [2]string{"Sec-Websocket-Extensions", ""}, ""},
		{"same origin", "GET /ws HTTP/1.1", host + up + version + key + "Origin: http://localhost:8080\r\n", 101, [2]string{}, ""},
		{"allowed origin", "GET /ws HTTP/1.1", host + up + version + key + "Origin: https://APP.example.org:443\r\n", 101, [2]string{}, ""},

		{"binary subprotocol", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Protocol: tailrace.v1.proto\r\n", 101, [2]string{"Sec-Websocket-Protocol", "tailrace.v1.proto"}, ""},
		{"both, binary first", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Protocol: x,tailrace.v1.proto , tailrace.v1.json\r\n", 101, [2]string{"Sec-Websocket-Protocol", "tailrace.v1.proto"}, ""},
		{"both, JSON first", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Protocol: tailrace.v1.json\r\nSec-WebSocket-Protocol: tailrace.v1.proto\r\n", 101, [2]string{"Sec-Websocket-Protocol", "tailrace.v1.json"}, ""},

		{"unknown subprotocols", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Protocol: x, Tailrace.v1.json\r\n", 400, [2]string{}, "known are tailrace.v1.json, tailrace.v1.proto"},
		{"a subprotocol of no name", "GET /ws HTTP/1.1", host + up + version + key + "Sec-WebSocket-Protocol:\r\n", 400, [2]string{}, "tailrace.v1.proto"},
		{"method", "POST /ws HTTP/1.1", host + up + version + key, 405, [2]string{"Allow", "GET"}, ""},
		{"version", "GET /ws HTTP/1.1", host + up + key + "Sec-WebSocket-Version: 8\r\n", 426, [2]string{"Sec-Websocket-Version", "13"}, ""},
		{"no version", "GET /ws HTTP/1.1", host + up + key, 426, [2]string{"Sec-Websocket-Version", "13"}, ""},
		{"host", "GET /ws HTTP/1.1", "Host: evil.example.org\r\n" + up + version + key, 421, [2]string{}, "-allowed-hosts"},
		{"no host", "GET /ws HTTP/1.1", up + version + key, 400, [2]string{}, ""},
		{"host of a request", "GET / HTTP/1.1", "Host: evil.example.org\r\n", 421, [2]string{}, "-allowed-hosts"},
		{"other origin", "GET /ws HTTP/1.1", host + up + version + key + "Origin: http://evil.example.org\r\n", 403, [2]string{}, ""},
		{"origin of another port", "GET /ws HTTP/1.1", host + up + version + key + "Origin: http://localhost:9\r\n", 403, [2]string{}, ""},
		{"null origin", "GET /ws HTTP/1.1", host + up + version + key + "Origin: null\r\n", 403, [2]string{}, ""},
		{"no upgrade", "GET /ws HTTP/1.1", host + version + key, 400, [2]string{}, ""},
		{"no connection", "GET /ws HTTP/1.1", host + "Upgrade: websocket\r\n" + version + key, 400, [2]string{}, ""},
		{"no key", "GET /ws HTTP/1.1", host + up + version, 400, [2]string{}, ""},
		{"short key", "GET /ws HTTP/1.1", host + up + version + "Sec-WebSocket-Key: dGhl\r\n", 400, [2]string{}, ""},
		{"two keys", "GET /ws HTTP/1.1", host + up + version + key + key, 400, [2]string{}, ""},
		{"a body", "GET /ws HTTP/1.1", host + up + version + key + "Content-Length: 1\r\n", 400, [2]string{}, ""},
		{"no HTTP", "HELO", "", 400, [2]string{}, ""},
		{"a head without end", "GET /ws HTTP/1.1", host + "X: " + strings.Repeat("x", 17<<10) + "\r\n", 431, [2]string{}, ""},
		{"the page", "GET / HTTP/1.1", host, 200, [2]string{}, "page /"},
		{"near the socket's path", "GET /wsx HTTP/1.1", host + up + version + key, 200, [2]string{}, "page /wsx"},
		{"no topic", "GET /ws/ HTTP/1.1", host, 200, [2]string{}, "page /ws/"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			resp := ask(t, r.addr, c.line+"\r\n"+c.headers+"\r\n")
			if resp.StatusCode != c.status {
				t.Fatalf("got %s, want %d", resp.Status, c.status)
			}
			if c.header[0] != "" {
				if got := resp.Header.Get(c.header[0]); got != c.header[1] {
					t.Errorf("%s: got %q, want %q", c.header[0], got, c.header[1])
				}
			}
			if c.body != "" {
				if body, _ := io.ReadAll(resp.Body); !strings.Contains(string(body), c.body) {
					t.Errorf("body %q, want %q in it", body, c.body)
				}
			}
		})
	}
}

// TestUpgradeOnUsedConnection: a proxy may send the upgrade over a connection that has served requests before, with a frame right behind it.
func TestUpgradeOnUsedConnection(t *testing.T) {
	r := start(t, config())
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	br := bufio.NewReader(conn)
	_ = conn.SetDeadline(time.Now().Add(patience))
	for range 2 {
		fmt.Fprintf(conn, "GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n")
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, _ := io.ReadAll(resp.Body); string(body) != "page /x" {
			t.Fatalf("got %q", body)
		}
	}
	upgrade := "GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	if _, err := conn.Write(append([]byte(upgrade), maskedFrame(fin|opText, []byte(`{"op":"ping","id":"early"}`))...)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(br, nil)
	if err != nil || resp.StatusCode != 101 {
		t.Fatalf("got %v, %v", resp, err)
	}
	c := clientOn(conn, br)
	c.expect(t, "welcome")
	if m := c.expect(t, "pong"); m.ID != "early" {
		t.Errorf("pong of %q", m.ID)
	}
}

// TestEarlyFrames: frames that come in one packet with the upgrade are not lost, whatever way they are cut.
func TestEarlyFrames(t *testing.T) {
	r := start(t, config())
	upgrade := []byte("GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	data := append(upgrade, maskedFrame(fin|opText, []byte(`{"op":"ping","id":"a"}`))...)
	data = append(data, maskedFrame(fin|opText, []byte(`{"op":"ping","id":"b"}`))...)
	for _, cut := range []int{len(upgrade) - 1, len(upgrade), len(upgrade) + 1, len(upgrade) + 9, len(data) - 1} {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(patience))
		_, _ = conn.Write(data[:cut])
		_, _ = conn.Write(data[cut:])
		br := bufio.NewReader(conn)
		if _, err := http.ReadResponse(br, nil); err != nil {
			t.Fatal(err)
		}
		c := clientOn(conn, br)
		c.expect(t, "welcome")
		for _, id := range []string{"a", "b"} {
			if m := c.expect(t, "pong"); m.ID != id {
				t.Errorf("cut at %d: pong of %q, want %q", cut, m.ID, id)
			}
		}
		conn.Close()
	}
}

// TestMaxSessions: over the limit the upgrade is refused, and there is room again when one has left.
func TestMaxSessions(t *testing.T) {
	cfg := config()
	cfg.MaxSessions = 2
	r := start(t, cfg)
	a, b := r.dial(t, "/ws"), r.dial(t, "/ws")
	a.expect(t, "welcome")
	b.expect(t, "welcome")
	_, err := dial(r.addr, "/ws", clientOptions{})
	var no *refusal
	if !errors.As(err, &no) || no.status != 503 || no.header.Get("Retry-After") == "" {
		t.Fatalf("got %v, want 503 with Retry-After", err)
	}
	resp := ask(t, r.addr, "GET /sse/orders HTTP/1.1\r\nHost: localhost\r\n\r\n") // it comes back only to a stream
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"reason":"LIMIT"`) {
		t.Errorf("got %s %s, want a stream that ends with LIMIT", resp.Status, body)
	}
	for _, kind := range []string{"websocket", "sse"} {
		if got := r.metric(t, "tailrace_edge_upgrades_refused_total", kind); got != 1 {
			t.Errorf("%v refusals of kind %s are counted, want 1", got, kind)
		}
	}
	a.conn.Close()
	await(t, "there is room", func() bool {
		c, err := dial(r.addr, "/ws", clientOptions{})
		if err == nil {
			c.conn.Close()
		}
		return err == nil
	})
}

// TestSlowHandshake: who does not send a request is cut off, and delays nobody.
func TestSlowHandshake(t *testing.T) {
	cfg := config()
	cfg.HandshakeTimeout = 300 * time.Millisecond
	r := start(t, cfg)
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /ws HT")
	r.dial(t, "/ws").expect(t, "welcome")
	_ = conn.SetDeadline(time.Now().Add(patience))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("got %d bytes, %v, want the end", n, err)
	}
}

// TestUnsentBodyFreesItsPlace: a request whose body never comes holds its place no longer than a handshake may take.
func TestUnsentBodyFreesItsPlace(t *testing.T) {
	cfg := config()
	cfg.MaxRequests = 1
	cfg.HandshakeTimeout = 200 * time.Millisecond
	r := start(t, cfg)
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	await(t, "its place is free again", func() bool {
		resp, err := http.Get("http://" + r.addr + "/")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// TestIdleConnectionsLeaveRoom: connections that are kept for a next request keep nobody from being served.
func TestIdleConnectionsLeaveRoom(t *testing.T) {
	cfg := config()
	cfg.MaxRequests = 4
	r := start(t, cfg)
	for i := range 20 {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		br := bufio.NewReader(conn)
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("request %d: got %+v, %v", i, resp, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		if want := i >= 2; resp.Close != want {
			t.Errorf("request %d: the connection is closed: %v, want %v", i, resp.Close, want)
		}
		if resp.Close {
			if _, err := br.ReadByte(); !errors.Is(err, io.EOF) { // its place is free then
				t.Fatalf("request %d: got %v, want EOF", i, err)
			}
		}
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	cfg := edge.DefaultConfig()
	if err := cfg.Validate(); err != nil {
		t.Errorf("default: %v", err)
	}
	cfg.AllowedOrigins = []string{"example.org"}
	cfg.StallTimeout = time.Second
	cfg.Subscribes = 0
	err := cfg.Validate()
	for _, want := range []string{"example.org", "stall timeout", "subscribes"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}
