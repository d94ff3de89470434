package setting_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/setting"
	"tailrace.dev/tailrace/services/size"
)

// things are what a process may have.
type things struct {
	name, word, listen string
	on                 bool
	count              int
	ratio              float64
	wait               time.Duration
	room               size.Bytes
	list               []string
	pairs              map[string]string
}

func declare() (*things, *setting.Set) {
	x := &things{word: "red", listen: "127.0.0.1:1", count: 1, ratio: 0.5, wait: time.Second, room: 1 << 20, list: []string{"a"}, pairs: map[string]string{}}
	s := setting.New("thing")
	s.Group("Things")
	s.String(&x.name, "name", "text", "A name.")
	s.Choice(&x.word, "the.word", "A word.", "red", "green")
	s.Address(&x.listen, "listen", "Where.")
	s.Bool(&x.on, "on", "Whether.")
	s.Int(&x.count, "count", "How many.", 1, 10)
	s.Float(&x.ratio, "ratio", "How often.", 0, 1)
	s.Duration(&x.wait, "wait-time", "How long.", 0, time.Hour)
	s.Bytes(&x.room, "room", "How much.", 1<<10, 1<<30)
	s.List(&x.list, "list", "items", "Which.", func(item string) error {
		if item == "bad" {
			return errors.New("want a good one")
		}
		return nil
	})
	s.Pairs(x.pairs, "pair", "Pairs.", func(name, value string) string {
		if name == "password" {
			return "***"
		}
		return value
	})
	return x, s
}

func texts(errs []error) string {
	var out []string
	for _, e := range errs {
		out = append(out, e.Error())
	}
	return strings.Join(out, "\n")
}

func TestEveryKindHasItsLimits(t *testing.T) {
	for _, test := range []struct {
		arg  string
		want string // the problem; empty: none
	}{
		{"-count=1", ""},
		{"-count=10", ""},
		{"-count=0", `-count "0": want a whole number, 1 to 10`},
		{"-count=11", `-count "11": want a whole number, 1 to 10`},
		{"-count=", `-count "": want a whole number, 1 to 10`},
		{"-count=99999999999999999999", `-count "99999999999999999999": want a whole number, 1 to 10`},
		{"-ratio=0", ""},
		{"-ratio=1", ""},
		{"-ratio=1.01", `-ratio "1.01": want a number, 0 to 1`},
		{"-ratio=NaN", `-ratio "NaN": want a number, 0 to 1`},
		{"-wait-time=0", ""},
		{"-wait-time=1h", ""},
		{"-wait-time=1h0m0.001s", `-wait-time "1h0m0.001s": want a time with its unit, such as 500ms, 10s or 1h30m, 0s to 1h`},
		{"-wait-time=10", `-wait-time "10": want a time with its unit, such as 500ms, 10s or 1h30m, 0s to 1h`},
		{"-room=1KiB", ""},
		{"-room=1023", `-room "1023": want a size such as 64KiB, 256MiB or 1GiB, 1KiB to 1GiB`},
		{"-room=1GiB", ""},
		{"-room=1073741825", `-room "1073741825": want a size such as 64KiB, 256MiB or 1GiB, 1KiB to 1GiB`},
		{"-the.word=GREEN", ""},
		{"-the.word=gren", `-the.word "gren": want one of red, green, did you mean green?`},
		{"-on", ""},
		{"-on=0", ""},
		{"-on=x", `-on "x": want true or false`},
		{"-list=a,b", ""},
		{"-list=a,bad", `-list "a,bad": want a good one`},
		{"-pair=a=b=c", ""},
		{"-pair=ab", `-pair "ab": want name=value, such as security.protocol=ssl`},
		{"-pair=password hunter2", `-pair "password***": want name=value, such as security.protocol=ssl`},
		{"-pair=a=b\nMIIEvQIBADANBgkqhkiG9w0B\nAQ==", `-pair "a=b\n***\n***==": want name=value, such as security.protocol=ssl`},
		{"-pair=a=b\nhunter\nsasl.name", `-pair "a=b\n***\nsasl.name": want name=value, such as security.protocol=ssl`},
		{"-name=" + strings.Repeat("x", 5000), ""},
		{"-count=" + strings.Repeat("7", 5000), `-count "` + strings.Repeat("7", 120) + `"… (5000 bytes): want a whole number, 1 to 10`},
		{"-coun=1", `unknown flag -coun, did you mean -count?; -help lists them`},
		{"-zzzzzzzz", `unknown flag -zzzzzzzz; -help lists them`},
		{"-print-confi", `unknown flag -print-confi, did you mean -print-config?; -help lists them`},
	} {
		_, s := declare()
		if _, got := s.Parse([]string{test.arg}, nil); texts(got) != test.want {
			t.Errorf("%.40s: got %q, want %q", test.arg, texts(got), test.want)
		}
	}
}

func TestProblemsSayWhereTheirValueIsFrom(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("\n# a comment\ncount 77\nratio\nnonsense 1\nhelp\nconfig x\npair = password=hunter2\non\nname a # b\nlist a\nlist b\nthe.word blue\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TAILRACE_WAIT_TIME", "long")
	t.Setenv("TAILRACE_THE_WORD", "green")
	x, s := declare()
	_, problems := s.Parse([]string{"-config", file, "-room", "0"}, []string{"TAILRACE_ROM=hunter2", "TAILRACE_EDGE_SERVICE_HOST=x", "TAILRACE_PORT=tcp://x", "OTHER=1", "TAILRACE_HELP=1"})
	want := `-room "0": want a size such as 64KiB, 256MiB or 1GiB, 1KiB to 1GiB
-wait-time "long" (from TAILRACE_WAIT_TIME): want a time with its unit, such as 500ms, 10s or 1h30m, 0s to 1h
-count "77" (from FILE:3): want a whole number, 1 to 10
FILE:4: "ratio": its value is missing
FILE:5: "nonsense" is no setting
FILE:6: "help" is no setting
FILE:7: a file cannot name another`
	if got := strings.ReplaceAll(texts(problems), file, "FILE"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if !x.on || x.pairs["password"] != "hunter2" || x.name != "a # b" || !slices.Equal(x.list, []string{"a", "b"}) || x.word != "green" {
		t.Errorf("got %+v", x)
	}
	if got := strings.Join(s.Warnings(), "; "); got != "TAILRACE_ROM is no setting of thing, did you mean TAILRACE_ROOM?; TAILRACE_HELP is no setting of thing" {
		t.Errorf("got %q", got)
	}
	var out, log bytes.Buffer
	if err := s.WriteConfig(&out); err != nil {
		t.Fatal(err)
	}
	slog.New(slog.NewTextHandler(&log, nil)).Info("configuration", slog.Any("", s))
	for _, text := range []string{out.String(), log.String(), texts(problems)} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("a secret is in %s", text)
		}
	}
	if got := log.String(); !strings.Contains(got, "wait_time=1s") || !strings.Contains(got, "from.the_word=TAILRACE_THE_WORD") || strings.Contains(got, "from.ratio") {
		t.Errorf("got %s", got)
	}
}

// What does not look like the name of a setting may be part of a secret, as where a key in PEM was pasted into the file.
func TestProblemsShowNoSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("pair password=-----BEGIN\nMIIEhunter2vQIBADANBgkqh\nhunter2/Q==\npassword:hunter2\nlisten: 127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, s := declare()
	_, problems := s.Parse([]string{"-config", file}, nil)
	want := `FILE:2: "***" is no setting
FILE:3: "***" is no setting
FILE:4: "password***" is no setting
FILE:5: "listen:" is no setting, did you mean listen?`
	if got := strings.ReplaceAll(texts(problems), file, "FILE"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, url := range []string{"http://me:hunter2@a", "http://me:hun@hunter2@a", "http://me:/hunter2@a", "ftp://me:a,hunter2@a/x"} {
		var out bytes.Buffer
		s.WriteProblems(&out, []error{errors.New("-name \"" + url + "\": no"), errors.New(url)})
		if got := out.String(); strings.Contains(got, "hunter2") || strings.Count(got, "://***@a") != 2 {
			t.Errorf("%s: got %s", url, got)
		}
	}
}

// TestArgumentsShowNoSecret: neither those that are no flags, since they may be the rest of one with spaces, nor URLs with a password or a token.
func TestArgumentsShowNoSecret(t *testing.T) {
	const unexpected = ": there are only flags, see -help, and a value with spaces needs quotes"
	for args, want := range map[string]string{
		"junk -on":                              `unexpected argument "junk"` + unexpected,
		"-on true":                              `unexpected argument "true"` + unexpected,
		"-pair password=my hunter2":             "unexpected argument ***" + unexpected,
		"-pair=password=my hunter2 hunter2":     "unexpected argument ***" + unexpected + "\nunexpected argument ***" + unexpected,
		"password=hunter2":                      "unexpected argument ***" + unexpected,
		"-zzzzzz hunter2":                       "unknown flag -zzzzzz; -help lists them",
		"-zzzzzz=hunter2":                       "unknown flag -zzzzzz; -help lists them",
		"---pair=password=hunter2 -count 0":     `"---pair" is no flag; -help lists them` + "\n" + `-count "0": want a whole number, 1 to 10`,
		"-=hunter2":                             `"-" is no flag; -help lists them`,
		"-count http://me:hun/t,hunter2@a:1":    `-count "http://***@a:1": want a whole number, 1 to 10`,
		"-count http://a:1/?token=hunter2":      `-count "http://a:1/?***": want a whole number, 1 to 10`,
		"-count http://b/#hunter2,http://c:1/x": `-count "http://b/#***,http://c:1/x": want a whole number, 1 to 10`,
	} {
		_, s := declare()
		if _, got := s.Parse(strings.Fields(args), nil); texts(got) != want {
			t.Errorf("%s: got %q, want %q", args, texts(got), want)
		}
	}
	x, s := declare()
	if _, problems := s.Parse([]string{"-pair", "endpoint=https://id/token?secret=hunter2", "-count", "http://me:hun hunter2@a"}, nil); strings.Contains(texts(problems), "hunter2") {
		t.Errorf("got %s", texts(problems))
	}
	var out bytes.Buffer
	if err := s.WriteConfig(&out); err != nil || strings.Contains(out.String(), "hunter2") || x.pairs["endpoint"] != "https://id/token?secret=hunter2" {
		t.Errorf("got %v, %s", err, &out)
	}
}

// TestFilesOfSomethingElse: whatever a file is, the answer is short, and says where; what some editors put in front is left out.
func TestFilesOfSomethingElse(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"marked":      {"\ufeffcount 3\r\non\r\n", ""},
		"a long line": {"count 3\nname " + strings.Repeat("x", 100_000) + "\n", ""},
		"one line":    {"count 3\n" + strings.Repeat("x", 2<<20), `thing: -config "FILE": line 2 has more than 1048576 bytes: is it a file of settings?`},
		"many lines":  {strings.Repeat("\x00\xff\n", 1000), "… and 950 more"},
	} {
		file := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		x, s := declare()
		_, problems := s.Parse([]string{"-config", file}, nil)
		var out bytes.Buffer
		if len(problems) > 0 {
			s.WriteProblems(&out, problems)
		}
		got := strings.TrimSpace(strings.ReplaceAll(out.String(), file, "FILE"))
		if !strings.HasSuffix(got, test.want) || (got == "") != (test.want == "") || strings.Count(got, "\n") > 60 {
			t.Errorf("%s: got %.500s, want %s", name, got, test.want)
		}
		if test.want == "" && x.count != 3 {
			t.Errorf("%s: got %+v", name, x.count)
		}
	}
}

// TestProblemsOfOthersAreLocated: a package that knows no Set names the flag only.
func TestProblemsOfOthersAreLocated(t *testing.T) {
	t.Setenv("TAILRACE_NAME", "x")
	t.Setenv("TAILRACE_COUNT", "0")
	_, s := declare()
	_, problems := s.Parse([]string{"-the.word", "green"}, nil)
	problems = append(problems, errors.New(`-name "x": no`), errors.New(`-name: no`), errors.New(`-the.word "green": no`), errors.New(`-other: no`), errors.New(`name: no`))
	var out bytes.Buffer
	s.WriteProblems(&out, problems)
	want := `thing: 6 problems with the configuration:
  -count "0" (from TAILRACE_COUNT): want a whole number, 1 to 10
  -name "x": no (from TAILRACE_NAME)
  -name: no (from TAILRACE_NAME)
  -the.word "green": no
  -other: no
  name: no
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestActions(t *testing.T) {
	for args, want := range map[string]setting.Action{
		"": setting.Run, "-h": setting.Help, "-help": setting.Help, "--help": setting.Help, "-count 0 -help": setting.Help,
		"-version": setting.Version, "-print-config": setting.Print, "-help=false": setting.Run,
	} {
		_, s := declare()
		if got, _ := s.Parse(strings.Fields(args), nil); got != want {
			t.Errorf("%s: got %v, want %v", args, got, want)
		}
	}
	_, s := declare()
	var out bytes.Buffer
	if err := s.Write(&out, setting.Version, ""); err != nil || !strings.HasPrefix(out.String(), "thing ") {
		t.Errorf("got %q, %v", &out, err)
	}
}

func TestNearestIsNear(t *testing.T) {
	for name, want := range map[string]string{"acks": "acks", "akcs": "acks", "sasl.pasword": "sasl.password", "zzzz": "", "": ""} {
		if got := setting.Nearest(name, []string{"acks", "sasl.password", "partitioner"}); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestOnLoopback(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, ":1": false, "0.0.0.0:1": false, "a.localhost:1": false, "x": false} {
		if got := setting.OnLoopback(addr); got != want {
			t.Errorf("%s: got %v", addr, got)
		}
	}
}

func TestOneListener(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", true},
		{"localhost:1", "127.0.0.1:1", true},
		{":1", "127.0.0.1:1", true},
		{"127.0.0.1:1", "[::]:1", true},
		{"127.0.0.1:1", "127.0.0.1:2", false},
		{"127.0.0.1:1", "127.0.0.2:1", false},
		{"127.0.0.1:0", "127.0.0.1:0", false},
		{"nowhere", "nowhere", false}, // told by itself
	} {
		if got := setting.OneListener(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: got %t", c.a, c.b, got)
		}
	}
}
