// Command count reads `go test -json` and tells people: a line for each package, lines that begin with "proof", everything that a failing
// test has printed, and at the end how many passed and failed. It keeps the whole stream in the file that is its argument while something
// has failed, and removes it otherwise. It fails if a test failed, was skipped, or none ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

type tally struct{ passed, failed, skipped int }

type counter struct {
	out     *bufio.Writer
	total   tally
	tests   map[string]*tally           // by package
	output  map[string]*strings.Builder // of what has not ended yet, by package and test
	builds  map[string]*strings.Builder // compiler's output by import path
	trouble []string                    // what failed or was skipped
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go test -json … | count LOG")
		os.Exit(2)
	}
	if err := run(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, logPath string) error {
	log, err := os.Create(logPath)
	if err != nil {
		return err
	}
	defer log.Close()
	c := &counter{
		out: bufio.NewWriter(os.Stdout), tests: map[string]*tally{}, output: map[string]*strings.Builder{}, builds: map[string]*strings.Builder{},
	}
	lines := bufio.NewScanner(io.TeeReader(in, log))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintln(c.out, lines.Text()) // not an event: the go command itself speaks
		} else {
			c.handle(e)
		}
		c.out.Flush()
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return c.end(logPath)
}

func (c *counter) handle(e event) {
	id := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		buffer(c.builds, e.ImportPath).WriteString(e.Output)
	case "build-fail":
		fmt.Fprintf(c.out, "FAIL  %s does not build\n%s", e.ImportPath, buffer(c.builds, e.ImportPath))
	case "output":
		buffer(c.output, id).WriteString(e.Output)
		if strings.HasPrefix(e.Output, "proof ") {
			fmt.Fprint(c.out, "      ", e.Output)
		}
	case "pass", "fail", "skip":
		if e.Test == "" {
			c.packageEnd(e)
		} else {
			c.testEnd(e)
		}
		delete(c.output, id)
	}
}

func (c *counter) testEnd(e event) {
	t := c.of(e.Package)
	name := e.Package + " " + e.Test
	switch e.Action {
	case "pass":
		t.passed++
		return
	case "skip":
		t.skipped++
	case "fail":
		t.failed++
	}
	c.trouble = append(c.trouble, e.Action+" "+name)
	fmt.Fprintf(c.out, "\n%s\n", buffer(c.output, name))
}

func (c *counter) packageEnd(e event) {
	t := c.of(e.Package)
	c.total.passed += t.passed
	c.total.skipped += t.skipped
	c.total.failed += t.failed
	switch {
	case e.Action == "pass" && t.skipped == 0:
		fmt.Fprintf(c.out, "ok    %-55s %4d tests %7.1f s\n", e.Package, t.passed, e.Elapsed)
	case e.Action != "skip": // skip: the package has no tests
		if t.failed == 0 && e.Action == "fail" { // it does not build, a goroutine leaked, the process died
			c.total.failed++
			c.trouble = append(c.trouble, "fail "+e.Package)
		}
		fmt.Fprintf(c.out, "FAIL  %s (%.1f s)\n%s\n", e.Package, e.Elapsed, buffer(c.output, e.Package+" "))
		// what was running when the process ended has no end of its own
		for id, output := range c.output {
			if test, ok := strings.CutPrefix(id, e.Package+" "); ok && test != "" {
				fmt.Fprintf(c.out, "%s had not ended:\n%s\n", test, output)
				delete(c.output, id)
			}
		}
	}
}

func (c *counter) of(name string) *tally {
	if c.tests[name] == nil {
		c.tests[name] = &tally{}
	}
	return c.tests[name]
}

func buffer(m map[string]*strings.Builder, key string) *strings.Builder {
	if m[key] == nil {
		m[key] = &strings.Builder{}
	}
	return m[key]
}

func (c *counter) end(logPath string) error {
	defer c.out.Flush()
	t := c.total
	counts := fmt.Sprintf("%d passed, %d failed", t.passed, t.failed)
	if t.skipped > 0 {
		counts += fmt.Sprintf(", %d skipped", t.skipped)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(logPath), "counts"), []byte(counts+"\n"), 0o644); err != nil {
		return err
	}
	for _, name := range c.trouble {
		fmt.Fprintln(c.out, name)
	}
	fmt.Fprintln(c.out, counts)
	if t.failed > 0 || t.skipped > 0 || t.passed == 0 {
		return fmt.Errorf("everything that the tests said is in %s", logPath)
	}
	return os.Remove(logPath)
}
