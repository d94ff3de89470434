// Package size reads and writes numbers of bytes as flags have them.
package size

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a flag.Value, written as 1048576, 256MiB, 1GiB, 500kB or 2GB.
type Bytes int64

// The longest suffix first, since B ends all of them.
var units = []struct { //nolint:gochecknoglobals // constant
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10},
	{"MiB", 1 << 20},
	{"GiB", 1 << 30},
	{"kB", 1e3},
	{"MB", 1e6},
	{"GB", 1e9},
	{"B", 1},
	{"", 1},
}

// Set reads text; the error says what is wanted.
func (s *Bytes) Set(text string) error {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			break
		}
		*s = Bytes(n * u.bytes)
		return nil
	}
	return fmt.Errorf("want a size such as 256MiB or 1GiB")
}

// String writes the number in the largest unit that divides it.
func (s *Bytes) String() string {
	n := int64(*s)
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}
