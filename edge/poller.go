package edge

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	pollEvents = 256      // readiness events taken at once
	readBuffer = 64 << 10 // bytes per read
	readTurn   = 64 << 10 // bytes read of one session before the others have their turn: a thousand small messages and more
)

// slot names a session in the poller's table and in epoll's user data. The generation tells it from the session that had the place
// before, whose events may still be under way.
type slot struct {
	place, generation int32
}

// poller waits for the sockets of one worker to become readable or writable, reads and parses, and posts what it finds to the worker. It
// writes nothing.
//
// epoll is edge-triggered and each socket is registered once, for everything. So reads go on until the socket is empty, and whoever stops
// earlier asks for another edge by rearm.
type poller struct {
	worker *worker
	epoll  atomic.Pointer[epoll] // replaced by run, when it has failed
	quit   chan struct{}         // closed by close

	mu    sync.Mutex
	table []seat
	free  []int32

	// Owned by run.
	events [pollEvents]unix.EpollEvent
	n      int
	err    error
	buf    []byte
	read   func(fd uintptr) bool // made once: a closure for each read would be garbage
	wait   func(fd uintptr) bool
	turn   []*session // sessions of events, nil where the session is gone
	posts  []post
	ready  []*session // writable and blocked
}

type seat struct {
	s          *session
	generation int32
}

func newPoller(w *worker) (*poller, error) {
	e, err := newEpoll()
	if err != nil {
		return nil, err
	}
	p := &poller{worker: w, quit: make(chan struct{}), buf: make([]byte, readBuffer), turn: make([]*session, pollEvents)}
	p.epoll.Store(e)
	p.read = func(fd uintptr) bool {
		p.n, p.err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), p.buf) })
		return true
	}
	p.wait = func(fd uintptr) bool {
		p.n, p.err = ignoringEINTR(func() (int, error) { return unix.EpollWait(int(fd), p.events[:], 0) })
		return p.err != nil || p.n > 0
	}
	return p, nil
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// add registers a session. The first event comes at once: a new socket is writable.
func (p *poller) add(s *session) error {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		s.slot.place = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		s.slot.place = int32(len(p.table))
		p.table = append(p.table, seat{})
	}
	at := &p.table[s.slot.place]
	at.s = s
	s.slot.generation = at.generation
	p.mu.Unlock()
	return p.register(s)
}

// register has epoll report what the socket is ready for, the first time. Both add and restart may do so: what is in the table is found by either.
func (p *poller) register(s *session) error {
	err := p.control(s, unix.EPOLL_CTL_ADD)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// rearm makes epoll report again what the socket is ready for.
func (p *poller) rearm(s *session) error {
	err := p.control(s, unix.EPOLL_CTL_MOD)
	if errors.Is(err, unix.ENOENT) { // restart is about to register it, which reports it too
		return nil
	}
	return err
}

// control registers a socket, or asks again. Where epoll itself is broken, restart will do it.
func (p *poller) control(s *session, op int) error {
	ev := unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET,
		Fd:     s.slot.place, Pad: s.slot.generation,
	}
	var failed error
	e := p.epoll.Load()
	err := s.raw.Control(func(fd uintptr) {
		if e.raw.Control(func(efd uintptr) { failed = unix.EpollCtl(int(efd), op, int(fd), &ev) }) != nil {
			failed = unix.EBADF // it is being replaced
		}
	})
	if err == nil && isBroken(failed) {
		e.distrust()
		return nil
	}
	return errors.Join(err, failed)
}

// remove forgets a session; the kernel forgets the socket when it is closed. Events under way find an empty place or another generation.
func (p *poller) remove(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := &p.table[s.slot.place]
	if at.s != s {
		return
	}
	at.s = nil
	at.generation++
	p.free = append(p.free, s.slot.place)
}

// run serves until close.
func (p *poller) run() {
	for {
		p.err = nil
		if err := p.epoll.Load().raw.Read(p.wait); err != nil || p.err != nil {
			if !p.restart(errors.Join(err, os.NewSyscallError("epoll_wait", p.err))) {
				return
			}
			continue
		}
		n := p.n
		p.mu.Lock()
		for i := range n {
			p.turn[i] = nil
			ev := &p.events[i]
			if at := p.table[ev.Fd]; at.generation == ev.Pad {
				p.turn[i] = at.s
			}
		}
		p.mu.Unlock()
		for i := range n {
			if s := p.turn[i]; s != nil {
				p.serve(s, p.events[i].Events)
			}
			p.turn[i] = nil
			if len(p.posts) >= pollEvents {
				p.hand()
			}
		}
		p.hand()
	}
}

func (p *poller) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.quit)
	p.epoll.Load().file.Close()
}

// hand gives the worker what was found. It waits while the worker's inbox is full; the worker never waits for the poller.
func (p *poller) hand() {
	if len(p.posts) > 0 || len(p.ready) > 0 {
		p.worker.inbox.deliver(p.posts, p.ready)
	}
	p.posts, p.ready = reuse(p.posts), reuse(p.ready)
}

func (p *poller) serve(s *session, events uint32) {
	if events&unix.EPOLLOUT != 0 && s.blocked.Load() {
		p.ready = append(p.ready, s)
	}
	if !s.fed {
		s.fed = true
		rest := s.rest
		s.rest = nil
		p.take(s, rest)
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		return
	}
	over := events&(unix.EPOLLHUP|unix.EPOLLERR) != 0
	ending := over || events&unix.EPOLLRDHUP != 0
	for left := readTurn; ; {
		if !over && !s.deaf && p.held(s) {
			if !ending {
				return
			}
			// It takes no answers and will say nothing more: its end is looked for, what it said before is not answered.
			s.deaf = true
		}
		if left <= 0 {
			if err := p.rearm(s); err != nil {
				p.post(s, ended{reason: &endNetwork, cause: err.Error()})
			}
			return
		}
		if err := s.raw.Read(p.read); err != nil {
			return // the worker has closed it
		}
		switch {
		case p.n > 0:
			s.received.Store(p.worker.srv.now())
			p.take(s, p.buf[:p.n])
			left -= p.n
			if p.n < len(p.buf) && !ending {
				return // empty: what comes now makes another edge
			}
		case p.err == nil:
			p.post(s, eof{})
			return
		case errors.Is(p.err, unix.EAGAIN):
			return
		default:
			p.post(s, ended{reason: &endNetwork, cause: os.NewSyscallError("read", p.err).Error()})
			return
		}
	}
}

// held says whether reading has to wait until the peer takes what it was answered. The worker clears paused and then looks at starved;
// here starved is set and then paused looked at again; so one of the two sees the other.
func (p *poller) held(s *session) bool {
	if !s.paused.Load() {
		return false
	}
	s.starved.Store(true)
	return s.paused.Load() || !s.starved.CompareAndSwap(true, false)
}

func (p *poller) post(s *session, what any) { p.posts = append(p.posts, post{s: s, what: what}) }

// take parses what came.
func (p *poller) take(s *session, data []byte) {
	in := &p.worker.srv.input
	for len(data) > 0 && !s.deaf {
		n, it, payload := s.in.next(data, s.form, p.worker.srv.cfg.MaxMessageBytes)
		data = data[n:]
		switch it {
		case itemNone, itemPong:
		case itemMessage:
			in.charge(s, 0)
			s.begun.Store(0)
			p.message(s, payload)
		case itemPing:
			p.post(s, ping{string(payload)})
		case itemClose:
			s.deaf = true
			code, text, bad, cause := parseClosePayload(payload)
			if bad != nil {
				p.post(s, ended{reason: bad, cause: cause})
				return
			}
			p.post(s, peerClose{code: code, text: text})
		case itemBad:
			s.deaf = true
			p.post(s, ended{reason: s.in.bad, cause: s.in.cause})
		}
	}
	if s.in.frag && s.begun.Load() == 0 {
		s.begun.Store(p.worker.srv.now())
	}
	if !in.charge(s, cap(s.in.msg)) {
		p.refuse(s, "unfinished message")
	}
}

func (p *poller) message(s *session, msg []byte) {
	charged, ok := p.worker.srv.input.post(len(msg))
	if !ok {
		p.refuse(s, "message")
		return
	}
	var what any
	op, bad := s.form.Parse(msg)
	switch {
	case bad == nil:
		what = op
	case bad.Close != 0:
		s.deaf = true
		what = ended{reason: s.form.bad, cause: bad.Message}
	default:
		what = bad
	}
	p.posts = append(p.posts, post{s: s, what: what, charged: charged})
}

// refuse ends a session that asks for more input than there is memory for.
func (p *poller) refuse(s *session, what string) {
	s.in.fail(&endOverLimit, what)
	s.deaf = true
	p.worker.srv.input.charge(s, 0)
	p.post(s, ended{reason: s.in.bad, cause: s.in.cause})
}
