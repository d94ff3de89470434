package setting

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/peterbourgon/ff/v3"
)

// Action is what the caller of Parse is asked to do.
type Action int

// The actions.
const (
	Run     Action = iota
	Help           // print the help, exit 0
	Version        // print the version, exit 0
	Print          // print the settings, exit 0; after the caller's own checks
)

// Parse reads arguments, the environment and the file of -config. environ is os.Environ(), in which variables with our prefix that are no
// settings are found. The problems are all that there are, in no error of which is a secret; after Help and Version there are none.
func (s *Set) Parse(args, environ []string) (Action, []error) {
	s.source = source{kind: fromFlag}
	s.parseArgs(args)
	switch {
	case s.help:
		return Help, nil
	case s.version:
		return Version, nil
	}
	s.parseRest()
	s.findForeign(environ)
	if s.print {
		return Print, s.problems
	}
	return Run, s.problems
}

// Warnings are what is odd and harmless, for the log: environment variables with our prefix that are no settings. At most 20.
func (s *Set) Warnings() []string {
	var out, known []string
	for _, v := range s.variables() {
		known = append(known, strings.TrimPrefix(v, Prefix))
	}
	for _, v := range s.foreign[:min(len(s.foreign), 20)] {
		near := nearest(strings.TrimPrefix(v, Prefix), known) // the prefix that all have says nothing about nearness
		if near != "" {
			near = Prefix + near
		}
		out = append(out, fmt.Sprintf("%s is no setting of %s%s", v, s.program, didYouMean(near, "")))
	}
	return out
}

func (s *Set) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Errorf(format, args...))
}

// parseArgs goes on where the flag package stops.
func (s *Set) parseArgs(all []string) {
	for args := all; ; {
		err := s.flags.Parse(args)
		rest := s.flags.Args()
		switch {
		case err == nil && len(rest) == 0:
			return
		case err == nil:
			s.problem("unexpected argument %s: there are only flags, see -help, and a value with spaces needs quotes", argument(all, rest))
			rest = rest[1:]
		case errors.Is(err, flag.ErrHelp): // -h
			s.help = true
			return
		case strings.HasPrefix(err.Error(), "flag provided but not defined: "):
			given := strings.TrimPrefix(err.Error(), "flag provided but not defined: -")
			s.problem("unknown flag %s%s; -help lists them", "-"+given, didYouMean(nearest(given, s.names(true)), "-"))
			// Its value, unless it stood behind an equals sign or there was none.
			if unknown := args[len(args)-len(rest)-1]; len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !strings.Contains(unknown, "=") {
				rest = rest[1:]
			}
		case strings.HasPrefix(err.Error(), "flag needs an argument: "):
			s.problem("%s: its value is missing", strings.TrimPrefix(err.Error(), "flag needs an argument: "))
			return // it was the last
		default: // bad flag syntax; it still stands in front
			name, _, _ := strings.Cut(rest[0], "=")
			s.problem("%s is no flag; -help lists them", quote(name))
			rest = rest[1:]
		}
		args = rest
	}
}

// argument is the first of rest, the end of args, as a problem shows it: whole where it comes first, or follows a switch, which takes no value;
// elsewhere it may be part of a secret that has spaces.
func argument(args, rest []string) string {
	at := len(args) - len(rest)
	if strings.Contains(rest[0], "=") || at > 0 && (!strings.HasPrefix(args[at-1], "-") || strings.Contains(args[at-1], "=")) {
		return "***"
	}
	return quote(rest[0])
}

// parseRest reads, by ff, what no flag has set.
func (s *Set) parseRest() {
	rest := flag.NewFlagSet(s.program, flag.ContinueOnError)
	rest.SetOutput(io.Discard)
	for x := range s.each {
		if !x.action && x.from.kind == fromDefault {
			rest.Var(x, x.name, x.usage)
		}
	}
	s.source = source{kind: fromEnvironment}
	err := ff.Parse(rest, nil, ff.WithEnvVarPrefix(Prefix), ff.WithConfigFileVia(&s.file), ff.WithConfigFileParser(s.parseFile))
	if err != nil {
		s.problem("-%s %s%s: %w", fileFlag, quote(s.file), s.Where(fileFlag), err)
	}
}

// maxLine is how many bytes a line of the file may have.
const maxLine = 1 << 20

// parseFile is ff's parser of the file: it gives set the lines of settings that neither a flag nor a variable has set.
func (s *Set) parseFile(r io.Reader, set func(name, value string) error) error {
	s.source = source{kind: fromFile}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		s.source.line++
		line := strings.TrimSpace(strings.TrimPrefix(lines.Text(), "\ufeff")) // some editors begin files with it
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value := line, "true" // a boolean alone
		if i := strings.IndexAny(line, " \t="); i >= 0 {
			name, value = line[:i], strings.TrimSpace(line[i:])
			value = strings.TrimSpace(strings.TrimPrefix(value, "="))
		}
		name = strings.TrimLeft(name, "-")
		x := s.find(name)
		switch {
		case name == fileFlag:
			s.problem("%s:%d: a file cannot name another", s.file, s.source.line)
		case x == nil || x.action:
			s.problem("%s:%d: %s is no setting%s", s.file, s.source.line, quote(masked(name)), didYouMean(nearest(name, s.names(false)), ""))
		case x.from.kind == fromFlag || x.from.kind == fromEnvironment:
		case name == line && !x.IsBoolFlag():
			s.problem("%s:%d: %s: its value is missing", s.file, s.source.line, quote(name))
		default:
			_ = set(name, value) // a setting never fails
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d has more than %d bytes: is it a file of settings?", s.source.line+1, maxLine)
	}
	return lines.Err()
}

func (s *Set) variables() []string {
	var out []string
	for _, n := range s.names(false) {
		out = append(out, variable(n))
	}
	return out
}

// injected are the variables that Kubernetes gives every pod beside a service whose name begins with ours.
var injected = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

func (s *Set) findForeign(environ []string) {
	known := map[string]bool{}
	for _, v := range s.variables() {
		known[v] = true
	}
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, Prefix+"_") && !known[name] && !injected.MatchString(name) {
			s.foreign = append(s.foreign, name)
		}
	}
}

func didYouMean(name, dash string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %s%s?", dash, name)
}

// Nearest is the candidate that differs in the fewest characters from name, and "" where none is near. For messages about mistyped names.
func Nearest(name string, candidates []string) string { return nearest(name, candidates) }

func nearest(name string, candidates []string) string {
	name = strings.ToLower(name)
	if len(name) > maxShown {
		return ""
	}
	best, least := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(name, strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best
}

// distance is Levenshtein's, in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before = row[j+1]
			row[j+1] = min(cost, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}
