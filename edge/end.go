package edge

import (
	"fmt"
	"time"

	"github.com/gobwas/ws"

	"tailrace.dev/tailrace/edge/frame"
)

// end begins the end of a session: its subscriptions are released, and the last frames queued behind what is unfinished.
func (w *worker) end(s *session, r *reason, cause string) {
	if !w.beginEnd(s, r, cause) {
		return
	}
	if r.silent {
		w.drop(s)
		return
	}
	if s.events != nil {
		w.endEvents(s, r)
		return
	}
	if r.Code >= 4000 { // the others say that frames are not understood, or that there is no time for more
		spread := comeBackSpread
		if !r.comeBack() {
			spread = -1
		}
		w.say(s, frame.Goodbye{Code: int(r.Code), Reason: r.Text, ComeBackMax: spread})
	}
	w.msg = appendClosePayload(w.msg[:0], r.Code, r.Text)
	w.sayClose(s)
}

// closedByPeer echoes a close frame, once: the code, without the reason (RFC 6455, section 5.5.1). If ours went first, this is its echo, and
// nothing follows.
func (w *worker) closedByPeer(s *session, c peerClose) {
	if s.state != open {
		w.eof(s)
		return
	}
	cause := fmt.Sprint(int(c.code))
	if c.text != "" {
		cause += " " + c.text
	}
	if !w.beginEnd(s, &endClientClose, cause) {
		return
	}
	w.msg = w.msg[:0]
	if c.code != ws.StatusNoStatusRcvd {
		w.msg = appendClosePayload(w.msg, c.code, "")
	}
	w.sayClose(s)
}

func (w *worker) sayClose(s *session) {
	s.ctl = appendFrame(s.ctl, ws.OpClose, w.msg)
	w.touch(s)
}

// beginEnd is false if the session is ending already: the first reason counts.
func (w *worker) beginEnd(s *session, r *reason, cause string) bool {
	if s.state != open {
		return false
	}
	s.state, s.reason, s.cause = closing, r, cause
	s.closeBy = w.srv.now() + int64(w.srv.cfg.CloseTimeout)
	for _, sb := range s.subs {
		w.dispose(sb)
	}
	s.subs = nil
	for _, c := range s.work {
		w.disband(c, r.lost())
	}
	s.work = nil
	w.forgetPublishes(s)
	s.hasPong, s.pong = false, nil
	w.letRead(s) // what still comes is drained, so that the peer gets our last frames and not a reset
	return true
}

// shut closes our side once the close frame is written. The connection is closed when the peer has closed its side too, or after
// CloseTimeout: closing it with unread input would send a reset, which can destroy what the peer has not read.
func (w *worker) shut(s *session) {
	s.state = closed
	if s.eof {
		w.drop(s)
		return
	}
	if err := s.conn.CloseWrite(); err != nil {
		w.drop(s)
	}
}

func (w *worker) eof(s *session) {
	s.eof = true
	switch s.state {
	case open:
		w.end(s, &endClientEOF, "")
	case closed:
		w.drop(s)
	case opening, closing, gone: // closing: the close frame goes out first
	}
}

// lose ends a session whose connection broke.
func (w *worker) lose(s *session, err error) {
	switch s.state {
	case open:
		w.end(s, &endNetwork, err.Error())
	case closing, closed:
		w.drop(s)
	case opening, gone:
	}
}

// drop closes the connection and forgets the session.
func (w *worker) drop(s *session) {
	if s.state == gone {
		return
	}
	s.state = gone
	last := len(w.sessions) - 1
	w.sessions[s.pos] = w.sessions[last]
	w.sessions[s.pos].pos = s.pos
	w.sessions[last] = nil
	w.sessions = w.sessions[:last]
	w.poller.remove(s)
	_ = s.conn.Close() // nothing is lost by an error: the peer's side is told by the close frame, ours is done
	s.pend, s.ctl = nil, nil
	w.srv.input.discharge(s)
	w.srv.left(s)
}

// drain closes a worker's sessions one after the other, spread over a time.
type drain struct {
	from, spread int64
	sessions     []*session
	next         int
}

func (w *worker) startDrain() {
	w.drain = &drain{from: w.srv.now(), spread: int64(w.srv.drainSpread()), sessions: append([]*session(nil), w.sessions...)}
}

// drainStep ends the sessions that are due and returns the time of the next.
func (w *worker) drainStep(now int64) int64 {
	d := w.drain
	if d == nil {
		return now + int64(time.Hour)
	}
	for d.next < len(d.sessions) {
		if due := d.from + d.spread*int64(d.next)/int64(len(d.sessions)); due > now {
			return due
		}
		w.retire(d.sessions[d.next], &endDraining, "")
		d.sessions[d.next] = nil
		d.next++
	}
	return now + int64(time.Hour)
}

// retire ends a session that has done nothing wrong. One that publishes gets its answers first; what it still publishes is refused.
func (w *worker) retire(s *session, r *reason, cause string) {
	switch {
	case !s.publishes():
		w.end(s, r, cause)
	case s.retiring == nil:
		s.retiring = r
	}
}

// stopAll ends all sessions at once, with a close frame where the socket takes it.
func (w *worker) stopAll() {
	for len(w.sessions) > 0 {
		s := w.sessions[len(w.sessions)-1]
		w.end(s, &endStopped, "")
		w.flush(s)
		w.drop(s)
	}
	w.publishCounts()
}
