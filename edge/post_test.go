package edge_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/services/hub"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

func TestPost(t *testing.T) {
	cfg := config()
	cfg.AllowedOrigins = []string{"https://app.example.org"}
	cfg.MaxMessageBytes = 100
	cfg.PublishTimeout = 500 * time.Millisecond
	r := start(t, cfg)
	failure := func(code, reason string, outcome tailracev1.PublishOutcome, retry time.Duration) *tailracev1.PublishFailure {
		f := &tailracev1.PublishFailure{Code: code, Reason: reason, Message: "so it is", Outcome: outcome}
		if retry > 0 {
			f.RetryAfter = durationpb.New(retry)
		}
		return f
	}
	const refused, unknown = tailracev1.PublishOutcome_PUBLISH_OUTCOME_REFUSED, tailracev1.PublishOutcome_PUBLISH_OUTCOME_UNKNOWN
	r.publisher.write = func(rec *tailracev1.PublishRecord) *tailracev1.PublishFailure {
		switch string(rec.GetValue()) {
		case "nosuch":
			return failure("not_found", "UNKNOWN_TOPIC", refused, 0)
		case "away":
			return failure("unavailable", "KAFKA_UNAVAILABLE", refused, 1500*time.Millisecond)
		case "full":
			return failure("resource_exhausted", "LIMIT", refused, 20*time.Millisecond)
		case "lost":
			return failure("unknown", "OUTCOME_UNKNOWN", unknown, 0)
		}
		return nil
	}
	for _, c := range []struct {
		name, request, headers, body string
		status                       int
		record                       string    // as JSON, of what was published
		header                       [2]string // one that the answer has
		answer                       string    // part of it
	}{
		{"value", "POST /publish/orders", "", `{"a": 1}`, 200, `{"value":"eyJhIjogMX0="}`, [2]string{"Content-Type", "application/json"}, `{"op":"published","partition":0,"offset":0}`},
		{"empty value", "POST /publish/orders", "", "", 200, `{"value":""}`, [2]string{}, `"offset":1`},
		{"tombstone", "POST /publish/orders?tombstone=true&key=k", "", "", 200, `{"key":"aw=="}`, [2]string{}, `"offset":2`},
		{"all of it", "POST /publish/orders?key=a+b&partition=3&header=by%3Dcurl&header=by%3D&header=%3Dx%3Dy", "Content-Type: application/json\r\n", "v", 200,
			`{"key":"YSBi","value":"dg==","headers":[{"name":"by","value":"Y3VybA=="},{"name":"by","value":""},{"value":"eD15"}],"partition":3}`, [2]string{}, `"offset":3`},
		{"binary key", "POST /publish/orders?keyBase64=-_8=", "", "\x00\xff", 200, `{"key":"+/8=","value":"AP8="}`, [2]string{}, `"offset":4`},
		{"empty key", "POST /publish/orders?key=", "", "v", 200, `{"key":"","value":"dg=="}`, [2]string{}, `"offset":5`},
		{"own origin", "POST /publish/orders", "Origin: http://localhost\r\n", "v", 200, `{"value":"dg=="}`, [2]string{"Access-Control-Allow-Origin", "http://localhost"}, `"offset":6`},
		{"allowed origin", "POST /publish/orders", "Origin: https://app.example.org\r\n", "v", 200, `{"value":"dg=="}`, [2]string{"Access-Control-Allow-Origin", "https://app.example.org"}, `"offset":7`},
		{"the largest", "POST /publish/orders", "", strings.Repeat("x", 100), 200, "-", [2]string{"Cache-Control", "no-store"}, `"offset":8`},

		{"ask first", "OPTIONS /publish/orders", "Origin: https://app.example.org\r\nAccess-Control-Request-Method: POST\r\n", "", 204, "", [2]string{"Access-Control-Allow-Methods", "POST, OPTIONS"}, ""},
		{"other origin", "POST /publish/orders", "Origin: https://evil.example.org\r\n", "v", 403, "", [2]string{"Access-Control-Allow-Origin", ""}, "origin"},
		{"null origin", "POST /publish/orders", "Origin: null\r\n", "v", 403, "", [2]string{}, "origin"},
		{"method", "GET /publish/orders", "", "", 405, "", [2]string{"Allow", "POST, OPTIONS"}, ""},
		{"too large", "POST /publish/orders", "", strings.Repeat("x", 101), 413, "", [2]string{}, `"reason":"LIMIT"`},
		{"tombstone with a value", "POST /publish/orders?tombstone=true", "", "v", 400, "", [2]string{}, `"message":"body: a tombstone has none","retryable":false,"outcome":"refused"`},
		{"tombstone perhaps", "POST /publish/orders?tombstone=yes", "", "", 400, "", [2]string{}, `"message":"tombstone: must be true"`},
		{"two keys", "POST /publish/orders?key=a&keyBase64=YQ==", "", "v", 400, "", [2]string{}, `"message":"keyBase64: excludes key"`},
		{"key twice", "POST /publish/orders?key=a&key=b", "", "v", 400, "", [2]string{}, `"message":"key: is given twice"`},
		{"bad base64", "POST /publish/orders?keyBase64=!", "", "v", 400, "", [2]string{}, `"message":"keyBase64: `},
		{"bad partition", "POST /publish/orders?partition=-1", "", "v", 400, "", [2]string{}, `"message":"partition: must be a partition"`},
		{"bad header", "POST /publish/orders?header=by", "", "v", 400, "", [2]string{}, `"message":"header: must be name=value"`},
		{"bad header name", "POST /publish/orders?header=%00%3Dx", "", "v", 400, "", [2]string{}, `"message":"header: a name must be UTF-8 without NUL"`},
		{"unknown parameter", "POST /publish/orders?kye=a", "", "v", 400, "", [2]string{}, `"message":"kye: unknown parameter"`},
		{"compressed", "POST /publish/orders", "Content-Encoding: gzip\r\n", "v", 400, "", [2]string{}, `Content-Encoding`},

		{"unknown topic", "POST /publish/orders", "", "nosuch", 404, "-", [2]string{}, `{"op":"error","re":"publish","final":false,"code":"not_found","reason":"UNKNOWN_TOPIC","message":"so it is","retryable":false,"outcome":"refused"}`},
		{"unavailable", "POST /publish/orders", "", "away", 503, "-", [2]string{"Retry-After", "2"}, `"outcome":"refused","retryAfterMs":1500`},
		{"limit", "POST /publish/orders", "", "full", 429, "-", [2]string{"Retry-After", "1"}, `"reason":"LIMIT"`},
		{"outcome unknown", "POST /publish/orders", "", "lost", 500, "-", [2]string{"Retry-After", ""}, `"outcome":"unknown"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.publisher.last = nil
			resp := ask(t, r.addr, fmt.Sprintf("%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n%s", c.request, len(c.body), c.headers, c.body))
			answer, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != c.status || !strings.Contains(string(answer), c.answer) {
				t.Fatalf("got %s %s, %v, want %d %s", resp.Status, answer, err, c.status, c.answer)
			}
			if c.header[0] != "" {
				if got := resp.Header.Get(c.header[0]); got != c.header[1] {
					t.Errorf("%s: got %q, want %q", c.header[0], got, c.header[1])
				}
			}
			record := ""
			if r.publisher.last != nil {
				b, _ := protojson.Marshal(r.publisher.last)
				record = strings.ReplaceAll(string(b), " ", "")
			}
			if record != c.record && c.record != "-" {
				t.Errorf("published %s, want %s", record, c.record)
			}
		})
	}
	if held := r.metric(t, "tailrace_edge_input_bytes", ""); held != 0 {
		t.Errorf("%v bytes are still charged for", held)
	}
}

// TestPostErrors: what the publisher could not even try is refused, for certain.
func TestPostErrors(t *testing.T) {
	r := start(t, config())
	for _, c := range []struct {
		err    error
		status int
		reason string
	}{
		{hub.ErrUnavailable, 503, "UNAVAILABLE"},
		{hub.ErrUnknownTopic, 404, "UNKNOWN_TOPIC"},
		{context.DeadlineExceeded, 504, "DEADLINE_EXCEEDED"},
		{errors.New("secret"), 500, "INTERNAL"},
	} {
		r.publisher.setFail(c.err)
		resp := ask(t, r.addr, "POST /publish/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != c.status || !strings.Contains(string(body), `"reason":"`+c.reason+`"`) || !strings.Contains(string(body), `"outcome":"refused"`) || strings.Contains(string(body), "secret") {
			t.Errorf("%v: %s %s", c.err, resp.Status, body)
		}
	}
}

// TestPostRate: an address publishes at the rate of a socket, and is served again after a while; others are not concerned.
func TestPostRate(t *testing.T) {
	cfg := config()
	cfg.PublishRate = 1 // and two at once
	r := start(t, cfg)
	post := func(from string) (*http.Response, string) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		conn, err := d.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(conn, "POST /publish/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
	var no *http.Response
	var why string
	await(t, "one is too many", func() bool {
		no, why = post("127.0.0.2")
		return no.StatusCode != http.StatusOK
	})
	if no.StatusCode != http.StatusTooManyRequests || no.Header.Get("Retry-After") == "" || !strings.Contains(why, `"reason":"LIMIT"`) || !strings.Contains(why, `"outcome":"refused"`) {
		t.Errorf("got %s %v %s", no.Status, no.Header, why)
	}
	if other, body := post("127.0.0.3"); other.StatusCode != http.StatusOK {
		t.Errorf("another address: %s %s", other.Status, body)
	}
	await(t, "it is served again", func() bool {
		again, _ := post("127.0.0.2")
		return again.StatusCode == http.StatusOK
	})
}

// TestPostersAreBounded: what addresses have spent is remembered of so many; the others share.
func TestPostersAreBounded(t *testing.T) {
	t.Parallel()
	p := edge.NewPosters()
	address := func(n int) string { return fmt.Sprintf("10.%d.%d.%d:1", n>>16, n>>8&255, n&255) }
	const rate, more = 1, 1000
	refused := 0
	for n := range edge.MaxPosters + more {
		if p.Admit(address(n), 0, rate) != nil {
			refused++
		}
	}
	if p.Len() > edge.MaxPosters+1 || refused != more-2 {
		t.Errorf("%d are remembered, %d of those beyond are refused, want all but two", p.Len(), refused)
	}
	if err := p.Admit(address(0), 0, rate); err != nil {
		t.Errorf("one that is remembered: %v", err)
	}
	if err := p.Admit(address(1<<20), time.Minute, rate); err != nil || p.Len() != 1 {
		t.Errorf("a minute later: %v, %d are remembered, want one", err, p.Len())
	}
}

// TestPostBodies: bodies in pieces, of unknown length, too long, too slow or cut.
func TestPostBodies(t *testing.T) {
	cfg := config()
	cfg.MaxMessageBytes = 100_000
	cfg.MaxInputBytes = 350_000
	cfg.HandshakeTimeout = time.Second
	r := start(t, cfg)
	head := "POST /publish/orders HTTP/1.1\r\nHost: localhost\r\n"
	chunked := head + "Transfer-Encoding: chunked\r\n\r\n"
	big := strings.Repeat("y", 100_000)
	for _, c := range []struct {
		name, request string
		status        int
		answer        string
	}{
		{"chunks", chunked + "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 200, "published"},
		{"long chunks", chunked + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(big), big), 200, "published"},
		{"too long chunks", chunked + fmt.Sprintf("%x\r\n%s\r\n1\r\nz\r\n0\r\n\r\n", len(big), big), 413, "LIMIT"},
		{"announced too long", head + "Content-Length: 9999999999\r\n\r\n", 413, "LIMIT"},
		{"slow", head + "Content-Length: 5\r\n\r\nabc", 408, "DEADLINE_EXCEEDED"},
		{"bad chunks", chunked + "zz\r\n", 400, "body: ended early"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := ask(t, r.addr, c.request)
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != c.status || !strings.Contains(string(body), c.answer) {
				t.Errorf("got %s %s, want %d %s", resp.Status, body, c.status, c.answer)
			}
		})
	}
	if got := len(r.publisher.calls); got != 2 || len(r.publisher.calls[1][0]) != len(big) {
		t.Errorf("%d publishes", got)
	}
	await(t, "nothing is charged for", func() bool { return r.metric(t, "tailrace_edge_input_bytes", "") == 0 })

	// Bodies that do not come to an end fill the bound, and no more; those that are there are taken all the same.
	r.publisher.gate = make(chan struct{})
	var conns []net.Conn
	for range 3 {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", head, len(big), big)
		conns = append(conns, conn)
		await(t, "a body is charged for", func() bool { return r.metric(t, "tailrace_edge_input_bytes", "") >= float64(len(conns)*len(big)) })
	}
	resp := ask(t, r.addr, fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(big), big))
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") != "1" {
		t.Errorf("beyond the bound: %s %s", resp.Status, body)
	}
	close(r.publisher.gate)
	for _, conn := range conns {
		_ = conn.SetDeadline(time.Now().Add(patience))
		if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("a body that was there: %v, %v", resp, err)
		}
	}
}

// TestDrainAwaitsPosts: a publish that is under way is answered before the edge ends; another is refused.
func TestDrainAwaitsPosts(t *testing.T) {
	r := start(t, config())
	r.publisher.gate = make(chan struct{})
	post := func(br *bufio.Reader, conn net.Conn) (*http.Response, error) {
		fmt.Fprint(conn, "POST /publish/orders HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
		_ = conn.SetDeadline(time.Now().Add(patience))
		return http.ReadResponse(br, nil)
	}
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	idle, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	idleReader := bufio.NewReader(idle)
	fmt.Fprint(idle, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if resp, err := http.ReadResponse(idleReader, nil); err != nil {
		t.Fatal(err)
	} else if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	var posts sync.WaitGroup
	posts.Go(func() {
		if resp, err := post(bufio.NewReader(conn), conn); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("under way: %v, %v", resp, err)
		}
	})
	await(t, "it waits at the gate", func() bool { return r.publisher.waiting.Load() == 1 })
	drained := make(chan error, 1)
	go func() { drained <- r.edge.Drain(t.Context()) }()
	await(t, "the edge drains", func() bool { return !r.edge.Ready() })
	if resp, err := post(idleReader, idle); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("while it drains: %v, %v", resp, err)
	}
	select {
	case err := <-drained:
		t.Errorf("drained before the answer: %v", err)
	default:
	}
	r.publisher.gate <- struct{}{}
	posts.Wait()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}
