package edge

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	slowHead  = time.Second            // a request head that takes longer gives way to others
	doorRetry = 100 * time.Millisecond // how often a full door is looked at
)

// addressOf is what connections are counted by: the peer's address, of IPv6 its network of 64 bits, which is what one customer has. remote is
// host:port; what is none counts together.
func addressOf(remote string) netip.Addr {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	a := at.Addr().Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// door lets connections in whose request head is to be read. Each holds a place until its handshake is over. When there is none left, the oldest
// slow one of the address that has most gives way: so whoever opens connections and says nothing takes the places from himself first.
type door struct {
	places chan struct{}

	mu      sync.Mutex
	reading map[*net.TCPConn]guest // those whose head has not come yet
}

type guest struct {
	address netip.Addr
	since   time.Time
}

func newDoor(places int) *door {
	return &door{places: make(chan struct{}, places), reading: make(map[*net.TCPConn]guest)}
}

// enter waits for a place; false if stop or done came first. The caller gives it back with leave.
func (d *door) enter(conn *net.TCPConn, stop, done <-chan struct{}) bool {
	select {
	case d.places <- struct{}{}:
	default:
		retry := time.NewTicker(doorRetry)
		defer retry.Stop()
		for in := false; !in; {
			d.giveWay()
			select {
			case d.places <- struct{}{}:
				in = true
			case <-retry.C:
			case <-stop:
				return false
			case <-done:
				return false
			}
		}
	}
	d.mu.Lock()
	d.reading[conn] = guest{addressOf(conn.RemoteAddr().String()), time.Now()}
	d.mu.Unlock()
	return true
}

// read says that a head has come, or will not.
func (d *door) read(conn *net.TCPConn) {
	d.mu.Lock()
	delete(d.reading, conn)
	d.mu.Unlock()
}

func (d *door) leave() { <-d.places }

// giveWay ends the reading of one slow head, if there is one.
func (d *door) giveWay() {
	d.mu.Lock()
	defer d.mu.Unlock()
	count := make(map[netip.Addr]int)
	for _, g := range d.reading {
		count[g.address]++
	}
	var (
		victim *net.TCPConn
		worst  guest
	)
	for conn, g := range d.reading {
		if time.Since(g.since) < slowHead {
			continue
		}
		more, same := count[g.address] > count[worst.address], count[g.address] == count[worst.address]
		if victim == nil || more || same && g.since.Before(worst.since) {
			victim, worst = conn, g
		}
	}
	if victim != nil {
		delete(d.reading, victim)
		_ = victim.SetDeadline(time.Unix(1, 0)) // its goroutine closes it
	}
}
