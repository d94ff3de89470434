package hub_test

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seedsFlag  = flag.Int("hub.seeds", 2000, "number of random histories of the model test")
	firstFlag  = flag.Uint64("hub.first", 1, "the first of them")
	racesFlag  = flag.Int("hub.races", 3, "number and length of the races of the model test")
	hangFlag   = flag.Duration("hub.hang", 2*time.Minute, "how long a history may take: a hub that spins stops the clock of its bubble, and cannot be told to end")
	shrinkFlag = flag.Duration("hub.shrink", 30*time.Second, "how long to look for a smaller history that fails")
	keepFlag   = flag.String("hub.keep", "", "the steps of that history to take, with commas between (empty: all)")
	seedFlag   = flag.Uint64("hub.seed", 0, "the one history to play, with its trace (0: all)")
)

// TestModel plays random histories on a hub and compares all that its subscriptions deliver with the plain log: records and gaps together
// are exactly the log from the start position on, in order, each once, byte for byte; positions, caught_up, stops and errors are where they
// must be; wakers alone suffice; nothing is left behind. A history that fails is shrunk and told with its seed.
func TestModel(t *testing.T) {
	if *seedFlag != 0 {
		if _, err := play(t, newHistory(*seedFlag).keep(*keepFlag), true); err != nil {
			t.Fatalf("seed %d: %v", *seedFlag, err)
		}
		return
	}
	const workers = 2
	var next atomic.Uint64
	for i := range workers {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			for !t.Failed() {
				seed := *firstFlag - 1 + next.Add(1)
				if seed-*firstFlag >= uint64(*seedsFlag) {
					return
				}
				watchdog := time.AfterFunc(*hangFlag, func() { panic(fmt.Sprintf("seed %d hangs", seed)) })
				_, err := play(t, newHistory(seed), false)
				watchdog.Stop()
				if err != nil {
					next.Store(uint64(*seedsFlag))
					report(t, seed, err)
				}
			}
		})
	}
}

// report shrinks a failing history and tells it.
func report(t *testing.T, seed uint64, first error) {
	t.Helper()
	fails := func(h history) bool {
		_, err := play(t, h, false)
		return err != nil && kind(err) == kind(first)
	}
	small := shrink(newHistory(seed), fails, time.Now().Add(*shrinkFlag))
	lines, err := play(t, small, true)
	t.Errorf("seed %d: %v\nshrunk to %d steps (go test -run 'TestModel$' -hub.seed %d -hub.keep %s) on %+v: %v\n%s",
		seed, first, len(small.steps), seed, small.names(), small.setup, err, strings.Join(lines, "\n"))
}

// kind is what was wrong, without its numbers and the step at which it showed.
func kind(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if at := strings.LastIndex(line, ": "); at >= 0 {
		line = line[at:]
	}
	return numbers.ReplaceAllString(line, "#")
}

var numbers = regexp.MustCompile(`[0-9]+`)
