package e2e_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

// socket is a WebSocket client that shares no code with the edge and accepts nothing that RFC 6455 forbids a server. One goroutine may
// read; any may write.
type socket struct {
	conn     net.Conn
	br       *bufio.Reader
	protocol string // the subprotocol that the server chose

	mu      sync.Mutex // one frame at a time on conn
	closing bool       // our close frame was sent

	closed *closeError // the server's close frame has come
}

// closeError is the server's close frame.
type closeError struct {
	code   int // 1005 when the frame had none (section 7.1.5)
	reason string
}

func (e *closeError) Error() string {
	return fmt.Sprintf("closed by the server: %d %q", e.code, e.reason)
}

// protocolError is a breach of RFC 6455 by the server.
type protocolError struct{ what string }

func (e *protocolError) Error() string { return "websocket protocol: " + e.what }

func breach(format string, args ...any) error { return &protocolError{fmt.Sprintf(format, args...)} }

// refusedError is an answer to the upgrade other than 101.
type refusedError struct {
	status int
	body   string
}

func (e *refusedError) Error() string { return fmt.Sprintf("upgrade refused: %d %s", e.status, e.body) }

type dialOptions struct {
	header     http.Header
	protocols  []string
	recvBuffer int // SO_RCVBUF in bytes, 0: the kernel's
}

// dialSocket opens a WebSocket to ws://address+path.
func dialSocket(ctx context.Context, address, path string, o dialOptions) (*socket, error) {
	dialer := net.Dialer{}
	if o.recvBuffer > 0 {
		dialer.Control = func(_, _ string, c syscall.RawConn) error {
			var failed error
			err := c.Control(func(fd uintptr) {
				failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, o.recvBuffer)
			})
			return errors.Join(err, failed)
		}
	}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	s, err := upgrade(conn, address, path, o)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return s, nil
}

func upgrade(conn net.Conn, address, path string, o dialOptions) (*socket, error) {
	var nonce [16]byte
	rand.Read(nonce[:])
	key := base64.StdEncoding.EncodeToString(nonce[:])
	var request strings.Builder
	fmt.Fprintf(&request, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", path, address)
	fmt.Fprintf(&request, "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n", key)
	if len(o.protocols) > 0 {
		fmt.Fprintf(&request, "Sec-WebSocket-Protocol: %s\r\n", strings.Join(o.protocols, ", "))
	}
	if err := o.header.Write(&request); err != nil {
		return nil, err
	}
	request.WriteString("\r\n")
	if _, err := io.WriteString(conn, request.String()); err != nil {
		return nil, err
	}
	br := bufio.NewReaderSize(conn, 4096)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		resp.Body.Close()
		return nil, &refusedError{status: resp.StatusCode, body: string(body)}
	}
	s := &socket{conn: conn, br: br, protocol: resp.Header.Get("Sec-WebSocket-Protocol")}
	return s, checkUpgrade(resp, key, o)
}

// checkUpgrade is section 4.1, the client's duties on the server's handshake.
func checkUpgrade(resp *http.Response, key string, o dialOptions) error {
	if got := resp.Header.Get("Upgrade"); !strings.EqualFold(got, "websocket") {
		return breach("Upgrade: %q", got)
	}
	if got := resp.Header.Get("Connection"); !strings.EqualFold(got, "upgrade") {
		return breach("Connection: %q", got)
	}
	digest := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if got, want := resp.Header.Get("Sec-WebSocket-Accept"), base64.StdEncoding.EncodeToString(digest[:]); got != want {
		return breach("Sec-WebSocket-Accept: %q, want %q", got, want)
	}
	if got := resp.Header.Get("Sec-WebSocket-Extensions"); got != "" {
		return breach("extensions %q, none was offered", got)
	}
	chosen := resp.Header.Values("Sec-WebSocket-Protocol")
	if len(chosen) == 0 {
		return nil
	}
	for _, offered := range o.protocols {
		if len(chosen) == 1 && chosen[0] == offered {
			return nil
		}
	}
	return breach("subprotocol %q, offered were %q", chosen, o.protocols)
}

const (
	opContinuation = 0x0
	opText         = 0x1
	opBinary       = 0x2
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xA
)

// next returns the next whole message. It answers pings, echoes the close frame and returns it as *closeError; after that it demands EOF.
func (s *socket) next() (op byte, message []byte, err error) {
	if s.closed != nil {
		return 0, nil, s.afterClose()
	}
	started := false
	for {
		fin, opcode, payload, err := s.readFrame()
		if err != nil {
			return 0, nil, err
		}
		switch opcode {
		case opPing:
			if err := s.write(opPong, payload); err != nil {
				return 0, nil, err
			}
			continue
		case opPong:
			continue
		case opClose:
			s.closed, err = parseClose(payload)
			if err != nil {
				return 0, nil, err
			}
			_ = s.write(opClose, payload)
			return 0, nil, s.closed
		case opContinuation:
			if !started {
				return 0, nil, breach("continuation of nothing")
			}
			message = append(message, payload...)
		default:
			if started {
				return 0, nil, breach("opcode %d within a fragmented message", opcode)
			}
			started, op, message = true, opcode, payload
		}
		if fin {
			break
		}
	}
	if op == opText && !utf8.Valid(message) {
		return 0, nil, breach("text message is not UTF-8")
	}
	return op, message, nil
}

// afterClose reads what comes after the server's close frame, which must be nothing.
func (s *socket) afterClose() error {
	_ = s.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := io.Copy(io.Discard, s.br)
	if n > 0 {
		return breach("%d bytes after the close frame", n)
	}
	if err != nil {
		return fmt.Errorf("waiting for the end of the connection: %w", err)
	}
	return io.EOF
}

func (s *socket) readFrame() (fin bool, opcode byte, payload []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(s.br, head[:2]); err != nil {
		return false, 0, nil, err
	}
	fin, opcode = head[0]&0x80 != 0, head[0]&0x0F
	length := uint64(head[1] & 0x7F)
	switch {
	case head[0]&0x70 != 0:
		return false, 0, nil, breach("reserved bits %#x without an extension", head[0]&0x70)
	case head[1]&0x80 != 0:
		return false, 0, nil, breach("masked frame from the server")
	case opcode > opBinary && opcode < opClose || opcode > opPong:
		return false, 0, nil, breach("reserved opcode %d", opcode)
	case opcode >= opClose && (!fin || length > 125):
		return false, 0, nil, breach("control frame %d: fin %v, length %d", opcode, fin, length)
	}
	switch length {
	case 126:
		if _, err := io.ReadFull(s.br, head[:2]); err != nil {
			return false, 0, nil, midFrame(err)
		}
		if length = uint64(binary.BigEndian.Uint16(head[:])); length < 126 {
			return false, 0, nil, breach("length %d in 16 bits", length)
		}
	case 127:
		if _, err := io.ReadFull(s.br, head[:8]); err != nil {
			return false, 0, nil, midFrame(err)
		}
		if length = binary.BigEndian.Uint64(head[:]); length < 1<<16 {
			return false, 0, nil, breach("length %d in 64 bits", length)
		}
	}
	if length > 64<<20 {
		return false, 0, nil, breach("frame of %d bytes", length)
	}
	payload = make([]byte, length)
	if _, err := io.ReadFull(s.br, payload); err != nil {
		return false, 0, nil, midFrame(err)
	}
	return fin, opcode, payload, nil
}

func midFrame(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func parseClose(payload []byte) (*closeError, error) {
	if len(payload) == 0 {
		return &closeError{code: 1005}, nil
	}
	if len(payload) == 1 {
		return nil, breach("close frame with one byte")
	}
	c := &closeError{code: int(binary.BigEndian.Uint16(payload)), reason: string(payload[2:])}
	// Section 7.4: what may be on the wire.
	switch {
	case c.code < 1000, c.code >= 5000, c.code == 1004, c.code == 1005, c.code == 1006, c.code >= 1015 && c.code < 3000:
		return nil, breach("close code %d", c.code)
	case !utf8.ValidString(c.reason):
		return nil, breach("close reason is not UTF-8")
	}
	return c, nil
}

// write sends one masked frame. Nothing is sent after a close frame.
func (s *socket) write(opcode byte, payload []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return net.ErrClosed
	}
	s.closing = opcode == opClose
	frame := make([]byte, 0, 14+len(payload))
	frame = append(frame, 0x80|opcode)
	switch n := len(payload); {
	case n < 126:
		frame = append(frame, 0x80|byte(n))
	case n < 1<<16:
		frame = binary.BigEndian.AppendUint16(append(frame, 0x80|126), uint16(n))
	default:
		frame = binary.BigEndian.AppendUint64(append(frame, 0x80|127), uint64(n))
	}
	var mask [4]byte
	rand.Read(mask[:])
	frame = append(frame, mask[:]...)
	at := len(frame)
	frame = append(frame, payload...)
	for i := range payload {
		frame[at+i] ^= mask[i%4]
	}
	_, err := s.conn.Write(frame)
	return err
}

// hangUp starts the closing handshake with code 1000; the reader sees the server's answer.
func (s *socket) hangUp() error { return s.write(opClose, []byte{0x03, 0xE8}) }

// abort ends the connection without a handshake, by RST or by FIN.
func (s *socket) abort(reset bool) {
	if tcp, ok := s.conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	s.conn.Close()
}
