package group

import "slices"

// delay is a queue or an item whose time comes.
type delay struct {
	at    int64
	queue *queue
	item  *item
}

// delays is a heap: the earliest first.
type delays []delay

func (h *delays) push(d delay) {
	*h = append(*h, d)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if s[up].at <= s[i].at {
			return
		}
		s[up], s[i] = s[i], s[up]
		i = up
	}
}

func (h *delays) pop() delay {
	s := *h
	top, n := s[0], len(s)-1
	s[0], s[n] = s[n], delay{}
	s = s[:n]
	*h = s
	s.down(0)
	return top
}

// down moves an entry to where it belongs below its place.
func (h delays) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if h[c].at < h[least].at {
				least = c
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// forget lets go of what lanes that are gone have here: else their records would stay in memory until their time comes.
func (h *delays) forget() {
	s := slices.DeleteFunc(*h, func(d delay) bool { return d.lane().gone })
	for i := len(s)/2 - 1; i >= 0; i-- {
		s.down(i)
	}
	if len(s) == 0 {
		s = nil
	}
	*h = s
}

func (d delay) lane() *lane {
	if d.queue != nil {
		return d.queue.lane
	}
	return d.item.lane
}
