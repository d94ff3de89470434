package frame

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"tailrace.dev/tailrace/edge/wire"
)

// strict walks an encoded message before anything is made of it. protobuf's own decoder would keep unknown fields, cut numbers to 32 bits, take
// the last of several, and make a million elements of a message of two megabytes; here the first of such is a fault, as in the JSON form.
type strict struct {
	fail fault
}

// place is where a field lies. Its name is put together only for a fault.
type place struct {
	in *place // the message's own field; nil for the outermost
	fd protoreflect.FieldDescriptor
}

func (p *place) String() string {
	if p == nil {
		return ""
	}
	if p.in == nil {
		return string(p.fd.Name())
	}
	return p.in.String() + "." + string(p.fd.Name())
}

func (c *strict) wrong(at *place, problem string) {
	if c.fail.problem == "" {
		c.fail.set(at.String(), problem)
	}
}

func (c *strict) tooMany(at *place) {
	c.wrong(at, fmt.Sprintf("must have at most %d elements", maxElements))
}

// message walks b, a message of type d that lies in a field. It is false if b is no protobuf.
func (c *strict) message(d protoreflect.MessageDescriptor, b []byte, in *place) bool {
	fields := d.Fields()
	var counts []int // by field
	var few [8]int   // spares the heap
	if n := fields.Len(); n <= len(few) {
		counts = few[:n]
	} else {
		counts = make([]int, n)
	}
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		fd := fields.ByNumber(f.Num)
		if fd == nil {
			c.unknown(in, f.Num)
			continue
		}
		at := place{in, fd}
		packed := fd.IsList() && f.Type == protowire.BytesType && wireType(fd.Kind()) != protowire.BytesType
		if f.Type != wireType(fd.Kind()) && !packed {
			c.wrong(&at, "is of another type")
			continue
		}
		count := &counts[fd.Index()]
		switch *count++; {
		case packed:
			if !c.packed(&at, f.Data, count) {
				return false
			}
		case !fd.IsList() && *count > 1, c.armsGiven(fd, counts) > 1:
			c.wrong(&at, "is given twice, or beside another one")
		case fd.IsList() && *count > maxElements:
			c.tooMany(&at)
			return true // nothing more of it counts
		case !c.value(&at, &f):
			return false
		}
	}
	return true
}

// unknown names a field by its number.
func (c *strict) unknown(in *place, num protowire.Number) {
	name := strconv.Itoa(int(num))
	if in != nil {
		name = in.String() + "." + name
	}
	c.fail.set(name, "unknown field")
}

// armsGiven is how many fields of fd's oneof have come.
func (c *strict) armsGiven(fd protoreflect.FieldDescriptor, counts []int) (n int) {
	one := fd.ContainingOneof()
	if one == nil || one.IsSynthetic() {
		return 0
	}
	for i := range one.Fields().Len() {
		n += counts[one.Fields().Get(i).Index()]
	}
	return n
}

// value judges one value; false if it is no protobuf.
func (c *strict) value(at *place, f *wire.Field) bool {
	switch at.fd.Kind() {
	case protoreflect.MessageKind:
		return c.message(at.fd.Message(), f.Data, at)
	case protoreflect.StringKind:
		if !utf8.Valid(f.Data) {
			c.wrong(at, "is not UTF-8")
		}
	case protoreflect.Int32Kind, protoreflect.EnumKind:
		c.small(f.N, at)
	default:
	}
	return true
}

// packed judges the numbers of a packed field, and counts them.
func (c *strict) packed(at *place, b []byte, count *int) bool {
	*count--
	for len(b) > 0 {
		v, n := protowire.ConsumeVarint(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		if *count++; *count > maxElements {
			c.tooMany(at)
			return true
		}
		if at.fd.Kind() == protoreflect.Int32Kind {
			c.small(v, at)
		}
	}
	return true
}

func (c *strict) small(v uint64, at *place) {
	if n := int64(v); n < math.MinInt32 || n > math.MaxInt32 {
		c.wrong(at, "must be an integer of 32 bits")
	}
}

// wireType is how a value is encoded; the schema of a client's messages has no other kinds.
func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	default:
		return protowire.VarintType
	}
}
