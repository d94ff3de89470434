package wire_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"tailrace.dev/tailrace/edge/wire"
)

// FuzzField compares each step with protowire.
func FuzzField(f *testing.F) {
	f.Add([]byte{0x08, 0x01, 0x12, 0x00, 0x12, 0x02, 'a', 'b'})
	f.Add([]byte{0x12, 0x80, 0x01})
	f.Add([]byte{0xa2, 0x06, 0x01, 'x', 0x5b, 0x08, 0x01, 0x5c, 0x0d, 1, 2, 3, 4})
	f.Add([]byte{0x08})
	f.Add([]byte{0x00, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		var field wire.Field
		for len(b) > 0 {
			n := field.Next(b)
			num, typ, want := protowire.ConsumeField(b)
			if (n < 0) != (want < 0) || n >= 0 && n != want {
				t.Fatalf("%x: got %d, want %d", b, n, want)
			}
			if n < 0 {
				return
			}
			if field.Num != num || field.Type != typ {
				t.Fatalf("%x: got field %d of type %d, want %d of %d", b, field.Num, field.Type, num, typ)
			}
			_, _, tagLen := protowire.ConsumeTag(b)
			switch typ {
			case protowire.VarintType:
				if v, _ := protowire.ConsumeVarint(b[tagLen:]); v != field.N {
					t.Fatalf("%x: got %d, want %d", b, field.N, v)
				}
			case protowire.BytesType:
				if v, _ := protowire.ConsumeBytes(b[tagLen:]); !bytes.Equal(v, field.Data) || field.Data == nil {
					t.Fatalf("%x: got %x, want %x", b, field.Data, v)
				}
			default:
			}
			b = b[n:]
		}
	})
}
