package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"tailrace.dev/tailrace/edge/frame/frametest"
)

// session speaks over a socket, in the subprotocol that was chosen. What it says and hears is JSON; over the binary subprotocol that is
// translated. One goroutine reads (step, run); any may send.
type session struct {
	*socket
	binary  bool
	welcome welcomeFrame

	mu         sync.Mutex
	readers    map[string]*reader // by subscription id
	published  map[string]publishedFrame
	heartbeats []heartbeatFrame
	goodbye    *goodbyeFrame
	errors     []errorFrame
	ended      map[string]string // unsubscribed: reason by id
}

// dialSession opens a session and takes its welcome. r, if any, becomes the reader of id "0", which a path of the form /ws/{topic} starts.
func dialSession(ctx context.Context, address, path string, r *reader, o dialOptions) (*session, error) {
	if o.protocols == nil {
		o.protocols = []string{"tailrace.v1.json"}
	}
	sock, err := dialSocket(ctx, address, path, o)
	if err != nil {
		return nil, err
	}
	s := &session{socket: sock, binary: sock.protocol == "tailrace.v1.proto", readers: map[string]*reader{}, published: map[string]publishedFrame{}, ended: map[string]string{}}
	if r != nil {
		s.readers["0"] = r
	}
	stop := context.AfterFunc(ctx, func() { sock.conn.Close() })
	defer stop()
	message, err := s.hear()
	if err == nil {
		err = strict(message, &s.welcome)
	}
	if err == nil && (s.welcome.Op != "welcome" || s.welcome.Protocol != 1 || s.welcome.Session == "" || s.welcome.HeartbeatMs <= 0) {
		err = fmt.Errorf("bad welcome: %s", message)
	}
	if err != nil {
		sock.conn.Close()
		return nil, fmt.Errorf("awaiting welcome: %w", err)
	}
	return s, nil
}

func (s *session) sendJSON(v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if !s.binary {
		return s.write(opText, text)
	}
	encoded, err := frametest.Client(text)
	if err != nil {
		return err
	}
	return s.write(opBinary, encoded)
}

// hear returns the next message.
func (s *session) hear() ([]byte, error) {
	op, message, err := s.next()
	switch {
	case err != nil:
		return nil, err
	case op == opText && !s.binary:
		return message, nil
	case op == opBinary && s.binary:
		if message, err = frametest.Server(message); err != nil {
			return nil, &sessionError{err}
		}
		return message, nil
	}
	return nil, &sessionError{fmt.Errorf("message with opcode %d in %s", op, s.protocol)}
}

// subscribe starts (or resumes, where the reader has positions) a subscription; more are further members of the request.
func (s *session) subscribe(id string, r *reader, more map[string]any) error {
	request := map[string]any{"op": "subscribe", "id": id, "topic": r.topic}
	if next, epoch := r.positions(); len(next) > 0 {
		places := map[string]placeJSON{}
		for p, at := range next {
			e, known := epoch[p]
			if !known {
				e = -1
			}
			places[strconv.Itoa(int(p))] = placeJSON{offset: at, epoch: e}
		}
		request["start"] = map[string]any{"positions": places, "missing": "earliest"}
		request["topicId"] = r.topicID
	}
	for name, value := range more {
		if _, set := request[name]; !set {
			request[name] = value
		}
	}
	s.mu.Lock()
	s.readers[id] = r
	s.mu.Unlock()
	return s.sendJSON(request)
}

// run steps until the connection ends or until says stop; it returns what ended it, nil for until.
func (s *session) run(until func() bool) error {
	for !until() {
		if err := s.step(); err != nil {
			return err
		}
	}
	return nil
}

// when calls then once as soon as done says so. stop ends the watch and waits for it.
func when(done func() bool, then func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if eventually(ctx, time.Hour, done) {
			then()
		}
	}()
	return func() {
		cancel()
		<-gone
	}
}

// forever is the until of a session that is read to its end.
func forever() bool { return false }

// step takes one message.
func (s *session) step() error {
	message, err := s.hear()
	if err != nil {
		return err
	}
	if err := s.take(message); err != nil {
		return &sessionError{err}
	}
	return nil
}

// sessionError is a breach of the session protocol by the edge, not the end of a connection.
type sessionError struct{ err error }

func (e *sessionError) Error() string { return "session protocol: " + e.err.Error() }
func (e *sessionError) Unwrap() error { return e.err }

// isBreach says that an error is a mistake of the server and not merely the end of a connection.
func isBreach(err error) bool {
	if _, ok := errors.AsType[*sessionError](err); ok {
		return true
	}
	_, ok := errors.AsType[*protocolError](err)
	return ok
}

func (s *session) reader(id string) (*reader, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.readers[id]
	if r == nil {
		return nil, fmt.Errorf("frame for id %q, which has no subscription", id)
	}
	return r, nil
}

func (s *session) take(message []byte) error {
	if s.goodbye != nil {
		return fmt.Errorf("message after goodbye: %.200q", message)
	}
	var named struct {
		Op string `json:"op"`
		ID string `json:"id"`
	}
	if bytes.HasPrefix(message, []byte(`{"op":"records"`)) {
		named.Op = "records"
	} else if err := json.Unmarshal(message, &named); err != nil {
		return fmt.Errorf("decoding %.200q: %w", message, err)
	}
	switch named.Op {
	case "records":
		return s.takeRecords(message)
	case "started":
		return s.takeStarted(message)
	case "gap":
		var f gapFrame
		if err := strict(message, &f); err != nil {
			return err
		}
		r, err := s.reader(f.ID)
		if err != nil {
			return err
		}
		return r.onGap(gap{partition: f.Partition, from: f.From, to: f.To, reason: f.Reason, left: f.Records})
	case "heartbeat":
		return s.takeHeartbeat(message)
	case "published":
		var f publishedFrame
		if err := strict(message, &f); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, twice := s.published[f.ID]; twice {
			return fmt.Errorf("published %q twice", f.ID)
		}
		s.published[f.ID] = f
		return nil
	case "error":
		var f errorFrame
		if err := strict(message, &f); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.errors = append(s.errors, f)
		if f.Final {
			delete(s.readers, f.ID)
		}
		return nil
	case "goodbye":
		var f goodbyeFrame
		if err := strict(message, &f); err != nil {
			return err
		}
		s.goodbye = &f
		return nil
	case "caughtup", "topology", "unsubscribed", "pong":
		return s.takeSmall(message)
	}
	return fmt.Errorf("unknown op: %.200q", message)
}

func (s *session) takeSmall(message []byte) error {
	var f idFrame
	if err := strict(message, &f); err != nil {
		return err
	}
	if f.Op == "pong" {
		return nil
	}
	r, err := s.reader(f.ID)
	if err != nil {
		return err
	}
	switch f.Op {
	case "caughtup":
		return r.onCaughtUp()
	case "topology":
		return r.onTopology(f.Partitions)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.readers, f.ID)
	s.ended[f.ID] = f.Reason
	return nil
}

func (s *session) takeStarted(message []byte) error {
	var f startedFrame
	if err := strict(message, &f); err != nil {
		return err
	}
	r, err := s.reader(f.ID)
	if err != nil {
		return err
	}
	if f.Topic != r.topic {
		return fmt.Errorf("started topic %q, want %q", f.Topic, r.topic)
	}
	parts := make([]startedAt, len(f.Partitions))
	for i, p := range f.Partitions {
		parts[i] = startedAt{partition: p.Partition, start: p.Start, end: p.End}
	}
	return r.onStarted(f.TopicID, parts)
}

func (s *session) takeHeartbeat(message []byte) error {
	var f heartbeatFrame
	if err := strict(message, &f); err != nil {
		return err
	}
	s.mu.Lock()
	s.heartbeats = append(s.heartbeats, f)
	s.mu.Unlock()
	for id, places := range f.Positions {
		r, err := s.reader(id)
		if err != nil {
			return err
		}
		if err := takePlaces(r, places); err != nil {
			return err
		}
	}
	return nil
}

func takePlaces(r *reader, places map[string]placeJSON) error {
	for name, place := range places {
		p, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return err
		}
		if err := r.onPosition(int32(p), place.offset, place.epoch); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) takeRecords(message []byte) error {
	var f recordsFrame
	if err := strict(message, &f); err != nil {
		return err
	}
	r, err := s.reader(f.ID)
	if err != nil {
		return err
	}
	if len(f.Records) == 0 && len(f.Positions) == 0 {
		return fmt.Errorf("empty records frame: %.200q", message)
	}
	for i := range f.Records {
		rec, epoch, err := f.Records[i].decode()
		if err != nil {
			return fmt.Errorf("%w in %.300q", err, message)
		}
		if err := r.onRecord(f.Records[i].Topic, rec, epoch); err != nil {
			return err
		}
	}
	return takePlaces(r, f.Positions)
}

// firstHeartbeat returns the first heartbeat that passes.
func (s *session) firstHeartbeat(pass func(*heartbeatFrame) bool) (heartbeatFrame, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.heartbeats {
		if pass(&s.heartbeats[i]) {
			return s.heartbeats[i], true
		}
	}
	return heartbeatFrame{}, false
}

func (s *session) publishedCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.published)
}

func (s *session) errorFrames() []errorFrame {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]errorFrame(nil), s.errors...)
}

// within bounds reads of the session.
func (s *session) within(d time.Duration) { _ = s.conn.SetReadDeadline(time.Now().Add(d)) }
