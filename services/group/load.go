package group

import (
	"errors"
	"fmt"
)

// Errors of what looks at groups from outside.
var (
	// ErrUnknown says that Kafka has no such group.
	ErrUnknown = errors.New("unknown group")
	// ErrActive says that the group has members, here or elsewhere.
	ErrActive = errors.New("the group has members")
)

// NamedError says of which group an error is.
type NamedError struct {
	Group string
	Err   error // ErrUnknown or ErrActive
}

func (e *NamedError) Error() string { return fmt.Sprintf("group %q: %v", e.Group, e.Err) }

// Unwrap makes it Err.
func (e *NamedError) Unwrap() error { return e.Err }

// Load is what this process does for a group.
type Load struct {
	Workers  int
	InFlight map[Partition]int // by partition that is assigned here: what workers hold of it, and what is on its way to the dead letters
}

// Allows says whether a group's name is one for this service.
func (gs *Groups) Allows(name string) bool {
	return gs.cfg.Allowed == nil || gs.cfg.Allowed.MatchString(name)
}

// Load tells what this process does for a group: nothing, if it is not in it.
func (gs *Groups) Load(name string) Load {
	gs.mu.Lock()
	g := gs.groups[name]
	gs.mu.Unlock()
	if g == nil {
		return Load{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l := Load{Workers: len(g.workers), InFlight: make(map[Partition]int, len(g.lanes))}
	for id, lane := range g.lanes {
		l.InFlight[id] = lane.busy
	}
	return l
}
