package edge_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// lines is a log of JSON.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// of returns the lines with a message.
func (l *lines) of(t *testing.T, message string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(l.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if m["msg"] == message {
			found = append(found, m)
		}
	}
	return found
}

// judge holds the lines of one session against its row of the table.
func (l *lines) judge(t *testing.T, row edge.Reason) {
	t.Helper()
	starts, ends := l.of(t, "session started"), l.of(t, "session ended")
	if len(starts) != 1 || len(ends) != 1 {
		t.Fatalf("got %d lines of the start and %d of the end, want one each:\n%s", len(starts), len(ends), l)
	}
	s, e := starts[0], ends[0]
	for _, name := range []string{"session", "kind", "peer"} {
		if s[name] == nil || s[name] != e[name] {
			t.Errorf("%s: %v at the start, %v at the end", name, s[name], e[name])
		}
	}
	level := "INFO"
	if row.Name == "internal_error" {
		level = "ERROR"
	}
	if e["level"] != level || e["code"] != float64(row.Code) || e["reason"] != row.Name || e["initiator"] != row.Initiator {
		t.Errorf("got %v, want %s and %+v", e, level, row)
	}
	for _, name := range []string{"cause", "duration", "records", "bytes"} {
		if _, there := e[name]; !there {
			t.Errorf("no %s in %v", name, e)
		}
	}
}

// What is refused, or is a publish, has lines without keys and values.
func TestRefusalsAndPublishesAreLogged(t *testing.T) {
	book := &lines{}
	cfg := config()
	r := startLogged(t, cfg, hub.Config{}, slog.New(slog.NewJSONHandler(book, &slog.HandlerOptions{Level: slog.LevelDebug})))
	r.src.CreateTopic("orders", 1)
	r.src.Append("orders", 0, hubtest.Text("k", "hunter2"))
	do := func(method, path, origin, body string) {
		t.Helper()
		q, err := http.NewRequest(method, "http://"+r.addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Origin", origin)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		res, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
	}
	do(http.MethodGet, "/sse/orders?key=hunter2", "https://elsewhere.example", "")
	do(http.MethodPost, "/publish/orders?key=hunter2", "http://"+r.addr, "hunter2")
	do(http.MethodPost, "/publish/orders?partition=hunter2", "http://"+r.addr, "")
	await(t, "all is logged", func() bool { return len(book.of(t, "call failed")) == 1 })
	if got := book.of(t, "session refused"); len(got) != 1 || got[0]["code"] != float64(403) || got[0]["path"] != "/sse/orders" || got[0]["cause"] != "this origin is not allowed" {
		t.Errorf("got %v", got)
	}
	if got := book.of(t, "call ended"); len(got) != 1 || got[0]["code"] != float64(200) || got[0]["level"] != "DEBUG" {
		t.Errorf("got %v", got)
	}
	if got := book.of(t, "call failed"); got[0]["code"] != float64(400) || got[0]["kind"] != "post" {
		t.Errorf("got %v", got)
	}
	if strings.Contains(book.String(), `key=`) {
		t.Errorf("a query is in the log:\n%s", book)
	}
}
