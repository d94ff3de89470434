package console_test

import (
	"strings"
	"testing"
)

// TestJSONIsIndented opens records in the inspector: what is JSON is indented, and nothing else of it is changed; what is not is shown as it came.
func TestJSONIsIndented(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 1)
	p := openPage(t, f.url, look{})
	p.awaitState("Live")
	long := strings.Repeat(`<i>\"`, 40_000)
	same := ""
	for _, test := range []struct{ name, value, want string }{
		{"nested", `{"a":{"b":[1,{"c":null}],"none":{},"few":[ ]},"d":"x"}`, `{
  "a": {
    "b": [
      1,
      {
        "c": null
      }
    ],
    "none": {},
    "few": [ ]
  },
  "d": "x"
}`},
		{"white space", "{ \"a\"\t:\r\n1 , \"b c\":[ true ]}\n", "{\n  \"a\": 1,\n  \"b c\": [\n    true\n  ]\n}"},
		{"numbers keep their digits", `[12345678901234567890,0.10,1e400,-0,1.0E+2]`, "[\n  12345678901234567890,\n  0.10,\n  1e400,\n  -0,\n  1.0E+2\n]"},
		{"doubled and odd names", `{"k":1,"k":2,"__proto__":{"x":3},"":4}`, "{\n  \"k\": 1,\n  \"k\": 2,\n  \"__proto__\": {\n    \"x\": 3\n  },\n  \"\": 4\n}"},
		{"strings are left alone", `{"s":"a,b : {c}[d]\" \\","u":"\u0061\/  é"}`, "{\n  \"s\": \"a,b : {c}[d]\\\" \\\\\",\n  \"u\": \"\\u0061\\/  é\"\n}"},
		{"markup", `["<img src=x onerror=window.owned=1>","</pre><script>window.owned=1</script>"]`, "[\n  \"<img src=x onerror=window.owned=1>\",\n  \"</pre><script>window.owned=1</script>\"\n]"},
		{"what would not show", "{\"a\":\"\u202egnp\u200b\"}", "{\n  \"a\": \"\\u202egnp\\u200b\"\n}"},
		{"a long string", `["` + long + `"]`, "[\n  \"" + long + "\"\n]"},
		{"a comma too many", `{"a":1,}`, same},
		{"more behind it", `{"a":1} {"b":2}`, same},
		{"cut off", `{"a":[1,2`, same},
		{"no quotes", `{a:1}`, same},
		{"lines of text", "[2026-11-30] {error}\n\tat main", same},
		{"a number", `12345678901234567890`, same},
		{"a string", `"a,b"`, same},
	} {
		want := test.want
		if want == same {
			want = test.value
		}
		f.add(record{Topic: "demo", Text: &test.value})
		p.await(`document.querySelector('#records .row')?.dataset.at !== window.last`)
		eval[any](p, `window.last = document.querySelector('#records .row').dataset.at; document.querySelector('#records .row').click()`)
		p.await(`document.getElementById('inspect-title').textContent.endsWith(window.last.split(':')[1])`)
		if got := eval[string](p, `document.getElementById('inspect-value').textContent`); got != want {
			t.Errorf("%s: got\n%.300s\nwant\n%.300s", test.name, got, want)
		}
	}
	if got := eval[string](p, `getComputedStyle(document.getElementById('inspect-value')).whiteSpace`); !strings.HasPrefix(got, "pre") {
		t.Errorf("white space is shown as %q, want its lines kept", got)
	}
	if eval[bool](p, `window.owned !== undefined || ({}).x !== undefined || document.querySelector('#inspect-value *') !== null`) {
		t.Error("a value was taken for markup, or for a program")
	}
}
