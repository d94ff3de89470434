package edge_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"unicode/utf8"

	"tailrace.dev/tailrace/edge"
)

const fin = 0x80

// parsed is what came of some bytes: messages, controls in order, and the close code of a failure.
type parsed struct {
	items []string
	bad   int
}

// parse feeds bytes in pieces of n.
func parse(data []byte, n int, limit int64) parsed { return parseIn(new(edge.Reader), data, n, limit) }

func parseIn(r *edge.Reader, data []byte, n int, limit int64) parsed {
	var p parsed
	data = append([]byte(nil), data...)
	for len(data) > 0 {
		piece := data[:min(n, len(data))]
		data = data[len(piece):]
		for len(piece) > 0 {
			k, it, payload := r.Next(piece, limit)
			piece = piece[k:]
			switch it {
			case edge.ItemMessage:
				p.items = append(p.items, "message "+string(payload))
			case edge.ItemPing:
				p.items = append(p.items, "ping "+string(payload))
			case edge.ItemPong:
				p.items = append(p.items, "pong "+string(payload))
			case edge.ItemClose:
				p.items = append(p.items, "close "+string(payload))
			case edge.ItemBad:
				p.bad, _ = r.Bad()
				return p
			}
		}
	}
	return p
}

// TestReaderOfBinary: what is in a message is its codec's business.
func TestReaderOfBinary(t *testing.T) {
	t.Parallel()
	f := maskedFrame
	for _, c := range []struct {
		name string
		data []byte
		want string
		bad  int
	}{
		{"binary", f(fin|opBin, []byte("\xff\x00")), "message \xff\x00", 0},
		{"fragments", frames(f(opBin, []byte("\xe2")), f(fin|opPing, nil), f(fin, []byte("\xff"))), "ping |message \xe2\xff", 0},
		{"text", f(fin|opText, []byte("x")), "", 1003},
		{"text after binary", frames(f(fin|opBin, nil), f(opText, nil)), "message ", 1003},
		{"text within binary", frames(f(opBin, nil), f(fin|opText, nil)), "", 1002},
	} {
		for _, n := range []int{1, 3, 64 << 10} {
			got := parseIn(edge.NewBinaryReader(), c.data, n, 1<<20)
			if items := strings.Join(got.items, "|"); items != c.want || got.bad != c.bad {
				t.Errorf("%s in pieces of %d: got %.80q and %d, want %.80q and %d", c.name, n, items, got.bad, c.want, c.bad)
			}
		}
	}
}

func frames(fs ...[]byte) []byte { return bytes.Join(fs, nil) }

func TestReader(t *testing.T) {
	t.Parallel()
	f := maskedFrame
	unmasked := []byte{fin | opText, 1, 'x'}
	long := strings.Repeat("é", 40000)
	huge := binary.BigEndian.AppendUint64([]byte{fin | opText, 0x80 | 127}, 1<<62)
	huge = append(huge, 1, 2, 3, 4, 'x')
	for _, c := range []struct {
		name string
		data []byte
		want []string
		bad  int
	}{
		{"text", f(fin|opText, []byte("hello")), []string{"message hello"}, 0},
		{"empty text", f(fin|opText, nil), []string{"message "}, 0},
		{"16-bit length", f(fin|opText, []byte(long[:300])), []string{"message " + long[:300]}, 0},
		{"64-bit length", f(fin|opText, []byte(long)), []string{"message " + long}, 0},
		{"two", frames(f(fin|opText, []byte("a")), f(fin|opText, []byte("b"))), []string{"message a", "message b"}, 0},
		{"fragments", frames(f(opText, []byte("a")), f(0, []byte("b")), f(fin, []byte("c"))), []string{"message abc"}, 0},
		{"empty fragments", frames(f(opText, nil), f(0, nil), f(fin, nil)), []string{"message "}, 0},
		{
			"controls between fragments",
			frames(f(opText, []byte("a")), f(fin|opPing, []byte("p")), f(0, nil), f(fin|opPong, nil), f(fin, []byte("b"))),
			[]string{"ping p", "pong ", "message ab"}, 0,
		},
		{"a character split between fragments", frames(f(opText, []byte("\xe2\x82")), f(fin, []byte("\xac"))), []string{"message €"}, 0},
		{"close", f(fin|opClose, []byte{3, 232}), []string{"close \x03\xe8"}, 0},
		{"ping of 125", f(fin|opPing, bytes.Repeat([]byte("x"), 125)), []string{"ping " + strings.Repeat("x", 125)}, 0},

		{"not masked", unmasked, nil, 1002},
		{"binary", f(fin|opBin, []byte("x")), nil, 1003},
		{"reserved bit", f(fin|0x40|opText, []byte("x")), nil, 1002},
		{"reserved opcode", f(fin|3, nil), nil, 1002},
		{"reserved control", f(fin|0xb, nil), nil, 1002},
		{"long ping", f(fin|opPing, bytes.Repeat([]byte("x"), 126)), nil, 1002},
		{"fragmented ping", f(opPing, nil), nil, 1002},
		{"continuation of nothing", f(fin, []byte("x")), nil, 1002},
		{"text within a message", frames(f(opText, []byte("a")), f(fin|opText, []byte("b"))), nil, 1002},
		{"length in 16 bits for no reason", []byte{fin | opText, 0x80 | 126, 0, 1, 1, 2, 3, 4, 0}, nil, 1002},
		{"length in 64 bits for no reason", []byte{fin | opText, 0x80 | 127, 0, 0, 0, 0, 0, 0, 1, 0, 1, 2, 3, 4}, nil, 1002},
		{"length with its highest bit", []byte{fin | opText, 0x80 | 127, 0x80, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 4}, nil, 1002},
		{"huge", huge, nil, 1009},
		{"too large", f(fin|opText, bytes.Repeat([]byte("x"), 1<<20+1)), nil, 1009},
		{
			"too large together",
			frames(f(opText, bytes.Repeat([]byte("x"), 1<<20)), f(0, nil), f(fin, []byte("x"))), nil, 1009,
		},
		{"not UTF-8", f(fin|opText, []byte("a\xffb")), nil, 1007},
		{"not UTF-8, seen before the end", f(opText, []byte("a\xffb")), nil, 1007},
		{"half a character at the end", f(fin|opText, []byte("\xe2\x82")), nil, 1007},
		{"half a character, then another", frames(f(opText, []byte("\xe2")), f(0, []byte("x"))), nil, 1007},
		{"a surrogate, seen early", f(opText, []byte("\xed\xa0")), nil, 1007},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{1, 2, 3, 7, 64 << 10, 4 << 20} {
				got := parse(c.data, n, 1<<20)
				if got.bad != c.bad || strings.Join(got.items, "|") != strings.Join(c.want, "|") {
					t.Errorf("in pieces of %d: got %.80q and %d, want %.80q and %d", n, got.items, got.bad, c.want, c.bad)
				}
			}
		})
	}
}

// TestReaderMemory: a declared length costs nothing, and between messages nothing is kept.
func TestReaderMemory(t *testing.T) {
	t.Parallel()
	var r edge.Reader
	whole := maskedFrame(fin|opText, bytes.Repeat([]byte("x"), 1<<20))
	for _, b := range [][]byte{whole[:14], whole[14:1014]} {
		if _, it, _ := r.Next(b, 2<<20); it != edge.ItemNone {
			t.Fatalf("got %v, want nothing yet", it)
		}
	}
	if got := r.Held(); got < 1000 || got > 4000 {
		t.Errorf("holds %d bytes after 1000 of 1 MiB", got)
	}
	if _, it, payload := r.Next(whole[1014:], 2<<20); it != edge.ItemMessage || len(payload) != 1<<20 {
		t.Fatalf("got %v of %d bytes", it, len(payload))
	}
	if got := r.Held(); got != 0 {
		t.Errorf("holds %d bytes between messages", got)
	}
}

// FuzzReader: any bytes, cut anywhere, give what they give in one piece, and never a message that is not UTF-8 or too large.
func FuzzReader(f *testing.F) {
	f.Add(frames(maskedFrame(opText, []byte("a")), maskedFrame(fin|opPing, nil), maskedFrame(fin, []byte("€"))), uint8(3))
	f.Add(maskedFrame(fin|opClose, []byte{3, 232}), uint8(1))
	f.Add(maskedFrame(fin|opText, bytes.Repeat([]byte("x"), 300)), uint8(200))
	f.Fuzz(func(t *testing.T, data []byte, n uint8) {
		const limit = 1000
		whole, cut := parse(data, len(data)+1, limit), parse(data, int(n)+1, limit)
		if whole.bad != cut.bad || strings.Join(whole.items, "|") != strings.Join(cut.items, "|") {
			t.Fatalf("whole %q %d, in pieces of %d %q %d", whole.items, whole.bad, n, cut.items, cut.bad)
		}
		for _, it := range whole.items {
			if text, ok := strings.CutPrefix(it, "message "); ok && (!utf8.ValidString(text) || len(text) > limit) {
				t.Fatalf("message of %d bytes: %q", len(text), text)
			}
		}
	})
}
