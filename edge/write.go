package edge

import (
	"errors"
	"os"

	"github.com/gobwas/ws"
	"golang.org/x/sys/unix"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

const (
	maxFrame = 64 << 10  // bytes of records in a frame, or one record; so this much can stay unfinished
	maxWrite = 256 << 10 // bytes at which a write is full
	maxTurn  = 512 << 10 // bytes written to one session before the others have their turn
	maxHeld  = 64 << 10  // bytes of answers waiting for a client at which no more is read from it
	maxPongs = 8 << 10   // bytes of answers waiting at which only the newest ping is answered
	bufKeep  = 4 << 20   // bytes of a worker's buffer kept for the next write
	notSent  = 128 << 10 // TCP_NOTSENT_LOWAT: what the kernel holds unsent of one socket
)

// writer is the part of a worker that writes.
type writer struct {
	buf     []byte // what is to be written now
	units   []unit
	msg     []byte // one payload
	data    []byte // of one event
	id      []byte // of one event
	place   place  // of the subscription that pulls events
	prefix  []byte
	arena   []byte
	groups  []group
	touched []*session
	firsts  []firstRecord // those composed in this write, where that is traced

	sample sample

	out   []byte
	n     int
	err   error
	wrote int64                 // Server.now of the last write that took something
	write func(fd uintptr) bool // made once
}

// unit is a step of a group in buf. Its subscription moves past it only once its first byte was taken.
type unit struct {
	from, end int
	sb        *subscription
	step      *step
}

func (w *writer) initWriter() {
	w.write = func(fd uintptr) bool {
		w.n, w.err = ignoringEINTR(func() (int, error) { return unix.Write(int(fd), w.out) })
		return true
	}
}

// flush writes what a session has: the rest of an unfinished frame, then control frames, then what its subscriptions have. Where the socket
// takes less than all, the session is marked as blocked and one more attempt follows: between the first attempt and the mark the socket may
// have become writable, and that edge the poller has ignored.
func (w *worker) flush(s *session) {
	retried := false
	for spent := 0; spent < maxTurn; {
		if s.state != open && s.state != closing {
			return
		}
		n, wrote := w.writeOnce(s)
		w.endFirsts()
		switch {
		case s.state == gone:
			return
		case wrote == nothing:
			s.blocked.Store(false)
			w.letRead(s)
			if s.state == closing {
				w.shut(s)
			}
			return
		case wrote == all:
			s.blocked.Store(false)
			retried = false
			spent += max(n, 1)
			if len(s.ctl) <= maxHeld {
				w.letRead(s) // a client whose subscriptions never catch up has always something left, and must be heard all the same
			}
		case retried:
			w.hold(s)
			return
		default:
			retried = true
			s.blocked.Store(true)
		}
	}
	w.queue(s)
}

// written says how much of what a session has was written.
type written uint8

const (
	nothing written = iota // there is nothing to write
	all
	short
)

func writtenOf(n, of int) written {
	if n < of {
		return short
	}
	return all
}

// writeOnce makes one write.
func (w *worker) writeOnce(s *session) (n int, wrote written) {
	if len(s.pend) > 0 {
		n, ok := w.send(s, s.pend)
		if n > 0 {
			s.life.sent = w.srv.now()
		}
		wrote := writtenOf(n, len(s.pend))
		if ok && wrote == short {
			s.pend = s.pend[n:]
		} else {
			s.pend = nil
		}
		return n, wrote
	}
	if s.hasPong && len(s.ctl) < maxPongs {
		s.ctl = appendFrame(s.ctl, ws.OpPong, s.pong)
		s.hasPong, s.pong = false, nil
	}
	w.buf = append(w.buf[:0], s.ctl...)
	w.units = w.units[:0]
	answers := len(w.buf)
	pulled := answers
	w.sample = sample{time: -1}
	if s.state == open {
		pulled = w.compose(s)
	}
	if len(w.buf) == 0 && len(w.units) == 0 {
		if len(s.ctl) > 0 {
			return 0, all // pulling has ended the session, and left its last frames there
		}
		return 0, nothing
	}
	if len(w.buf) > 0 {
		var ok bool
		if n, ok = w.send(s, w.buf); !ok {
			return n, short
		}
		w.measure(n)
		if n > 0 && (s.spoke || s.events != nil || len(w.buf) > answers) {
			s.life.sent, s.spoke = w.srv.now(), false
		}
	}
	// What was pulled can't be given back: it and the answers before it are written in full, as soon as the socket takes them.
	keep := 0
	if n > 0 || pulled > answers {
		keep = pulled
		if s.ctl = s.ctl[answers:]; len(s.ctl) == 0 { // pulling may have ended the session and left its last frames there
			s.ctl = nil
		}
	}
	if keep = max(keep, w.commit(n)); n < keep {
		s.pend = append([]byte(nil), w.buf[n:keep]...)
	}
	wrote = writtenOf(n, len(w.buf))
	w.giveUp(s)
	if cap(w.buf) > bufKeep {
		w.buf = nil
	}
	return n, wrote
}

// commit moves the subscriptions past the units of which n bytes of buf hold at least the first, and returns the end of the last of them.
func (w *worker) commit(n int) (end int) {
	for i := range w.units {
		u := &w.units[i]
		if n < u.from || n == u.from && u.end > u.from {
			break
		}
		u.sb.sub.Skip(&u.step.batch)
		w.told(u.sb, u.step.batch.Parts)
		w.delivered(u.sb.s, &u.step.batch)
		w.composed(u.sb, &u.step.batch)
		u.step = nil
		end = u.end
	}
	return end
}

// giveUp leaves to pulling what a pass had for a session and could not write.
func (w *worker) giveUp(s *session) {
	for i := range w.units {
		if u := &w.units[i]; u.step != nil {
			u.sb.hungry = true
		}
		w.units[i] = unit{}
	}
	s.ungroup()
}

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

// send writes to the socket without waiting. ok is false if the session has ended by it; n is 0 if the socket takes nothing.
func (w *worker) send(s *session, p []byte) (n int, ok bool) {
	w.out = p
	err := s.raw.Write(w.write)
	w.out = nil
	w.count.writes++
	if err == nil && w.err != nil {
		err = os.NewSyscallError("write", w.err)
	}
	switch {
	case err == nil:
		n = w.n
	case errors.Is(err, unix.EAGAIN):
		return 0, true
	default:
		w.lose(s, err)
		return 0, false
	}
	now := w.srv.now()
	w.wrote = now
	if s.blocked.Load() {
		s.life.progress = now
	}
	s.bytes += uint64(n)
	w.count.bytes += n
	return n, true
}
