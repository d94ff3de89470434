package size_test

import (
	"testing"

	"tailrace.dev/tailrace/services/size"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "17": 17, "17B": 17, "1KiB": 1024, "256MiB": 256 << 20, "2 GiB": 2 << 30, "500kB": 500_000, "3MB": 3_000_000, "1GB": 1_000_000_000,
	} {
		var s size.Bytes
		if err := s.Set(text); err != nil || int64(s) != want {
			t.Errorf("%s: got %d, %v, want %d", text, s, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "-1", "1.5MiB", "1TiB", "9999999999GiB", "x"} {
		var s size.Bytes
		if err := s.Set(text); err == nil {
			t.Errorf("%q: accepted as %d", text, s)
		}
	}
	for want, n := range map[string]int64{"256MiB": 256 << 20, "1GiB": 1 << 30, "3KiB": 3 << 10, "1025B": 1025, "0B": 0} {
		s := size.Bytes(n)
		if got := s.String(); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}
