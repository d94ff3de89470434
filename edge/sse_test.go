package edge_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

// event is what a client has parsed of a stream (HTML standard, section 9.2.6).
type event struct {
	name, id, data string
}

// stream is a client of /sse/{topic} that shares no code with the edge.
type stream struct {
	conn  *net.TCPConn
	resp  *http.Response
	lines *bufio.Reader

	lastID   string
	retry    []int
	comments int
}

// openStream sends a request; the answer's head is read.
func openStream(addr, path string, headers ...string) (*stream, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.New("not TCP")
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\n", path, addr)
	for _, h := range headers {
		fmt.Fprintf(conn, "%s\r\n", h)
	}
	if _, err := io.WriteString(conn, "\r\n"); err != nil {
		conn.Close()
		return nil, err
	}
	br := bufio.NewReader(conn)
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &stream{conn: tcp, resp: resp, lines: bufio.NewReaderSize(resp.Body, 64<<10)}, nil
}

func (r *rig) stream(t testing.TB, path string, headers ...string) *stream {
	t.Helper()
	s, err := openStream(r.addr, path, headers...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.conn.Close() })
	return s
}

// next returns the next event that a page would be told.
func (s *stream) next() (event, error) {
	e := event{name: "message"}
	var data []string
	id := s.lastID
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return event{}, err // what is unfinished does not count
		}
		line = strings.TrimSuffix(line, "\n")
		if strings.Contains(line, "\r") {
			return event{}, fmt.Errorf("a CR in %q", line)
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "":
			s.lastID = id
			if data == nil {
				e.name = "message"
				continue
			}
			e.id, e.data = id, strings.Join(data, "\n")
			return e, nil
		case name == "":
			s.comments++
		case name == "event":
			e.name = value
		case name == "id":
			id = value
		case name == "data":
			data = append(data, value)
		case name == "retry":
			n, err := strconv.Atoi(value)
			if err != nil || n < 0 || n > 10_000 {
				return event{}, fmt.Errorf("retry %q", value)
			}
			s.retry = append(s.retry, n)
		default:
			return event{}, fmt.Errorf("line %q", line)
		}
	}
}

// expect returns the next event, which must have a name, with its data.
func (s *stream) expect(t testing.TB, name string) (event, *message) {
	t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(patience))
	if s.resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(s.resp.Body)
		t.Fatalf("%s %s", s.resp.Status, body)
	}
	e, err := s.next()
	if err != nil {
		t.Fatalf("waiting for %s: %v", name, err)
	}
	if e.name != name {
		t.Fatalf("got %+v, want %s", e, name)
	}
	return e, e.message(t)
}

// message is an event's data.
func (e *event) message(t testing.TB) *message {
	t.Helper()
	m, err := e.parse()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (e *event) parse() (*message, error) {
	m := &message{}
	var into any = m
	if e.name == "message" {
		into = &m.Records
	}
	if err := json.Unmarshal([]byte(e.data), into); err != nil {
		return nil, fmt.Errorf("%s: %w", e.data, err)
	}
	if e.name != "message" && m.Op != e.name {
		return nil, fmt.Errorf("event %s has the data of %s", e.name, m.Op)
	}
	return m, nil
}

func deadline() time.Time { return time.Now().Add(patience) }

// until skips events up to one of a name.
func (s *stream) until(t testing.TB, name string) (event, *message) {
	t.Helper()
	for {
		_ = s.conn.SetReadDeadline(time.Now().Add(patience))
		e, err := s.next()
		if err != nil {
			t.Fatalf("waiting for %s: %v", name, err)
		}
		if e.name == name {
			return e, e.message(t)
		}
	}
}

// values are those of the next n records.
func (s *stream) values(t testing.TB, n int) (values []string) {
	t.Helper()
	for len(values) < n {
		_, m := s.until(t, "message")
		for _, r := range m.Records {
			values = append(values, r.Text)
		}
	}
	return values
}

func (s *stream) expectEnd(t testing.TB) {
	t.Helper()
	_ = s.conn.SetReadDeadline(time.Now().Add(patience))
	if e, err := s.next(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %+v, %v, want the end", e, err)
	}
}

// TestEventsResume: each record comes once over any number of connections, by the id of the last event alone.
func TestEventsResume(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 3)
	s := r.stream(t, "/sse/orders")
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no", "Access-Control-Allow-Origin": "",
	} {
		if got := s.resp.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	started, _ := s.expect(t, "started")
	s.conn.Close() // before the first record
	if started.id == "" || len(s.retry) != 1 {
		t.Fatalf("started has the id %q, retry %v", started.id, s.retry)
	}
	id := started.id
	for i := range 30 {
		text := fmt.Sprintf("v%d", i)
		r.src.Append("orders", int32(i%3), hubtest.Text("k", text))
		s := r.stream(t, "/sse/orders?start=latest", "Last-Event-ID: "+id)
		if e, _ := s.expect(t, "started"); e.id != "" && e.id != id {
			t.Errorf("resumed at another id")
		}
		if got := s.values(t, 1); got[0] != text {
			t.Fatalf("got %q, want %q", got, text)
		}
		id = s.lastID
		s.conn.Close()
	}
	await(t, "all have ended", func() bool { return r.metric(t, "tailrace_edge_sessions", "sse") == 0 })
	if got := r.metric(t, "tailrace_edge_sessions_ended_total", "client_eof") + r.metric(t, "tailrace_edge_sessions_ended_total", "network_error"); got != 31 {
		t.Errorf("%v sessions ended by their clients, want 31: %v", got, r.endings(t))
	}
}

// TestEventsUntil: a stream that has reached its end says so, and whoever comes back to it is told to stay away.
func TestEventsUntil(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	r.src.Append("orders", 0, hubtest.Text("k", "a"), hubtest.Text("k", "b"))
	s := r.stream(t, "/sse/orders?start=earliest&until=end")
	s.expect(t, "started")
	if got := s.values(t, 2); got[0] != "a" || got[1] != "b" {
		t.Errorf("got %q", got)
	}
	if _, m := s.until(t, "unsubscribed"); m.Reason != "until" {
		t.Errorf("%+v", m)
	}
	if _, m := s.expect(t, "goodbye"); fmt.Sprint(m.Code) != "1000" || m.ReconnectAfterMs != nil {
		t.Errorf("%+v", m)
	}
	s.expectEnd(t)
	r.ended(t, "subscription_ended")
	if resp := ask(t, r.addr, "GET /sse/orders HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: "+s.lastID+"\r\n\r\n"); resp.StatusCode != http.StatusNoContent {
		t.Errorf("whoever comes back gets %s, want 204", resp.Status)
	}
}

// TestEventsRequests: what is answered by a status, before any stream.
func TestEventsRequests(t *testing.T) {
	cfg := config()
	cfg.AllowedHosts = []string{"edge.example.org"}
	cfg.AllowedOrigins = []string{"https://app.example.org"}
	r := start(t, cfg)
	r.src.CreateTopic("orders", 4)
	r.src.CreateTopic("wide", 201)
	const host = "Host: localhost:8080\r\n"
	for _, c := range []struct {
		name, line, headers string
		status              int
		header              [2]string // one that the answer has
		body                string    // part of it
	}{
		{"plain", "GET /sse/orders", host, 200, [2]string{"Content-Type", "text/event-stream; charset=utf-8"}, "-"},
		{"same origin", "GET /sse/orders", host + "Origin: http://localhost:8080\r\n", 200, [2]string{"Access-Control-Allow-Origin", "http://localhost:8080"}, "-"},
		{"allowed origin", "GET /sse/orders", host + "Origin: https://app.example.org\r\n", 200, [2]string{"Access-Control-Allow-Origin", "https://app.example.org"}, "-"},
		{"allowed host", "GET /sse/orders", "Host: edge.example.org\r\n", 200, [2]string{"Vary", "Origin"}, "-"},
		{"escaped topic", "GET /sse/%6Frders", host, 200, [2]string{}, "-"},
		{"some of many partitions", "GET /sse/wide?partition=7", host, 200, [2]string{}, "-"},
		{"a key of many partitions", "GET /sse/wide?key=k", host, 200, [2]string{}, "-"},
		{"head", "HEAD /sse/orders", host, 200, [2]string{"X-Accel-Buffering", "no"}, ""},
		{"ask first", "OPTIONS /sse/orders", host + "Origin: https://app.example.org\r\nAccess-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: last-event-id\r\n", 204, [2]string{"Access-Control-Allow-Headers", "Content-Type, Last-Event-ID, Cache-Control"}, ""},
		{"options", "OPTIONS /sse/orders", host, 204, [2]string{"Allow", "GET, HEAD, OPTIONS"}, ""},
		{"done", "GET /sse/orders", host + "Last-Event-ID: AA\r\n", 204, [2]string{}, ""},
		{"done, by parameter", "GET /sse/orders?lastEventId=AA", host, 204, [2]string{}, ""},

		{"other origin", "GET /sse/orders", host + "Origin: https://evil.example.org\r\n", 403, [2]string{"Access-Control-Allow-Origin", ""}, "origin"},
		{"other origin asks first", "OPTIONS /sse/orders", host + "Origin: https://evil.example.org\r\n", 403, [2]string{"Access-Control-Allow-Origin", ""}, "origin"},
		{"null origin", "GET /sse/orders", host + "Origin: null\r\n", 403, [2]string{}, "origin"},
		{"other host", "GET /sse/orders", "Host: evil.example.org\r\n", 421, [2]string{}, "host"},
		{"no host", "GET /sse/orders", "", 400, [2]string{}, "Host"},
		{"method", "POST /sse/orders", host, 405, [2]string{"Allow", "GET, HEAD, OPTIONS"}, ""},
		{"a space in a header's name", "GET /sse/orders", host + "Content-Length : 0\r\n", 400, [2]string{}, ""},
		{"a version of HTTP that does not exist", "GET /sse/orders HTTP/9.9\r\nX:", host, 505, [2]string{}, ""},
		{"a body", "GET /sse/orders", host + "Content-Length: 1\r\n", 400, [2]string{}, "body: "},
		{"unknown parameter", "GET /sse/orders?strat=latest", host, 400, [2]string{"Content-Type", "application/json"}, `"message":"strat: unknown parameter"`},
		{"bad id", "GET /sse/orders", host + "Last-Event-ID: 17\r\nOrigin: https://app.example.org\r\n", 400, [2]string{"Access-Control-Allow-Origin", "https://app.example.org"}, `"reason":"INVALID_ARGUMENT","message":"lastEventId: `},
		{"unknown topic", "GET /sse/nosuch", host, 404, [2]string{"Cache-Control", "no-store"}, `"reason":"UNKNOWN_TOPIC"`},
		{"unknown partition", "GET /sse/orders?partition=9", host, 404, [2]string{}, `"reason":"UNKNOWN_PARTITION"`},
		{"too many partitions", "GET /sse/wide", host, 400, [2]string{}, `"reason":"INVALID_ARGUMENT"`},
		{"too many partitions for keys", "GET /sse/wide?key=k&start=earliest", host, 400, [2]string{}, `ask for some of them by partition`},
		{"out of range", "GET /sse/orders?positions=0:7&onOutOfRange=fail", host, 400, [2]string{}, `"reason":"OFFSET_OUT_OF_RANGE"`},
		{"no topic", "GET /sse/", host, 200, [2]string{}, "page /sse/"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			resp := ask(t, r.addr, c.line+" HTTP/1.1\r\n"+c.headers+"\r\n")
			defer resp.Body.Close()
			if resp.StatusCode != c.status {
				body, _ := io.ReadAll(resp.Body)
				t.Fatalf("got %s %s, want %d", resp.Status, body, c.status)
			}
			if c.header[0] != "" {
				if got := resp.Header.Get(c.header[0]); got != c.header[1] {
					t.Errorf("%s: got %q, want %q", c.header[0], got, c.header[1])
				}
			}
			if c.body != "-" && c.line[:4] != "HEAD" {
				if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), c.body) {
					t.Errorf("body %q, %v, want %q in it", body, err, c.body)
				}
			}
		})
	}
}

// TestEventsOverUsedConnection: a proxy that keeps its connections sends a request for a stream over one that has served others.
func TestEventsOverUsedConnection(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	br := bufio.NewReader(conn)
	for _, request := range []string{"GET /x", "OPTIONS /sse/orders"} {
		fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\n\r\n", request)
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		if request == "OPTIONS /sse/orders" && resp.StatusCode != http.StatusNoContent {
			t.Fatal(resp.Status)
		}
	}
	fmt.Fprintf(conn, "GET /sse/orders HTTP/1.1\r\nHost: localhost\r\n\r\nrubbish that a client must not send")
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatal("not TCP")
	}
	s := &stream{conn: tcp, resp: resp, lines: bufio.NewReader(resp.Body)}
	s.expect(t, "started")
	s.expect(t, "caughtup")
	r.src.Append("orders", 0, hubtest.Text("k", "live"))
	if got := s.values(t, 1); got[0] != "live" {
		t.Errorf("got %q", got)
	}
}
