package e2e_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// member is one socket. The goroutine of the crowd owns it once it is registered.
type member struct {
	fd     int
	head   [10]byte
	have   int // bytes of head
	opcode byte
	left   uint64 // of the payload; valid once the head is whole
	inside bool
	carry  []byte // of a payload that did not come whole
	tail   []byte // the end of what was counted of one, at most 8 bytes
	heard  int64  // when the first record since benchCrowd.since came
}

// handshake returns what came behind the answer.
func handshake(fd int, host, path string) (rest []byte, err error) {
	request := "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
	if _, err := unix.Write(fd, []byte(request)); err != nil {
		return nil, err
	}
	buf := make([]byte, 4096)
	for got := 0; got < len(buf); {
		n, err := unix.Read(fd, buf[got:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return nil, fmt.Errorf("no answer to the upgrade: %w", err)
		}
		got += n
		if head, rest, whole := bytes.Cut(buf[:got], []byte("\r\n\r\n")); whole {
			if !bytes.HasPrefix(head, []byte("HTTP/1.1 101")) {
				return nil, fmt.Errorf("upgrade refused: %q", head)
			}
			return rest, nil
		}
	}
	return nil, errors.New("the answer to the upgrade has no end")
}

// send writes a frame masked with zeros.
func (m *member) send(opcode byte, payload []byte) error {
	frame := []byte{0x80 | opcode}
	if len(payload) < 126 {
		frame = append(frame, 0x80|byte(len(payload)))
	} else {
		frame = binary.BigEndian.AppendUint16(append(frame, 0x80|126), uint16(len(payload)))
	}
	frame = append(append(frame, 0, 0, 0, 0), payload...)
	_, err := unix.Write(m.fd, frame)
	return err
}

// feed takes what a socket has read.
func (c *benchCrowd) feed(m *member, chunk []byte) {
	for len(chunk) > 0 {
		if !m.inside {
			chunk = m.readHead(chunk)
			if !m.inside {
				return
			}
			c.frames.Add(1)
		}
		if m.left > uint64(len(chunk)) {
			m.left -= uint64(len(chunk))
			c.part(m, chunk)
			return
		}
		payload := chunk[:m.left]
		chunk = chunk[m.left:]
		m.left, m.inside = 0, false
		if m.tail != nil {
			c.part(m, payload)
			m.tail = nil
			continue
		}
		if len(m.carry) > 0 {
			payload = append(m.carry, payload...)
			m.carry = nil
		}
		c.message(m, payload)
	}
}

// readHead takes the bytes of a frame's head and returns the rest.
func (m *member) readHead(chunk []byte) []byte {
	for len(chunk) > 0 {
		m.head[m.have] = chunk[0]
		m.have++
		chunk = chunk[1:]
		if m.have < 2 {
			continue
		}
		length := uint64(m.head[1] & 0x7F)
		need := 2
		switch length {
		case 126:
			need = 4
		case 127:
			need = 10
		}
		if m.have < need {
			continue
		}
		switch need {
		case 4:
			length = uint64(binary.BigEndian.Uint16(m.head[2:]))
		case 10:
			length = binary.BigEndian.Uint64(m.head[2:])
		}
		m.opcode, m.left, m.inside, m.have = m.head[0]&0x0F, length, true, 0
		return chunk
	}
	return chunk
}

var offsetField = []byte(`"offset":`)

// part takes a piece of a payload that did not come whole. Large ones are counted as they come.
func (c *benchCrowd) part(m *member, chunk []byte) {
	if m.tail == nil && (c.o.stamped || m.left+uint64(len(chunk)) < 8192 || len(m.carry) > 0) {
		m.carry = append(m.carry, chunk...)
		return
	}
	edge := append(m.tail, chunk[:min(len(chunk), len(offsetField)-1)]...)
	c.records.Add(int64(bytes.Count(edge, offsetField) + bytes.Count(chunk, offsetField)))
	if len(chunk) < len(offsetField)-1 {
		m.tail = slices.Clone(edge[max(0, len(edge)-len(offsetField)+1):])
	} else {
		m.tail = append(m.tail[:0:0], chunk[len(chunk)-len(offsetField)+1:]...)
	}
}

func (c *benchCrowd) message(m *member, payload []byte) {
	switch {
	case m.opcode == opPing:
		if err := m.send(opPong, payload); err != nil {
			c.fail("pong: " + err.Error())
		}
	case bytes.HasPrefix(payload, []byte(`{"op":"records"`)):
		if c.o.stamped {
			c.stamps(m, payload)
		} else {
			c.records.Add(int64(bytes.Count(payload, offsetField)))
		}
		return
	case bytes.HasPrefix(payload, []byte(`{"op":"started"`)):
		c.started.Add(1)
	case m.opcode == opClose, bytes.HasPrefix(payload, []byte(`{"op":"error"`)), bytes.HasPrefix(payload, []byte(`{"op":"goodbye"`)), bytes.HasPrefix(payload, []byte(`{"op":"gap"`)):
		c.fail(string(payload))
	}
	c.frames.Add(-1)
}

// stamps reads the times that values begin with.
func (c *benchCrowd) stamps(m *member, payload []byte) {
	now := time.Now().UnixNano()
	const before = `"text":"`
	for {
		at := bytes.Index(payload, []byte(before))
		if at < 0 {
			return
		}
		payload = payload[at+len(before):]
		sent, err := strconv.ParseInt(string(payload[:19]), 10, 64)
		if err != nil {
			c.fail(err.Error())
			return
		}
		if sent >= c.since {
			c.delays = append(c.delays, float64(now-sent)/1e6)
			if m.heard == 0 {
				m.heard = now
			}
		}
		c.records.Add(1)
	}
}
