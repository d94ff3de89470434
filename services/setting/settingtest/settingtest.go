// Package settingtest is for the tests of commands: it looks at what they say of themselves.
package settingtest

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tailrace.dev/tailrace/services/setting"
)

// columns that a help may have, with its line break.
const columns = 101

// Update declares the flag -update of a test binary, with which Help writes what it would compare.
func Update() *bool { return flag.Bool("update", false, "write testdata/help.txt anew") }

// Help holds a program's help against testdata/help.txt, or writes that, and against the texts of READMEs, which must name every flag between them.
func Help(t testing.TB, s *setting.Set, intro string, update bool, readmes ...string) {
	t.Helper()
	var help bytes.Buffer
	if err := s.Write(&help, setting.Help, intro); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "help.txt")
	if update {
		if err := os.WriteFile(golden, help.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil || !bytes.Equal(want, help.Bytes()) {
		t.Errorf("the help is not that of %s (%v); look at it, and run the test with -update:\n%s", golden, err, &help)
	}
	var documented strings.Builder
	for _, path := range readmes {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		documented.Write(text)
	}
	for line := range strings.Lines(help.String()) {
		if len([]rune(line)) > columns {
			t.Errorf("wider than %d columns: %q", columns-1, line)
		}
		if name, ok := strings.CutPrefix(line, "  -"); ok && !strings.Contains(documented.String(), "`-"+strings.Fields(name)[0]) {
			t.Errorf("no README of %q names -%s", readmes, strings.Fields(name)[0])
		}
	}
}

// Process runs this test binary, to its end, as the program that it is with the switch asMain, and the arguments behind "--".
func Process(t testing.TB, asMain string, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, append([]string{"-" + asMain, "--"}, args...)...)
	cmd.Env = append(os.Environ(), environ...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err = cmd.Run()
	if exit, failed := errors.AsType[*exec.ExitError](err); failed {
		return exit.ExitCode(), out.String(), log.String()
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, out.String(), log.String()
}
