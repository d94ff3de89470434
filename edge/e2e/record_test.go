package e2e_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
)

// record is a record as any of the clients sees it. A nil key, value or header value is absent, which is not the same as empty.
type record struct {
	partition int32
	offset    int64
	time      int64 // Unix milliseconds
	key       []byte
	value     []byte
	headers   []header
}

type header struct {
	name  string
	value []byte
}

func (r *record) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d time %d key %s value %s headers [", r.partition, r.offset, r.time, show(r.key), show(r.value))
	for i, h := range r.headers {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q: %s", h.name, show(h.value))
	}
	b.WriteString("]")
	return b.String()
}

func show(p []byte) string {
	switch {
	case p == nil:
		return "absent"
	case len(p) > 48:
		return fmt.Sprintf("%q… (%d bytes)", p[:48], len(p))
	default:
		return fmt.Sprintf("%q", p)
	}
}

var seed = maphash.MakeSeed()

// mark stands for a record: its offset and a hash of everything in it.
type mark struct {
	offset int64
	sum    uint64
}

func (r *record) mark() mark {
	buf := make([]byte, 0, 64+len(r.key)+len(r.value))
	buf = binary.LittleEndian.AppendUint32(buf, uint32(r.partition))
	buf = binary.LittleEndian.AppendUint64(buf, uint64(r.time))
	buf = appendField(buf, r.key)
	buf = appendField(buf, r.value)
	for _, h := range r.headers {
		buf = appendField(buf, []byte(h.name))
		buf = appendField(buf, h.value)
	}
	return mark{offset: r.offset, sum: maphash.Bytes(seed, buf)}
}

func appendField(buf, field []byte) []byte {
	length := uint64(len(field))
	if field == nil {
		length = 1 << 63
	}
	return append(binary.LittleEndian.AppendUint64(buf, length), field...)
}

// tape is what somebody got of a topic, in order, by partition.
type tape struct {
	marks map[int32][]mark
	whole map[int32][]record // only if records are kept
}

func newTape(keep bool) *tape {
	t := &tape{marks: map[int32][]mark{}}
	if keep {
		t.whole = map[int32][]record{}
	}
	return t
}

func (t *tape) add(r *record) {
	t.marks[r.partition] = append(t.marks[r.partition], r.mark())
	if t.whole != nil {
		t.whole[r.partition] = append(t.whole[r.partition], *r)
	}
}

func (t *tape) count() int {
	n := 0
	for _, marks := range t.marks {
		n += len(marks)
	}
	return n
}

// only returns the part of the tape whose records pass; the tape must keep its records.
func (t *tape) only(pass func(*record) bool) *tape {
	out := newTape(true)
	for _, p := range slices.Sorted(maps.Keys(t.whole)) {
		for i := range t.whole[p] {
			if r := &t.whole[p][i]; pass(r) {
				out.add(r)
			}
		}
	}
	return out
}

// since returns the part of the tape at and after the given positions; partitions that are not named are whole.
func (t *tape) since(from map[int32]int64) *tape {
	out := newTape(t.whole != nil)
	for p, marks := range t.marks {
		i, _ := slices.BinarySearchFunc(marks, from[p], func(m mark, at int64) int { return int(m.offset - at) })
		out.marks[p] = marks[i:]
		if t.whole != nil {
			out.whole[p] = t.whole[p][i:]
		}
	}
	return out
}

// diff tells how the tape departs from want: the first difference of each of up to three partitions; "" if they are the same.
func (t *tape) diff(want *tape) string {
	parts := map[int32]bool{}
	for p := range t.marks {
		parts[p] = true
	}
	for p := range want.marks {
		parts[p] = true
	}
	var out []string
	for _, p := range slices.Sorted(maps.Keys(parts)) {
		if d := t.diffPartition(want, p); d != "" && len(out) < 3 {
			out = append(out, d)
		}
	}
	return strings.Join(out, "\n")
}

func (t *tape) diffPartition(want *tape, p int32) string {
	g, w := t.marks[p], want.marks[p]
	for i := range min(len(g), len(w)) {
		if g[i] == w[i] {
			continue
		}
		what := "differs from"
		switch {
		case g[i].offset > w[i].offset:
			what = "comes where the log has (lost)"
		case g[i].offset < w[i].offset:
			what = "comes (twice, or not in the log) where the log has"
		}
		return fmt.Sprintf("partition %d, record %d of %d: got %s, which %s %s", p, i, len(w), t.name(p, i), what, want.name(p, i))
	}
	switch {
	case len(g) < len(w):
		return fmt.Sprintf("partition %d: got %d records of %d, the first that is missing is %s", p, len(g), len(w), want.name(p, len(g)))
	case len(g) > len(w):
		return fmt.Sprintf("partition %d: got %d records, the log has %d, the first too many is %s", p, len(g), len(w), t.name(p, len(w)))
	}
	return ""
}

func (t *tape) name(p int32, i int) string {
	if t.whole != nil {
		return t.whole[p][i].String()
	}
	return fmt.Sprintf("offset %d (sum %x)", t.marks[p][i].offset, t.marks[p][i].sum)
}

func cloneBytes(p []byte) []byte {
	if p == nil {
		return nil
	}
	return append([]byte{}, bytes.Clone(p)...)
}
