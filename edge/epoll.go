package edge

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// epollPause is the time between attempts to get another epoll.
const epollPause = 500 * time.Millisecond

// epoll is a descriptor of the kernel's epoll, itself waited for by the runtime's poller: waiting occupies no thread.
type epoll struct {
	file *os.File
	raw  syscall.RawConn
}

func newEpoll() (*epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // or os.NewFile makes it one that blocks
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	e := &epoll{file: os.NewFile(uintptr(fd), "epoll")}
	if e.raw, err = e.file.SyscallConn(); err != nil {
		e.file.Close()
		return nil, err
	}
	return e, nil
}

// distrust has the poller look after an epoll of it, which does not do what it is asked. Without a descriptor that works the kernel tells nothing, so
// that the poller would not notice by itself. One that was replaced meanwhile is of no concern.
func (e *epoll) distrust() { _ = e.file.SetReadDeadline(time.Unix(1, 0)) }

// isBroken says whether it is epoll itself that an error of epoll_ctl is about, not the socket.
func isBroken(err error) bool {
	return errors.Is(err, unix.EBADF) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM)
}

// restart replaces an epoll that has failed. All sockets are registered anew, and with that everything is told again that they are ready for: nothing is
// lost. Where there is no other epoll the sockets end, 1011, as nobody would hear them; those that come meanwhile wait for it. It is false when the
// poller was closed.
func (p *poller) restart(cause error) bool {
	log := p.worker.srv.log
	for first := true; ; first = false {
		p.mu.Lock()
		select {
		case <-p.quit:
			p.mu.Unlock()
			return false
		default:
		}
		p.epoll.Load().file.Close()
		e, err := newEpoll()
		if err == nil {
			p.epoll.Store(e)
		}
		var all []*session
		for _, at := range p.table {
			if at.s != nil {
				all = append(all, at.s)
			}
		}
		p.mu.Unlock()
		if err == nil {
			log.Error("poll sockets: epoll was replaced", "sockets", len(all), "error", cause)
			for _, s := range all {
				if err := p.register(s); err != nil {
					p.post(s, ended{reason: &endInternal, cause: err.Error()}) // of no concern if it is closed already
				}
			}
			p.hand()
			return true
		}
		if first {
			log.Error("poll sockets: there is no epoll, all of them end", "sockets", len(all), "cause", cause, "error", err, "retry", epollPause)
			for _, s := range all {
				p.post(s, ended{reason: &endInternal, cause: err.Error()})
			}
			p.hand()
		}
		select {
		case <-p.quit:
			return false
		case <-time.After(epollPause):
		}
	}
}
