package main

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestProcessesSayWhatIsWrongAndExit(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		environ string
		args    string
		code    int
		stdout  []string
		stderr  []string
	}{
		{"", "-help", exitOK, []string{"Exit codes", "-max-sessions"}, nil},
		{"", "-version", exitOK, []string{"tailrace-edge ", "go1."}, nil},
		{"TAILRACE_MAX_KEYS=7", "-print-config", exitOK, []string{"max-keys                  7", "TAILRACE_MAX_KEYS", "default"}, nil},
		{"TAILRACE_MAX_KEY=hunter2", "-print-config", exitOK, []string{"default"}, []string{"TAILRACE_MAX_KEY is no setting", "did you mean TAILRACE_MAX_KEYS?"}},
		{"TAILRACE_UPSTREAM=http://me:hunter2@a:1", "-max-keys 0", exitUsage, nil, []string{"2 problems", "(from TAILRACE_UPSTREAM)", `-max-keys "0"`}},
		{"", "-listen " + taken.Addr().String(), exitFailed, nil, []string{`"msg":"configuration"`, `"level":"ERROR"`, "address already in use"}},
		{"TAILRACE_MAX_KEY=hunter2", "-log-format text -listen " + taken.Addr().String(), exitFailed, nil, []string{"level=WARN", "TAILRACE_MAX_KEY is no setting", "level=ERROR"}},
	} {
		cmd := exec.CommandContext(t.Context(), self, append([]string{"-tailrace-edge.main", "--"}, strings.Fields(test.args)...)...)
		cmd.Env = append(os.Environ(), test.environ)
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		code := 0
		if err := cmd.Run(); err != nil {
			exit, failed := errors.AsType[*exec.ExitError](err)
			if !failed {
				t.Fatal(err)
			}
			code = exit.ExitCode()
		}
		if code != test.code || !has(stdout.String(), test.stdout...) || !has(stderr.String(), test.stderr...) ||
			(test.stdout == nil) != (stdout.Len() == 0) || (test.stderr == nil) != (stderr.Len() == 0) {
			t.Errorf("%s: got %d, want %d\nstandard output: %s\nstandard error: %s", test.args, code, test.code, &stdout, &stderr)
		}
		if strings.Contains(stdout.String()+stderr.String(), "hunter2") {
			t.Errorf("%s: a secret is in %s%s", test.args, &stdout, &stderr)
		}
	}
}
