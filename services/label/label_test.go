package label_test

import (
	"strconv"
	"sync"
	"testing"

	"tailrace.dev/tailrace/services/label"
)

func TestTheFirstNamesKeepTheirLabel(t *testing.T) {
	s := label.NewSet(2)
	for _, step := range []struct{ name, want string }{
		{"a", "a"}, {"b", "b"}, {"c", label.Other}, {"a", "a"}, {"d", label.Other}, {"b", "b"},
	} {
		if got := s.Of(step.name); got != step.want {
			t.Errorf("label of %q: %q, want %q", step.name, got, step.want)
		}
	}
}

func TestManyAtOnceDoNotExceedTheBound(t *testing.T) {
	s := label.NewSet(10)
	var mu sync.Mutex
	seen := map[string]bool{}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 100 {
				got := s.Of(strconv.Itoa(g*100 + i))
				mu.Lock()
				seen[got] = true
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if got := len(seen); got != 11 || !seen[label.Other] {
		t.Errorf("%d labels, want 10 names and %q", got, label.Other)
	}
}
