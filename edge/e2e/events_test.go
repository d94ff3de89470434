package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"
)

// eventStream is one connection to /sse/{topic}, read as the HTML standard says (section 9.2). One goroutine reads.
type eventStream struct {
	conn  net.Conn
	resp  *http.Response
	lines *bufio.Reader
	id    string // of the last event, or the one asked with
	retry time.Duration
}

// sseEvent is one that a page would be told.
type sseEvent struct{ name, data string }

// dialEvents asks for a stream. id may be empty; it goes as the header, or as the parameter.
func dialEvents(ctx context.Context, address, path, id string, byHeader bool, header http.Header) (*eventStream, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if id != "" && !byHeader {
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		path += separator + "lastEventId=" + url.QueryEscape(id)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		conn.Close()
		return nil, err
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Accept", "text/event-stream")
	if id != "" && byHeader {
		req.Header.Set("Last-Event-ID", id)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	err = req.Write(conn)
	s := &eventStream{conn: conn, id: id}
	if err == nil {
		s.resp, err = http.ReadResponse(bufio.NewReader(conn), req)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	if s.resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(s.resp.Body)
		conn.Close()
		return nil, &sessionError{fmt.Errorf("%s %s", s.resp.Status, body)}
	}
	s.lines = bufio.NewReaderSize(s.resp.Body, 256<<10)
	return s, nil
}

// next returns the next event with data. The id counts once its event is whole.
func (s *eventStream) next() (*sseEvent, error) {
	e := &sseEvent{name: "message"}
	var data []string
	id := s.id
	for {
		line, err := s.lines.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = line[:len(line)-1]
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case strings.ContainsRune(line, '\r') || !utf8.ValidString(line):
			return nil, &sessionError{fmt.Errorf("line %.200q", line)}
		case line == "":
			s.id = id
			if len(data) == 0 {
				e.name = "message"
				continue
			}
			e.data = strings.Join(data, "\n")
			return e, nil
		case field == "": // a comment
		case field == "event":
			e.name = value
		case field == "data":
			data = append(data, value)
		case field == "id":
			id = value
		case field == "retry":
			if s.retry, err = time.ParseDuration(value + "ms"); err != nil {
				return nil, &sessionError{err}
			}
		default:
			return nil, &sessionError{fmt.Errorf("field in %.200q", line)}
		}
	}
}

// take gives an event to a reader. A stream that goes on somewhere says so with started: that is where the reader was, or beyond what was not
// told it (positions that moved without a record are in the id).
func (e *sseEvent) take(r *reader) error {
	text := []byte(e.data)
	switch e.name {
	case "message":
		var records []recordJSON
		if err := strict(text, &records); err != nil {
			return err
		}
		if len(records) == 0 {
			return errors.New("no record in a message")
		}
		for i := range records {
			rec, epoch, err := records[i].decode()
			if err != nil {
				return err
			}
			if err := r.onRecord(records[i].Topic, rec, epoch); err != nil {
				return err
			}
		}
		return nil
	case "started":
		var f startedFrame
		if err := strict(text, &f); err != nil {
			return err
		}
		parts := make([]startedAt, len(f.Partitions))
		for i, p := range f.Partitions {
			parts[i] = startedAt{partition: p.Partition, start: p.Start, end: p.End}
		}
		if err := r.skipTo(parts); err != nil {
			return err
		}
		return r.onStarted(f.TopicID, parts)
	case "gap":
		var f gapFrame
		if err := strict(text, &f); err != nil {
			return err
		}
		return r.onGap(gap{partition: f.Partition, from: f.From, to: f.To, reason: f.Reason})
	case "caughtup":
		return r.onCaughtUp()
	case "heartbeat", "goodbye", "topology", "unsubscribed":
		if !json.Valid(text) {
			return fmt.Errorf("%s with %q", e.name, e.data)
		}
		return nil
	}
	return fmt.Errorf("event %q: %.300q", e.name, e.data)
}

// skipTo takes note of positions that moved without a record while the reader was connected before.
func (r *reader) skipTo(parts []startedAt) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range parts {
		at, known := r.next[p.partition]
		if !known {
			continue
		}
		if p.start < at {
			return fmt.Errorf("partition %d resumed at %d, but was at %d", p.partition, p.start, at)
		}
		r.next[p.partition] = p.start
	}
	return nil
}

// run reads until the stream ends, or done; it returns what ended it, nil for done.
func (s *eventStream) run(r *reader, done func() bool) error {
	for !done() {
		e, err := s.next()
		if err != nil {
			return err
		}
		if err := e.take(r); err != nil {
			return &sessionError{err}
		}
	}
	return nil
}

func (s *eventStream) abort(reset bool) {
	if tcp, ok := s.conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	s.conn.Close()
}

// TestRandomDisconnectsOfEvents breaks streams of events at random moments while records keep coming; each reader resumes by the id of the last
// event that it got whole, and by nothing else. What it got must be the log: nothing lost, nothing twice, each partition in order.
func TestRandomDisconnectsOfEvents(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 4
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	streams := newRelay(t, p.ws)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	l := j.startLoad(topic, partitions, 1000, 100)
	want := size(60, 300)
	var breaks atomic.Int64
	var ends atomic.Pointer[map[int32]int64]
	var readers []*reader
	var wg sync.WaitGroup
	for i := range 6 {
		r := newReader(topic, false)
		readers = append(readers, r)
		done := func() bool {
			e := ends.Load()
			return e != nil && r.reached(*e)
		}
		path := "/sse/" + topic + "?start=earliest"
		if i%2 == 0 {
			path += "&as=base64"
		}
		wg.Go(func() {
			id := ""
			for !done() && ctx.Err() == nil {
				var err error
				if id, err = eventsLife(ctx, streams.address, path, id, r, done, want, &breaks); err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
			}
		})
	}
	cuts := 0
	for breaks.Load() < int64(want) && !t.Failed() && ctx.Err() == nil {
		pause(ctx, time.Duration(200+rand.IntN(600))*time.Millisecond)
		streams.cut()
		cuts++
	}
	e := l.stop()
	ends.Store(&e)
	wg.Wait()
	log := j.read(topic, false)
	starts := 0
	for i, r := range readers {
		starts += r.starts
		if err := r.verify(log); err != nil {
			t.Errorf("reader %d: %v", i, err)
		}
	}
	await(t, 30*time.Second, "the edge has no session left", func() bool { return metric(t, p.wsOps, "tailrace_edge_sessions", `kind="sse"`) == 0 })
	proof(t, "%d disconnects of event streams (%d by cutting all at once), %d starts by %d readers under load: each got the %d records of the log by Last-Event-ID, nothing twice",
		breaks.Load(), cuts, starts, len(readers), log.count())
}

// eventsLife is one connection of a reader. It returns the id to resume by, and an error only for a breach.
func eventsLife(ctx context.Context, address, path, id string, r *reader, done func() bool, want int, breaks *atomic.Int64) (string, error) {
	defer r.disconnected()
	s, err := dialEvents(ctx, address, path, id, rand.IntN(2) == 0, nil)
	if err != nil {
		return id, breachOnly(err)
	}
	defer s.abort(rand.IntN(2) == 0)
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	way := rand.IntN(3)
	timer := time.AfterFunc(lifetime(breaks, want), func() {
		if tcp, ok := s.conn.(*net.TCPConn); ok && way == 0 {
			_ = tcp.CloseWrite() // the edge ends it, and what it had written comes yet
			return
		}
		s.abort(way == 1)
	})
	defer timer.Stop()
	defer when(done, func() { s.abort(false) })()
	err = s.run(r, done)
	if r.isStarted() && !done() {
		breaks.Add(1)
	}
	return s.id, breachOnly(err)
}
