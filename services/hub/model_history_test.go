package hub_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// history is a setup and the steps taken on it. A step means something in any history, so that steps can be left out to find the few
// that matter.
type history struct {
	setup setup
	steps []step
}

// step is an operation and the numbers that its choices are made from.
type step struct {
	at   int // in the history as drawn
	op   op
	a, b uint32
}

func (s step) String() string { return fmt.Sprintf("%d %s", s.at, s.op) }

// random returns the source of the step's choices.
func (s step) random() *rand.Rand { return rand.New(rand.NewPCG(uint64(s.a), uint64(s.b))) }

type op uint8

const (
	opAppend op = iota
	opFlood
	opHoles
	opOpen
	opCommit
	opAbort
	opCompact
	opRetain
	opTruncate
	opElect
	opRecreate
	opDelete
	opGrow
	opUnavailable
	opDeliver
	opDeliverAll
	opRewind
	opSubscribe
	opResume
	opPull
	opPullWoken
	opHeartbeat
	opClose
	opSleep
	opDelays
	opShape
	opQuiesce
	ops
)

var opNames = [ops]string{
	"append", "flood", "holes", "open", "commit", "abort", "compact", "retain", "truncate", "elect", "recreate", "delete", "grow", "unavailable",
	"deliver", "deliver all", "rewind", "subscribe", "resume", "pull", "pull woken", "heartbeat", "close", "sleep", "delays", "shape",
	"quiesce",
}

func (o op) String() string { return opNames[o] }

// opWeights says how often an operation is drawn; those with a rarity are left out of that share of histories.
var opWeights = [ops]struct {
	weight int
	absent float64
}{
	opAppend: {20, 0}, opFlood: {2, .98}, opHoles: {4, .3}, opOpen: {3, .5}, opCommit: {3, .2}, opAbort: {2, .2}, opCompact: {3, .5},
	opRetain: {3, .4}, opTruncate: {3, .6}, opElect: {2, .5}, opRecreate: {2, .7}, opDelete: {1, .9}, opGrow: {1, .6}, opUnavailable: {2, .6},
	opDeliver: {16, 0}, opDeliverAll: {4, .2}, opRewind: {2, .6},
	opSubscribe: {8, 0}, opResume: {3, .2}, opPull: {16, .1}, opPullWoken: {6, .2}, opHeartbeat: {4, .2}, opClose: {4, .2},
	opSleep: {6, .2}, opDelays: {2, .5}, opShape: {2, .3}, opQuiesce: {2, .3},
}

// newHistory draws a history. The same seed is the same history.
func newHistory(seed uint64) history {
	random := rand.New(rand.NewPCG(seed, 1))
	pick := func(choices ...time.Duration) time.Duration { return choices[random.IntN(len(choices))] }
	h := history{setup: setup{
		Partitions:    1 + random.Int32N(5),
		Budget:        []int64{1 << 10, 4 << 10, 16 << 10, 256 << 20}[random.IntN(4)],
		Retain:        pick(200*time.Millisecond, time.Second, 30*time.Second),
		Linger:        pick(100*time.Millisecond, time.Second, 5*time.Second),
		Readers:       1 + random.IntN(4),
		Filters:       random.IntN(2) == 0,
		Subscriptions: 1 + random.IntN(12),
		Drains:        random.IntN(4) == 0,
	}}
	var drawn []op
	for o := range ops {
		if random.Float64() < opWeights[o].absent {
			continue
		}
		for range opWeights[o].weight {
			drawn = append(drawn, o)
		}
	}
	for at := range 20 + random.IntN(120) {
		h.steps = append(h.steps, step{at: at, op: drawn[random.IntN(len(drawn))], a: random.Uint32(), b: random.Uint32()})
	}
	h.setup.SlowAfter = pick(500*time.Millisecond, 2*time.Second, 5*time.Second) // last: what is drawn before stays what it was
	return h
}

// keep leaves out all steps but those that are named, by their numbers with commas between.
func (h history) keep(names string) history {
	if names == "" {
		return h
	}
	kept := strings.Split(names, ",")
	h.steps = slices.DeleteFunc(h.steps, func(s step) bool { return !slices.Contains(kept, strconv.Itoa(s.at)) })
	return h
}

// names is what keep takes.
func (h history) names() string {
	var names []string
	for _, s := range h.steps {
		names = append(names, strconv.Itoa(s.at))
	}
	return strings.Join(names, ",")
}

// shrink leaves out steps as long as the history still fails, and returns a small one that does.
func shrink(h history, fails func(history) bool, deadline time.Time) history {
	for size := len(h.steps) / 2; size > 0; {
		smaller := false
		for at := 0; at < len(h.steps) && time.Now().Before(deadline); {
			less := history{setup: h.setup}
			less.steps = append(less.steps, h.steps[:at]...)
			less.steps = append(less.steps, h.steps[min(at+size, len(h.steps)):]...)
			if fails(less) {
				h, smaller = less, true
			} else {
				at += size
			}
		}
		if !smaller || size > 1 {
			size /= 2
		}
	}
	return h
}
