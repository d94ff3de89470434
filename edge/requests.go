package edge

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/access"
)

// Bounds of a connection that is no socket, which holds one of MaxRequests places. HandshakeTimeout is that of reading a request, with its body.
// A page that asks for something now and then is served however many there are: an idle connection gives its place back soon, and once half of
// the places are taken, after each answer.
const (
	idleRequests  = 5 * time.Second // between requests
	answerTimeout = 30 * time.Second
)

// requests serves what is not a socket: an ordinary HTTP server, given connections whose first bytes were read already.
type requests struct {
	srv   *Server
	http  *http.Server
	addr  net.Addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
	room  chan struct{} // a place for each connection
}

func newRequests(s *Server, addr net.Addr) *requests {
	q := &requests{srv: s, addr: addr, conns: make(chan net.Conn), done: make(chan struct{}), room: make(chan struct{}, s.cfg.MaxRequests)}
	q.http = &http.Server{
		Handler: http.HandlerFunc(q.answer), ReadHeaderTimeout: s.cfg.HandshakeTimeout,
		ReadTimeout: s.cfg.HandshakeTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleRequests, MaxHeaderBytes: maxHead,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	return q
}

// serve returns after close.
func (q *requests) serve() {
	if err := q.http.Serve(q); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		q.srv.log.Error("serve requests", "error", err)
	}
}

// close gives requests in flight a moment.
func (q *requests) close() {
	_ = q.Close()
	ctx, cancel := context.WithTimeout(q.srv.ctx, acceptWait)
	defer cancel()
	if q.http.Shutdown(ctx) != nil {
		_ = q.http.Close()
	}
}

// take takes a connection, with what was read of it.
func (q *requests) take(conn *net.TCPConn, head []byte) {
	select {
	case q.room <- struct{}{}:
	default:
		q.srv.answer(conn, &refused{status: http.StatusServiceUnavailable, text: "too many requests at once"})
		return
	}
	c := &begun{TCPConn: conn, head: head, leave: sync.OnceFunc(func() { <-q.room })}
	if conn.SetDeadline(time.Time{}) != nil {
		_ = c.Close()
		return
	}
	select {
	case q.conns <- c:
	case <-q.done:
		_ = c.Close()
	}
}

// Accept, Close and Addr make requests the HTTP server's listener.
func (q *requests) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (q *requests) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

// Addr is the address of the true listener.
func (q *requests) Addr() net.Addr { return q.addr }

// answer serves one request. An upgrade comes here too, when a proxy sends it over a connection that has served requests before.
func (q *requests) answer(w http.ResponseWriter, r *http.Request) {
	if len(q.room) > cap(q.room)/2 {
		w.Header().Set("Connection", "close")
	}
	switch {
	case isSocket(r):
		if no := q.srv.refusal(r); no != nil {
			q.srv.refusing(r.RemoteAddr, r.URL.Path, no)
			no.serve(w)
			return
		}
		q.srv.settle(r.RemoteAddr, q.srv.upgrade(w, r, nil))
	case isEvents(r):
		x, no := q.srv.refusalOfEvents(r)
		if no != nil {
			q.srv.refusing(r.RemoteAddr, r.URL.Path, no)
			no.serve(w)
			return
		}
		q.srv.settle(r.RemoteAddr, q.srv.takeOver(w, x))
	case isPublish(r):
		q.srv.post(w, r)
	case !access.HostAllowed(r.Host, q.srv.cfg.AllowedHosts):
		http.Error(w, misdirected, http.StatusMisdirectedRequest)
	default:
		q.srv.rest.ServeHTTP(w, r)
	}
}

// begun is a connection of which head was read already.
type begun struct {
	*net.TCPConn
	head  []byte
	leave func()
}

// Read reads the head first. Only one goroutine reads.
func (c *begun) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil
		}
		return n, nil
	}
	return c.TCPConn.Read(p)
}

// Close makes room for another.
func (c *begun) Close() error {
	c.leave()
	return c.TCPConn.Close()
}

// unwrap returns the TCP connection under conn, and what was read of it beyond the upgrade request.
func unwrap(conn net.Conn, r *bufio.Reader) (*net.TCPConn, []byte, error) {
	early, err := r.Peek(r.Buffered())
	if err != nil {
		return nil, nil, err
	}
	early = append([]byte(nil), early...)
	switch c := conn.(type) {
	case *net.TCPConn:
		return c, early, nil
	case *begun:
		c.leave()
		return c.TCPConn, append(early, c.head...), nil
	default:
		return nil, nil, errors.New("not a TCP connection")
	}
}
