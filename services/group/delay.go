package group

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
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < n; c++ {
			if s[c].at < s[least].at {
				least = c
			}
		}
		if least == i {
			return top
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
}
