package e2e_test

import (
	"net"
	"sync"
	"testing"
)

// relay is a TCP relay on loopback that can misbehave.
type relay struct {
	address  string
	target   string
	listener net.Listener

	mu     sync.Mutex
	moving *sync.Cond
	mute   bool // bytes stay where they are, in both directions; nobody gets a FIN
	closed bool
	pairs  map[*relayed]struct{}
	wg     sync.WaitGroup
}

type relayed struct{ client, server net.Conn }

func newRelay(t testing.TB, target string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: l.Addr().String(), target: target, listener: l, pairs: map[*relayed]struct{}{}}
	r.moving = sync.NewCond(&r.mu)
	r.wg.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.target)
		if err != nil {
			client.Close()
			continue
		}
		p := &relayed{client: client, server: server}
		r.mu.Lock()
		r.pairs[p] = struct{}{}
		r.mu.Unlock()
		r.wg.Go(func() { r.copy(p, client, server) })
		r.wg.Go(func() { r.copy(p, server, client) })
	}
}

// copy moves bytes one way. Both directions end together, and abruptly.
func (r *relay) copy(p *relayed, from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		r.mu.Lock()
		for r.mute && !r.closed {
			r.moving.Wait()
		}
		r.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	p.client.Close()
	p.server.Close()
	r.mu.Lock()
	delete(r.pairs, p)
	r.mu.Unlock()
}

// silence makes the relay hold all bytes (on) or let them go again.
func (r *relay) silence(on bool) {
	r.mu.Lock()
	r.mute = on
	r.mu.Unlock()
	r.moving.Broadcast()
}

// cut resets every connection.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pairs {
		for _, conn := range []net.Conn{p.client, p.server} {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
			conn.Close()
		}
	}
}

func (r *relay) close() {
	r.listener.Close()
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.moving.Broadcast()
	r.cut()
	r.wg.Wait()
}
