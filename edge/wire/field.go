// Package wire walks the bytes of protobuf messages without decoding them: what an edge sends on and renders was encoded once, by the
// service, and is not unpacked on its way.
package wire

import "google.golang.org/protobuf/encoding/protowire"

// Field is one field of a message: N holds it for protowire.VarintType, Data for protowire.BytesType. Fields of other types are passed over as
// unknown ones are.
type Field struct {
	Num  protowire.Number
	Type protowire.Type
	N    uint64
	Data []byte // lies in the message; not nil, even when empty
}

// Next reads the field at the beginning of b and returns its length; negative if b is malformed there.
func (f *Field) Next(b []byte) int {
	if len(b) >= 2 && b[0] >= 1<<3 && b[0] < 0x80 && b[1] < 0x80 { // one byte each: nearly always
		f.Num, f.Type = protowire.Number(b[0]>>3), protowire.Type(b[0]&7)
		switch f.Type {
		case protowire.VarintType:
			f.N = uint64(b[1])
			return 2
		case protowire.BytesType:
			end := 2 + int(b[1])
			if end > len(b) {
				return -1
			}
			f.Data = b[2:end:end]
			return end
		default:
		}
	}
	num, typ, tagLen := protowire.ConsumeTag(b)
	if tagLen < 0 {
		return -1
	}
	f.Num, f.Type = num, typ
	var n int
	switch typ {
	case protowire.VarintType:
		f.N, n = protowire.ConsumeVarint(b[tagLen:])
	case protowire.BytesType:
		f.Data, n = protowire.ConsumeBytes(b[tagLen:])
	default:
		n = protowire.ConsumeFieldValue(num, typ, b[tagLen:])
	}
	if n < 0 {
		return -1
	}
	return tagLen + n
}
