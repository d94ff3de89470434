package frame_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"tailrace.dev/tailrace/edge/frame"
)

// jsonSeeds are texts around the borders of JSON.
func jsonSeeds() []string {
	return []string{
		``, ` `, `{}`, `[]`, `""`, `0`, `-0`, `-`, `01`, `1.`, `1.5`, `.5`, `1e`, `1e+`, `1E-3`, `1e5`, `-1.25e+10`, `+1`, `NaN`,
		`true`, `tru`, `trueX`, `false`, `null`, `nul`, `nulll`, `[1,]`, `[,1]`, `[1 2]`, `[1,2`, `{"a":1,}`, `{,}`, `{"a"}`, `{"a":}`, `{a:1}`,
		`{"a":1,"a":2}`, `{"a" : [ 1 , {"b":null} ] }`, ` {}`, `{} `, "\t[\n]\r", `"\u00e9"`, `"\u12"`, `"\u12G4"`, `"\x"`, `"\`, `"\"`, `"\\"`, `"\/\b\f\n\r\t"`,
		`"a`, "\"\x00\"", "\"\x1f\"", "\"\x7f\"", `"é"`, "\"\xe9\"", "\"\xed\xa0\x80\"", `"\ud800"`, `"\ud83d\ude00"`, "\"\u2028\"", "\"1234567\xff\"",
		`"exactly"`, `"1234567"`, `"12345678"`, `"123456789"`, `"1234567"8`, `"12345678\`, "\"1234567\n8\"", `"ünïcödé and more of it"`, "\xef\xbb\xbf{}", `{}{}`, `[[[[[[]]]]]]`,
	}
}

func oracle(b []byte) bool {
	trimmed := bytes.Trim(b, " \t\r\n")
	return len(trimmed) == len(b) && json.Valid(b) && utf8.Valid(b)
}

func TestValidJSONIsStandardJSONInUTF8(t *testing.T) {
	for _, s := range jsonSeeds() {
		if got, want := frame.ValidJSON([]byte(s), frame.MaxDepth), oracle([]byte(s)); got != want {
			t.Errorf("%q: got %v, want %v", s, got, want)
		}
	}
}

func TestValidJSONStopsAtItsDepth(t *testing.T) {
	for _, open := range []string{"[", `{"a":`} {
		shut, leaf := "]", ""
		if open != "[" {
			shut, leaf = "}", "1"
		}
		deep := func(n int) []byte { return []byte(strings.Repeat(open, n) + leaf + strings.Repeat(shut, n)) }
		if !frame.ValidJSON(deep(frame.MaxDepth), frame.MaxDepth) {
			t.Errorf("%s: refused at the depth", open)
		}
		if frame.ValidJSON(deep(frame.MaxDepth+1), frame.MaxDepth) {
			t.Errorf("%s: accepted beyond the depth", open)
		}
		if got, want := frame.ValidJSON(deep(frame.MaxDepth), frame.MaxDepth), json.Valid(deep(frame.MaxDepth)); got != want {
			t.Errorf("%s: at the depth got %v, the standard library %v", open, got, want)
		}
	}
}

func FuzzValidJSON(f *testing.F) {
	for _, s := range jsonSeeds() {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := frame.ValidJSON(b, frame.MaxDepth), oracle(b); got != want {
			t.Fatalf("%q: got %v, want %v", b, got, want)
		}
	})
}

func FuzzTextRoundTrip(f *testing.F) {
	for _, s := range jsonSeeds() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		encoded := frame.Text(s)
		if !frame.ValidJSON([]byte(encoded), 0) {
			t.Fatalf("%q is not JSON: %q", s, encoded)
		}
		var got string
		if err := json.Unmarshal([]byte(encoded), &got); err != nil {
			t.Fatal(err)
		}
		var want string // the standard library puts U+FFFD for each byte that is not UTF-8, as we do
		b, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		if got != want {
			t.Fatalf("%q: got %q, want %q", s, got, want)
		}
		own, err := frame.Unquote([]byte(encoded))
		if err != nil || own != want {
			t.Fatalf("unquote %q: got %q, %v, want %q", encoded, own, err, want)
		}
	})
}

func FuzzUnquote(f *testing.F) {
	for _, s := range jsonSeeds() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !frame.ValidJSON([]byte(s), 0) || s[0] != '"' {
			return
		}
		got, err := frame.Unquote([]byte(s))
		var want string
		if jerr := json.Unmarshal([]byte(s), &want); jerr != nil {
			t.Fatal(jerr)
		}
		if err == nil && got != want {
			t.Fatalf("%q: got %q, want %q", s, got, want)
		}
		if err != nil && !strings.ContainsRune(want, utf8.RuneError) {
			t.Fatalf("%q: refused, want %q", s, want)
		}
	})
}
