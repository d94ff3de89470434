package console_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tailrace.dev/tailrace/edge/console"
)

// record is a record as the protocol has it; what a test does not set is left out.
type record struct {
	Topic     string  `json:"topic"`
	Partition int32   `json:"partition"`
	Offset    int64   `json:"offset"`
	Time      int64   `json:"time,omitempty"`
	Key       *string `json:"key,omitempty"`
	KeyBase64 string  `json:"keyBase64,omitempty"`
	Headers   [][]any `json:"headers,omitempty"`
	Text      *string `json:"text,omitempty"`
	Base64    string  `json:"base64,omitempty"`
	Tombstone bool    `json:"tombstone,omitempty"`
	Epoch     int32   `json:"epoch,omitempty"`
}

// request is any message of the page.
type request struct {
	Op      string          `json:"op"`
	ID      string          `json:"id"`
	Topic   string          `json:"topic"`
	TopicID string          `json:"topicId"`
	Keys    []string        `json:"keys"`
	Start   json.RawMessage `json:"start"`
	As      string          `json:"as"`
	Key     *string         `json:"key"`
	Text    *string         `json:"text"`
	Dead    bool            `json:"tombstone"`
	Headers [][]any         `json:"headers"`
}

// fakeEdge speaks the protocol over logs in memory, one mutex for all of it, and can misbehave.
type fakeEdge struct {
	t   *testing.T
	url string

	mu        sync.Mutex
	logs      map[string][][]record // topic, partition, offset
	order     []string              // topics as listed
	sessions  map[*fakeSession]struct{}
	received  []request
	upgrades  int
	refuse    bool   // answer upgrades with 503
	mute      bool   // take publishes and never answer
	fail      string // answer publishes with this reason
	outcome   string // of these failures; empty: refused
	away      bool   // no service: answer /api/topics with 503
	described int    // answers with partitions
	groups    groups
}

type fakeSession struct {
	conn *websocket.Conn
	subs map[string]request
}

func newFakeEdge(t *testing.T) *fakeEdge {
	f := &fakeEdge{t: t, logs: map[string][][]record{}, sessions: map[*fakeSession]struct{}{}, groups: groups{of: map[string]map[string][]map[string]any{}}}
	mux := http.NewServeMux()
	mux.Handle("/", console.Handler())
	mux.HandleFunc("GET /api/topics", f.listTopics)
	mux.HandleFunc("GET /api/groups", f.listGroups)
	mux.HandleFunc("GET /ws", f.serve)
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		f.cut()
		server.Close()
	})
	f.url = server.URL
	return f
}

func (f *fakeEdge) topic(name string, partitions int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logs[name] = make([][]record, partitions)
	f.order = append(f.order, name)
}

func (f *fakeEdge) listTopics(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		http.Error(w, "the service does not answer", http.StatusServiceUnavailable)
		return
	}
	if name := r.URL.Query().Get("topic"); name != "" {
		f.describe(w, name)
		return
	}
	topics := []map[string]any{}
	for _, name := range f.order {
		topics = append(topics, map[string]any{"name": name, "partitions": len(f.logs[name])})
	}
	if err := json.NewEncoder(w).Encode(map[string]any{"topics": topics}); err != nil {
		f.t.Error(err)
	}
}

// describe tells partitions whose leaders are brokers 1 to 3; the last one has none, and an open transaction of two records.
func (f *fakeEdge) describe(w http.ResponseWriter, name string) {
	partitions := []map[string]any{}
	for p, log := range f.logs[name] {
		told := map[string]any{"partition": p, "leader": p%3 + 1, "start": 0, "end": len(log), "highWatermark": len(log)}
		if p == len(f.logs[name])-1 {
			told["leader"], told["highWatermark"] = -1, len(log)+2
		}
		partitions = append(partitions, told)
	}
	f.described++
	if err := json.NewEncoder(w).Encode(map[string]any{"name": name, "topicId": "t1", "partitions": partitions}); err != nil {
		f.t.Error(err)
	}
}

func (f *fakeEdge) serve(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.upgrades++
	refuse := f.refuse
	f.mu.Unlock()
	if refuse {
		http.Error(w, "no", http.StatusServiceUnavailable)
		return
	}
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"tailrace.v1.json"}})
	if err != nil {
		f.t.Error(err)
		return
	}
	defer conn.CloseNow()
	conn.SetReadLimit(4 << 20)
	s := &fakeSession{conn: conn, subs: map[string]request{}}
	f.mu.Lock()
	f.sessions[s] = struct{}{}
	s.send(`{"op":"welcome","session":"fake%d","protocol":1,"features":[],"heartbeatMs":15000,"maxMessageBytes":2097152}`, f.upgrades)
	f.mu.Unlock()
	for {
		_, message, err := conn.Read(r.Context())
		if err != nil {
			f.set(func(f *fakeEdge) { delete(f.sessions, s) })
			return
		}
		f.handle(s, message)
	}
}

func (f *fakeEdge) handle(s *fakeSession, message []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var r request
	if err := json.Unmarshal(message, &r); err != nil {
		f.t.Errorf("the page sent %q: %v", message, err)
		return
	}
	f.received = append(f.received, r)
	switch r.Op {
	case "subscribe":
		f.subscribe(s, r)
	case "unsubscribe":
		delete(s.subs, r.ID)
		s.send(`{"op":"unsubscribed","id":%q,"reason":"client"}`, r.ID)
	case "publish":
		f.publish(s, r)
	default:
		f.t.Errorf("the page sent op %q", r.Op)
	}
}

func (f *fakeEdge) subscribe(s *fakeSession, r request) {
	log, ok := f.logs[r.Topic]
	if !ok {
		s.send(`{"op":"error","re":"subscribe","id":%q,"final":true,"code":"not_found","reason":"UNKNOWN_TOPIC","message":"unknown topic","retryable":false}`, r.ID)
		return
	}
	var named struct {
		Positions map[int32]json.RawMessage `json:"positions"`
		Last      int                       `json:"last"`
		Time      *time.Time                `json:"time"`
	}
	if r.Start[0] == '{' {
		if err := json.Unmarshal(r.Start, &named); err != nil {
			f.t.Error(err)
		}
	}
	var partitions []map[string]any
	var history []record
	for p := range log {
		start := 0
		if string(r.Start) == `"latest"` {
			start = len(log[p])
		} else if at, ok := named.Positions[int32(p)]; ok {
			start = offsetOf(f.t, at)
		} else if named.Last > 0 {
			start = max(0, len(log[p])-named.Last)
		} else if named.Time != nil {
			start = len(log[p])
			if i := slices.IndexFunc(log[p], func(r record) bool { return r.Time >= named.Time.UnixMilli() }); i >= 0 {
				start = i
			}
		}
		end := max(start, len(log[p])) // a test may tell of a gap that its log does not have
		partitions = append(partitions, map[string]any{"partition": p, "start": start, "end": end})
		history = append(history, log[p][min(start, len(log[p])):]...)
	}
	body, err := json.Marshal(partitions)
	if err != nil {
		f.t.Error(err)
	}
	s.send(`{"op":"started","id":%q,"topic":%q,"topicId":"t1","partitions":%s}`, r.ID, r.Topic, body)
	s.subs[r.ID] = r
	for chunk := range slices.Chunk(history, 500) {
		s.deliver(f.t, r, chunk)
	}
	s.send(`{"op":"caughtup","id":%q}`, r.ID)
}

// offsetOf reads 12 or [12, epoch].
func offsetOf(t *testing.T, at json.RawMessage) int {
	var n int
	pair := []*int{&n, new(int)}
	var err error
	if at[0] == '[' {
		err = json.Unmarshal(at, &pair)
	} else {
		err = json.Unmarshal(at, &n)
	}
	if err != nil {
		t.Errorf("position %s: %v", at, err)
	}
	return n
}

func (f *fakeEdge) publish(s *fakeSession, r request) {
	switch {
	case f.mute:
	case f.fail != "":
		s.send(`{"op":"error","re":"publish","id":%q,"final":false,"code":"not_found","reason":%q,"message":"no such topic","retryable":false,"outcome":%q}`, r.ID, f.fail, cmp.Or(f.outcome, "refused"))
	default:
		rec := f.append(record{Topic: r.Topic, Key: r.Key, Text: r.Text, Headers: r.Headers, Tombstone: r.Dead})
		s.send(`{"op":"published","id":%q,"partition":%d,"offset":%d,"time":%d}`, r.ID, rec.Partition, rec.Offset, rec.Time)
	}
}

// add appends records to their partitions' logs and delivers them.
func (f *fakeEdge) add(records ...record) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.append(records...)
}

func (f *fakeEdge) append(records ...record) (last record) {
	for i := range records {
		r := &records[i]
		log := f.logs[r.Topic]
		r.Offset = int64(len(log[r.Partition]))
		if r.Time == 0 {
			r.Time = time.Now().UnixMilli()
		}
		log[r.Partition] = append(log[r.Partition], *r)
		last = *r
	}
	for s := range f.sessions {
		for _, sub := range s.subs {
			s.deliver(f.t, sub, records)
		}
	}
	return last
}

func (s *fakeSession) deliver(t *testing.T, sub request, records []record) {
	var mine []record
	for _, r := range records {
		if r.Topic == sub.Topic && (sub.Keys == nil || r.Key != nil && slices.Contains(sub.Keys, *r.Key)) {
			mine = append(mine, r)
		}
	}
	if mine == nil {
		return
	}
	body, err := json.Marshal(mine)
	if err != nil {
		t.Error(err)
	}
	s.send(`{"op":"records","id":%q,"records":%s}`, sub.ID, body)
}

// send writes a message; a connection that is gone is noticed by its reader.
func (s *fakeSession) send(format string, args ...any) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = s.conn.Write(ctx, websocket.MessageText, fmt.Appendf(nil, format, args...))
}

// each runs do for every session.
func (f *fakeEdge) each(do func(*fakeSession)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for s := range f.sessions {
		do(s)
	}
}

// end takes every session off the list, after do; closing waits for the session's reader and so needs the mutex free.
func (f *fakeEdge) end(do func(*fakeSession), closeIt func(*websocket.Conn) error) {
	var ended []*fakeSession
	f.each(func(s *fakeSession) {
		do(s)
		delete(f.sessions, s)
		ended = append(ended, s)
	})
	for _, s := range ended {
		_ = closeIt(s.conn) // a browser that does not answer the close frame in time is not the tests' matter
	}
}

// cut drops every connection without a close frame.
func (f *fakeEdge) cut() {
	f.end(func(*fakeSession) {}, (*websocket.Conn).CloseNow)
}

// goodbye ends every connection in order; more is a further member of the goodbye.
func (f *fakeEdge) goodbye(code int, reason, more string) {
	f.end(
		func(s *fakeSession) { s.send(`{"op":"goodbye","code":%d,"reason":%q%s}`, code, reason, more) },
		func(c *websocket.Conn) error { return c.Close(websocket.StatusCode(code), reason) })
}

// set changes a setting.
func (f *fakeEdge) set(change func(*fakeEdge)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// requests returns what the page sent, of one op.
func (f *fakeEdge) requests(op string) []request {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.received), func(r request) bool { return r.Op != op })
}

func (f *fakeEdge) connections() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.upgrades
}
