package setting

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"tailrace.dev/tailrace/services/size"
)

// within is a Value in a range.
type within[T cmp.Ordered] struct {
	to        *T
	low, high T
	parse     func(string) (T, error)
	text      func(T) string
	example   string
}

func (w *within[T]) String() string {
	if w.to == nil {
		return ""
	}
	return w.text(*w.to)
}

func (w *within[T]) Set(text string) error {
	v, err := w.parse(strings.TrimSpace(text))
	if err != nil || !(v >= w.low && v <= w.high) { // NaN is neither
		return fmt.Errorf("want %s, %s", w.example, w.limits())
	}
	*w.to = v
	return nil
}

func (w *within[T]) limits() string { return w.text(w.low) + " to " + w.text(w.high) }

// Int declares a whole number from low to high.
func (s *Set) Int(to *int, name, usage string, low, high int) {
	w := &within[int]{to, low, high, strconv.Atoi, strconv.Itoa, "a whole number"}
	s.Var(w, name, "n", usage, w.limits())
}

// Float declares a number from low to high.
func (s *Set) Float(to *float64, name, usage string, low, high float64) {
	w := &within[float64]{
		to, low, high, func(t string) (float64, error) { return strconv.ParseFloat(t, 64) },
		func(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }, "a number",
	}
	s.Var(w, name, "x", usage, w.limits())
}

// Duration declares a time from low to high.
func (s *Set) Duration(to *time.Duration, name, usage string, low, high time.Duration) {
	w := &within[time.Duration]{to, low, high, time.ParseDuration, durationText, "a time with its unit, such as 500ms, 10s or 1h30m"}
	s.Var(w, name, "time", usage, w.limits())
}

// Bytes declares a size from low to high.
func (s *Set) Bytes(to *size.Bytes, name, usage string, low, high size.Bytes) {
	parse := func(t string) (size.Bytes, error) {
		var b size.Bytes
		err := b.Set(t)
		return b, err
	}
	text := func(b size.Bytes) string { return b.String() }
	w := &within[size.Bytes]{to, low, high, parse, text, "a size such as 64KiB, 256MiB or 1GiB"}
	s.Var(w, name, "size", usage, w.limits())
}

// durationText leaves out zero parts: 1h, not 1h0m0s.
func durationText(d time.Duration) string {
	t := d.String()
	if strings.HasSuffix(t, "m0s") {
		t = strings.TrimSuffix(t, "0s")
	}
	if strings.HasSuffix(t, "h0m") {
		t = strings.TrimSuffix(t, "0m")
	}
	return t
}

type text struct{ to *string }

func (t text) Set(v string) error {
	*t.to = v
	return nil
}

func (t text) String() string {
	if t.to == nil {
		return ""
	}
	return *t.to
}

// String declares a text that the caller checks.
func (s *Set) String(to *string, name, unit, usage string) { s.Var(text{to}, name, unit, usage, "") }

type boolean struct{ to *bool }

func (b boolean) Set(v string) error {
	on, err := strconv.ParseBool(strings.TrimSpace(v))
	if err != nil {
		return errors.New("want true or false")
	}
	*b.to = on
	return nil
}

func (b boolean) String() string {
	if b.to == nil {
		return ""
	}
	return strconv.FormatBool(*b.to)
}

func (boolean) IsBoolFlag() bool { return true }

// Bool declares a switch: -name, or -name=false.
func (s *Set) Bool(to *bool, name, usage string) { s.Var(boolean{to}, name, "", usage, "") }

type word struct {
	text
	words []string
}

func (w word) Set(v string) error {
	v = strings.ToLower(strings.TrimSpace(v))
	if !slices.Contains(w.words, v) {
		return fmt.Errorf("want one of %s%s", strings.Join(w.words, ", "), didYouMean(nearest(v, w.words), ""))
	}
	*w.to = v
	return nil
}

// Choice declares one of some words.
func (s *Set) Choice(to *string, name, usage string, words ...string) {
	s.Var(word{text{to}, words}, name, "word", usage, strings.Join(words, ", "))
}

type address struct {
	text
	example string
}

func (a address) Set(v string) error {
	v = strings.TrimSpace(v)
	host, port, err := net.SplitHostPort(v)
	if err != nil {
		return fmt.Errorf("want host:port, such as %s", a.example)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("the port must be a number from 0 (any that is free) to 65535, such as %s", a.example)
	}
	if strings.ContainsAny(host, "/ \t") {
		return fmt.Errorf("want host:port without a scheme or path, such as %s", a.example)
	}
	*a.to = v
	return nil
}

// Address declares a host:port to listen on. Its default is the example of what is wanted.
func (s *Set) Address(to *string, name, usage string) {
	s.Var(address{text{to}, *to}, name, "address", usage, "")
}

// OnLoopback says that an address can be reached from this machine only. A host name other than localhost is not taken at its word.
func OnLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// OneListener says that two addresses of listeners are one, so that the second could not be bound: the same port of the same host, or of all hosts.
// Port 0 is another one each time.
func OneListener(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	plain := func(host string) string {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return ""
		} else if host == "localhost" {
			return "127.0.0.1"
		}
		return host
	}
	hostA, hostB = plain(hostA), plain(hostB)
	return hostA == hostB || hostA == "" || hostB == ""
}

type list struct {
	to    *[]string
	given *bool
	check func(string) error
}

func (l list) Set(v string) (bad error) {
	if !*l.given {
		*l.to, *l.given = nil, true
	}
	for item := range strings.SplitSeq(v, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		*l.to = append(*l.to, item) // also one that is refused: that there is none would be a second problem
		if l.check != nil && bad == nil {
			bad = l.check(item)
		}
	}
	return bad
}

func (l list) String() string {
	if l.to == nil {
		return ""
	}
	return strings.Join(*l.to, ",")
}

// List declares several values, separated by commas or given repeatedly; the first use replaces the default. check may be nil; its error
// says what is wanted.
func (s *Set) List(to *[]string, name, unit, usage string, check func(string) error) {
	s.Var(list{to, new(bool), check}, name, unit, usage, "")
}

type pairs struct {
	to   map[string]string
	mask func(name, value string) string
}

func (p pairs) Set(v string) error {
	for line := range strings.Lines(v) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		k = strings.TrimSpace(k)
		if !ok || k == "" {
			return errors.New("want name=value, such as security.protocol=ssl")
		}
		p.to[k] = v
	}
	return nil
}

func (p pairs) String() string {
	var out []string
	for k, v := range p.to {
		out = append(out, k+"="+p.mask(k, v))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Mask hides the secrets of name=value, one a line, and all of a line but its name where the equals sign is missing: of several lines each may be of
// a secret that was broken into lines, and only what has a dot is a name there.
func (p pairs) Mask(text string) string {
	var out []string
	several := strings.Contains(strings.TrimSpace(text), "\n")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if k, v, ok := strings.Cut(line, "="); ok {
			k = strings.TrimSpace(k)
			line = masked(k) + "=" + p.mask(k, v)
		} else if several && !strings.Contains(line, ".") && line != "" {
			line = "***"
		} else {
			line = masked(line)
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

// Pairs declares name=value pairs, given repeatedly, or one a line in the environment. mask returns a value, or what is printed instead of a
// secret. to must not be nil.
func (s *Set) Pairs(to map[string]string, name, usage string, mask func(name, value string) string) {
	s.Var(pairs{to, mask}, name, "name=value", usage, "")
}
