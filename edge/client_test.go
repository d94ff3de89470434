package edge_test

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
	"syscall"
	"time"
	"unicode/utf8"

	"tailrace.dev/tailrace/edge/frame/frametest"
)

const (
	opText  = 0x1
	opBin   = 0x2
	opClose = 0x8
	opPing  = 0x9
	opPong  = 0xA
)

// client is a WebSocket client that shares no code with the edge and accepts nothing that RFC 6455 forbids a server. One goroutine reads;
// any may write.
type client struct {
	conn   *net.TCPConn
	br     *bufio.Reader
	proto  bool // messages are binary, each a ClientFrame or ServerFrame; say and next translate
	mu     sync.Mutex
	closed bool // the server's close frame has come
	pings  int
	pongs  []string
}

type clientOptions struct {
	header     http.Header
	recvBuffer int
	from       string // address to dial from
	proto      bool
}

// closeFrame is the server's.
type closeFrame struct {
	code   int
	reason string
}

func (e *closeFrame) Error() string { return fmt.Sprintf("closed: %d %q", e.code, e.reason) }

// message has the fields of all server frames.
type message struct {
	Op, ID, Re, Reason, Message, Outcome, Session, Topic, Upstream string
	Code                                                           any
	Final, Retryable                                               bool
	RetryAfterMs                                                   int64
	HeartbeatMs, MaxMessageBytes, Offset, From, To                 int64
	Partition                                                      int32
	raw                                                            string // as JSON
	Records                                                        records
	Positions, Lag, Unavailable                                    json.RawMessage
	ReconnectAfterMs                                               []int64
}

// records are those of a records message. A gap has a number of the same name.
type records []struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       string
	Text      string
	Value     any
}

func (r *records) UnmarshalJSON(b []byte) error {
	type plain records
	if b[0] != '[' {
		return nil
	}
	return json.Unmarshal(b, (*plain)(r))
}

func dial(addr, path string, o clientOptions) (*client, error) {
	d := net.Dialer{Timeout: patience}
	if o.from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(o.from)}
	}
	if o.recvBuffer > 0 {
		d.Control = recvBuffer(o.recvBuffer)
	}
	conn, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := clientOn(conn, bufio.NewReader(conn))
	c.proto = o.proto
	if err := c.upgrade(addr, path, o); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// recvBuffer sets the size of the receive buffer before a connection is made.
func recvBuffer(size int) func(string, string, syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, size)
		})
		return errors.Join(err, failed)
	}
}

// clientOn is a client whose handshake is done.
func clientOn(conn net.Conn, br *bufio.Reader) *client {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		panic("not TCP")
	}
	return &client{conn: tcp, br: br}
}

// refusal is an answer other than 101.
type refusal struct {
	status int
	header http.Header
	body   string
}

func (e *refusal) Error() string { return fmt.Sprintf("refused: %d %s", e.status, e.body) }

func (c *client) upgrade(addr, path string, o clientOptions) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	var nonce [16]byte
	_, _ = rand.Read(nonce[:])
	key := base64.StdEncoding.EncodeToString(nonce[:])
	var req strings.Builder
	fmt.Fprintf(&req, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", path, addr)
	fmt.Fprintf(&req, "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n", key)
	if o.proto {
		req.WriteString("Sec-WebSocket-Protocol: tailrace.v1.proto\r\n")
	}
	_ = o.header.Write(&req)
	req.WriteString("\r\n")
	if _, err := io.WriteString(c.conn, req.String()); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.br, nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		return &refusal{resp.StatusCode, resp.Header, string(body)}
	}
	digest := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	if got, want := resp.Header.Get("Sec-WebSocket-Accept"), base64.StdEncoding.EncodeToString(digest[:]); got != want {
		return fmt.Errorf("Sec-WebSocket-Accept %q, want %q", got, want)
	}
	return c.conn.SetDeadline(time.Time{})
}

// read returns the next frame, and an error for everything that a server must not send.
func (c *client) read() (op byte, payload []byte, err error) {
	if c.closed {
		n, err := io.Copy(io.Discard, c.br)
		if n > 0 {
			return 0, nil, fmt.Errorf("%d bytes behind the close frame", n)
		}
		if err == nil {
			err = io.EOF
		}
		return 0, nil, err
	}
	var head [2]byte
	if _, err := io.ReadFull(c.br, head[:]); err != nil {
		return 0, nil, err
	}
	op = head[0] & 0xf
	n := uint64(head[1] & 0x7f)
	switch {
	case head[0]&0x80 == 0:
		return 0, nil, fmt.Errorf("fragment, head %x", head)
	case head[0]&0x70 != 0:
		return 0, nil, fmt.Errorf("reserved bits, head %x", head)
	case head[1]&0x80 != 0:
		return 0, nil, errors.New("masked frame from the server")
	case op != c.opcode() && op != opClose && op != opPing && op != opPong:
		return 0, nil, fmt.Errorf("opcode %d", op)
	case op >= 8 && n > 125:
		return 0, nil, errors.New("long control frame")
	}
	var ext [8]byte
	switch n {
	case 126:
		if _, err := io.ReadFull(c.br, ext[:2]); err != nil {
			return 0, nil, err
		}
		if n = uint64(binary.BigEndian.Uint16(ext[:])); n < 126 {
			return 0, nil, errors.New("length not in its shortest form")
		}
	case 127:
		if _, err := io.ReadFull(c.br, ext[:]); err != nil {
			return 0, nil, err
		}
		if n = binary.BigEndian.Uint64(ext[:]); n <= 0xffff || n > 64<<20 {
			return 0, nil, fmt.Errorf("length %d", n)
		}
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(c.br, payload); err != nil {
		return 0, nil, err
	}
	if op == opText && !utf8.Valid(payload) {
		return 0, nil, errors.New("text that is not UTF-8")
	}
	if op == opClose {
		c.closed = true
		e := &closeFrame{code: 1005}
		if len(payload) >= 2 {
			e.code, e.reason = int(binary.BigEndian.Uint16(payload)), string(payload[2:])
		}
		return op, payload, e
	}
	return op, payload, nil
}

// next returns the next text message. It answers pings.
func (c *client) next() (*message, error) {
	for {
		op, payload, err := c.read()
		if err != nil {
			return nil, err
		}
		switch op {
		case opPing:
			c.pings++
			if err := c.write(opPong, payload); err != nil {
				return nil, err
			}
		case opPong:
			c.pongs = append(c.pongs, string(payload))
		default:
			if c.proto {
				if payload, err = frametest.Server(payload); err != nil {
					return nil, err
				}
			}
			m := &message{}
			if err := json.Unmarshal(payload, m); err != nil {
				return nil, fmt.Errorf("%s: %w", payload, err)
			}
			m.raw = string(payload)
			return m, nil
		}
	}
}

// opcode is that of messages.
func (c *client) opcode() byte {
	if c.proto {
		return opBin
	}
	return opText
}

// write sends one masked frame.
func (c *client) write(op byte, payload []byte) error {
	return c.writeRaw(maskedFrame(0x80|op, payload))
}

// writeRaw writes pieces, one after the other, nothing between them.
func (c *client) writeRaw(pieces ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pieces {
		if _, err := c.conn.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// maskedFrame is a frame with the given first byte.
func maskedFrame(first byte, payload []byte) []byte {
	p := []byte{first}
	switch n := len(payload); {
	case n < 126:
		p = append(p, 0x80|byte(n))
	case n <= 0xffff:
		p = binary.BigEndian.AppendUint16(append(p, 0x80|126), uint16(n))
	default:
		p = binary.BigEndian.AppendUint64(append(p, 0x80|127), uint64(n))
	}
	mask := [4]byte{0x12, 0xf3, 0x45, 0x9a}
	p = append(p, mask[:]...)
	for i, b := range payload {
		p = append(p, b^mask[i%4])
	}
	return p
}
