package setting

import (
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"
)

// maxProblems is how many are told: a file of something else has one a line.
const maxProblems = 50

// WriteProblems tells a user what is wrong with the settings, a line each, at most 50, without the passwords of URLs.
func (s *Set) WriteProblems(w io.Writer, problems []error) {
	if len(problems) == 1 {
		_, _ = fmt.Fprintf(w, "%s: %s\n", s.program, s.located(problems[0]))
		return
	}
	_, _ = fmt.Fprintf(w, "%s: %d problems with the configuration:\n", s.program, len(problems))
	for _, p := range problems[:min(len(problems), maxProblems)] {
		_, _ = fmt.Fprintf(w, "  %s\n", s.located(p))
	}
	if more := len(problems) - maxProblems; more > 0 {
		_, _ = fmt.Fprintf(w, "  … and %d more\n", more)
	}
}

// located is a problem with the place of its setting's value, which those who do not know a Set cannot tell.
func (s *Set) located(problem error) string {
	text := redact(problem.Error())
	name, _, _ := strings.Cut(strings.TrimPrefix(text, "-"), " ")
	x := s.find(strings.TrimSuffix(name, ":"))
	if x == nil || !strings.HasPrefix(text, "-") || strings.Contains(text, "(from ") {
		return text
	}
	return text + s.whereOf(x)
}

// Write does the action: it writes the help, the version or the settings. intro stands in front of the help.
func (s *Set) Write(w io.Writer, action Action, intro string) error {
	switch action {
	case Help:
		return s.WriteHelp(w, intro)
	case Version:
		return s.WriteVersion(w)
	case Print:
		return s.WriteConfig(w)
	case Run:
	}
	return nil
}

// Split returns the errors that were joined, or err alone; none for nil.
func Split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// WriteConfig writes every setting, its value and where that came from, with secrets masked.
func (s *Set) WriteConfig(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for x := range s.each {
		if !x.action {
			_, _ = fmt.Fprintf(t, "%s\t%s\t%s\n", x.name, printable(x.String()), s.origin(x))
		}
	}
	return t.Flush()
}

func printable(value string) string {
	if value == "" {
		return `""`
	}
	return strings.NewReplacer("\n", `\n`, "\t", `\t`, "\r", `\r`).Replace(value)
}

func (s *Set) origin(x *setting) string {
	switch x.from.kind {
	case fromFlag:
		return "flag"
	case fromEnvironment:
		return variable(x.name)
	case fromFile:
		return fmt.Sprintf("%s:%d", s.file, x.from.line)
	case fromDefault:
	}
	return "default"
}

// LogValue is the configuration as it is logged at the start: every value, and in the group "from" where those came from that are not the
// defaults. Names are those of the flags, with _ for - and for dots; secrets are masked.
func (s *Set) LogValue() slog.Value {
	var attrs, from []slog.Attr
	for x := range s.each {
		if x.action {
			continue
		}
		name := strings.ToLower(strings.TrimPrefix(variable(x.name), Prefix+"_"))
		attrs = append(attrs, slog.String(name, x.String()))
		if x.from.kind != fromDefault {
			from = append(from, slog.String(name, s.origin(x)))
		}
	}
	return slog.GroupValue(append(attrs, slog.Attr{Key: "from", Value: slog.GroupValue(from...)})...)
}

// WriteVersion writes the program's name, its module's version and commit, and the Go version.
func (s *Set) WriteVersion(w io.Writer) error {
	version, commit := "(unknown)", ""
	if b, ok := debug.ReadBuildInfo(); ok {
		version = b.Main.Version
		for _, x := range b.Settings {
			switch {
			case x.Key == "vcs.revision":
				commit = " commit " + x.Value
			case x.Key == "vcs.modified" && x.Value == "true":
				commit += ", changed"
			}
		}
	}
	_, err := fmt.Fprintf(w, "%s %s%s %s %s/%s\n", s.program, version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// Columns that the help fits.
const (
	columns  = 100
	usageTab = "      "
)

// WriteHelp writes the intro, every setting by group with its default, limits and environment variable, and the exit codes.
func (s *Set) WriteHelp(w io.Writer, intro string) error {
	b := &strings.Builder{}
	b.WriteString(intro)
	// What a program does comes first, how it is configured last.
	for _, g := range append(s.groups[1:len(s.groups):len(s.groups)], s.groups[0]) {
		b.WriteString("\n" + g.title + "\n")
		for _, x := range g.settings {
			head := "  -" + x.name
			if x.unit != "" {
				head += " " + x.unit
			}
			if !x.action {
				head = fmt.Sprintf("%-48s  %s", head, variable(x.name))
			}
			b.WriteString(head + "\n")
			text := x.usage
			if x.limits != "" {
				text += " Allowed: " + x.limits + "."
			}
			if !x.action && x.def != "" && x.def != "false" {
				text += " Default: " + x.def + "."
			}
			wrap(b, text)
		}
	}
	b.WriteString(`
Exit codes
  0  ended as asked: after a drain, -help, -version or -print-config
  1  something failed while starting or running; the log says what
  2  the configuration is wrong; every problem with it is told on standard error
`)
	_, err := io.WriteString(w, b.String())
	return err
}

func wrap(b *strings.Builder, text string) {
	line := usageTab
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > columns && line != usageTab {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = usageTab
		}
		line += word + " "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}
