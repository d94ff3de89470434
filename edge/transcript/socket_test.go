package transcript_test

import (
	"bufio"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Opcodes of RFC 6455, section 5.2.
const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xA
)

const fin = 0x80

// Subprotocols.
const (
	protocolJSON  = "tailrace.v1.json"
	protocolProto = "tailrace.v1.proto"
)

// socket is a WebSocket client that shares no code with the edge and accepts nothing that RFC 6455 forbids a server. One goroutine reads;
// any may write.
type socket struct {
	conn   *net.TCPConn
	br     *bufio.Reader
	opcode byte // of messages: text or binary, by the subprotocol

	closed bool // the server's close frame has come

	mu        sync.Mutex
	sentClose bool
}

// frameIn is a frame of the server.
type frameIn struct {
	opcode  byte
	payload []byte
}

// breach is something that the server must not do.
type breach struct{ what string }

func (e *breach) Error() string { return "protocol error of the server: " + e.what }

func breached(format string, args ...any) error { return &breach{fmt.Sprintf(format, args...)} }

// answerIn is an answer other than 101.
type answerIn struct {
	status int
	header http.Header
	body   string
}

func (a *answerIn) Error() string { return fmt.Sprintf("answered %d %q", a.status, a.body) }

// dialSocket opens a socket. A refusal is an *answerIn; protocol "" offers none.
func dialSocket(addr, path, protocol string, header http.Header) (*socket, error) {
	conn, err := dialTCP(addr)
	if err != nil {
		return nil, err
	}
	s := &socket{conn: conn, br: bufio.NewReader(conn), opcode: opText}
	if protocol != "" {
		header = header.Clone()
		if header == nil {
			header = http.Header{}
		}
		header.Set("Sec-WebSocket-Protocol", protocol)
	}
	if protocol == protocolProto {
		s.opcode = opBinary
	}
	if err := s.shakeHands(addr, path, protocol, header); err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

func dialTCP(addr string) (*net.TCPConn, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.New("not TCP")
	}
	return tcp, tcp.SetDeadline(time.Now().Add(patience))
}

func (s *socket) shakeHands(addr, path, protocol string, header http.Header) error {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:])
	key := base64.StdEncoding.EncodeToString(nonce[:])
	host := header.Get("Host")
	if host == "" {
		host = addr
	}
	var req strings.Builder
	fmt.Fprintf(&req, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: %s\r\n", path, host, key)
	if header.Get("Sec-WebSocket-Version") == "" {
		req.WriteString("Sec-WebSocket-Version: 13\r\n")
	}
	_ = header.WriteSubset(&req, map[string]bool{"Host": true})
	req.WriteString("\r\n")
	if _, err := io.WriteString(s.conn, req.String()); err != nil {
		return err
	}
	resp, err := http.ReadResponse(s.br, &http.Request{Method: http.MethodGet})
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		return &answerIn{resp.StatusCode, resp.Header, string(body)}
	}
	digest := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	switch want := base64.StdEncoding.EncodeToString(digest[:]); {
	case len(resp.Header["Sec-Websocket-Accept"]) != 1 || resp.Header.Get("Sec-WebSocket-Accept") != want:
		return breached("Sec-WebSocket-Accept %q, want %q", resp.Header["Sec-Websocket-Accept"], want)
	case !strings.EqualFold(resp.Header.Get("Upgrade"), "websocket"), !strings.EqualFold(resp.Header.Get("Connection"), "upgrade"):
		return breached("no upgrade in %v", resp.Header)
	case resp.Header.Get("Sec-WebSocket-Protocol") != protocol:
		return breached("subprotocol %q, offered %q", resp.Header.Get("Sec-WebSocket-Protocol"), protocol)
	case resp.Header.Get("Sec-WebSocket-Extensions") != "":
		return breached("extension %q was not offered", resp.Header.Get("Sec-WebSocket-Extensions"))
	}
	return s.conn.SetDeadline(time.Time{})
}

// read returns the next frame, a *breach for everything that a server must not send, and io.EOF at the end of the connection. After a close
// frame only the end may come.
func (s *socket) read() (frameIn, error) {
	var in frameIn
	if s.closed {
		n, err := io.Copy(io.Discard, s.br)
		if n > 0 {
			return in, breached("%d bytes behind the close frame", n)
		}
		if err == nil {
			err = io.EOF
		}
		return in, err
	}
	var head [8]byte
	if _, err := io.ReadFull(s.br, head[:2]); err != nil {
		return in, err // io.ErrUnexpectedEOF within a frame
	}
	in.opcode = head[0] & 0xf
	n := uint64(head[1] & 0x7f)
	switch {
	case head[0]&fin == 0:
		return in, breached("a fragment (%x), which the edge never sends", head[:2])
	case head[0]&0x70 != 0:
		return in, breached("reserved bits without an extension (%x)", head[:2])
	case head[1]&0x80 != 0:
		return in, breached("a masked frame (%x)", head[:2])
	case in.opcode != s.opcode && in.opcode != opClose && in.opcode != opPing && in.opcode != opPong:
		return in, breached("opcode %d", in.opcode)
	case in.opcode >= opClose && n > 125:
		return in, breached("a control frame of more than 125 bytes")
	}
	switch n {
	case 126:
		if _, err := io.ReadFull(s.br, head[:2]); err != nil {
			return in, within(err)
		}
		if n = uint64(binary.BigEndian.Uint16(head[:])); n < 126 {
			return in, breached("length %d in 16 bits", n)
		}
	case 127:
		if _, err := io.ReadFull(s.br, head[:]); err != nil {
			return in, within(err)
		}
		if n = binary.BigEndian.Uint64(head[:]); n <= 0xffff || n > 64<<20 {
			return in, breached("length %d in 64 bits", n)
		}
	}
	in.payload = make([]byte, n)
	if _, err := io.ReadFull(s.br, in.payload); err != nil {
		return in, within(err)
	}
	return in, s.judge(in)
}

func within(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (s *socket) judge(in frameIn) error {
	switch in.opcode {
	case opText:
		if !utf8.Valid(in.payload) {
			return breached("a text frame that is not UTF-8")
		}
		if !json.Valid(in.payload) || in.payload[0] != '{' {
			return breached("a text frame that is not a JSON object: %.200q", in.payload)
		}
	case opClose:
		s.closed = true
		_, _, err := parseClose(in.payload)
		return err
	}
	return nil
}

// parseClose reads a close frame by RFC 6455, section 7.4, and the registry of codes. 1005 is one without a code.
func parseClose(p []byte) (code int, reason string, err error) {
	if len(p) == 0 {
		return 1005, "", nil
	}
	if len(p) == 1 {
		return 0, "", breached("a close frame of one byte")
	}
	code, reason = int(binary.BigEndian.Uint16(p)), string(p[2:])
	switch {
	case code < 1000, code > 4999, code >= 1004 && code <= 1006, code > 1014 && code < 3000:
		return 0, "", breached("close code %d", code)
	case !utf8.ValidString(reason):
		return 0, "", breached("a close reason that is not UTF-8")
	}
	return code, reason, nil
}

// write sends one masked frame; after a close frame it sends nothing.
func (s *socket) write(opcode byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sentClose {
		return net.ErrClosed
	}
	s.sentClose = opcode == opClose
	_, err := s.conn.Write(masked(fin|opcode, payload))
	return err
}

// raw sends bytes as they are.
func (s *socket) raw(p []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, err := s.conn.Write(p)
	return err
}

// masked is a frame with the given first byte.
func masked(first byte, payload []byte) []byte {
	p := []byte{first}
	switch n := len(payload); {
	case n < 126:
		p = append(p, 0x80|byte(n))
	case n <= 0xffff:
		p = binary.BigEndian.AppendUint16(append(p, 0x80|126), uint16(n))
	default:
		p = binary.BigEndian.AppendUint64(append(p, 0x80|127), uint64(n))
	}
	var mask [4]byte
	_, _ = rand.Read(mask[:])
	p = append(p, mask[:]...)
	for i, b := range payload {
		p = append(p, b^mask[i%4])
	}
	return p
}

// closePayload is that of a close frame; 1005 is one without a code.
func closePayload(code int, reason string) []byte {
	if code == 1005 {
		return nil
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(code)), reason...)
}
