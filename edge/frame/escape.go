package frame

import (
	"strconv"
	"unicode/utf8"
)

// appendString appends s as a JSON string; see appendText.
func appendString(dst []byte, s string) []byte { return appendText(dst, []byte(s)) }

// appendText appends b as a JSON string. What is not UTF-8 becomes U+FFFD, so that the frame stays a legal text frame.
func appendText(dst, b []byte) []byte {
	dst = append(dst, '"')
	from := 0
	for i := plainUntil(b, 0); i < len(b); i = plainUntil(b, i) {
		if c := b[i]; c < utf8.RuneSelf {
			dst = appendEscape(append(dst, b[from:i]...), c)
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(append(dst, b[from:i]...), "\uFFFD"...)
			from = i + 1
		}
		i += n
	}
	return append(append(dst, b[from:]...), '"')
}

// appendEscape appends the escape of a quote, a backslash or a control character.
func appendEscape(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	default:
		dst = append(dst, '\\', 'u', '0', '0')
		if c < 0x10 {
			dst = append(dst, '0')
		}
		return strconv.AppendUint(dst, uint64(c), 16)
	}
}
