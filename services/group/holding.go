package group

import "math/bits"

// holding is what a worker holds, by tag. Tags count upwards: a ring has the newest of each slot, and a map the few that are held for longer than it
// takes to go round. (One map for all is a quarter of what dealing costs.)
type holding struct {
	ring  []*item         // its length is a power of two
	old   map[int64]*item // held, and not in the ring any more
	count int
}

func newHolding(most int) holding {
	return holding{ring: make([]*item, 1<<bits.Len(uint(most-1))), old: map[int64]*item{}}
}

func (h *holding) slot(tag int64) **item { return &h.ring[tag&int64(len(h.ring)-1)] }

// put takes an item with a tag that is greater than all before.
func (h *holding) put(it *item) {
	s := h.slot(it.tag)
	if *s != nil {
		h.old[(*s).tag] = *s
	}
	*s = it
	h.count++
}

// get returns nil for a tag that is not held, whatever it is.
func (h *holding) get(tag int64) *item {
	if it := *h.slot(tag); it != nil && it.tag == tag {
		return it
	}
	return h.old[tag]
}

// remove lets go of an item that is held.
func (h *holding) remove(it *item) {
	if s := h.slot(it.tag); *s == it {
		*s = nil
	} else {
		delete(h.old, it.tag)
	}
	h.count--
}
