package transcript_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// stream opens a stream of events (text/event-stream, HTML standard, section 9.2), or takes the answer. What comes is told as on a socket: an event
// without a name is its records.
func (a *actor) stream(path string, header http.Header) error {
	conn, err := dialTCP(a.addr)
	if err != nil {
		return err
	}
	resp, err := ask(conn, http.MethodGet, path, header, "")
	if err != nil {
		conn.Close()
		return err
	}
	if resp.StatusCode != http.StatusOK {
		defer conn.Close()
		a.answer, err = readAnswer(resp)
		return err
	}
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store, no-transform", "X-Accel-Buffering": "no",
	} {
		if got := resp.Header.Get(name); got != want {
			conn.Close()
			return breached("%s: %q, want %q", name, got, want)
		}
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	a.socket = &socket{conn: conn}
	a.events = make(chan event, 4096)
	a.over = true // it is owed no farewell
	a.Go(func() { a.readEvents(bufio.NewReader(resp.Body)) })
	return nil
}

// request sends a request and takes the answer.
func (a *actor) request(method, path string, header http.Header, body string) error {
	conn, err := dialTCP(a.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	resp, err := ask(conn, method, path, header, body)
	if err != nil {
		return err
	}
	a.answer, err = readAnswer(resp)
	return err
}

func ask(conn io.ReadWriter, method, path string, header http.Header, body string) (*http.Response, error) {
	var req strings.Builder
	fmt.Fprintf(&req, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path)
	if body != "" {
		fmt.Fprintf(&req, "Content-Length: %d\r\n", len(body))
	}
	_ = header.Write(&req)
	req.WriteString("\r\n" + body)
	if _, err := io.WriteString(conn, req.String()); err != nil {
		return nil, err
	}
	return http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
}

func readAnswer(resp *http.Response) (*answerIn, error) {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return &answerIn{resp.StatusCode, resp.Header, string(body)}, err
}

// readEvents passes on events until the stream ends.
func (a *actor) readEvents(lines *bufio.Reader) {
	defer close(a.events)
	var name, id string
	var data []string
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			a.events <- event{what: "end"}
			return
		}
		if err != nil {
			a.events <- event{what: "broken", err: err}
			return
		}
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			name = value
		case "id":
			id = value
			a.lastID.Store(id)
		case "data":
			data = append(data, value)
		case "retry":
		case "":
			if line == "\n" && data != nil {
				a.events <- readEvent(name, strings.Join(data, "\n"))
			}
			if line == "\n" {
				name, data = "", nil
			}
		default:
			a.events <- event{what: "broken", err: breached("line %q", line)}
			return
		}
	}
}

func readEvent(name, data string) event {
	if name == "" {
		data = `{"op":"records","id":"0","records":` + data + `}`
	}
	m, text, err := decodeMessage(protocolJSON, []byte(data))
	switch {
	case err != nil:
		return event{what: "broken", err: err}
	case name != "" && m["op"] != name:
		return event{what: "broken", err: breached("event %s has the data of %v", name, m["op"])}
	case !json.Valid([]byte(text)):
		return event{what: "broken", err: breached("data %q", text)}
	}
	return event{what: "message", message: m, text: text}
}
