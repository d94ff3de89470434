package hub

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxGroupName is the longest name of a group, in bytes.
const MaxGroupName = 249

// GroupProblem says what is wrong with a name of a group; empty: nothing. Kafka takes any text that is not blank, but librdkafka reads a name only up
// to a NUL: one that a rule allows as a whole would be another group. Of names that look alike, one is enough.
func GroupProblem(name string) string {
	switch {
	case name == "":
		return "is required"
	case len(name) > MaxGroupName:
		return fmt.Sprintf("is longer than %d bytes", MaxGroupName)
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }): // NUL is one
		return "has a character that cannot be printed, or a blank other than a space"
	case strings.TrimSpace(name) != name:
		return "begins or ends with a blank"
	}
	return ""
}
