package edge

import (
	"encoding/binary"

	"github.com/gobwas/ws"
)

// appendFrame appends a whole unmasked frame.
func appendFrame(dst []byte, op ws.OpCode, payload []byte) []byte {
	return append(appendHeader(dst, op, len(payload)), payload...)
}

// appendHeader appends the header of an unfragmented, unmasked frame (RFC 6455, section 5.2).
func appendHeader(dst []byte, op ws.OpCode, n int) []byte {
	dst = append(dst, 0x80|byte(op))
	switch {
	case n < 126:
		return append(dst, byte(n))
	case n <= 0xffff:
		return binary.BigEndian.AppendUint16(append(dst, 126), uint16(n))
	default:
		return binary.BigEndian.AppendUint64(append(dst, 127), uint64(n))
	}
}
