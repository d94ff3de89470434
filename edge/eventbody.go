package edge

import (
	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

// stand sets p to where a subscription stands.
func (w *worker) stand(p *place, sb *subscription) {
	e := sb.s.events
	p.topicID = e.topicID
	p.marks = sb.sub.InLog(sb.sub.Positions(p.marks[:0]), e.topicID)
}

// placed says whether a subscription of events may share what a group has: where they stand, in the same log.
func (g *group) placed(w *worker, sb *subscription) bool {
	e := sb.s.events
	if g.nplaces == 0 {
		w.stand(&g.places[0], sb)
		g.nplaces = 1
	}
	return g.places[0].topicID == e.topicID
}

// renderEvents returns the events of a group's step, the same for all that share it. placed was true.
func (w *worker) renderEvents(g *group, i int, as frame.As) []byte {
	st := &g.steps[i]
	if st.events[as] != nil {
		return st.events[as]
	}
	for ; g.nplaces <= i+1; g.nplaces++ { // where the steps before end
		p := &g.places[g.nplaces]
		p.set(&g.places[g.nplaces-1])
		for k := range g.steps[g.nplaces-1].batch.Parts {
			p.pass(&g.steps[g.nplaces-1].batch.Parts[k])
		}
	}
	w.place.set(&g.places[i])
	from := len(w.arena)
	w.arena = w.appendEvents(w.arena, &w.place, st.batch.Parts, as)
	st.events[as] = w.arena[from:len(w.arena):len(w.arena)] // stays valid when the arena grows
	return st.events[as]
}

// appendEvents appends the events of parts to dst, and moves p past them. Events that tell no record have no id of their own: a place follows
// them, so that they are told again to who did not get all of them.
func (w *worker) appendEvents(dst []byte, p *place, parts []hub.Part, as frame.As) []byte {
	for len(parts) > 0 {
		n := frame.Run(parts)
		if n == 0 {
			dst, parts = w.appendControls(dst, p, parts)
			continue
		}
		for i := range parts[:n] {
			p.pass(&parts[i])
		}
		w.data = frame.AppendRecordsArray(w.data[:0], parts[:n], as)
		w.id = p.appendID(w.id[:0])
		switch {
		case len(w.data) > 0:
			dst = frame.AppendEvent(dst, "", w.id, w.data)
		case frame.Tells(parts[:n]):
			dst = frame.AppendEventPlace(dst, w.id)
		}
		parts = parts[n:]
	}
	return dst
}

// appendControls appends the leading parts that carry no records, and returns the others.
func (w *worker) appendControls(dst []byte, p *place, parts []hub.Part) (_ []byte, rest []hub.Part) {
	moved := false
	for len(parts) > 0 && frame.Run(parts) == 0 {
		part := &parts[0]
		name := "gap"
		if part.Kind == hub.Topology {
			name = "topology"
		}
		if w.data = frame.AppendControl(w.data[:0], frame.URLID, part); len(w.data) > 0 {
			dst = frame.AppendEvent(dst, name, nil, w.data)
			moved = moved || part.Kind != hub.Topology
		}
		p.pass(part)
		parts = parts[1:]
	}
	if moved {
		w.id = p.appendID(w.id[:0])
		dst = frame.AppendEventPlace(dst, w.id)
	}
	return dst, parts
}
