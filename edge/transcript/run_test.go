package transcript_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestTranscripts replays every dialogue against a whole edge, a world for each file and subprotocol.
func TestTranscripts(t *testing.T) {
	for _, s := range scripts(t) {
		for _, protocol := range protocols() {
			if !slices.ContainsFunc(s.dialogues, func(d *dialogue) bool { return d.speaks(protocol) }) {
				continue
			}
			t.Run(s.name+" "+strings.TrimPrefix(protocol, "tailrace.v1."), func(t *testing.T) {
				t.Parallel()
				set, err := s.world()
				if err != nil {
					t.Fatal(err)
				}
				w := newWorld(t, set)
				for _, d := range s.dialogues {
					if d.speaks(protocol) {
						t.Run(d.title, func(t *testing.T) { w.replay(t, d, protocol) })
					}
				}
			})
		}
	}
}

// protocols are the subprotocols in which dialogues are held.
func protocols() []string { return []string{protocolJSON, protocolProto} }

// play is a dialogue that is being replayed.
type play struct {
	t        *testing.T
	w        *world
	d        *dialogue
	protocol string
	names    names
	actors   map[string]*actor
	order    []*actor
	ended    map[string]float64
}

func (w *world) replay(t *testing.T, d *dialogue, protocol string) {
	p := &play{t: t, w: w, d: d, protocol: protocol, names: names{}, actors: map[string]*actor{}}
	defer func() {
		for _, a := range p.order { // also of a dialogue that failed
			a.leave()
		}
	}()
	p.noteEnds()
	for i := 0; i < len(d.steps); i++ {
		st := d.steps[i]
		n := 1
		if st.kind == "<~" {
			for i+n < len(d.steps) && d.steps[i+n].kind == "<~" && d.steps[i+n].who == st.who {
				n++
			}
		}
		if err := p.step(d.steps[i : i+n]); err != nil {
			t.Fatalf("%s.txt:%d: %s%s %.500s: %v", d.script.name, st.line, st.who, st.kind, st.text, err)
		}
		i += n - 1
	}
	for _, a := range p.order {
		if err := p.farewell(a); err != nil {
			t.Errorf("%s.txt: end of %q, client %q: %v", d.script.name, d.title, a.name, err)
		}
	}
	for _, a := range p.order {
		a.leave()
	}
	await(t, "all sessions have ended", func() bool { return w.edge.Sessions() == 0 })
}

func (p *play) step(steps []step) error {
	st := steps[0]
	text, err := p.names.fill(st.text)
	if err != nil {
		return err
	}
	switch st.kind {
	case "@":
		return p.w.act(p, text)
	case ">":
		a := p.actors[st.who]
		if a == nil || a.socket == nil {
			return errors.New("there is no socket")
		}
		payload, err := encodeMessage(p.protocol, text)
		if err != nil {
			return err
		}
		return a.socket.write(a.socket.opcode, payload)
	case "!":
		return p.do(st.who, text)
	}
	a := p.actors[st.who]
	if a == nil {
		return errors.New("there is no such client")
	}
	if !strings.HasPrefix(st.text, "{") {
		return p.expect(a, st.text)
	}
	var wants []*want
	for _, s := range steps {
		w, err := newWant(s.text)
		if err != nil {
			return err
		}
		wants = append(wants, w)
	}
	return p.messages(a, wants, st.kind == "<*")
}

// do lets a client act; open, stream and requests make the client.
func (p *play) do(who, text string) error {
	verb, rest, _ := strings.Cut(text, " ")
	before := p.actors[who]
	switch verb {
	case "open", "stream", "GET", "POST", "PUT", "OPTIONS":
	default:
		if before == nil || before.socket == nil {
			return errors.New("there is no socket")
		}
		return before.do(text)
	}
	rest, body, _ := strings.Cut(rest, " || ")
	parts := strings.Split(rest, " | ")
	header := http.Header{}
	for _, line := range parts[1:] {
		name, value, _ := strings.Cut(line, ": ")
		if value == "$last" && before != nil {
			value, _ = before.lastID.Load().(string)
		}
		header.Add(name, value)
	}
	a := &actor{name: who, addr: p.w.web, protocol: p.protocol}
	p.actors[who] = a
	p.order = append(p.order, a)
	switch path := strings.TrimSpace(parts[0]); verb {
	case "open":
		return a.open(path, header)
	case "stream":
		return a.stream(path, header)
	default:
		return a.request(verb, path, header, body)
	}
}

// messages waits for messages, in any order. The welcome, heartbeats and pings may come between unless they are waited for; with skip anything may.
func (p *play) messages(a *actor, wants []*want, skip bool) error {
	passing := map[string]bool{"welcome": true, "heartbeat": true}
	for _, w := range wants {
		if op, ok := w.pattern["op"].(string); ok && op != "heartbeat" {
			delete(passing, op)
		}
	}
	for deadline, last, n := time.Now().Add(patience), "", 0; len(wants) > 0; n++ {
		e, err := a.next()
		if err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v, though others come; the last of %d before was %.200s", patience, n, last)
		}
		last = fmt.Sprint(e.message)
		if e.what == "ping" {
			continue
		}
		if e.what != "message" {
			return fmt.Errorf("got %v", e)
		}
		taken := false
		for i, w := range wants {
			var complete bool
			if taken, complete = w.offer(p.names, e.message); !taken {
				continue
			}
			if complete {
				wants = append(wants[:i:i], wants[i+1:]...)
			}
			break
		}
		if op, _ := e.message["op"].(string); !taken && !passing[op] && !skip {
			return fmt.Errorf("got %.1000s", e.text)
		}
	}
	return nil
}

// expect waits for what is no message.
func (p *play) expect(a *actor, text string) error {
	verb, rest, _ := strings.Cut(text, " ")
	if status, err := strconv.Atoi(verb); err == nil {
		return p.expectAnswer(a, status, rest)
	}
	for {
		e, err := a.next()
		if err != nil {
			return err
		}
		op, _ := e.message["op"].(string)
		if e.what != verb && (e.what == "ping" || op == "welcome" || op == "heartbeat") {
			continue
		}
		if e.what != verb {
			return fmt.Errorf("got %v", e)
		}
		switch verb {
		case "close":
			return p.expectClose(a, e, rest)
		case "ping", "pong":
			want, err := unquoted(rest)
			if err == nil && e.text != want {
				err = fmt.Errorf("got %v", e)
			}
			return err
		case "end":
			return a.socket.conn.Close()
		}
		return nil
	}
}

// expectClose compares a close frame; it is answered, and nothing but the end of the connection may follow.
func (p *play) expectClose(a *actor, e event, rest string) error {
	code, reason, _ := strings.Cut(rest, " ")
	want, err := unquoted(reason)
	if err != nil {
		return err
	}
	if fmt.Sprint(e.code) != code || e.text != want {
		return fmt.Errorf("got %v", e)
	}
	if !a.saidBye {
		if err := a.socket.write(opClose, closePayload(min(e.code, 4999), "")); err != nil {
			return fmt.Errorf("answer the close frame: %w", err)
		}
	}
	if e, err = a.next(); err != nil {
		return fmt.Errorf("behind the close frame: %w", err)
	}
	if e.what != "end" {
		return fmt.Errorf("behind the close frame: got %v", e)
	}
	return a.socket.conn.Close()
}

func (p *play) expectAnswer(a *actor, status int, rest string) error {
	if status == http.StatusSwitchingProtocols {
		if a.socket == nil {
			return a.answer
		}
		return nil
	}
	if a.answer == nil {
		return errors.New("a socket was opened")
	}
	a.over = true
	parts := strings.Split(rest, " | ")
	if a.answer.status != status {
		return a.answer
	}
	if err := p.compareBody(strings.TrimSpace(parts[0]), strings.TrimSpace(a.answer.body)); err != nil {
		return err
	}
	for _, line := range parts[1:] {
		name, value, _ := strings.Cut(line, ": ")
		if got := a.answer.header.Get(name); got != value {
			return fmt.Errorf("header %s is %q", name, got)
		}
	}
	return nil
}

// compareBody compares a body with JSON, a quoted string, or nothing.
func (p *play) compareBody(want, got string) error {
	if !strings.HasPrefix(want, "{") {
		text, err := unquoted(want)
		if err == nil && text != got && text != "$any" {
			err = fmt.Errorf("got the body %q", got)
		}
		return err
	}
	pattern, err := decodeJSON([]byte(want))
	if err != nil {
		return err
	}
	value, err := decodeJSON([]byte(got))
	if err != nil || !p.names.match(pattern, value) {
		return fmt.Errorf("got the body %q", got)
	}
	return nil
}

// farewell proves that nothing unexpected was left to come, and that the connection ends as it should.
func (p *play) farewell(a *actor) error {
	if a.over {
		return nil
	}
	if a.socket == nil {
		return a.answer
	}
	ping, err := encodeMessage(p.protocol, `{"op":"ping","id":"~farewell"}`)
	if err != nil {
		return err
	}
	if err := a.socket.write(a.socket.opcode, ping); err != nil {
		return err
	}
	pong, err := newWant(`{"op":"pong","id":"~farewell"}`)
	if err != nil {
		return err
	}
	if err := p.messages(a, []*want{pong}, false); err != nil {
		return err
	}
	if err := a.do("close 1000"); err != nil {
		return err
	}
	return p.expect(a, "close 1000")
}

func (p *play) noteEnds() {
	p.ended = map[string]float64{}
	for _, r := range tableOfEnds(p.t) {
		p.ended[r.name] = p.w.ended(r.name)
	}
}
