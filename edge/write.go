package edge

import (
	"errors"
	"os"

	"github.com/gobwas/ws"
	"golang.org/x/sys/unix"
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
