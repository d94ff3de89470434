package e2e_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// The judges are judged: a proof is worth as much as its client's strictness.

func TestSocketRefusesWhatServersMustNotSend(t *testing.T) {
	long := strings.Repeat("a", 126)
	for name, tc := range map[string]struct {
		sent string
		bad  bool // a breach; otherwise the message or close frame below
		want string
		code int
	}{
		"text":                     {sent: "\x81\x02hi", want: "hi"},
		"text of 126 bytes":        {sent: "\x81\x7e\x00\x7e" + long, want: long},
		"fragments around a ping":  {sent: "\x01\x01h\x89\x00\x80\x01i", want: "hi"},
		"close with code":          {sent: "\x88\x05\x0f\xa0bye", code: 4000},
		"close without code":       {sent: "\x88\x00", code: 1005},
		"masked":                   {sent: "\x81\x82\x00\x00\x00\x00hi", bad: true},
		"reserved bit":             {sent: "\xc1\x02hi", bad: true},
		"reserved opcode":          {sent: "\x83\x00", bad: true},
		"length not minimal":       {sent: "\x81\x7e\x00\x02hi", bad: true},
		"length not minimal in 64": {sent: "\x81\x7f\x00\x00\x00\x00\x00\x00\x00\x02hi", bad: true},
		"fragmented ping":          {sent: "\x09\x00\x80\x00", bad: true},
		"long ping":                {sent: "\x89\x7e\x00\x7e" + long, bad: true},
		"continuation of nothing":  {sent: "\x80\x02hi", bad: true},
		"text within fragments":    {sent: "\x01\x01h\x81\x01i", bad: true},
		"not UTF-8":                {sent: "\x81\x01\xff", bad: true},
		"close of one byte":        {sent: "\x88\x01\x03", bad: true},
		"close with 1006":          {sent: "\x88\x02\x03\xee", bad: true},
		"close with 5000":          {sent: "\x88\x02\x13\x88", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := pipeSocket(t, tc.sent, false)
			_, message, err := s.next()
			closed, isClose := errors.AsType[*closeError](err)
			switch {
			case tc.bad && !isBreach(err):
				t.Fatalf("got %q, %v, want a breach", message, err)
			case tc.code != 0 && (!isClose || closed.code != tc.code):
				t.Fatalf("got %q, %v, want close code %d", message, err, tc.code)
			case tc.want != "" && (err != nil || string(message) != tc.want):
				t.Fatalf("got %q, %v, want %q", message, err, tc.want)
			}
		})
	}
	t.Run("bytes after the close frame", func(t *testing.T) {
		s := pipeSocket(t, "\x88\x00\x81\x02hi", true)
		if _, _, err := s.next(); err == nil {
			t.Fatal("no error for the close frame")
		}
		if _, _, err := s.next(); !isBreach(err) {
			t.Fatalf("got %v, want a breach", err)
		}
	})
}

// pipeSocket is a socket whose server sends these bytes, then hangs up or not, and swallows what it gets.
func pipeSocket(t *testing.T, sent string, hangUp bool) *socket {
	client, server := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, server)
	}()
	go func() {
		_, _ = io.WriteString(server, sent)
		if hangUp {
			server.Close()
		}
	}()
	t.Cleanup(func() {
		client.Close()
		<-done
		server.Close()
	})
	_ = client.SetDeadline(time.Now().Add(10 * time.Second))
	return &socket{conn: client, br: bufio.NewReader(client)}
}

func TestRecordFormsDecodeToTheirBytes(t *testing.T) {
	for text, want := range map[string]record{
		`{"offset":1,"key":"k","value":{"a": 1}}`:                       {key: []byte("k"), value: []byte(`{"a": 1}`)},
		`{"offset":1,"value":null}`:                                     {value: []byte("null")},
		`{"offset":1,"tombstone":true}`:                                 {},
		`{"offset":1,"key":"","text":""}`:                               {key: []byte{}, value: []byte{}},
		`{"offset":1,"keyBase64":"/w==","base64":""}`:                   {key: []byte{0xFF}, value: []byte{}},
		`{"offset":1,"base64":"/wA=","headers":[["h","v"],["h",null]]}`: {value: []byte{0xFF, 0}, headers: []header{{"h", []byte("v")}, {name: "h"}}},
		`{"offset":1,"text":"é","headers":[["b",{"base64":"/w=="}]]}`:   {value: []byte("é"), headers: []header{{"b", []byte{0xFF}}}},
	} {
		var j recordJSON
		if err := strict([]byte(text), &j); err != nil {
			t.Fatal(err)
		}
		got, _, err := j.decode()
		want.offset, want.time = 1, -1
		if err != nil || got.mark() != want.mark() || got.String() != want.String() {
			t.Errorf("%s decodes to %v, %v, want %v", text, got, err, &want)
		}
	}
	for _, text := range []string{`{"offset":1}`, `{"text":"a","value":1}`, `{"key":"a","keyBase64":"/w==","text":""}`, `{"keyBase64":"YQ==","text":""}`, `{"base64":"/w"}`} {
		var j recordJSON
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			t.Fatal(err)
		}
		if got, _, err := j.decode(); err == nil {
			t.Errorf("%s decodes to %v, want an error", text, got)
		}
	}
}

func TestTapeDiffFindsEveryDeparture(t *testing.T) {
	at := func(offsets ...int64) *tape {
		tp := newTape(false)
		for _, o := range offsets {
			tp.add(&record{partition: 1, offset: o, value: []byte{byte(o)}})
		}
		return tp
	}
	want := at(1, 2, 4)
	for name, got := range map[string]*tape{"short": at(1, 2), "long": at(1, 2, 4, 5), "lost": at(1, 4), "twice": at(1, 2, 2, 4), "swapped": at(2, 1, 4), "empty": at()} {
		if got.diff(want) == "" {
			t.Errorf("no difference found for the tape that is %s", name)
		}
	}
	changed := at(1, 2)
	changed.add(&record{partition: 1, offset: 4, value: []byte("other")})
	if changed.diff(want) == "" {
		t.Error("no difference found for another value")
	}
	if d := at(1, 2, 4).diff(want); d != "" {
		t.Errorf("difference between equal tapes: %s", d)
	}
	if d := at(2, 4).diff(want.since(map[int32]int64{1: 2})); d != "" {
		t.Errorf("difference since 2: %s", d)
	}
}

func TestReaderRefusesBreaches(t *testing.T) {
	begun := func() *reader {
		r := newReader("t", false)
		if err := r.onStarted("id", []startedAt{{partition: 0, start: 5, end: 7}}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, breach := range map[string]func(*reader) error{
		"twice": func(r *reader) error {
			return errors.Join(r.onRecord("t", &record{offset: 5}, -1), r.onRecord("t", &record{offset: 5}, -1))
		},
		"before start":   func(r *reader) error { return r.onRecord("t", &record{offset: 4}, -1) },
		"other topic":    func(r *reader) error { return r.onRecord("u", &record{offset: 5}, -1) },
		"started twice":  func(r *reader) error { return r.onStarted("id", nil) },
		"backwards":      func(r *reader) error { return r.onPosition(0, 4, -1) },
		"gap elsewhere":  func(r *reader) error { return r.onGap(gap{from: 6, to: 9}) },
		"after the end":  func(r *reader) error { r.disconnected(); return r.onRecord("t", &record{offset: 5}, -1) },
		"caught up two":  func(r *reader) error { return errors.Join(r.onCaughtUp(), r.onCaughtUp()) },
		"wrong resume":   func(r *reader) error { r.disconnected(); return r.onStarted("id", []startedAt{{start: 6, end: 7}}) },
		"wrong topic id": func(r *reader) error { r.disconnected(); return r.onStarted("other", nil) },
	} {
		if err := breach(begun()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
