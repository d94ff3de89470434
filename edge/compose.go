package edge

import (
	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

// compose appends what the subscriptions have, first what they pull (up to maxFrame, or one record), then what this pass has read for
// all. It returns the end of what was pulled.
func (w *worker) compose(s *session) (fixed int) {
	budget := maxFrame
	if len(s.work) > 0 {
		budget /= 2 // the other half is for those
	}
	for range len(s.subs) {
		if budget <= 0 || s.state != open || len(s.subs) == 0 {
			break
		}
		s.turn = (s.turn + 1) % int32(len(s.subs))
		sb := s.subs[s.turn]
		if sb.group > 0 && (w.groups[sb.group-1].n == 0 || s.events != nil && !w.groups[sb.group-1].placed(w, sb)) {
			sb.group, sb.hungry = 0, true
		}
		if sb.hungry && sb.group == 0 {
			budget = w.pull(sb, budget)
		}
	}
	w.pullWork(s, budget+maxFrame/2)
	fixed = len(w.buf)
	for _, sb := range s.subs {
		if sb.group == 0 {
			continue
		}
		g := &w.groups[sb.group-1]
		i := 0
		for ; i < g.n && len(w.buf) < maxWrite; i++ {
			u := unit{from: len(w.buf), sb: sb, step: &g.steps[i]}
			if s.events != nil {
				w.buf = append(w.buf, w.renderEvents(g, i, sb.as)...)
			} else {
				w.appendPieces(sb, w.render(u.step, s.form, sb.as))
			}
			u.end = len(w.buf)
			w.live(u.step.time)
			w.units = append(w.units, u)
		}
		sb.group = 0
		sb.hungry = sb.hungry || i < g.n || g.apart
	}
	return fixed
}

// pull appends what a subscription pulls, up to budget bytes of records, and returns what is left of the budget.
func (w *worker) pull(sb *subscription, budget int) int {
	s := sb.s
	if s.events != nil {
		w.stand(&w.place, sb)
	}
	for budget > 0 {
		live := sb.sub.IsCaughtUp()
		b, err := sb.sub.Pull(budget)
		if b.Slow != hub.SlowCatchUp {
			w.srv.log.Info("reader is slow", "session", s.name, "id", sb.id, "topic", sb.sub.Topic().Name(), "action", b.Slow.String())
		}
		if len(b.Parts) > 0 {
			w.appendBatch(sb, b.Parts)
			w.told(sb, b.Parts)
			if live {
				w.live(timeOf(b.Parts))
			}
			w.delivered(s, &b)
			w.composed(sb, &b)
			budget -= max(b.Bytes, 1)
		}
		if b.CaughtUp {
			if s.events != nil {
				w.buf = frame.AppendEvent(w.buf, "caughtup", nil, frame.AppendCaughtUp(nil, sb.id))
			} else {
				w.buf = w.appendMessage(w.buf, s, frame.CaughtUp{ID: sb.id})
			}
		}
		if err != nil && s.events != nil {
			w.over(sb, err)
			return budget
		}
		if err != nil {
			w.buf = w.appendMessage(w.buf, s, w.finish(sb, err))
			w.endURL(sb, err)
			return budget
		}
		if len(b.Parts) == 0 && !b.CaughtUp {
			sb.hungry = false
			return budget
		}
	}
	return budget
}

// appendBatch appends the frames of a batch that is for one subscription.
func (w *worker) appendBatch(sb *subscription, parts []hub.Part) {
	if sb.s.events != nil {
		w.buf = w.appendEvents(w.buf, &w.place, parts, sb.as)
		return
	}
	for len(parts) > 0 {
		n := frame.Run(parts)
		switch {
		case n == 0:
			w.appendPart(sb, &parts[0])
			n = 1
		case frame.Tells(parts[:n]):
			w.msg = sb.s.form.AppendRecordsBody(w.msg[:0], parts[:n], sb.as)
			w.appendRecords(sb, w.msg)
		}
		parts = parts[n:]
	}
}

// appendPieces appends the frames of a step for one of the subscriptions that share it.
func (w *worker) appendPieces(sb *subscription, pieces []piece) {
	for _, p := range pieces {
		if p.part != nil {
			w.appendPart(sb, p.part)
		} else {
			w.appendRecords(sb, p.body)
		}
	}
}

// appendRecords appends a records frame: header, prefix and body.
func (w *worker) appendRecords(sb *subscription, body []byte) {
	form := sb.s.form
	w.prefix = form.AppendRecordsPrefix(w.prefix[:0], sb.id, len(body))
	w.buf = appendHeader(w.buf, form.opcode, len(w.prefix)+len(body))
	w.buf = append(append(w.buf, w.prefix...), body...)
}

func (w *worker) appendPart(sb *subscription, p *hub.Part) {
	w.buf = w.appendMessage(w.buf, sb.s, frame.Control{ID: sb.id, Topic: sb.sub.Topic().Name(), Part: p})
}

// appendMessage appends a frame as the session's client takes it; nothing for one that is not to be told.
func (w *worker) appendMessage(dst []byte, s *session, f frame.Frame) []byte {
	if w.msg = s.form.Append(w.msg[:0], f); len(w.msg) == 0 {
		return dst
	}
	return appendFrame(dst, s.form.opcode, w.msg)
}

// told acts on parts that change more than positions.
func (w *worker) told(sb *subscription, parts []hub.Part) {
	for i := range parts {
		switch parts[i].Kind {
		case hub.Unavailable, hub.Available:
			sb.s.beatNow = true
		case hub.Recreated:
			if e := sb.s.events; e != nil && parts[i].TopicID != "" {
				e.topicID = parts[i].TopicID
			}
			sb.hungry = true
		case hub.Deleted, hub.Topology:
			sb.hungry = true // what follows from it is pulled
		}
	}
}

func (w *worker) delivered(s *session, b *hub.Batch) {
	s.records += uint64(b.Records)
	w.count.records += b.Records
	if b.Records > 0 {
		w.frame.observe(float64(b.Records), int64(b.Records))
	}
}
