package edge

import (
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

const (
	maxGroups = 16 // places per topic from which a pass reads; subscriptions elsewhere pull for themselves
	maxSteps  = 4  // frames per place and pass

	minRest   = int64(200 * time.Microsecond) // passes shorter than this need no rest
	maxRest   = int64(25 * time.Millisecond)
	arenaKeep = 4 << 20 // bytes of rendered frames kept for the next pass
)

// group is a place in a topic's order where subscriptions stand, and what comes next there, read and rendered once for all of them.
type group struct {
	topic *hub.Topic
	at    hub.Seq
	n     int  // steps read
	apart bool // what comes behind them is to be pulled
	// For events: the place before the first step and after each, as far as they are known; nplaces is 0 as long as no events were asked for.
	places  [maxSteps + 1]place
	nplaces int
	steps   [maxSteps]step
}

// step is one batch, and its frames for each choice of as.
type step struct {
	batch  hub.Batch
	frames [frame.AsBytes + 1][]piece
	made   [frame.AsBytes + 1]bool
	events [frame.AsBytes + 1][]byte // nil: not made
	time   int64                     // of its first record; see timeOf
}

// piece is one frame without what differs between subscriptions: the shared rest of a records frame, or a part that carries no records.
type piece struct {
	body []byte
	part *hub.Part
}

// pass brings what is new to those that wait for it. Whoever stands where many stand shares what was read and rendered; others pull. A
// session that can't take more at the moment is left out: it pulls when it can.
func (w *worker) pass(start int64) {
	w.passes++
	w.groups, w.arena, w.touched = w.groups[:0], w.arena[:0], w.touched[:0]
	for t := range w.taken.moved {
		more := false
		if c := w.crowds[t]; c != nil {
			more = w.gather(c)
		}
		if !more {
			delete(w.taken.moved, t)
		}
	}
	for token := range w.taken.ready {
		if sb := w.at(token); sb != nil && sb.sub != nil {
			sb.hungry = true
			w.visit(sb.s)
		}
	}
	clear(w.taken.ready)
	for _, s := range w.touched {
		w.flush(s)
		s.ungroup()
	}
	w.forget()
	took := w.srv.now() - start
	w.count.passes++
	if took >= minRest {
		w.rest = start + min(2*took, took+maxRest)
		w.rested(w.rest - start - took)
	}
}

// gather finds out where the subscriptions of a crowd stand and reads what comes there. more: a place has still more than that.
func (w *worker) gather(c *crowd) (more bool) {
	first := len(w.groups)
	for _, sb := range c.subs {
		if sb.s.blocked.Load() || sb.s.state != open {
			sb.hungry = true
			continue
		}
		w.visit(sb.s)
		sb.hungry = true
		if at, shared := sb.sub.At(); shared {
			sb.group = w.groupAt(first, c.topic, at)
			sb.hungry = sb.group == 0
		}
	}
	for i := first; i < len(w.groups); i++ {
		more = w.read(&w.groups[i]) || more
	}
	return more
}

// visit puts a session on the pass's list, once.
func (w *worker) visit(s *session) {
	if s.pass != w.passes && !s.blocked.Load() {
		s.pass = w.passes
		w.touched = append(w.touched, s)
	}
}

// groupAt returns 1 + the index of the group of a place, 0 if there are too many places.
func (w *worker) groupAt(first int, t *hub.Topic, at hub.Seq) int32 {
	for i := first; i < len(w.groups); i++ {
		if w.groups[i].at == at {
			return int32(i) + 1
		}
	}
	n := len(w.groups)
	if n-first == maxGroups {
		return 0
	}
	if n < cap(w.groups) {
		w.groups = w.groups[:n+1] // its slices are used again
	} else {
		w.groups = append(w.groups, group{})
	}
	g := &w.groups[n]
	g.topic, g.at, g.n, g.apart, g.nplaces = t, at, 0, false, 0
	return int32(n) + 1
}

// read reads a group's steps.
func (w *worker) read(g *group) (more bool) {
	at, head := g.at, g.topic.Head()
	for g.n < maxSteps && at < head {
		st := &g.steps[g.n]
		clear(st.made[:])
		clear(st.events[:])
		b := &st.batch
		// What is evicted, not the same for all, or an entry of many records that must be cut: a session may hold only a frame unfinished.
		if !g.topic.Read(at, maxFrame, b) || len(b.Parts) == 0 || b.Bytes > maxFrame && b.Records > 1 {
			clear(b.Parts)
			g.apart = true
			return false
		}
		st.time = timeOf(b.Parts)
		at = b.Next()
		g.n++
	}
	return at < head
}

// render returns the frames of a step, in a form and one of its choices of as: no two forms have one in common.
func (w *worker) render(st *step, form *subprotocol, as frame.As) []piece {
	if st.made[as] {
		return st.frames[as]
	}
	pieces := st.frames[as][:0]
	for parts := st.batch.Parts; len(parts) > 0; {
		n := frame.Run(parts)
		switch {
		case n == 0:
			pieces = append(pieces, piece{part: &parts[0]})
			n = 1
		case frame.Tells(parts[:n]):
			from := len(w.arena)
			w.arena = form.AppendRecordsBody(w.arena, parts[:n], as)
			pieces = append(pieces, piece{body: w.arena[from:len(w.arena):len(w.arena)]}) // stays valid when the arena grows
		}
		parts = parts[n:]
	}
	st.frames[as], st.made[as] = pieces, true
	return pieces
}

// forget lets go of what the pass has read, so that evicted entries are not kept alive.
func (w *worker) forget() {
	for i := range w.groups {
		g := &w.groups[i]
		g.topic = nil
		for j := range g.n {
			st := &g.steps[j]
			clear(st.batch.Parts)
			clear(st.events[:])
			for as := range st.frames {
				clear(st.frames[as])
			}
		}
	}
	if cap(w.arena) > arenaKeep {
		w.arena = nil
	}
}
