package main

import (
	"net"
	"strings"
	"testing"

	"tailrace.dev/tailrace/services/setting/settingtest"
)

func TestProcessesSayWhatIsWrongAndExit(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
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
		{"OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=hunter2%", "-trace.endpoint http://127.0.0.1:4318", exitUsage, nil, []string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS: the value of number 1"}},
		{"TAILRACE_TRACE_ENDPOINT=a:1", "", exitUsage, nil, []string{`-trace.endpoint "a:1": want`, "(from TAILRACE_TRACE_ENDPOINT)"}},
		{"", "-upstream http://a:1/?token=hunter2", exitUsage, nil, []string{`-upstream "http://a:1/?***"`}},
		{"", "-upstream http://me:hun/t,hunter2@a:1", exitUsage, nil, []string{`-upstream "http://***@a:1"`}},
		{"", "-listen " + taken.Addr().String(), exitFailed, nil, []string{`"msg":"configuration"`, `"level":"ERROR"`, "address already in use"}},
		{"TAILRACE_MAX_KEY=hunter2", "-log-format text -listen " + taken.Addr().String(), exitFailed, nil, []string{"level=WARN", "TAILRACE_MAX_KEY is no setting", "level=ERROR"}},
	} {
		code, stdout, stderr := settingtest.Process(t, "tailrace-edge.main", []string{test.environ}, strings.Fields(test.args)...)
		if code != test.code || !has(stdout, test.stdout...) || !has(stderr, test.stderr...) ||
			(test.stdout == nil) != (stdout == "") || (test.stderr == nil) != (stderr == "") {
			t.Errorf("%s: got %d, want %d\nstandard output: %s\nstandard error: %s", test.args, code, test.code, stdout, stderr)
		}
		if strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%s: a secret is in %s%s", test.args, stdout, stderr)
		}
	}
}
