package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/kafka"
)

func TestDefaultsAreTheDocumentedOnes(t *testing.T) {
	got, err := parseConfig(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got.Listen != "127.0.0.1:7070" || got.OpsListen != "127.0.0.1:7071" || got.Kafka.Bootstrap != "127.0.0.1:9092" || got.DataDir != "" ||
		got.Kafka.Consumers != 1 || got.Kafka.HistoryReaders != 8 || got.Kafka.Isolation != kafka.ReadCommitted || got.MemoryBudget != 256<<20 ||
		got.Demo || got.Insecure || got.LogLevel != slog.LevelInfo || got.DrainTimeout != 10*time.Second {
		t.Errorf("got %+v", got)
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	t.Setenv("TAILRACE_OPS_LISTEN", "127.0.0.1:1")
	t.Setenv("TAILRACE_LISTEN", "127.0.0.1:2")
	t.Setenv("TAILRACE_KAFKA_DATA_DIR", "/data")
	t.Setenv("TAILRACE_KAFKA_HISTORY_READERS", "7")
	t.Setenv("TAILRACE_KAFKA_PROPERTY", "security.protocol=ssl\nssl.cipher.suites=A,B=C\n")
	t.Setenv("TAILRACE_MEMORY_BUDGET", "1GiB")
	t.Setenv("TAILRACE_LOG_LEVEL", "debug")
	got, err := parseConfig([]string{"-listen", "127.0.0.1:3", "-kafka", "embedded"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if got.OpsListen != "127.0.0.1:1" || got.Listen != "127.0.0.1:3" || got.DataDir != "/data" || got.Kafka.HistoryReaders != 7 ||
		got.Kafka.Properties["security.protocol"] != "ssl" || got.Kafka.Properties["ssl.cipher.suites"] != "A,B=C" ||
		got.MemoryBudget != 1<<30 || got.LogLevel != slog.LevelDebug {
		t.Errorf("got %+v", got)
	}
}

// What is refused names the flag, the value, and what to do.
func TestConfigurationsAreRefused(t *testing.T) {
	tests := []struct {
		args  string
		words []string // in the error
	}{
		{"-listen 7070", []string{"-listen", `"7070"`, "127.0.0.1:7070"}},
		{"-listen :7070", []string{"-listen", `":7070"`, "-insecure"}},
		{"-listen 0.0.0.0:7070", []string{"-listen", "-insecure"}},
		{"-listen [::]:7070", []string{"-listen", "-insecure"}},
		{"-listen example.com:7070", []string{"-listen", "-insecure"}},
		{"-ops-listen nowhere", []string{"-ops-listen", `"nowhere"`}},
		{"-kafka.data-dir /x", []string{"-kafka.data-dir", `"/x"`, "-kafka embedded"}},
		{"-demo", []string{"-demo", "-kafka embedded"}},
		{"-memory-budget 1MiB", []string{"-memory-budget", "1MiB", "16MiB"}},
		{"-memory-budget much", []string{"memory-budget", `"much"`, "256MiB"}},
		{"-kafka.property nonsense", []string{"kafka.property", `"nonsense"`, "name=value"}},
		{"-kafka.partitioner orders", []string{"kafka.partitioner", `"orders"`, "topic=partitioner"}},
		{"-kafka.partitioner orders=random", []string{"kafka.partitioner", "random", "crc32", "any"}},
		{"-kafka.property acks=1", []string{"-kafka.property", "acks=1", "in-sync"}},
		{"-kafka.isolation both", []string{"-kafka.isolation", `"both"`, "read_committed"}},
		{"-kafka.consumers 0", []string{"-kafka.consumers", "0"}},
		{"-drain-timeout 0s", []string{"-drain-timeout", "0s"}},
		{"-log-level loud", []string{"log-level", `"loud"`}},
		{"-nonsense", []string{"-nonsense"}},
		{"demo", []string{`"demo"`, "-help"}},
	}
	for _, test := range tests {
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
		"-listen 127.0.0.1:0", "-listen localhost:1", "-listen [::1]:1", "-listen 0.0.0.0:1 -insecure", "-ops-listen :7071",
		"-kafka a:1 -kafka.partitioner orders=crc32 -kafka.partitioner *=any", "-kafka embedded -demo", "-kafka a:1,b:2 -kafka.property security.protocol=ssl -kafka.property ssl.ca.location=/ca.pem",
		"-memory-budget 16MiB",
	} {
		if _, err := parseConfig(strings.Fields(args), io.Discard); err != nil {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestHelpTeaches(t *testing.T) {
	var help bytes.Buffer
	_, err := parseConfig([]string{"-help"}, &help)
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("got %v", err)
	}
	for _, word := range []string{"-kafka embedded -demo", "buf curl", "TAILRACE_OPS_LISTEN", "-kafka.property", "-memory-budget size", "256MiB", "127.0.0.1:7070"} {
		if !strings.Contains(help.String(), word) {
			t.Errorf("no %q in the help:\n%s", word, &help)
		}
	}
}

func TestPrintedConfigurationHidesSecrets(t *testing.T) {
	c, err := parseConfig([]string{"-kafka.property", "sasl.password=hunter2", "-kafka.property", "sasl.username=me"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("configuration", slog.Any("set", &c))
	if strings.Contains(log.String(), "hunter2") || !strings.Contains(log.String(), "sasl.username=me") {
		t.Errorf("got %s", &log)
	}
}
