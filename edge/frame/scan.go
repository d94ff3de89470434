package frame

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Depths of nesting. A value is embedded three levels deep in a frame, and readers such as encoding/json stop at 10,000.
const (
	maxDepth      = 10_000
	maxValueDepth = maxDepth - 4
)

// validJSON says whether b is one JSON text (RFC 8259) in UTF-8 without white space around it, nested at most depth deep.
func validJSON(b []byte, depth int) bool {
	return scanValue(b, 0, depth) == len(b)
}

// scanValue returns the index after the value that begins at b[i], -1 if there is none. It checks structure and UTF-8 in one pass.
func scanValue(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch c := b[i]; c {
	case '"':
		return scanString(b, i+1)
	case '{':
		if depth == 0 {
			return -1
		}
		return scanObject(b, i+1, depth-1)
	case '[':
		if depth == 0 {
			return -1
		}
		return scanArray(b, i+1, depth-1)
	case 't':
		return scanLiteral(b, i, "true")
	case 'f':
		return scanLiteral(b, i, "false")
	case 'n':
		return scanLiteral(b, i, "null")
	default:
		if c == '-' || isDigit(c) {
			return scanNumber(b, i)
		}
		return -1
	}
}

// scanObject continues after the opening brace.
func scanObject(b []byte, i, depth int) int {
	i = skipSpace(b, i)
	if i < len(b) && b[i] == '}' {
		return i + 1
	}
	for i < len(b) && b[i] == '"' {
		if i = scanString(b, i+1); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return -1
		}
		if i = scanValue(b, skipSpace(b, i+1), depth); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case '}':
			return i + 1
		case ',':
			i = skipSpace(b, i+1)
		default:
			return -1
		}
	}
	return -1
}

// scanArray continues after the opening bracket.
func scanArray(b []byte, i, depth int) int {
	i = skipSpace(b, i)
	if i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if i = scanValue(b, i, depth); i < 0 {
			return -1
		}
		if i = skipSpace(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ']':
			return i + 1
		case ',':
			i = skipSpace(b, i+1)
		default:
			return -1
		}
	}
}

// scanString continues after the opening quote.
func scanString(b []byte, i int) int {
	for {
		if i = plainUntil(b, i); i >= len(b) {
			return -1
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1
		case c == '\\':
			if i = scanEscape(b, i+1); i < 0 {
				return -1
			}
		case c < utf8.RuneSelf: // a control character
			return -1
		default:
			r, n := utf8.DecodeRune(b[i:])
			if r == utf8.RuneError && n == 1 {
				return -1
			}
			i += n
		}
	}
}

// scanEscape continues after the backslash.
func scanEscape(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if i+4 >= len(b) {
			return -1
		}
		for _, c := range b[i+1 : i+5] {
			if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'f') {
				return -1
			}
		}
		return i + 5
	default:
		return -1
	}
}

func scanNumber(b []byte, i int) int {
	if b[i] == '-' {
		i++
	}
	switch {
	case i < len(b) && b[i] == '0':
		i++
	case i < len(b) && isDigit(b[i]):
		i = skipDigits(b, i)
	default:
		return -1
	}
	if i < len(b) && b[i] == '.' {
		from := i + 1
		if i = skipDigits(b, from); i == from {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		from := i
		if i = skipDigits(b, from); i == from {
			return -1
		}
	}
	return i
}

func scanLiteral(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	return i
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// plainUntil returns the index of the first byte from i on that a JSON string does not hold as it is, or that begins a character of several
// bytes: a quote, a backslash, a control character, or anything from 0x80 on. len(b) if there is none.
func plainUntil(b []byte, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		// Eight bytes at once: the top bit of a byte becomes set where it is special. Borrows reach only bytes above the first such one, so
		// the lowest set bit is exact.
		x := binary.LittleEndian.Uint64(b[i:])
		if m := (x | (x - ones*0x20) | ((x ^ ones*'"') - ones) | ((x ^ ones*'\\') - ones)) & tops; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return i
		}
	}
	return i
}
