package transcript_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tailrace.dev/tailrace/edge/frame/frametest"
)

// stoppedBuffer is what a client that has stopped reading still takes: many segments of loopback, or the window crawls when it reads on, and far less than
// the dialogues send to it.
const stoppedBuffer = 512 << 10

// actor is a client of a dialogue: a socket, or the answer that it got instead of one.
type actor struct {
	name     string
	addr     string
	protocol string
	socket   *socket
	answer   *answerIn
	events   chan event
	reading  gate
	silent   atomic.Bool  // answers no pings
	lastID   atomic.Value // of the last event of a stream
	saidBye  bool         // a close frame of ours
	over     bool         // the connection has ended
	sync.WaitGroup
}

// event is something that came: a message, a control frame, or the end.
type event struct {
	what    string // message ping pong close end broken
	message map[string]any
	text    string // of a message; payload of a ping or pong; reason of a close
	code    int
	err     error
}

func (e event) String() string {
	switch e.what {
	case "message":
		return e.text
	case "close":
		return fmt.Sprintf("close %d %q", e.code, e.text)
	case "broken":
		return "broken: " + e.err.Error()
	}
	return strings.TrimSpace(e.what + " " + e.text)
}

// open opens the socket, or takes the answer.
func (a *actor) open(path string, header http.Header) error {
	protocol := a.protocol
	if header.Get("Sec-WebSocket-Protocol") != "" {
		protocol = header.Get("Sec-WebSocket-Protocol")
		header.Del("Sec-WebSocket-Protocol")
		if protocol == "none" {
			protocol = ""
		}
	}
	s, err := dialSocket(a.addr, path, protocol, header)
	if errors.As(err, &a.answer) {
		return nil
	}
	if err != nil {
		return err
	}
	a.socket = s
	a.events = make(chan event, 4096)
	a.Go(a.read)
	return nil
}

// read passes on what comes until the connection ends.
func (a *actor) read() {
	defer close(a.events)
	for {
		if c := a.reading.shut.Load(); c != nil {
			<-*c
		}
		in, err := a.socket.read()
		var bad *breach
		switch {
		case errors.As(err, &bad):
			a.events <- event{what: "broken", err: err}
			return
		case errors.Is(err, io.EOF):
			a.events <- event{what: "end"}
			return
		case err != nil:
			a.events <- event{what: "broken", err: err}
			return
		}
		switch in.opcode {
		case opPing:
			a.events <- event{what: "ping", text: string(in.payload)}
			if !a.silent.Load() {
				_ = a.socket.write(opPong, in.payload) // the connection may be about to end
			}
		case opPong:
			a.events <- event{what: "pong", text: string(in.payload)}
		case opClose:
			code, reason, err := parseClose(in.payload)
			if err != nil {
				a.events <- event{what: "broken", err: err}
				return
			}
			a.events <- event{what: "close", code: code, text: reason}
		default:
			e := event{what: "message"}
			e.message, e.text, err = decodeMessage(a.protocol, in.payload)
			if err != nil {
				e = event{what: "broken", err: err}
			}
			a.events <- e
		}
	}
}

// decodeMessage reads a message of the edge, in the words of the JSON form.
func decodeMessage(protocol string, payload []byte) (map[string]any, string, error) {
	if protocol == protocolProto {
		var err error
		if payload, err = frametest.Server(payload); err != nil {
			return nil, "", err
		}
	}
	v, err := decodeJSON(payload)
	if err != nil {
		return nil, "", fmt.Errorf("%.300s: %w", payload, err)
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, "", fmt.Errorf("%.300s: not an object", payload)
	}
	return m, string(payload), nil
}

// encodeMessage makes a client's message of the words of the JSON form.
func encodeMessage(protocol, text string) ([]byte, error) {
	if protocol == protocolProto {
		return frametest.Client([]byte(text))
	}
	return []byte(text), nil
}

// next returns what comes next.
func (a *actor) next() (event, error) {
	if a.events == nil {
		return event{}, errors.New("there is no socket")
	}
	select {
	case e, ok := <-a.events:
		if !ok {
			return event{}, errors.New("the connection has ended")
		}
		if e.what == "broken" {
			return event{}, e.err
		}
		if e.what == "end" {
			a.over = true
		}
		return e, nil
	case <-time.After(patience):
		return event{}, fmt.Errorf("nothing came within %v", patience)
	}
}

// leave ends what is left of the connection.
func (a *actor) leave() {
	a.reading.open()
	if a.socket != nil {
		a.socket.conn.Close()
		for range a.events {
		}
		a.Wait()
	}
}

// do acts on the connection: what follows "! ".
func (a *actor) do(text string) error {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "fin":
		return a.socket.conn.CloseWrite()
	case "reset":
		a.over = true
		err := a.socket.conn.SetLinger(0)
		a.socket.conn.Close()
		return err
	case "bytes":
		p, err := hex.DecodeString(strings.ReplaceAll(rest, " ", ""))
		if err != nil {
			return err
		}
		return a.socket.raw(p)
	case "silent":
		a.silent.Store(true)
		return nil
	case "stop-reading":
		a.reading.close()
		return a.socket.conn.SetReadBuffer(stoppedBuffer)
	case "read-on":
		a.reading.open()
		return a.socket.conn.SetReadBuffer(1 << 20)
	case "close":
		a.saidBye = true
		code, rest, _ := strings.Cut(rest, " ")
		if code == "" {
			return a.socket.write(opClose, nil)
		}
		n, err := strconv.Atoi(code)
		if err != nil {
			return err
		}
		reason, err := unquoted(rest)
		if err != nil {
			return err
		}
		return a.socket.write(opClose, closePayload(n, reason))
	}
	payload, err := unquoted(rest)
	if err != nil {
		return err
	}
	name, more := strings.CutSuffix(verb, "-")
	first, known := map[string]byte{"text": opText, "binary": opBinary, "continuation": opContinuation, "ping": opPing, "pong": opPong}[name]
	if !known {
		return fmt.Errorf("unknown action %q", verb)
	}
	if !more {
		first |= fin
	}
	return a.socket.raw(masked(first, []byte(payload)))
}

// unquoted reads a Go string, or nothing.
func unquoted(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	return strconv.Unquote(s)
}
