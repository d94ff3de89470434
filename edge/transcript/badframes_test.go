package transcript_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// badFrames are misdeeds of the framing, RFC 6455, sections 5 and 7.
func badFrames() []misdeed {
	text := func(s string) []byte { return masked(fin|opText, []byte(s)) }
	ping := text(`{"op":"ping","id":"x"}`)
	long := func(opcode byte, n uint64, rest ...byte) []byte {
		return append(binary.BigEndian.AppendUint64([]byte{fin | opcode, 0x80 | 127}, n), rest...)
	}
	mask := []byte{1, 2, 3, 4}
	var deeds []misdeed
	add := func(name, want string, data ...[]byte) {
		deeds = append(deeds, misdeed{"frame: " + name, func(w *world) (string, error) {
			return converse(w, "/ws", protocolJSON, want, append(data, lastPing())...)
		}, want})
	}
	for i, bit := range []byte{0x40, 0x20, 0x10} {
		add(fmt.Sprintf("reserved bit %d", i+1), "close 1002", masked(fin|bit|opText, []byte(`{}`)))
	}
	for _, op := range []byte{3, 4, 5, 6, 7, 0xb, 0xc, 0xd, 0xe, 0xf} {
		add(fmt.Sprintf("reserved opcode %d", op), "close 1002", masked(fin|op, nil))
	}
	add("not masked", "close 1002", []byte{fin | opText, 2, '{', '}'})
	add("a ping that is not masked", "close 1002", []byte{fin | opPing, 0})
	add("declared length of 2^62", "close 1009", long(opText, 1<<62, mask...))
	add("declared length of 2^62, binary", "close 1003", long(opBinary, 1<<62, mask...))
	add("declared length with its highest bit", "close 1002", long(opText, 1<<63|5, mask...))
	add("declared length over the limit by one", "close 1009", long(opText, 2<<20+1, mask...))
	add("length of 5 in 16 bits", "close 1002", append([]byte{fin | opText, 0x80 | 126, 0, 5}, mask...))
	add("length of 5 in 64 bits", "close 1002", long(opText, 5, mask...))
	add("length of 65535 in 64 bits", "close 1002", long(opText, 65535, mask...))
	add("a ping of 126 bytes", "close 1002", masked(fin|opPing, make([]byte, 126)))
	add("a ping with a length in 64 bits", "close 1002", long(opPing, 1<<40, mask...))
	add("a fragmented ping", "close 1002", masked(opPing, nil))
	add("a fragmented pong", "close 1002", masked(opPong, nil))
	add("a fragmented close", "close 1002", masked(opClose, nil))
	add("a continuation of nothing", "close 1002", masked(fin|opContinuation, []byte("x")))
	add("a continuation after a whole message", "close 1002", ping, masked(fin|opContinuation, nil))
	add("a message within a message", "close 1002", masked(opText, []byte(`{"op"`)), ping)
	add("a binary message within a message", "close 1002", masked(opText, []byte(`{"op"`)), masked(fin|opBinary, nil))
	add("binary", "close 1003", masked(fin|opBinary, []byte{0}))
	add("binary, first fragment", "close 1003", masked(opBinary, []byte{0}))
	add("a fragmented ping op around control frames", "pong lives",
		masked(opText, []byte(`{"op":"pi`)), masked(fin|opPing, []byte("a")), masked(opContinuation, nil), masked(fin|opPong, []byte("b")), masked(fin|opContinuation, []byte(`ng","id":"x"}`)))
	add("20,000 empty fragments", "pong lives",
		masked(opText, []byte(`{"op":"ping",`)), bytes.Repeat(masked(opContinuation, nil), 20_000), masked(fin|opContinuation, []byte(`"id":"x"}`)))
	add("fragments over the limit", "close 1009", masked(opText, make([]byte, 0)), bytes.Repeat(masked(opContinuation, bytes.Repeat([]byte(" "), 64<<10)), 33))
	add("10,000 pings", "lives", bytes.Repeat(masked(fin|opPing, bytes.Repeat([]byte("p"), 125)), 10_000))
	add("10,000 pongs that nobody asked for", " lives", bytes.Repeat(masked(fin|opPong, []byte("p")), 10_000))

	utf8 := map[string]string{
		"a lone byte": "\xff", "a lone continuation": "\x80", "an overlong NUL": "\xc0\x80", "a surrogate": "\xed\xa0\x80",
		"over U+10FFFF": "\xf4\x90\x80\x80", "half a character": "\xe2\x82",
	}
	for name, bad := range utf8 {
		add("UTF-8: "+name, "close 1007", text(`{"op":"ping","id":"`+bad+`"}`))
		add("UTF-8 split over fragments: "+name, "close 1007", masked(opText, []byte(`{"id":"`+bad[:1])), masked(opContinuation, nil), masked(fin|opContinuation, []byte(bad[1:]+`"}`)))
	}
	add("UTF-8: seen before the message ends", "close 1007", masked(opText, []byte("\xff")))
	add("UTF-8: a character split over fragments is none", "pong lives", masked(opText, []byte(`{"op":"ping","id":"`+"\xe2")), masked(opContinuation, []byte("\x82")), masked(fin|opContinuation, []byte("\xac"+`"}`)))

	for _, code := range []int{0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000, 65535} {
		add(fmt.Sprintf("close code %d", code), `close 1002 "protocol error"`, masked(fin|opClose, binary.BigEndian.AppendUint16(nil, uint16(code))))
	}
	for _, code := range []int{1000, 1001, 1011, 1012, 1014, 3000, 4999} {
		add(fmt.Sprintf("close code %d is legal", code), fmt.Sprintf(`close %d ""`, code), masked(fin|opClose, closePayload(code, "why")))
	}
	add("close of one byte", "close 1002", masked(fin|opClose, []byte{3}))
	add("close of 126 bytes", "close 1002", masked(fin|opClose, closePayload(1000, string(bytes.Repeat([]byte("x"), 124)))))
	add("close reason that is not UTF-8", "close 1007", masked(fin|opClose, closePayload(1000, "\xff")))
	add("more behind the close frame", `close 1000 ""`, masked(fin|opClose, closePayload(1000, "")), ping, ping, masked(fin|opClose, nil), []byte("garbage"))
	add("a close frame within a message", `close 1001 ""`, masked(opText, []byte(`{"op"`)), masked(fin|opClose, closePayload(1001, "")))
	add("HTTP in the place of frames", "close 1002", []byte("GET /ws HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	add("2 MiB of NUL", "close 1002", make([]byte, 2<<20))
	return append(deeds, slowFrames()...)
}

// slowFrames come in single bytes, or not to their end.
func slowFrames() []misdeed {
	drip := func(data []byte, then func(*socket) error) func(*world) (string, error) {
		return func(w *world) (string, error) {
			s, err := dialSocket(w.web, "/ws", protocolJSON, nil)
			if err != nil {
				return "", err
			}
			defer s.conn.Close()
			if err := s.conn.SetDeadline(time.Now().Add(patience)); err != nil {
				return "", err
			}
			for _, b := range data {
				if err := s.raw([]byte{b}); err != nil {
					return "", err
				}
				<-time.After(200 * time.Microsecond)
			}
			if err := then(s); err != nil {
				return "", err
			}
			return listen(s, "")
		}
	}
	nothing := func(*socket) error { return nil }
	message := append(masked(fin|opText, []byte(`{"op":"ping","id":"x"}`)), lastPing()...)
	return []misdeed{
		{"slow: a message and a ping in single bytes", drip(message, nothing), "pong lives"},
		{"slow: half a frame, then FIN", drip(message[:9], func(s *socket) error { return s.conn.CloseWrite() }), "end"},
		{"slow: half a head, then FIN", drip([]byte{fin | opText}, func(s *socket) error { return s.conn.CloseWrite() }), "end"},
		{"slow: half a message, then a close frame", drip(masked(opText, []byte("{")), func(s *socket) error { return s.write(opClose, closePayload(1000, "")) }), "close 1000"},
	}
}
