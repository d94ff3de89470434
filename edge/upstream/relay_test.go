package upstream_test

import (
	"net"
	"sync"
	"testing"
)

// relay is a TCP relay that can reset or freeze all its connections.
type relay struct {
	address string
	target  string
	ln      net.Listener
	wg      sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	frozen map[net.Conn]chan struct{} // closed at the end
	shut   bool
}

func newRelay(t testing.TB, target string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{address: ln.Addr().String(), target: target, ln: ln, conns: map[net.Conn]struct{}{}, frozen: map[net.Conn]chan struct{}{}}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		r.close(true)
		r.wg.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		client, err := r.ln.Accept()
		if err != nil {
			return
		}
		service, err := net.Dial("tcp", r.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !r.keep(client, service) {
			continue
		}
		r.wg.Go(func() { r.copy(client, service) })
		r.wg.Go(func() { r.copy(service, client) })
	}
}

// keep takes note of a pair, or closes it while the relay is shut.
func (r *relay) keep(pair ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range pair {
		if r.shut {
			_ = c.Close()
		} else {
			r.conns[c] = struct{}{}
		}
	}
	return !r.shut
}

func (r *relay) copy(from, to net.Conn) {
	buffer := make([]byte, 8<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		thaw := r.frozen[from]
		r.mu.Unlock()
		if thaw != nil {
			<-thaw
			break
		}
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			break
		}
	}
	_ = from.Close()
	_ = to.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, from)
	delete(r.conns, to)
}

// freeze makes all present connections silent: nothing passes, in either direction, and nobody gets a FIN. New ones work.
func (r *relay) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		if r.frozen[c] == nil {
			r.frozen[c] = make(chan struct{})
		}
	}
}

// cut resets every connection.
func (r *relay) cut() { r.close(false) }

func (r *relay) close(stay bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shut = stay
	if stay {
		for _, thaw := range r.frozen {
			close(thaw)
		}
		clear(r.frozen)
	}
	for c := range r.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}
