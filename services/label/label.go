// Package label keeps the values of metric labels a closed set, however many names there are in the world.
package label

import "sync"

// Other stands for all names that came after the set was full.
const Other = "other"

// Topics is how many topics have a label value of their own in a process's metrics; those that come later share Other.
const Topics = 100

// Set is a set of names that grows up to a bound. Who is in it stays in it: a name has the same label for as long as the process lives. Its
// methods may be called concurrently.
type Set struct {
	max   int
	mu    sync.RWMutex
	names map[string]struct{}
}

// NewSet returns an empty set that takes the first max names.
func NewSet(max int) *Set { return &Set{max: max, names: map[string]struct{}{}} }

// Of returns the label value of a name: itself, or Other.
func (s *Set) Of(name string) string {
	s.mu.RLock()
	_, ok := s.names[name]
	full := len(s.names) >= s.max
	s.mu.RUnlock()
	switch {
	case ok:
		return name
	case full:
		return Other
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.names[name]; !ok && len(s.names) >= s.max {
		return Other
	}
	s.names[name] = struct{}{}
	return name
}
