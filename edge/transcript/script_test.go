package transcript_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// script is a file of dialogues that share a world. See testdata/FORMAT.md.
type script struct {
	name      string
	settings  []step
	dialogues []*dialogue
}

// dialogue is one scene: connections that are opened, talk, and end.
type dialogue struct {
	script *script
	title  string
	rules  []string
	only   string // subprotocol, or empty for all
	line   int
	steps  []step
}

// step is one line.
type step struct {
	line int
	who  string // name of the client
	kind string // > < <~ <* ! @
	text string
}

var (
	stepLine  = regexp.MustCompile(`^([a-z]*)(>|<~|<\*|<|!|@) (.*)$`)
	titleLine = regexp.MustCompile(`^== ((?:R\d+ ?)+)(?:\[(json|proto)\])?: (.+)$`)
	repeated  = regexp.MustCompile(`\$\{(.*?)\*(\d+)\}`)
)

// scripts reads all of testdata.
func scripts(t testing.TB) []*script {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []*script
	for _, path := range paths {
		if filepath.Base(path) == "rules.txt" {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parseScript(strings.TrimSuffix(filepath.Base(path), ".txt"), string(text))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		t.Fatal("no transcripts")
	}
	return all
}

func parseScript(name, text string) (*script, error) {
	s := &script{name: name}
	var last *step
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\n ")
		fail := func(what string) error { return fmt.Errorf("%s.txt:%d: %s: %q", name, n, what, line) }
		switch {
		case line == "" || line[0] == '#':
			last = nil
			continue
		case line[0] == ' ':
			if last == nil {
				return nil, fail("continues nothing")
			}
			last.text += expand(strings.TrimLeft(line, " "))
			continue
		case strings.HasPrefix(line, "=="):
			m := titleLine.FindStringSubmatch(line)
			if m == nil {
				return nil, fail("want == R1 R2: title")
			}
			s.dialogues = append(s.dialogues, &dialogue{script: s, title: m[3], rules: strings.Fields(m[1]), only: m[2], line: n})
			last = nil
			continue
		}
		m := stepLine.FindStringSubmatch(line)
		if m == nil {
			return nil, fail("not a step")
		}
		st := step{line: n, who: m[1], kind: m[2], text: expand(m[3])}
		if len(s.dialogues) == 0 {
			if st.kind != "@" {
				return nil, fail("before the first dialogue")
			}
			s.settings = append(s.settings, st)
			last = &s.settings[len(s.settings)-1]
			continue
		}
		d := s.dialogues[len(s.dialogues)-1]
		d.steps = append(d.steps, st)
		last = &d.steps[len(d.steps)-1]
	}
	return s, nil
}

// expand writes out ${text*times}.
func expand(s string) string {
	return repeated.ReplaceAllStringFunc(s, func(m string) string {
		parts := repeated.FindStringSubmatch(m)
		n, err := strconv.Atoi(parts[2])
		if err != nil {
			return m
		}
		return strings.Repeat(parts[1], n)
	})
}

// speaks says whether a dialogue is held in a subprotocol. Bytes of one subprotocol mean nothing in the other.
func (d *dialogue) speaks(protocol string) bool {
	switch d.only {
	case "json":
		return protocol == protocolJSON
	case "proto":
		return protocol == protocolProto
	}
	onlyJSON := func(s step) bool {
		verb, _, _ := strings.Cut(strings.TrimSuffix(s.text, "-"), " ")
		return s.kind == "!" && slices.Contains([]string{"text", "text-", "stream", "GET", "POST", "PUT", "OPTIONS"}, verb)
	}
	return !slices.ContainsFunc(d.steps, onlyJSON) || protocol == protocolJSON
}
