// Package setting is how a process is configured: its settings, each a flag, an environment variable and a line of a file; what is wrong with
// them, all at once; and what they are, with where each came from and secrets masked. Both processes use it.
//
// A setting named kafka.data-dir is the flag -kafka.data-dir, the variable TAILRACE_KAFKA_DATA_DIR, and in a file the line
// "kafka.data-dir /var/lib/tailrace". The flag wins over the environment, and the environment over the file; a setting that may be repeated is
// taken from one of them, whole. An empty variable counts as none.
package setting

import (
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Prefix of all environment variables.
const Prefix = "TAILRACE"

// fileFlag names the file of settings.
const fileFlag = "config"

// Set is the settings of one process. Declare them, each in its Group, then Parse once. It belongs to one goroutine.
type Set struct {
	program string
	flags   *flag.FlagSet // the settings and the actions
	groups  []*group

	file    string // the value of -config
	help    bool
	version bool
	print   bool

	source   source // of what is being set
	problems []error
	foreign  []string // environment variables with our prefix that are no settings
}

type group struct {
	title    string
	settings []*setting
}

// Kinds of source. The zero source is the default.
type kind int

const (
	fromDefault kind = iota
	fromFlag
	fromEnvironment
	fromFile
)

// source is where a value came from.
type source struct {
	kind kind
	line int // of the file
}

// Value is what a setting holds. Set gets the text; its error says what is wanted, without the name and the value.
type Value = flag.Value

// A Value that may hold secrets has no secret in its String, and Masks what it was given for the problem with it.
type masker interface{ Mask(text string) string }

// setting is a flag.Value that never fails: its problems are gathered.
type setting struct {
	set    *Set
	name   string
	unit   string // what stands for the value in the help
	usage  string
	limits string // for the help
	def    string // for the help
	value  Value
	from   source
	action bool // not a setting: neither in the environment nor in the file
}

// New returns a Set with the settings that every process has: -config, and the actions -help, -version and -print-config.
func New(program string) *Set {
	s := &Set{program: program, flags: flag.NewFlagSet(program, flag.ContinueOnError)}
	s.flags.SetOutput(io.Discard)
	s.Group("Configuration")
	s.String(&s.file, fileFlag, "file", "Read settings from this file, one a line: the flag's name without its dash, a space, the value. Lines that begin with # are comments. Secrets are better kept here than in flags, which other users of the machine can see.")
	for _, a := range []struct {
		to          *bool
		name, usage string
	}{
		{&s.print, "print-config", "Print every setting with its value and where that came from, secrets masked, and exit."},
		{&s.version, "version", "Print the version and exit."},
		{&s.help, "help", "Print this and exit."},
	} {
		s.Bool(a.to, a.name, a.usage)
		g := s.groups[0]
		g.settings[len(g.settings)-1].action = true
	}
	return s
}

// Group begins a group of the help: settings that follow belong to it.
func (s *Set) Group(title string) { s.groups = append(s.groups, &group{title: title}) }

// Var declares a setting. unit stands for its value in the help, usage is a sentence or more, and limits says what is allowed, such as
// "1 to 16", or nothing. The value that it has now is its default.
func (s *Set) Var(v Value, name, unit, usage, limits string) {
	x := &setting{set: s, name: name, unit: unit, usage: usage, limits: limits, value: v, def: v.String()}
	g := s.groups[len(s.groups)-1]
	g.settings = append(g.settings, x)
	s.flags.Var(x, name, usage)
}

// Set is called by the flag package and by ff.
func (x *setting) Set(text string) error {
	x.from = x.set.source
	if err := x.value.Set(text); err != nil {
		x.set.problems = append(x.set.problems, fmt.Errorf("-%s %s%s: %w", x.name, x.shown(text), x.where(), err))
	}
	return nil
}

// String is the value that is in force. The flag package calls it on a zero setting, too.
func (x *setting) String() string {
	if x.value == nil {
		return ""
	}
	return redact(x.value.String())
}

// IsBoolFlag lets a boolean stand without a value.
func (x *setting) IsBoolFlag() bool {
	b, ok := x.value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// shown is text as a problem shows it: quoted, cut, and without what may be a secret.
func (x *setting) shown(text string) string {
	if m, ok := x.value.(masker); ok {
		text = m.Mask(text)
	}
	// A password may have anything in it that should have been escaped.
	if from, to := strings.Index(text, "://"), strings.LastIndexByte(text, '@'); from >= 0 && from < to {
		text = text[:from] + "://***" + text[to:]
	}
	return quote(text)
}

func (x *setting) where() string { return x.set.whereOf(x) }

// whereOf says in brackets where a value came from, and nothing of a flag.
func (s *Set) whereOf(x *setting) string {
	switch x.from.kind {
	case fromEnvironment:
		return " (from " + variable(x.name) + ")"
	case fromFile:
		return fmt.Sprintf(" (from %s:%d)", s.file, x.from.line)
	case fromDefault, fromFlag:
	}
	return ""
}

// Where says in brackets where the value of a setting came from, such as " (from TAILRACE_LISTEN)"; nothing where it is the flag or the
// default. For problems that Parse cannot find, after it.
func (s *Set) Where(name string) string {
	if x := s.find(name); x != nil {
		return s.whereOf(x)
	}
	return ""
}

// Given says that a setting was set, to whatever value, and is not the default.
func (s *Set) Given(name string) bool {
	x := s.find(name)
	return x != nil && x.from.kind != fromDefault
}

func (s *Set) find(name string) *setting {
	for x := range s.each {
		if x.name == name {
			return x
		}
	}
	return nil
}

func (s *Set) each(yield func(*setting) bool) {
	for _, g := range s.groups {
		for _, x := range g.settings {
			if !yield(x) {
				return
			}
		}
	}
}

// names of all settings, and of all flags where actions count too.
func (s *Set) names(actions bool) []string {
	var names []string
	for x := range s.each {
		if actions || !x.action {
			names = append(names, x.name)
		}
	}
	return names
}

func variable(name string) string {
	return Prefix + "_" + strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(name))
}

// maxShown is how many bytes of a value a problem shows.
const maxShown = 120

// password of a URL. It may have an @ or a / that should have been escaped, so that the longest counts.
var password = regexp.MustCompilePOSIX(`://([^/@[:space:]]*|[^,"[:space:]]*)@`)

// query of a URL, in which tokens are given, too.
var query = regexp.MustCompile(`(://[^?#\s,"]*[?#])[^\s,"]+`)

func redact(text string) string {
	return query.ReplaceAllString(password.ReplaceAllString(text, "://***@"), "${1}***")
}

// named are the beginnings of lines that can be a setting's or a property's name. Others may be a secret that was broken into lines, such as a key
// in PEM.
var named = regexp.MustCompile(`^[a-z][a-z0-9._-]{0,63}\b`)

// masked is a line without what stands behind a name at its beginning.
func masked(line string) string {
	name := named.FindString(line)
	switch rest := line[len(name):]; {
	case name == "":
	case rest == "" || rest == ":":
		return line
	case strings.ContainsAny(rest[:1], ": \t"):
		return name + "***"
	}
	return "***"
}

func quote(text string) string {
	text = redact(text)
	if len(text) > maxShown {
		return fmt.Sprintf("%q… (%d bytes)", strings.ToValidUTF8(text[:maxShown], ""), len(text))
	}
	return fmt.Sprintf("%q", text)
}
