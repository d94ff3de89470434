package kafka

/*
#include <stddef.h>

// glibc's; other C libraries do not have it.
extern int malloc_trim(size_t pad) __attribute__((weak));

static void give_back(void) {
	if (malloc_trim) malloc_trim(0);
}
*/
import "C"

import (
	"context"
	"runtime/debug"
	"time"
)

// giveBackAfter is how long it takes until memory is given back: members end together, and it costs a collection of garbage.
const giveBackAfter = 10 * time.Second

// giveBack gives back to the system what members that were closed have left, of which freed tells: the allocator keeps what was fetched for them, in
// arenas of threads that are gone, and Go collects late what a process without work has left.
func giveBack(ctx context.Context, freed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-freed:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(giveBackAfter):
		}
		debug.FreeOSMemory()
		C.give_back()
	}
}
