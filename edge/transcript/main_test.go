package transcript_test

import (
	"flag"
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var full = flag.Bool("edge.full", false, "run the proofs at full size")

// patience is how long anything may take before a test gives up: far more than it needs.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	var lim syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim); err == nil {
		lim.Cur = lim.Max
		_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &lim)
	}
	goleak.VerifyTestMain(m)
}

// size picks the CI size or the full size.
func size(ci, whole int) int {
	if *full {
		return whole
	}
	return ci
}

func proof(t testing.TB, format string, args ...any) {
	t.Helper()
	which := "CI size"
	if *full {
		which = "full size"
	}
	fmt.Printf("proof %s (%s): %s\n", t.Name(), which, fmt.Sprintf(format, args...))
}

// await polls until ok.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for until := time.Now().Add(patience); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
