package edge

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gobwas/ws"
	"golang.org/x/sys/unix"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
)

const (
	maxHead    = 16 << 10 // bytes of a request head
	acceptWait = time.Second
)

// accept accepts until ctx ends or the server drains. Each connection gets a goroutine for its request head and handshake; the socket
// itself needs none.
func (s *Server) accept(ctx context.Context, ln *net.TCPListener) error {
	stop := make(chan struct{})
	defer close(stop)
	s.upgrades.Go(func() {
		select {
		case <-ctx.Done():
		case <-s.stopping:
		case <-stop:
		}
		_ = ln.Close() // Accept returns
	})
	wait := time.Duration(0)
	for {
		conn, err := ln.AcceptTCP()
		if err == nil {
			wait = 0
			if !s.door.enter(conn, s.stopping, ctx.Done()) { // while it waits, others do in the kernel's queue
				_ = conn.Close()
				return nil
			}
			s.upgrades.Go(func() {
				defer s.door.leave()
				s.welcome(ctx, conn)
			})
			continue
		}
		if ctx.Err() != nil || s.draining.Load() {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept: %w", err)
		}
		// Out of descriptors, or a connection that broke in the queue: both pass.
		wait = min(max(2*wait, 5*time.Millisecond), acceptWait)
		s.log.Warn("connections cannot be accepted", "cause", err, "retry", wait, "advice", "where files are too many, raise the process's limit of open files (ulimit -n), or lower -max-sessions")
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		case <-s.stopping:
		}
	}
}

// welcome reads a request head and either upgrades the connection or hands it to the HTTP server with what was read.
func (s *Server) welcome(ctx context.Context, conn *net.TCPConn) {
	abort := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer abort()
	if err := conn.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)); err != nil {
		_ = conn.Close()
		return
	}
	head, end, err := readHead(conn)
	s.door.read(conn)
	if err != nil {
		_ = conn.Close() // it said nothing that could be answered
		return
	}
	if end == 0 {
		no := &refused{status: http.StatusRequestHeaderFieldsTooLarge, text: "the request head is too large"}
		s.refusing(conn.RemoteAddr().String(), "", no)
		s.answer(conn, no)
		return
	}
	r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(head[:end])))
	if err == nil {
		r.RemoteAddr = conn.RemoteAddr().String()
	}
	if err == nil && isEvents(r) && plain(r) {
		if x, no := s.refusalOfEvents(r); no != nil {
			s.refusing(r.RemoteAddr, r.URL.Path, no)
			s.answer(conn, no)
		} else {
			abort() // see below
			s.settle(r.RemoteAddr, s.stream(conn, x))
		}
		return
	}
	if err != nil || !isSocket(r) || !plain(r) {
		s.requests.take(conn, head) // what can't be understood is answered there too
		return
	}
	if no := s.refusal(r); no != nil {
		s.refusing(r.RemoteAddr, r.URL.Path, no)
		s.answer(conn, no)
		return
	}
	abort() // it is the worker's to end it from now on: a deadline in the past would cost the peer the close frame
	s.settle(r.RemoteAddr, s.upgrade(&hijacked{conn: conn}, r, append([]byte(nil), head[end:]...)))
}

// readHead reads up to the empty line, and perhaps a bit more. end is behind that line; 0 if the head is larger than maxHead.
func readHead(conn net.Conn) (head []byte, end int, err error) {
	head = make([]byte, 0, 2048)
	for {
		switch {
		case len(head) == maxHead:
			return nil, 0, nil
		case len(head) == cap(head):
			head = slices.Grow(head, len(head))
		}
		n, err := conn.Read(head[len(head):min(cap(head), maxHead)])
		from := max(0, len(head)-3)
		head = head[:len(head)+n]
		if i := bytes.Index(head[from:], []byte("\r\n\r\n")); i >= 0 {
			return head, from + i + 4, nil
		}
		if err != nil {
			return nil, 0, err
		}
	}
}

// plain says whether a head is one that the HTTP server lets through: http.ReadRequest alone does not mind header names with a space in them, which
// a proxy may have understood otherwise, or a version of HTTP that does not exist.
func plain(r *http.Request) bool {
	for name := range r.Header {
		if strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c) }) {
			return false
		}
	}
	return r.ProtoMajor == 1
}

// isSocket says whether a request is for a socket: /ws, or /ws/ and a topic.
func isSocket(r *http.Request) bool {
	return r.URL.Path == "/ws" || len(r.URL.Path) > len("/ws/") && strings.HasPrefix(r.URL.Path, "/ws/")
}

// refused is an answer other than the upgrade.
type refused struct {
	status int
	text   string
	header http.Header
}

func (f *refused) write(w io.Writer) error {
	h := f.header.Clone()
	if h == nil {
		h = make(http.Header)
	}
	resp := &http.Response{StatusCode: f.status, ProtoMajor: 1, ProtoMinor: 1, Header: h, Close: true}
	if f.text != "" {
		if h.Get("Content-Type") == "" {
			h.Set("Content-Type", "text/plain; charset=utf-8")
		}
		resp.Body, resp.ContentLength = io.NopCloser(strings.NewReader(f.text+"\n")), int64(len(f.text)+1)
	}
	return resp.Write(w)
}

// serve is write, for an HTTP server.
func (f *refused) serve(w http.ResponseWriter) {
	maps.Copy(w.Header(), f.header)
	if f.text == "" {
		w.WriteHeader(f.status)
		return
	}
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	w.WriteHeader(f.status)
	_, _ = io.WriteString(w, f.text+"\n") // the connection is the server's care
}

// refusal says what is wrong with an upgrade, nil if nothing is: then the session is counted in. It is decided before the upgrade, so that
// the status is what a client sees.
func (s *Server) refusal(r *http.Request) *refused {
	no := s.judge(r)
	if no != nil {
		s.metrics.refused.WithLabelValues(kindSocket, strconv.Itoa(no.status)).Inc()
	}
	return no
}

func (s *Server) judge(r *http.Request) *refused {
	bad := func(text string) *refused { return &refused{status: http.StatusBadRequest, text: text} }
	switch {
	case r.Method != http.MethodGet:
		return &refused{http.StatusMethodNotAllowed, "a socket is opened with GET", http.Header{"Allow": {http.MethodGet}}}
	case r.Host == "":
		return bad("no Host")
	case !access.HostAllowed(r.Host, s.cfg.AllowedHosts):
		return &refused{status: http.StatusMisdirectedRequest, text: misdirected}
	case !hasToken(r.Header["Upgrade"], "websocket") || !hasToken(r.Header["Connection"], "upgrade"):
		return bad("not a WebSocket upgrade")
	case !slices.Equal(r.Header["Sec-Websocket-Version"], []string{"13"}):
		return &refused{http.StatusUpgradeRequired, "WebSocket version 13 is spoken here", http.Header{
			"Sec-Websocket-Version": {"13"}, "Upgrade": {"websocket"}, "Connection": {"Upgrade"},
		}}
	case !goodKey(r.Header["Sec-Websocket-Key"]):
		return bad("Sec-WebSocket-Key is not 16 bytes in base64")
	case !originAllowed(r, s.cfg.AllowedOrigins):
		return &refused{status: http.StatusForbidden, text: "this origin is not allowed"}
	case len(r.Header["Sec-Websocket-Protocol"]) > 0 && chosen(r.Header["Sec-Websocket-Protocol"]) == nil:
		return bad("none of the subprotocols is known; known are " + knownSubprotocols())
	case r.ContentLength > 0 || len(r.TransferEncoding) > 0:
		return bad("an upgrade has no body")
	}
	switch s.enter(r.RemoteAddr) {
	case full:
		return &refused{http.StatusServiceUnavailable, "no room for another socket here", http.Header{"Retry-After": {"5"}}}
	case crowded:
		return &refused{http.StatusTooManyRequests, "too many sockets from this address", http.Header{"Retry-After": {"5"}}}
	case entered:
	}
	return nil
}

// chosen is the first known one of the subprotocols that a client offers, in its order of preference (RFC 6455, section 4.1); nil if none is
// known. Names are case-sensitive.
func chosen(lines []string) *subprotocol {
	for _, line := range lines {
		for name := range strings.SplitSeq(line, ",") {
			if p := subprotocolOf(strings.TrimSpace(name)); p != nil {
				return p
			}
		}
	}
	return nil
}

// hasToken says whether a list header has a token.
func hasToken(lines []string, token string) bool {
	for _, line := range lines {
		for t := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(t), token) {
				return true
			}
		}
	}
	return false
}

func goodKey(keys []string) bool {
	if len(keys) != 1 {
		return false
	}
	b, err := base64.StdEncoding.DecodeString(keys[0])
	return err == nil && len(b) == 16
}

// hijacked lets the upgrader have a connection that no HTTP server has.
type hijacked struct {
	http.ResponseWriter
	conn *net.TCPConn
}

func (h *hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReaderSize(h.conn, 16), bufio.NewWriterSize(h.conn, 512)), nil
}

// upgrade does the handshake and hands the session to a worker; false if it could not, and the connection is closed. early is what came
// behind the head.
func (s *Server) upgrade(rw http.ResponseWriter, r *http.Request, early []byte) (handed bool) {
	form := &protocolJSON
	up := ws.HTTPUpgrader{Timeout: s.cfg.HandshakeTimeout}
	if offered := r.Header["Sec-Websocket-Protocol"]; len(offered) > 0 {
		form = chosen(offered) // refusal has made sure that there is one
		up.Protocol = func(p string) bool { return p == form.name }
	}
	conn, buffered, _, err := up.Upgrade(r, rw)
	if err != nil {
		if conn != nil {
			_ = conn.Close()
		}
		return false
	}
	tcp, rest, err := unwrap(conn, buffered.Reader)
	if err == nil {
		err = tcp.SetDeadline(time.Time{})
	}
	if err == nil {
		x := &session{form: form, rest: append(early, rest...), parent: s.parentOf(r)}
		if topic, ok := strings.CutPrefix(r.URL.Path, "/ws/"); ok {
			if x.url, x.urlError = frame.ParseURL(topic, r.URL.RawQuery); x.url != nil && form == &protocolProto {
				x.url.As = frame.AsBytes // all that it has; what is rendered is shared by all of the same as
			}
		}
		err = s.hand(tcp, x)
	}
	if err != nil {
		s.log.Info("handshake failed", "peer", r.RemoteAddr, "cause", err) // the client left meanwhile
		_ = conn.Close()
		return false
	}
	return true
}

// hand gives a session to a worker.
func (s *Server) hand(tcp *net.TCPConn, x *session) error {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	// Without this a peer that doesn't read makes the kernel hold megabytes of records that we could read again.
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSent)
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	x.conn, x.raw, x.name, x.started = tcp, raw, newName(), s.now()
	x.received.Store(x.started)
	w := s.workers[int(s.next.Add(1))%len(s.workers)]
	s.metrics.sessions.WithLabelValues(x.kind()).Inc()
	s.log.LogAttrs(s.ctx, slog.LevelInfo, "session started", x.identify()...)
	w.inbox.post(x, opened{})
	return nil
}

func newName() string {
	var b [9]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

// answer refuses a connection and closes it, after its input was drained: closing it unread would reset it, and the answer with it.
func (s *Server) answer(conn *net.TCPConn, no *refused) {
	if no.write(conn) == nil && conn.CloseWrite() == nil {
		_ = conn.SetReadDeadline(time.Now().Add(acceptWait))
		_, _ = io.CopyN(io.Discard, conn, 2*maxHead)
	}
	_ = conn.Close()
}
