package frame

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxNumber is the largest integer that every JSON reader keeps exact.
const maxNumber = 1<<53 - 1

// maxElements bounds every array: a message has room for a million elements, none of which is to cost anything.
const maxElements = maxPartitions

// fault is the first thing that is wrong with a request.
type fault struct {
	field, problem string
}

func (f *fault) set(field, problem string) {
	if f.problem == "" {
		f.field, f.problem = field, problem
	}
}

// object is a JSON object whose members are taken one by one; those that are left are unknown. Names are matched exactly: encoding/json
// would ignore their case and take the last of several. Faults go to fail, which the objects of one request share.
type object struct {
	path    string // "" or "start."
	members []member
	fail    *fault
}

type member struct {
	name string
	raw  []byte // its value, without white space around it; nil when taken
}

// readObject reads the object that is the whole of b, white space aside. Without ok it is not a JSON object. A name that comes twice, or that is
// not text, is a fault.
func readObject(b []byte, path string, fail *fault) (o *object, ok bool) {
	o = &object{path: path, fail: fail}
	i := skipSpace(b, 0)
	end := scanValue(b, i, maxDepth)
	if end < 0 || b[i] != '{' || skipSpace(b, end) != len(b) {
		return nil, false
	}
	o.members = make([]member, 0, 8)
	for i = skipSpace(b, i+1); b[i] != '}'; i = skipSpace(b, i) {
		if b[i] == ',' {
			i = skipSpace(b, i+1)
		}
		nameEnd := scanString(b, i+1)
		name, err := unquote(b[i:nameEnd])
		if err != nil {
			fail.set(path+clip(name), "name: "+err.Error())
		}
		i = skipSpace(b, skipSpace(b, nameEnd)+1)
		valueEnd := scanValue(b, i, maxDepth)
		o.members = append(o.members, member{name: name, raw: b[i:valueEnd:valueEnd]})
		i = valueEnd
	}
	o.refuseTwice()
	return o, true
}

func (o *object) refuseTwice() {
	if len(o.members) <= 8 {
		for i := range o.members {
			for j := range o.members[:i] {
				if o.members[i].name == o.members[j].name {
					o.fail.set(o.path+clip(o.members[i].name), "is given twice")
				}
			}
		}
		return
	}
	seen := make(map[string]struct{}, len(o.members))
	for i := range o.members {
		if _, twice := seen[o.members[i].name]; twice {
			o.fail.set(o.path+clip(o.members[i].name), "is given twice")
		}
		seen[o.members[i].name] = struct{}{}
	}
}

// take returns the value of a member, nil if there is none, and marks it as known.
func (o *object) take(name string) []byte {
	for i := range o.members {
		if m := &o.members[i]; m.name == name && m.raw != nil {
			raw := m.raw
			m.raw = nil
			return raw
		}
	}
	return nil
}

// refuseRest makes the first member that was not taken a fault.
func (o *object) refuseRest() {
	for i := range o.members {
		if o.members[i].raw != nil {
			o.fail.set(o.path+clip(o.members[i].name), "unknown field")
			return
		}
	}
}

func (o *object) wrong(name, problem string) { o.fail.set(o.path+name, problem) }

// text takes a string; ok is false where there is none, or it is wrong.
func (o *object) text(name string) (s string, ok bool) {
	raw := o.take(name)
	if raw == nil {
		return "", false
	}
	return o.textOf(name, raw)
}

func (o *object) textOf(name string, raw []byte) (string, bool) {
	if raw[0] != '"' {
		o.wrong(name, "must be a string")
		return "", false
	}
	s, err := unquote(raw)
	if err != nil {
		o.wrong(name, err.Error())
		return "", false
	}
	return s, true
}

// required takes a string that must be there and not be empty.
func (o *object) required(name string) string {
	s, ok := o.text(name)
	if !ok || s == "" {
		o.wrong(name, "is required")
	}
	return s
}

// id takes an id, which is required. It returns "" for one that is wrong.
func (o *object) id() string {
	raw := o.take("id")
	if raw == nil {
		o.wrong("id", "is required")
		return ""
	}
	s, ok := o.textOf("id", raw)
	if !ok {
		return ""
	}
	if n := utf8.RuneCountInString(s); n < 1 || n > MaxID {
		o.wrong("id", fmt.Sprintf("must have 1 to %d characters", MaxID))
		return ""
	}
	return s
}

// number takes an integer from least to most; ok is false where there is none, or it is wrong.
func (o *object) number(name string, least, most int64) (n int64, ok bool) {
	raw := o.take(name)
	if raw == nil {
		return 0, false
	}
	return o.numberOf(name, raw, least, most)
}

func (o *object) numberOf(name string, raw []byte, least, most int64) (int64, bool) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil || n < least || n > most {
		o.wrong(name, fmt.Sprintf("must be an integer from %d to %d", least, most))
		return 0, false
	}
	return n, true
}

// array takes an array and returns its elements; ok is false where there is none, or it is wrong.
func (o *object) array(name string) (elements [][]byte, ok bool) {
	raw := o.take(name)
	if raw == nil {
		return nil, false
	}
	return o.arrayOf(name, raw)
}

func (o *object) arrayOf(name string, raw []byte) (elements [][]byte, ok bool) {
	if raw[0] != '[' {
		o.wrong(name, "must be an array")
		return nil, false
	}
	for i := skipSpace(raw, 1); raw[i] != ']'; i = skipSpace(raw, i) {
		if raw[i] == ',' {
			i = skipSpace(raw, i+1)
		}
		if len(elements) == maxElements {
			o.wrong(name, fmt.Sprintf("must have at most %d elements", maxElements))
			return nil, false
		}
		end := scanValue(raw, i, maxDepth)
		elements = append(elements, raw[i:end:end])
		i = end
	}
	return elements, true
}

// object takes an object; nil where there is none, or it is wrong.
func (o *object) object(name string) *object {
	raw := o.take(name)
	if raw == nil {
		return nil
	}
	return o.objectOf(name, raw)
}

func (o *object) objectOf(name string, raw []byte) *object {
	sub, ok := readObject(raw, o.path+name+".", o.fail)
	if !ok {
		o.wrong(name, "must be an object")
		return nil
	}
	return sub
}

// bytesOf reads a string, or {"base64":…}.
func (o *object) bytesOf(name string, raw []byte) ([]byte, bool) {
	if raw[0] != '{' {
		if raw[0] != '"' {
			o.wrong(name, `must be a string or {"base64":"…"}`)
			return nil, false
		}
		s, ok := o.textOf(name, raw)
		return []byte(s), ok
	}
	sub := o.objectOf(name, raw)
	if sub == nil {
		return nil, false
	}
	s, ok := sub.text("base64")
	if !ok {
		sub.wrong("base64", "is required")
	}
	sub.refuseRest()
	return sub.decodeBase64("base64", s)
}

func (o *object) decodeBase64(name, s string) ([]byte, bool) {
	b, err := decodeBase64(s)
	if err != nil {
		o.wrong(name, err.Error())
		return nil, false
	}
	return b, true
}

// decodeBase64 reads both alphabets of RFC 4648, with or without padding.
func decodeBase64(s string) ([]byte, error) {
	s = strings.NewReplacer("-", "+", "_", "/").Replace(s)
	if n := len(s) % 4; n == 0 {
		s = strings.TrimSuffix(strings.TrimSuffix(s, "="), "=")
	}
	if strings.ContainsAny(s, "\r\n") { // the standard library skips them
		return nil, errBase64
	}
	b, err := base64.RawStdEncoding.Strict().DecodeString(s)
	if err != nil {
		return nil, errBase64
	}
	return b, nil
}

var (
	errBase64    = errors.New("is not base64")
	errSurrogate = errors.New("holds half of a surrogate pair, which stands for no character")
)

// unquote decodes a valid JSON string. Half a surrogate pair is an error: as U+FFFD it would silently be another string.
func unquote(raw []byte) (string, error) {
	raw = raw[1 : len(raw)-1]
	i := bytes.IndexByte(raw, '\\')
	if i < 0 {
		return string(raw), nil
	}
	out := append(make([]byte, 0, len(raw)), raw[:i]...)
	for i < len(raw) {
		c := raw[i]
		if c != '\\' {
			out = append(out, c)
			i++
			continue
		}
		c = raw[i+1]
		i += 2
		switch c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(raw[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				if len(raw)-i < 6 || raw[i] != '\\' || raw[i+1] != 'u' {
					return string(out), errSurrogate
				}
				if r = utf16.DecodeRune(r, hex4(raw[i+2:])); r == utf8.RuneError {
					return string(out), errSurrogate
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default: // quote, backslash, slash
			out = append(out, c)
		}
	}
	return string(out), nil
}

func hex4(b []byte) rune {
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	if err != nil {
		return math.MaxInt16 // not reached: the text is valid
	}
	return rune(n)
}

// clip shortens a name that a client chose, for a message.
func clip(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
