package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"tailrace.dev/tailrace/services/setting/settingtest"
)

func TestProcessesSayWhatIsWrongAndExit(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	secret := []string{"TAILRACE_KAFKA_PROPERTY=sasl.password=hunter2\nssl.key.password=hunter2\nclient.rack=r1", "TAILRACE_LISTN=hunter2"}
	for _, test := range []struct {
		environ []string
		args    string
		code    int
		stdout  []string
		stderr  []string
	}{
		{nil, "-help", exitOK, []string{"Exit codes", "-kafka.property"}, nil},
		{nil, "-version", exitOK, []string{"tailrace ", "go1."}, nil},
		{secret, "-print-config", exitOK, []string{"client.rack=r1 sasl.password=*** ssl.key.password=***  TAILRACE_KAFKA_PROPERTY", "listen"}, []string{"warning: TAILRACE_LISTN is no setting", "TAILRACE_LISTEN"}},
		{secret, "-print-config -kafka.consumers 0", exitUsage, nil, []string{`tailrace: -kafka.consumers "0": want`}},
		{[]string{"TAILRACE_KAFKA_PROPERTY=sasl.passwort=hunter2\nssl.key.password"}, "", exitUsage, nil, []string{"ssl.key.password", "name=value", "TAILRACE_KAFKA_PROPERTY"}},
		{nil, "-kafka.property sasl.passwort=hunter2 -kafka.property acks=0", exitUsage, nil, []string{"2 problems", "sasl.passwort=***", "did you mean sasl.password?", "acks=0"}},
		{nil, "-kafka.property security.protocol=ssl -kafka.property ssl.key.pem=hunter2", exitUsage, nil, []string{"ssl.key.pem failed"}},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=Bearer hunter2"}, "-trace.endpoint http://127.0.0.1:4318", exitUsage, nil, []string{"OTEL_EXPORTER_OTLP_HEADERS: number 1 has no equals sign"}},
		{nil, "-trace.endpoint http://127.0.0.1:4318/?token=hunter2", exitUsage, nil, []string{`-trace.endpoint "http://127.0.0.1:4318/?***"`}},
		{nil, "-kafka.property sasl.password=my hunter2", exitUsage, nil, []string{"unexpected argument ***"}},
		{nil, "-listen 127.0.0.1:0 -ops-listen 127.0.0.1:0 -kafka embedded -kafka.data-dir /dev/null", exitFailed, nil, []string{`-kafka.data-dir \"/dev/null\":`}},
		{nil, "-nonsense", exitUsage, nil, []string{"unknown flag -nonsense"}},
		{secret, "-listen " + taken.Addr().String(), exitFailed, nil, []string{`"msg":"configuration"`, "sasl.password=***", `"level":"ERROR"`, "-listen", "address already in use"}},
	} {
		code, stdout, stderr := settingtest.Process(t, "tailrace.main", test.environ, strings.Fields(test.args)...)
		if code != test.code || !has(stdout, test.stdout...) || !has(stderr, test.stderr...) || (test.stdout == nil) != (stdout == "") || (test.stderr == nil) != (stderr == "") {
			t.Errorf("%s: got %d, want %d\nstandard output: %s\nstandard error: %s", test.args, code, test.code, stdout, stderr)
		}
		if strings.Contains(stdout+stderr, "hunter2") {
			t.Errorf("%s: a secret is in %s%s", test.args, stdout, stderr)
		}
	}
}

// A process whose standard error is no terminal logs JSON: each line an object, the first the configuration and where it is from.
func TestAProcessLogsJSON(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "tailrace.conf")
	if err := os.WriteFile(file, []byte("kafka 127.0.0.1:1\nkafka.property sasl.password=hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), self, "-tailrace.main", "--", "-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0", "-config", file)
	child.Env = append(os.Environ(), "TAILRACE_DRAIN_TIMEOUT=1s")
	log := &logBook{}
	child.Stderr = log
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = child.Process.Kill() }()
	eventually(t, "Kafka is missed", func() bool { return has(log.String(), `"msg":"Kafka does not answer"`, `"advice":"`) })
	if err := child.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("got %v, log:\n%s", err, log)
	}
	var first struct {
		Msg, Kafka string
		Property   string `json:"kafka_property"`
		From       map[string]string
	}
	for i, line := range strings.Split(strings.TrimSpace(log.String()), "\n") {
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil {
			t.Errorf("%v in %q", err, line)
		}
		if i == 0 {
			if err := json.Unmarshal([]byte(line), &first); err != nil {
				t.Error(err)
			}
		}
	}
	if first.Msg != "configuration" || first.Kafka != "127.0.0.1:1" || first.Property != "sasl.password=***" ||
		first.From["kafka"] != file+":1" || first.From["listen"] != "flag" || first.From["drain_timeout"] != "TAILRACE_DRAIN_TIMEOUT" || first.From["demo"] != "" {
		t.Errorf("got %+v", first)
	}
	if !has(log.String(), `"msg":"listening"`, `"msg":"draining","timeout":1`, `"msg":"ended"`) || strings.Contains(log.String(), "hunter2") {
		t.Errorf("log:\n%s", log)
	}
}
