package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/setting"
	"tailrace.dev/tailrace/services/setting/settingtest"
)

var update = settingtest.Update()

// problemsOf are the problems with arguments, one a line.
func problemsOf(args ...string) string {
	_, _, _, problems := configure(args, nil)
	var out []string
	for _, p := range problems {
		out = append(out, p.Error())
	}
	return strings.Join(out, "\n")
}

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	got, _, action, problems := configure(nil, nil)
	if len(problems) > 0 || action != setting.Run {
		t.Fatal(action, problems)
	}
	if got.Listen != "127.0.0.1:8080" || got.OpsListen != "127.0.0.1:8081" || !slices.Equal(got.Upstreams, []string{"http://127.0.0.1:7070"}) ||
		got.MemoryBudget != 256<<20 || got.Insecure || got.LogLevel != "info" || got.LogFormat != "auto" || got.Edge.HeartbeatInterval != 15*time.Second ||
		got.Edge.StallTimeout != 2*time.Minute || got.Edge.MaxMessageBytes != 2<<20 || got.Edge.MaxSessions != 18000 {
		t.Errorf("got %+v", got)
	}
}

func TestFlagsWinOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "edge.conf")
	if err := os.WriteFile(file, []byte("listen 127.0.0.1:9\nops-listen 127.0.0.1:9\nmax-keys 9\nallowed-hosts c.example.org\ninsecure\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"CONFIG": file, "OPS_LISTEN": "127.0.0.1:1", "LISTEN": "127.0.0.1:2", "UPSTREAM": "http://a:1,https://b:2",
		"ALLOWED_ORIGINS": "https://app.example.org, https://b.example.org", "MAX_MESSAGE_BYTES": "64KiB",
	} {
		t.Setenv("TAILRACE_"+k, v)
	}
	got, _, _, problems := configure([]string{"-listen", "127.0.0.1:3", "-allowed-hosts", "a.example.org", "-allowed-hosts", "b.example.org"}, os.Environ())
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if got.OpsListen != "127.0.0.1:1" || got.Listen != "127.0.0.1:3" || !slices.Equal(got.Upstreams, []string{"http://a:1", "https://b:2"}) ||
		!slices.Equal(got.Edge.AllowedOrigins, []string{"https://app.example.org", "https://b.example.org"}) || got.Edge.MaxKeys != 9 || !got.Insecure ||
		!slices.Equal(got.Edge.AllowedHosts, []string{"a.example.org", "b.example.org"}) || got.Edge.MaxMessageBytes != 64<<10 {
		t.Errorf("got %+v", got)
	}
}

// What is refused names the flag, the value, and what to do.
func TestConfigurationsAreRefused(t *testing.T) {
	for _, test := range []struct {
		args  string
		words []string // in the problem
	}{
		{"-listen 8080", []string{"-listen", `"8080"`, "127.0.0.1:8080"}},
		{"-listen=", []string{"-listen", `""`, "127.0.0.1:8080"}},
		{"-listen :8080", []string{"-listen", `":8080"`, "-insecure"}},
		{"-listen [::]:8080", []string{"-listen", "-insecure"}},
		{"-listen example.com:8080", []string{"-listen", "-insecure"}},
		{"-ops-listen 127.0.0.1:8080", []string{`-listen "127.0.0.1:8080"`, `-ops-listen "127.0.0.1:8080"`, "another port"}},
		{"-ops-listen 0.0.0.0:8080", []string{"-listen", "-ops-listen", "another port"}},
		{"-ops-listen nowhere", []string{"-ops-listen", `"nowhere"`, "127.0.0.1:8081"}},
		{"-insecure=2", []string{"-insecure", "true or false"}},
		{"-upstream 127.0.0.1:7070", []string{"-upstream", `"127.0.0.1:7070"`, "http://host:port"}},
		{"-upstream http://a:1/path", []string{"-upstream", `"http://a:1/path"`, "without a path"}},
		{"-upstream http://me:hunter2@a:1", []string{"-upstream", `"http://***@a:1"`}},
		{"-upstream ,", []string{"-upstream", "http://127.0.0.1:7070"}},
		{"-allowed-origins app.example.org", []string{"-allowed-origins", `"app.example.org"`, "scheme://host"}},
		{"-allowed-hosts https://app.example.org", []string{"-allowed-hosts", "without a scheme"}},
		{"-allowed-hosts *.example.org", []string{"-allowed-hosts", "wildcards"}},
		{"-memory-budget 16777215", []string{"-memory-budget", "16MiB"}},
		{"-memory-budget 1025GiB", []string{"-memory-budget", "1024GiB"}},
		{"-slow-after 99ms", []string{"-slow-after", "100ms to 1h"}},
		{"-slow-after 61m", []string{"-slow-after", "100ms to 1h"}},
		{"-heartbeat-interval 999ms", []string{"-heartbeat-interval", "1s to 5m"}},
		{"-heartbeat-interval 301s", []string{"-heartbeat-interval", "1s to 5m"}},
		{"-heartbeat-interval 15", []string{"-heartbeat-interval", "unit"}},
		{"-heartbeat-interval 2m", []string{"-stall-timeout", "4m5s", "-heartbeat-interval 2m"}},
		{"-stall-timeout 34s", []string{"-stall-timeout 34s", "35s"}},
		{"-stall-timeout 25h", []string{"-stall-timeout", "24h"}},
		{"-upstream-grace -1s", []string{"-upstream-grace", "0s to 24h"}},
		{"-upstream-grace 24h1ns", []string{"-upstream-grace", "0s to 24h"}},
		{"-max-connection-age -1s", []string{"-max-connection-age", "0s to 720h"}},
		{"-max-connection-age 721h", []string{"-max-connection-age", "0s to 720h"}},
		{"-publish-rate -1", []string{"-publish-rate", "0 to 1000000"}},
		{"-publish-rate 1000001", []string{"-publish-rate", "0 to 1000000"}},
		{"-max-sessions 0", []string{"-max-sessions", `"0"`, "1 to 10000000"}},
		{"-max-sessions 10000001", []string{"-max-sessions", "1 to 10000000"}},
		{"-max-sessions-per-address -1", []string{"-max-sessions-per-address", "0 to 10000000"}},
		{"-max-subscriptions 0", []string{"-max-subscriptions", "1 to 1000000"}},
		{"-max-subscriptions 1000001", []string{"-max-subscriptions", "1 to 1000000"}},
		{"-max-keys 0", []string{"-max-keys", "1 to 10000000"}},
		{"-max-keys 1e3", []string{"-max-keys", "whole number"}},
		{"-max-message-bytes 1023", []string{"-max-message-bytes", "1KiB to 64MiB"}},
		{"-max-message-bytes 65MiB", []string{"-max-message-bytes", "1KiB to 64MiB"}},
		{"-max-message-bytes many", []string{"max-message-bytes", `"many"`}},
		{"-log-level loud", []string{"log-level", `"loud"`, "debug, info, warn, error"}},
		{"-log-format xml", []string{"log-format", `"xml"`, "auto, text, json"}},
		{"-config /nowhere", []string{"-config", `"/nowhere"`}},
		{"-max-session 5", []string{"unknown flag -max-session", "did you mean -max-sessions?"}},
		{"-nonsense", []string{"-nonsense"}},
		{"demo", []string{`"demo"`, "-help"}},
	} {
		got := problemsOf(strings.Fields(test.args)...)
		if got == "" || !has(got, test.words...) || strings.Contains(got, "\n") {
			t.Errorf("%s: got %q, want one problem with %q", test.args, got, test.words)
		}
		if strings.Contains(got, "hunter2") {
			t.Errorf("%s: a secret is in %q", test.args, got)
		}
	}
}

func TestConfigurationsAreAccepted(t *testing.T) {
	for _, args := range []string{
		"-listen 127.0.0.1:0", "-listen localhost:1", "-listen [::1]:1", "-listen 0.0.0.0:1 -insecure", "-ops-listen :8081",
		"-upstream http://a:1 -upstream http://b:1/", "-allowed-origins https://app.example.org", "-allowed-hosts a.example.org:443", "-memory-budget 16MiB",
		"-memory-budget 1024GiB", "-slow-after 100ms", "-slow-after 1h", "-heartbeat-interval 1s", "-heartbeat-interval 5m -stall-timeout 605s", "-stall-timeout 35s",
		"-stall-timeout 24h", "-upstream-grace 0", "-upstream-grace 24h", "-max-connection-age 720h", "-publish-rate 0", "-publish-rate 1000000", "-max-sessions 1",
		"-max-sessions 10000000", "-max-sessions-per-address 0", "-max-sessions-per-address 10000000", "-max-subscriptions 1", "-max-subscriptions 1000000",
		"-max-keys 1", "-max-keys 10000000", "-max-message-bytes 1KiB", "-max-message-bytes 64MiB", "-log-level error -log-format text",
	} {
		if got := problemsOf(strings.Fields(args)...); got != "" {
			t.Errorf("%s: %s", args, got)
		}
	}
}

// The help is a file that is looked at when it changes: go test ./edge/cmd/tailrace-edge -run Help -update.
func TestHelpTeaches(t *testing.T) {
	_, s, action, _ := configure([]string{"-h"}, nil)
	if action != setting.Help {
		t.Fatalf("got action %v", action)
	}
	settingtest.Help(t, s, intro, *update, "../../README.md", "../../../services/README.md")
}
