package edge

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gobwas/ws"

	"tailrace.dev/tailrace/edge/frame"
)

// life is what is known of a session's liveness; times are of Server.now.
type life struct {
	sent     int64 // when the socket last took bytes of a message
	beat     int64 // when a heartbeat was last considered
	pinged   int64 // when a ping was last sent
	progress int64 // when the peer last took bytes that had waited
	taken    int64 // bytes that the kernel had sent, when last looked at
	stuck    bool  // then something waited
	away     bool  // the last heartbeat told that the service is away
	listed   bool  // partitions could not be read when last looked at
}

// limits of a silent session.
type limits struct {
	interval, grace, stall time.Duration
}

// observe takes note of how much of what was written the kernel holds unsent, and says whether anything is stuck. If it was, each byte that
// the kernel could send is progress.
func (l *life) observe(now int64, blocked bool, written int64, unsent int) (stuck bool) {
	if taken := written - int64(unsent); taken > l.taken {
		if l.stuck {
			l.progress = now
		}
		l.taken = taken
	}
	l.stuck = blocked || unsent > 0
	return l.stuck
}

// judge says whether a session is to be ended. Life is any byte received, or bytes taken that had waited. Where data waits, only a peer
// that neither takes it nor says anything for the stall timeout is given up: slow but moving is never closed.
func (l *life) judge(now, received int64, stuck bool, lim limits) *reason {
	quiet := time.Duration(now - max(received, l.progress))
	switch {
	case stuck && quiet > lim.stall:
		return &endStalled
	case !stuck && quiet > 2*lim.interval+lim.grace:
		return &endNoLife
	}
	return nil
}

// tickPeriod is how often liveness is looked at.
func (c *Config) tickPeriod() time.Duration {
	return max(min(time.Second, c.HeartbeatInterval/10, c.CloseTimeout/5), 5*time.Millisecond)
}

// tick looks at every session: pings, heartbeats, liveness, and connections whose closing takes too long.
func (w *worker) tick(now int64) {
	w.wall = time.Now().UnixNano() - w.srv.now()
	w.tickAt = now + int64(w.srv.cfg.tickPeriod())
	w.srv.subscribes.expire(time.Now())
	w.srv.publishes.expire(time.Now())
	up := w.srv.cfg.UpstreamAvailable == nil || w.srv.cfg.UpstreamAvailable()
	w.upstream = up
	switch {
	case up:
		w.downSince = 0
	case w.downSince == 0:
		w.downSince = now
	}
	blocked, held := 0, 0
	for _, s := range slices.Backward(w.sessions) { // an end moves a session that was looked at into its place
		if s.blocked.Load() {
			blocked++
		}
		held += len(s.pend) + len(s.ctl)
		if s.state == open {
			s.beatNow = s.beatNow || s.life.away == up // also where the service went before this session was here to be told
			w.look(s, now)
		} else if now >= s.closeBy {
			w.drop(s)
		}
	}
	w.flushDirty()
	w.count.blocked += blocked - w.blocked
	w.count.held += held - w.held
	w.blocked, w.held = blocked, held
}

func (w *worker) look(s *session, now int64) {
	if r, lasted := w.overdue(s, now); r != nil {
		w.retire(s, r, time.Duration(lasted).String())
		if s.state != open {
			return
		}
	}
	interval := int64(w.srv.cfg.HeartbeatInterval)
	received := s.received.Load()
	if s.events != nil {
		if now-s.life.pinged >= interval && w.lost(s, now) {
			return
		}
	} else if now-received >= interval {
		stuck := s.life.observe(now, s.blocked.Load(), int64(s.bytes), w.unsent(s))
		lim := limits{w.srv.cfg.HeartbeatInterval, w.srv.cfg.LifeGrace, w.srv.cfg.StallTimeout}
		r := s.life.judge(now, received, stuck, lim)
		if r == &endNoLife && w.unread(s) > 0 {
			r = nil // it has said something, and it is we who are late
			if !s.paused.Load() && now-w.doubted >= interval {
				w.doubted = now
				w.poller.epoll.Load().distrust()
			}
		}
		if r != nil {
			w.end(s, r, (time.Duration(now - max(received, s.life.progress))).String())
			return
		}
		if now-max(received, s.life.pinged) >= interval {
			s.life.pinged = now
			s.ctl = appendFrame(s.ctl, ws.OpPing, nil)
			w.touch(s)
		}
	}
	if listed := w.lacks(s); listed != s.life.listed {
		// Told at once, also that they can be read again: on a busy topic no heartbeat would be due for that.
		s.life.listed, s.beatNow = listed, true
	}
	if (s.beatNow || now-min(s.life.beat, s.life.sent) >= interval) && !s.blocked.Load() {
		w.heartbeat(s, now)
	}
}

// lost ends a stream of events, from which nothing is ever received, when the client's kernel has acknowledged nothing of what was sent for the stall
// timeout. There is always something to acknowledge: a comment goes out each interval.
func (w *worker) lost(s *session, now int64) bool {
	l := &s.life
	l.pinged = now
	unacknowledged := 0
	_ = s.raw.Control(func(fd uintptr) { unacknowledged, _ = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) })
	taken := int64(s.bytes) - int64(max(unacknowledged, 0))
	if l.stuck = s.blocked.Load() || unacknowledged > 0; !l.stuck || taken > l.taken {
		l.taken, l.progress = taken, now
	}
	if quiet := time.Duration(now - l.progress); quiet > w.srv.cfg.StallTimeout {
		w.end(s, &endStalled, quiet.String())
		return true
	}
	return false
}

// lacks says whether partitions of the session's subscriptions cannot be read at the moment.
func (w *worker) lacks(s *session) bool {
	for _, sb := range s.subs {
		if sb.sub == nil {
			continue
		}
		if w.ids = sb.sub.Unavailable(w.ids[:0]); len(w.ids) > 0 {
			return true
		}
	}
	return false
}

// heartbeat tells what moved or is wrong. Without either it is due only when no message was sent for an interval: a page does not see pings.
func (w *worker) heartbeat(s *session, now int64) {
	tells := s.beatNow || !w.upstream
	due := now-s.life.sent >= int64(w.srv.cfg.HeartbeatInterval)
	s.beatNow, s.life.beat, s.life.away = false, now, !w.upstream
	b := &w.beat
	b.Time, b.UpstreamUnavailable = time.Now(), !w.upstream
	b.Subscriptions = b.Subscriptions[:0]
	for _, sb := range s.subs {
		if sb.sub == nil {
			continue
		}
		n := len(b.Subscriptions)
		if n < cap(b.Subscriptions) {
			b.Subscriptions = b.Subscriptions[:n+1] // its slices are used again
		} else {
			b.Subscriptions = append(b.Subscriptions, frame.SubscriptionHeartbeat{})
		}
		t := &b.Subscriptions[n]
		t.ID, t.Lag = sb.id, -1
		t.Positions = sb.sub.Moved(t.Positions[:0])
		t.Unavailable = sb.sub.Unavailable(t.Unavailable[:0])
		lag := sb.sub.Lag()
		if len(t.Positions) > 0 || len(t.Unavailable) > 0 || lag > 0 {
			t.Lag = lag
			tells = tells || len(t.Positions) > 0 || len(t.Unavailable) > 0
		}
	}
	switch {
	case !tells && !due:
	case s.events != nil:
		w.beatEvents(s, tells)
	default:
		w.say(s, b)
	}
}

// unsent is the number of bytes that the kernel has not sent yet, as far as it tells.
func (w *worker) unsent(s *session) (n int) {
	_ = s.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCOUTQNSD) })
	return max(n, 0)
}

// unread is the number of bytes that have come and were not read yet.
func (w *worker) unread(s *session) (n int) {
	_ = s.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	return n
}

// pong answers a ping. A client that doesn't take its answers gets that to its newest ping.
func (w *worker) pong(s *session, payload string) {
	if len(s.ctl) < maxPongs {
		s.ctl = appendFrame(s.ctl, ws.OpPong, []byte(payload))
	} else {
		s.pong, s.hasPong = []byte(payload), true
	}
	w.touch(s)
}
