package edge

import (
	"encoding/binary"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// item is what reader.next found.
type item uint8

const (
	itemNone    item = iota // all bytes are taken, nothing is complete
	itemMessage             // a whole message
	itemPing
	itemPong
	itemClose
	itemBad // the connection cannot go on; reader.bad and reader.cause say why
)

// reader takes the bytes of a client as they come, in pieces of any size, and yields messages and control frames (RFC 6455, section 5).
// Between messages it holds no memory, and within one no more than twice what has come: a declared length allocates nothing.
type reader struct {
	msg     []byte // of the message so far; nil where a whole one lies in the caller's bytes
	ctl     []byte // of the control frame so far
	left    int64  // payload bytes of the current frame still to come
	checked int    // bytes of msg known to be UTF-8
	head    [ws.MaxHeaderSize]byte
	nhead   uint8 // bytes in head; 0: none of the next frame has come
	mask    [4]byte
	phase   uint8 // place in mask
	opcode  ws.OpCode
	fin     bool
	inside  bool // a header was read, its payload is not complete
	frag    bool // a message was begun, its last frame is not complete
	bad     *reason
	cause   string
}

// next takes bytes from p, unmasking them in place, up to the first item. The payload is valid until p is reused or next is called again.
func (r *reader) next(p []byte, form *subprotocol, limit int64) (n int, it item, payload []byte) {
	if r.bad != nil {
		return len(p), itemBad, nil
	}
	if !r.inside {
		n = r.header(p)
		if !r.inside {
			return n, itemNone, nil
		}
		if !r.begin(form, limit) {
			return n, itemBad, nil
		}
	}
	k := int(min(r.left, int64(len(p)-n)))
	piece := p[n : n+k]
	n += k
	ws.Cipher(piece, r.mask, int(r.phase))
	r.phase = uint8((int(r.phase) + k) & 3)
	r.left -= int64(k)
	whole := r.left == 0
	if r.opcode.IsControl() {
		if !whole || len(r.ctl) > 0 {
			r.ctl = append(r.ctl, piece...)
			piece = r.ctl
		}
		if !whole {
			return n, itemNone, nil
		}
		r.inside, r.ctl = false, nil
		return n, controlItem(r.opcode), piece
	}
	last := whole && r.fin
	if !last || len(r.msg) > 0 {
		r.msg = append(r.msg, piece...)
		piece = r.msg
	}
	if form.opcode == ws.OpText && !r.text(piece, last) {
		return n, itemBad, nil
	}
	if whole {
		r.inside = false
	}
	if !last {
		return n, itemNone, nil
	}
	r.msg, r.checked, r.frag = nil, 0, false
	return n, itemMessage, piece
}

func controlItem(op ws.OpCode) item {
	switch op {
	case ws.OpPing:
		return itemPing
	case ws.OpPong:
		return itemPong
	default:
		return itemClose
	}
}

// header gathers a frame header and takes as much of p as belongs to it.
func (r *reader) header(p []byte) (n int) {
	for n < len(p) {
		if r.nhead >= 2 && int(r.nhead) == headerSize(r.head[1]) {
			break
		}
		r.head[r.nhead] = p[n]
		r.nhead++
		n++
	}
	r.inside = r.nhead >= 2 && int(r.nhead) == headerSize(r.head[1])
	return n
}

// headerSize is the size of a header by its second byte.
func headerSize(b byte) int {
	n := 2
	switch b & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if b&0x80 != 0 {
		n += 4
	}
	return n
}

// begin judges a complete header.
func (r *reader) begin(form *subprotocol, limit int64) bool {
	h := ws.Header{
		Fin: r.head[0]&0x80 != 0, Rsv: r.head[0] >> 4 & 7, OpCode: ws.OpCode(r.head[0] & 0xf), Masked: r.head[1]&0x80 != 0,
		Length: int64(r.head[1] & 0x7f),
	}
	switch h.Length {
	case 126:
		h.Length = int64(binary.BigEndian.Uint16(r.head[2:]))
		if h.Length < 126 {
			return r.fail(&endProtocol, "frame length is not in its shortest form")
		}
	case 127:
		long := binary.BigEndian.Uint64(r.head[2:])
		if long>>63 != 0 || long <= 0xffff {
			return r.fail(&endProtocol, "frame length is not in its shortest form, or has its highest bit set")
		}
		h.Length = int64(long)
	}
	state := ws.StateServerSide
	if r.frag {
		state = state.Set(ws.StateFragmented)
	}
	if err := ws.CheckHeader(h, state); err != nil {
		return r.fail(&endProtocol, err.Error())
	}
	if (h.OpCode == ws.OpText || h.OpCode == ws.OpBinary) && h.OpCode != form.opcode {
		return r.fail(form.other, "")
	}
	if !h.OpCode.IsControl() {
		if h.Length > limit-int64(len(r.msg)) {
			return r.fail(&endMessageTooBig, "")
		}
		r.frag = true
	}
	copy(r.mask[:], r.head[r.nhead-4:r.nhead])
	r.opcode, r.fin, r.left, r.phase, r.nhead = h.OpCode, h.Fin, h.Length, 0, 0
	return true
}

// text checks what is new of a message to be UTF-8, as early as it can be known (a character may be split between frames).
func (r *reader) text(msg []byte, last bool) bool {
	fresh := msg[r.checked:]
	if utf8.Valid(fresh) {
		r.checked = len(msg)
		return true
	}
	for i := max(0, len(fresh)-utf8.UTFMax+1); !last && i < len(fresh); i++ {
		if !utf8.FullRune(fresh[i:]) && utf8.Valid(fresh[:i]) {
			r.checked += i
			return true
		}
	}
	return r.fail(&endInvalidUTF8, "")
}

func (r *reader) fail(why *reason, cause string) bool {
	r.bad, r.cause = why, cause
	r.msg, r.ctl = nil, nil
	return false
}
