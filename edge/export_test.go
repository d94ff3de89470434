package edge

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/gobwas/ws"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"tailrace.dev/tailrace/services/access"
)

// Reader is the frame parser, for tests from outside.
type Reader struct {
	r      reader
	binary bool
}

// NewBinaryReader is that of the binary subprotocol; the zero Reader is that of JSON.
func NewBinaryReader() *Reader { return &Reader{binary: true} }

// Items of Reader.Next.
const (
	ItemNone    = itemNone
	ItemMessage = itemMessage
	ItemPing    = itemPing
	ItemPong    = itemPong
	ItemClose   = itemClose
	ItemBad     = itemBad
)

// Next is reader.next.
func (r *Reader) Next(p []byte, limit int64) (int, item, []byte) {
	form := &protocolJSON
	if r.binary {
		form = &protocolProto
	}
	return r.r.next(p, form, limit)
}

// Bad is the close code of ItemBad.
func (r *Reader) Bad() (code int, cause string) { return int(r.r.bad.Code), r.r.cause }

// Held is the memory that the parser holds between pieces.
func (r *Reader) Held() int { return cap(r.r.msg) + cap(r.r.ctl) }

// Reason is a row of the table of reasons.
type Reason struct {
	Name, Initiator, Text string
	Code                  int
	ComeBack, Silent      bool
}

// Reasons returns the table.
func Reasons() (rs []Reason) {
	for _, r := range reasons() {
		rs = append(rs, Reason{r.Name, r.Initiator, r.Text, int(r.Code), r.comeBack(), r.silent})
	}
	return rs
}

// ClosePayload is appendClosePayload.
func ClosePayload(code int, text string) []byte {
	return appendClosePayload(nil, ws.StatusCode(code), text)
}

// ParseClosePayload is parseClosePayload; bad is the code to fail with, 0 if the payload is legal.
func ParseClosePayload(p []byte) (code int, text string, bad int) {
	c, text, r, _ := parseClosePayload(p)
	if r != nil {
		return 0, "", int(r.Code)
	}
	return int(c), text, 0
}

// Life is a session's liveness, with times of the test's own.
type Life struct{ l life }

// Observe is life.observe.
func (l *Life) Observe(now time.Duration, blocked bool, written int64, unsent int) bool {
	return l.l.observe(int64(now), blocked, written, unsent)
}

// Judge is life.judge: the name of the reason to end, or "".
func (l *Life) Judge(now, received time.Duration, stuck bool, cfg Config) string {
	r := l.l.judge(int64(now), int64(received), stuck, limits{cfg.HeartbeatInterval, cfg.LifeGrace, cfg.StallTimeout})
	if r == nil {
		return ""
	}
	return r.Name
}

// Tasks is tasks.
type Tasks struct{ t *tasks }

// NewTasks is newTasks.
func NewTasks(limit int) Tasks { return Tasks{newTasks(limit)} }

// Run is tasks.run; drop is tasks.drop of it.
func (t Tasks) Run(topic string, deadline time.Time, call, late func()) (drop func() bool) {
	k := t.t.run(topic, deadline, call, late)
	return func() bool { return t.t.drop(k) }
}

// Expire is tasks.expire.
func (t Tasks) Expire(now time.Time) { t.t.expire(now) }

// Wait is tasks.wait.
func (t Tasks) Wait() { t.t.wait() }

// Left is what tasks still know of: topics.
func (t Tasks) Left() int {
	t.t.mu.Lock()
	defer t.t.mu.Unlock()
	return len(t.t.lines) + len(t.t.turns) + t.t.running
}

// AddressOf is addressOf, as text.
func AddressOf(remote string) string { return addressOf(remote).String() }

// SetAllow replaces access.Allow. Call it before anybody asks for anything.
func (s *Server) SetAllow(allow func(context.Context, access.Request) error) { s.allow = allow }

// Break tells each worker that its sessions cannot go on by our fault.
func (s *Server) Break() {
	for _, w := range s.workers {
		w.poller.mu.Lock()
		var all []*session
		for _, at := range w.poller.table {
			if at.s != nil {
				all = append(all, at.s)
			}
		}
		w.poller.mu.Unlock()
		for _, x := range all {
			w.inbox.post(x, ended{reason: &endInternal, cause: "broken by a test"})
		}
	}
}

// HoldPollers keeps the server from reading what comes, until release.
func (s *Server) HoldPollers() (release func()) {
	for _, w := range s.workers {
		w.poller.mu.Lock()
	}
	return func() {
		for _, w := range s.workers {
			w.poller.mu.Unlock()
		}
	}
}

// BreakPollers puts something else into the place of each poller's epoll descriptor, as whoever closes a descriptor that is not his does.
func (s *Server) BreakPollers() error {
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	for _, w := range s.workers {
		var failed error
		err = errors.Join(err, w.poller.epoll.Load().raw.Control(func(fd uintptr) { failed = unix.Dup3(null, int(fd), unix.O_CLOEXEC) }), failed)
	}
	return err
}

// RegisterAgain registers all sockets once more, as a poller does with one that is being added while epoll is replaced.
func (s *Server) RegisterAgain() (err error) {
	for _, w := range s.workers {
		w.poller.mu.Lock()
		table := slices.Clone(w.poller.table)
		w.poller.mu.Unlock()
		for _, at := range table {
			if at.s != nil {
				err = errors.Join(err, w.poller.register(at.s))
			}
		}
	}
	return err
}

// DistrustPollers lets the pollers know that something is wrong.
func (s *Server) DistrustPollers() {
	for _, w := range s.workers {
		w.poller.epoll.Load().distrust()
	}
}

// MaxPosters is maxPosters.
const MaxPosters = maxPosters

// Posters is posters, with a clock of the test's.
type Posters struct{ p posters }

// NewPosters knows nobody.
func NewPosters() *Posters { return &Posters{posters{of: make(map[netip.Addr]*allowance)}} }

// Admit is posters.admit.
func (p *Posters) Admit(remote string, now time.Duration, rate int) error {
	return p.p.admit(remote, int64(now), rate)
}

// Len is how many are remembered.
func (p *Posters) Len() int { return len(p.p.of) }

// Unread is how many bytes the kernel holds of what clients sent to sockets that are not read.
func (s *Server) Unread() (n int) {
	for _, w := range s.workers {
		w.poller.mu.Lock()
		for _, at := range w.poller.table {
			if at.s != nil && at.s.starved.Load() {
				n += w.unread(at.s)
			}
		}
		w.poller.mu.Unlock()
	}
	return n
}

// Tallied is a histogram of what was tallied, each group handed over by itself, and the last value of all observed directly.
func Tallied(name string, unit float64, groups ...[]float64) prometheus.Collector {
	h := &histogram{unit: unit, desc: prometheus.NewDesc(name, "H.", nil, nil)}
	for i, values := range groups {
		if last := len(values) - 1; i == len(groups)-1 {
			h.observe(values[last])
			values = values[:last]
		}
		var t tally
		for _, v := range values {
			t.observe(v, h.units(v))
		}
		h.add(&t)
	}
	return histograms{h}
}
