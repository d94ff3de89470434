package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	got, err := parseConfig(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got.Listen != "127.0.0.1:8080" || got.OpsListen != "127.0.0.1:8081" || !slices.Equal(got.Upstreams, []string{"http://127.0.0.1:7070"}) ||
		got.MemoryBudget != 256<<20 || got.Insecure || got.LogLevel != slog.LevelInfo || got.Edge.HeartbeatInterval != 15*time.Second ||
		got.Edge.StallTimeout != 2*time.Minute || got.Edge.MaxMessageBytes != 2<<20 {
		t.Errorf("got %+v", got)
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	t.Setenv("TAILRACE_OPS_LISTEN", "127.0.0.1:1")
	t.Setenv("TAILRACE_LISTEN", "127.0.0.1:2")
	t.Setenv("TAILRACE_UPSTREAM", "http://a:1,https://b:2")
	t.Setenv("TAILRACE_ALLOWED_ORIGINS", "https://app.example.org, https://b.example.org")
	t.Setenv("TAILRACE_MAX_MESSAGE_BYTES", "64KiB")
	got, err := parseConfig([]string{"-listen", "127.0.0.1:3", "-allowed-hosts", "a.example.org", "-allowed-hosts", "b.example.org"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got.OpsListen != "127.0.0.1:1" || got.Listen != "127.0.0.1:3" || !slices.Equal(got.Upstreams, []string{"http://a:1", "https://b:2"}) ||
		!slices.Equal(got.Edge.AllowedOrigins, []string{"https://app.example.org", "https://b.example.org"}) ||
		!slices.Equal(got.Edge.AllowedHosts, []string{"a.example.org", "b.example.org"}) || got.Edge.MaxMessageBytes != 64<<10 {
		t.Errorf("got %+v", got)
	}
}

// What is refused names the flag, the value, and what to do.
func TestConfigurationsAreRefused(t *testing.T) {
	for _, test := range []struct {
		args  string
		words []string // in the error
	}{
		{"-listen 8080", []string{"-listen", `"8080"`, "127.0.0.1:8080"}},
		{"-listen :8080", []string{"-listen", `":8080"`, "-insecure"}},
		{"-listen [::]:8080", []string{"-listen", "-insecure"}},
		{"-listen example.com:8080", []string{"-listen", "-insecure"}},
		{"-ops-listen nowhere", []string{"-ops-listen", `"nowhere"`}},
		{"-upstream 127.0.0.1:7070", []string{"-upstream", `"127.0.0.1:7070"`, "http://host:port"}},
		{"-upstream http://a:1/path", []string{"-upstream", `"http://a:1/path"`}},
		{"-upstream ,", []string{"-upstream", "http://127.0.0.1:7070"}},
		{"-allowed-origins app.example.org", []string{"allowed origin", `"app.example.org"`, "scheme://host"}},
		{"-memory-budget 1MiB", []string{"-memory-budget", "1MiB", "16MiB"}},
		{"-heartbeat-interval 1h", []string{"heartbeat interval", "1h"}},
		{"-stall-timeout 1s", []string{"stall timeout", "1s"}},
		{"-max-sessions 0", []string{"max sessions", "0"}},
		{"-max-message-bytes many", []string{"max-message-bytes", `"many"`}},
		{"-log-level loud", []string{"log-level", `"loud"`}},
		{"-nonsense", []string{"-nonsense"}},
		{"demo", []string{`"demo"`, "-help"}},
	} {
		_, err := parseConfig(strings.Fields(test.args), io.Discard)
		if err == nil {
			t.Errorf("%s: accepted", test.args)
			continue
		}
		for _, word := range test.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: got %q, want %q in it", test.args, err, word)
			}
		}
	}
}

func TestConfigurationsAreAccepted(t *testing.T) {
	for _, args := range []string{
		"-listen 127.0.0.1:0", "-listen localhost:1", "-listen [::1]:1", "-listen 0.0.0.0:1 -insecure", "-ops-listen :8081",
		"-upstream http://a:1 -upstream http://b:1/", "-allowed-origins https://app.example.org", "-memory-budget 16MiB",
	} {
		if _, err := parseConfig(strings.Fields(args), io.Discard); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	var help bytes.Buffer
	if _, err := parseConfig([]string{"-help"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{"websocat", "TAILRACE_OPS_LISTEN", "-allowed-origins origins", "-memory-budget size", "256MiB", "2MiB", "127.0.0.1:8080", "http://127.0.0.1:7070"} {
		if !strings.Contains(help.String(), word) {
			t.Errorf("no %q in the help:\n%s", word, &help)
		}
	}
}

func TestConfigurationIsPrinted(t *testing.T) {
	c, err := parseConfig([]string{"-upstream", "http://a:1", "-upstream", "http://b:1"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("configuration", slog.Any("set", &c))
	if !has(log.String(), "set.upstream=http://a:1,http://b:1", "set.memory_budget=256MiB", "set.ops_listen=127.0.0.1:8081") {
		t.Errorf("got %s", &log)
	}
}
