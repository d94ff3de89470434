package kafka

import (
	"context"
	"fmt"
	"sync"

	"tailrace.dev/tailrace/services/hub"
)

// Of the dead letters that are under way at a time, of all groups.
const (
	// slotsMost is how many there are, but for slotsLeast.
	slotsMost = 200
	// slotsLeast is how many a group always has for a topic, however many others have.
	slotsLeast = 4
)

// slots bounds the dead letters under way. A group may have as many for a topic as are still free: so groups whose topics take nothing leave half of
// the room to the others, however many they are a share, and everybody always has a few. Who comes then waits, in turn.
type slots struct {
	mu      sync.Mutex // guards the rest
	held    map[burier]int
	all     int
	waiting []*waiting
	closed  chan struct{} // when none is given any more
	none    chan struct{} // closed when none is held, and none is given any more
}

// burier is a group, and a topic of its dead letters.
type burier struct{ group, topic string }

type waiting struct {
	burier
	given chan struct{}
}

func newSlots() *slots {
	return &slots{held: map[burier]int{}, closed: make(chan struct{}), none: make(chan struct{})}
}

// take waits for a slot, until ctx or the slots end.
func (s *slots) take(ctx context.Context, b burier) error {
	s.mu.Lock()
	if s.over() {
		s.mu.Unlock()
		return fmt.Errorf("dead letter: %w", hub.ErrDraining)
	}
	w := &waiting{b, make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.give()
	s.mu.Unlock()
	var err error
	select {
	case <-w.given:
		return nil
	case <-s.closed:
		err = fmt.Errorf("dead letter: %w", hub.ErrDraining)
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.waiting {
		if other == w {
			s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
			return err
		}
	}
	return nil // it was given meanwhile
}

// give gives what may be given to those that wait. mu is held.
func (s *slots) give() {
	left := s.waiting[:0]
	for _, w := range s.waiting {
		n := s.held[w.burier]
		if s.over() || n >= max(slotsLeast, slotsMost-s.all) {
			left = append(left, w)
			continue
		}
		s.held[w.burier] = n + 1
		s.all++
		close(w.given)
	}
	clear(s.waiting[len(left):])
	s.waiting = left
}

// leave gives a slot back.
func (s *slots) leave(b burier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.held[b]--; s.held[b] == 0 {
		delete(s.held, b)
	}
	s.give()
	s.empty()
}

// close lets nobody take one any more, and waits until all are back.
func (s *slots) close() {
	s.mu.Lock()
	if !s.over() {
		close(s.closed)
		s.empty()
	}
	s.mu.Unlock()
	<-s.none
}

// empty notes that all are back for good. mu is held.
func (s *slots) empty() {
	if s.over() && s.all == 0 {
		close(s.none)
	}
}

func (s *slots) over() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}
