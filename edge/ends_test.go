package edge_test

import (
	"encoding/binary"
	"testing"
)

// TestEnds: what a client does wrong ends its session with the code that says so, once.
func TestEnds(t *testing.T) {
	for _, k := range []struct {
		name   string
		data   []byte
		code   int
		reason string
	}{
		{"no JSON", maskedFrame(fin|opText, []byte("hello")), 4500, "bad_frame"},
		{"no object", maskedFrame(fin|opText, []byte("[1]")), 4500, "bad_frame"},
		{"binary", maskedFrame(fin|opBin, []byte("x")), 1003, "binary_frame"},
		{"not UTF-8", maskedFrame(fin|opText, []byte("\xff")), 1007, "invalid_utf8"},
		{"too large", maskedFrame(fin|opText, make([]byte, 2<<20+1)), 1009, "message_too_big"},
		{"declared huge", append(binary.BigEndian.AppendUint64([]byte{fin | opText, 0xff}, 1<<50), 1, 2, 3, 4), 1009, "message_too_big"},
		{"not masked", []byte{fin | opText, 2, '{', '}'}, 1002, "protocol_error"},
		{"close", maskedFrame(fin|opClose, []byte{3, 232, 'b', 'y', 'e'}), 1000, "client_close"},
		{"close of a browser", maskedFrame(fin|opClose, []byte{0x0b, 0xb8}), 3000, "client_close"},
		{"close without a code", maskedFrame(fin|opClose, nil), 1005, "client_close"},
		{"close with an illegal code", maskedFrame(fin|opClose, []byte{3, 236}), 1002, "protocol_error"},
		{"close in the middle of a message", frames(maskedFrame(opText, []byte("a")), maskedFrame(fin|opClose, []byte{3, 233})), 1001, "client_close"},
		{"more behind the close", frames(maskedFrame(fin|opClose, []byte{3, 232}), maskedFrame(fin|opPing, nil), maskedFrame(fin|opClose, nil)), 1000, "client_close"},
	} {
		t.Run(k.name, func(t *testing.T) {
			r := start(t, config())
			c := r.dial(t, "/ws")
			c.expect(t, "welcome")
			if err := c.writeRaw(k.data); err != nil {
				t.Fatal(err)
			}
			c.expectClose(t, k.code)
			r.ended(t, k.reason)
		})
	}
}

// TestEndsOfBinary: the same for what only the binary subprotocol has.
func TestEndsOfBinary(t *testing.T) {
	for _, k := range []struct {
		name   string
		data   []byte
		code   int
		reason string
	}{
		{"text", maskedFrame(fin|opText, []byte("{}")), 1003, "text_frame"},
		{"no protobuf", maskedFrame(fin|opBin, []byte("{}")), 4500, "bad_binary_frame"},
		{"cut off", maskedFrame(fin|opBin, []byte{0x42, 3, 0x0a, 1}), 4500, "bad_binary_frame"},
		{"too large", maskedFrame(fin|opBin, make([]byte, 2<<20+1)), 1009, "message_too_big"},
	} {
		t.Run(k.name, func(t *testing.T) {
			r := start(t, config())
			c, err := dial(r.addr, "/ws", clientOptions{proto: true})
			if err != nil {
				t.Fatal(err)
			}
			c.expect(t, "welcome")
			if err := c.writeRaw(k.data); err != nil {
				t.Fatal(err)
			}
			c.expectClose(t, k.code)
			r.ended(t, k.reason)
		})
	}
}

// TestClientEOF: a FIN or reset without a close frame ends the session, which is not told as ours.
func TestClientEOF(t *testing.T) {
	r := start(t, config())
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	if err := c.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	c.deadline(t)
	if op, _, err := c.read(); err == nil {
		t.Errorf("got a frame of opcode %d, want the end", op)
	}
	r.ended(t, "client_eof")
}

func TestReset(t *testing.T) {
	r := start(t, config())
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	_ = c.conn.SetLinger(0)
	c.conn.Close()
	r.ended(t, "network_error")
}
