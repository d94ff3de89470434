package e2e_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// crowdOptions say what the sockets of a benchCrowd do.
type crowdOptions struct {
	address    string
	path       func(i int) string
	subscribes func(i int) []string // sent once a socket is open; nil: none
	starts     int64                // `started` frames that are awaited; 0: one for each socket
	stamped    bool                 // values are texts that begin with the time of their sending: keep the delays
}

// benchCrowd is many sockets that one goroutine reads by epoll, so that the client leaves the machine to the processes under test. It trusts
// their frames; the proofs do not.
type benchCrowd struct {
	o       crowdOptions
	epoll   int
	members []*member
	done    chan struct{}
	started atomic.Int64
	frames  atomic.Int64 // with records
	records atomic.Int64
	failed  atomic.Pointer[string] // the first error frame, goodbye or lost connection
	leaving atomic.Bool

	mu     sync.Mutex
	delays []float64 // milliseconds
	since  int64     // records that were sent before do not count as heard; Unix nanoseconds
}

// join opens n sockets, sends their subscribes and waits until all are started.
func join(b *testing.B, n int, o crowdOptions) *benchCrowd {
	b.Helper()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	c := &benchCrowd{o: o, epoll: epoll, members: make([]*member, n), done: make(chan struct{})}
	go c.run()
	var dials sync.WaitGroup
	gate := make(chan struct{}, 16)
	for i := range n {
		gate <- struct{}{}
		dials.Go(func() {
			defer func() { <-gate }()
			if err := c.open(i); err != nil {
				c.fail(fmt.Sprintf("socket %d: %v", i, err))
			}
		})
	}
	dials.Wait()
	b.Cleanup(c.leave)
	want := max(o.starts, 0)
	if want == 0 {
		want = int64(n)
	}
	c.await(b, "subscriptions started", &c.started, want)
	return c
}

func (c *benchCrowd) fail(text string) {
	if !c.leaving.Load() {
		c.failed.CompareAndSwap(nil, &text)
	}
}

// await waits until a counter of the crowd has come to a number.
func (c *benchCrowd) await(b *testing.B, what string, counter *atomic.Int64, want int64) {
	b.Helper()
	eventually(b.Context(), 5*time.Minute, func() bool { return counter.Load() >= want || c.failed.Load() != nil })
	if failed := c.failed.Load(); failed != nil || counter.Load() < want {
		b.Fatalf("%d of %d %s; the first failure: %s", counter.Load(), want, what, text(failed))
	}
}

func (c *benchCrowd) open(i int) error {
	addr, err := net.ResolveTCPAddr("tcp4", c.o.address)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	m := &member{fd: fd}
	c.members[i] = m
	wait := unix.Timeval{Sec: 60}
	peer := &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}
	err = errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
	)
	if err == nil {
		err = unix.Connect(fd, peer)
	}
	if err != nil {
		return err
	}
	rest, err := handshake(fd, c.o.address, c.o.path(i))
	if err != nil {
		return err
	}
	if c.o.subscribes != nil {
		for _, s := range c.o.subscribes(i) {
			if err := m.send(opText, []byte(s)); err != nil {
				return err
			}
		}
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return err
	}
	c.mu.Lock()
	c.feed(m, rest)
	c.mu.Unlock()
	return unix.EpollCtl(c.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(i)})
}

// run reads until the crowd leaves.
func (c *benchCrowd) run() {
	defer close(c.done)
	events := make([]unix.EpollEvent, 512)
	buf := make([]byte, 256<<10)
	for !c.leaving.Load() {
		n, err := unix.EpollWait(c.epoll, events, 100)
		if err != nil && !errors.Is(err, unix.EINTR) {
			c.fail(err.Error())
			return
		}
		c.mu.Lock()
		for i := range max(n, 0) {
			m := c.members[events[i].Fd]
			switch n, err := unix.Read(m.fd, buf); {
			case n > 0:
				c.feed(m, buf[:n])
			case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
			default:
				c.fail(fmt.Sprintf("socket %d has ended: %v", events[i].Fd, err))
				_ = unix.EpollCtl(c.epoll, unix.EPOLL_CTL_DEL, m.fd, nil)
			}
		}
		c.mu.Unlock()
	}
}

// forget begins to count anew, with delays of records that are sent from now on, and returns how many records there were.
func (c *benchCrowd) forget() (records int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	records = c.records.Swap(0)
	c.frames.Store(0)
	c.delays, c.since = c.delays[:0], time.Now().UnixNano()
	for _, m := range c.members {
		m.heard = 0
	}
	return records
}

// sortedDelays are those since forget, in milliseconds.
func (c *benchCrowd) sortedDelays() []float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.delays))
}

// heard is how long after a time each socket got its first record since forget, sorted, in milliseconds; those that got none are missing.
func (c *benchCrowd) heard(since time.Time) (all []float64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.members {
		if m.heard > 0 {
			all = append(all, float64(m.heard-since.UnixNano())/1e6)
		}
	}
	slices.Sort(all)
	return all
}

// leave resets all connections. It may be called twice.
func (c *benchCrowd) leave() {
	if c.leaving.Swap(true) {
		return
	}
	<-c.done
	for _, m := range c.members {
		if m != nil {
			_ = unix.Close(m.fd)
		}
	}
	_ = unix.Close(c.epoll)
}

func text(s *string) string {
	if s == nil {
		return "none"
	}
	return *s
}
