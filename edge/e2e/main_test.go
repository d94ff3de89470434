package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

var (
	full = flag.Bool("e2e.full", false, "run the proofs at full size")
	logs = flag.String("e2e.logs", "", "folder that keeps the logs of the processes; empty: they are shown when a test fails")
	race = flag.Bool("e2e.race", true, "build the binaries under test with the race detector (benchmarks never do)")
)

func TestMain(m *testing.M) {
	flag.Parse()
	code := m.Run()
	table.print(os.Stdout)
	os.Exit(code)
}

// size picks the CI size or the full size of a proof.
func size(ci, whole int) int {
	if *full {
		return whole
	}
	return ci
}

// proof prints a figure that can be quoted.
func proof(t testing.TB, format string, args ...any) {
	t.Helper()
	which := "CI size"
	if *full {
		which = "full size"
	}
	fmt.Printf("proof %s (%s): %s\n", t.Name(), which, fmt.Sprintf(format, args...))
}

// await polls until ok, and fails the test after the deadline.
func await(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	if !eventually(t.Context(), within, ok) {
		t.Fatalf("not within %v: %s", within, what)
	}
}

func eventually(ctx context.Context, within time.Duration, ok func() bool) bool {
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			return ok()
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// pause waits for a time that is part of a scenario (how long a process stays frozen), never for something to have happened.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
