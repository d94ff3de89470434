package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
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
	if got.Listen != "127.0.0.1:7070" || got.OpsListen != "127.0.0.1:7071" || got.Kafka.Bootstrap != "127.0.0.1:9092" || got.DataDir != "" ||
		got.Kafka.Consumers != 1 || got.Kafka.HistoryReaders != 8 || got.Kafka.Isolation != kafka.ReadCommitted || got.MemoryBudget != 256<<20 ||
		got.Demo || got.Insecure || got.LogLevel != "info" || got.LogFormat != "auto" || got.DrainTimeout != 10*time.Second || got.SlowAfter != 10*time.Second {
		t.Errorf("got %+v", got)
	}
}

func TestFlagsWinOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tailrace.conf")
	if err := os.WriteFile(file, []byte("# ours\nlisten 127.0.0.1:9\nops-listen=127.0.0.1:9\n-kafka.consumers 9\n"+
		"kafka.property ssl.ca.location=/x\nkafka.partitioner a=crc32\nkafka.partitioner b=any\nkafka.history-readers = 11\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"CONFIG": file, "OPS_LISTEN": "127.0.0.1:1", "LISTEN": "127.0.0.1:2", "KAFKA_DATA_DIR": "/data", "KAFKA_CONSUMERS": "7", "DRAIN_TIMEOUT": "",
		"KAFKA_PROPERTY": "security.protocol=ssl\nssl.cipher.suites=A,B=C\n", "MEMORY_BUDGET": "1GiB", "LOG_LEVEL": "DEBUG", "LISTN": "x", "PORT_7070_TCP": "x",
	} {
		t.Setenv("TAILRACE_"+k, v)
	}
	c := defaultConfig()
	s := declare(&c)
	if _, problems := s.Parse([]string{"-listen", "127.0.0.1:3", "-kafka", "embedded"}, os.Environ()); len(problems) > 0 {
		t.Fatal(problems)
	}
	if c.OpsListen != "127.0.0.1:1" || c.Listen != "127.0.0.1:3" || c.DataDir != "/data" || c.Kafka.Consumers != 7 || c.Kafka.HistoryReaders != 11 ||
		len(c.Kafka.Properties) != 2 || c.Kafka.Properties["security.protocol"] != "ssl" || c.Kafka.Properties["ssl.cipher.suites"] != "A,B=C" ||
		c.Kafka.Partitioners["a"] != hub.CRC32 || c.Kafka.Partitioners["b"] != hub.Anywhere ||
		c.MemoryBudget != 1<<30 || c.LogLevel != "debug" || c.DrainTimeout != 10*time.Second {
		t.Errorf("got %+v", c)
	}
	if w := s.Warnings(); len(w) != 1 || !has(w[0], "TAILRACE_LISTN", "did you mean TAILRACE_LISTEN?") {
		t.Errorf("got warnings %q", w)
	}
	var out bytes.Buffer
	if err := s.WriteConfig(&out); err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(out.String()), " ")
	if !has(words, "listen 127.0.0.1:3 flag", "ops-listen 127.0.0.1:1 TAILRACE_OPS_LISTEN", "kafka.history-readers 11 "+file+":8", "drain-timeout 10s default",
		"kafka.partitioner a=crc32 b=any "+file+":7") {
		t.Errorf("got\n%s", &out)
	}
}

// What is refused names the flag, the value, and what to do.
func TestConfigurationsAreRefused(t *testing.T) {
	for _, test := range []struct {
		args  string
		words []string // in the problems
	}{
		{"-listen 7070", []string{"-listen", `"7070"`, "127.0.0.1:7070"}},
		{"-listen=", []string{"-listen", `""`, "127.0.0.1:7070"}},
		{"-listen 127.0.0.1:65536", []string{"-listen", "65535"}},
		{"-listen 127.0.0.1:-1", []string{"-listen", "65535"}},
		{"-listen http://127.0.0.1:1", []string{"-listen", "host:port"}},
		{"-listen :7070", []string{"-listen", `":7070"`, "-insecure"}},
		{"-listen 0.0.0.0:7070", []string{"-listen", "-insecure"}},
		{"-listen [::]:7070", []string{"-listen", "-insecure"}},
		{"-listen example.com:7070", []string{"-listen", "-insecure"}},
		{"-ops-listen 127.0.0.1:7070", []string{`-listen "127.0.0.1:7070"`, `-ops-listen "127.0.0.1:7070"`, "another port"}},
		{"-listen localhost:7071", []string{"-listen", "-ops-listen", "another port"}},
		{"-insecure -listen :7071", []string{"-listen", "-ops-listen", "another port"}},
		{"-ops-listen nowhere", []string{"-ops-listen", `"nowhere"`, "127.0.0.1:7071"}},
		{"-insecure=maybe", []string{"-insecure", `"maybe"`, "true or false"}},
		{"-kafka=", []string{"-kafka", `""`, "host:port"}},
		{"-kafka http://a:1", []string{"-kafka", "is a URL", "broker-1:9092"}},
		{"-kafka a:1,,b:2", []string{"-kafka", `"a:1,,b:2"`, "broker-1:9092"}},
		{"-kafka a:1,me:hunter2@b:1", []string{"-kafka: ", "sasl.password"}},
		{"-kafka sasl_ssl://me:hunter2@b:1", []string{"-kafka: ", "sasl.password"}},
		{"-kafka a:x", []string{"-kafka", `"x" is no port`}},
		{"-kafka a:65536", []string{"-kafka", `"65536" is no port`}},
		{"-kafka.data-dir /x", []string{"-kafka.data-dir", `"/x"`, "-kafka embedded"}},
		{"-demo", []string{"-demo", "-kafka embedded"}},
		{"-kafka.property nonsense", []string{"kafka.property", `"nonsense"`, "name=value"}},
		{"-kafka.property sasl.password:hunter2", []string{"-kafka.property", `"sasl.password***"`, "name=value"}},
		{"-kafka.property session.timeout.ms=45000", []string{"session.timeout.ms=45000", "6 s"}},
		{"-kafka.property group.instance.id=a", []string{"use -kafka.group-instance"}},
		{"-kafka.property =x", []string{"kafka.property", "name=value"}},
		{"-kafka.property acks=1", []string{"-kafka.property", "acks=1", "in-sync"}},
		{"-kafka.property queuing.strategy=lifo", []string{"queuing.strategy", "order"}},
		{"-kafka.property ssl.key.pasword=hunter2", []string{"ssl.key.pasword=***", "No such configuration property", "did you mean ssl.key.password?"}},
		{"-kafka.property socket.timeout.ms=5", []string{"socket.timeout.ms=5", "outside allowed range 10..300000"}},
		{"-kafka.property security.protocol=sasl_ssl -kafka.property sasl.mechanism=PLAIN", []string{"sasl.username and sasl.password must be set"}},
		{"-kafka.property security.protocol=ssl -kafka.property ssl.ca.location=/nowhere", []string{"ssl.ca.location failed"}},
		{"-kafka.property retries=0", []string{"retries", "idempotence"}},
		{"-kafka.partitioner orders", []string{"kafka.partitioner", `"orders"`, "topic=partitioner"}},
		{"-kafka.partitioner orders=random", []string{"kafka.partitioner", "random", "crc32", "any"}},
		{"-kafka.isolation both", []string{"-kafka.isolation", `"both"`, "read_committed"}},
		{"-kafka.isolation read_commited", []string{"did you mean read_committed?"}},
		{"-kafka.consumers 0", []string{"-kafka.consumers", `"0"`, "1 to 16"}},
		{"-kafka.consumers 17", []string{"-kafka.consumers", `"17"`, "1 to 16"}},
		{"-kafka.consumers 1.5", []string{"-kafka.consumers", "whole number"}},
		{"-kafka.consumers 99999999999999999999", []string{"-kafka.consumers", "1 to 16"}},
		{"-kafka.consumers=", []string{"-kafka.consumers", `""`, "1 to 16"}},
		{"-kafka.history-readers 0", []string{"-kafka.history-readers", "1 to 64"}},
		{"-kafka.history-readers 65", []string{"-kafka.history-readers", "1 to 64"}},
		{"-group-memory-budget 1", []string{"-group-memory-budget", `"1"`, "16MiB"}},
		{"-memory-budget 16777215", []string{"-memory-budget", `"16777215"`, "16MiB"}},
		{"-memory-budget 1025GiB", []string{"-memory-budget", "1024GiB"}},
		{"-memory-budget 99999999999999GiB", []string{"-memory-budget", "16MiB"}},
		{"-memory-budget -1", []string{"-memory-budget", `"-1"`, "16MiB"}},
		{"-memory-budget much", []string{"memory-budget", `"much"`, "256MiB"}},
		{"-slow-after 99ms", []string{"-slow-after", `"99ms"`, "100ms to 1h"}},
		{"-slow-after 1h1ms", []string{"-slow-after", "100ms to 1h"}},
		{"-slow-after 10", []string{"-slow-after", `"10"`, "unit"}},
		{"-drain-timeout 0s", []string{"-drain-timeout", `"0s"`, "1ms to 1h"}},
		{"-drain-timeout 3601s", []string{"-drain-timeout", "1ms to 1h"}},
		{"-drain-timeout 9999999999h", []string{"-drain-timeout", "1ms to 1h"}},
		{"-log-level loud", []string{"log-level", `"loud"`, "debug, info, warn, error"}},
		{"-log-format xml", []string{"log-format", `"xml"`, "auto, text, json"}},
		{"-config /nowhere/x.conf", []string{"-config", `"/nowhere/x.conf"`, "no such file"}},
		{"-max-groups 0", []string{"-max-groups", `"0"`, "1 to 10000"}},
		{"-max-groups 10001", []string{"-max-groups", "1 to 10000"}},
		{"-group-names (", []string{"-group-names", `"("`, "missing closing"}},
		{"-kafka.group-instance a/b", []string{"-kafka.group-instance", `"a/b"`, "249 letters"}},
		{"-kafka.group-instance .", []string{"-kafka.group-instance", "249 letters"}},
		{"-kafka.group-instance " + strings.Repeat("n", 250), []string{"-kafka.group-instance", "249 letters"}},
		{"-kafka.group-protocol eager", []string{"-kafka.group-protocol", `"eager"`, "classic, consumer"}},
		{"-kafka.create-dead-letters=x", []string{"-kafka.create-dead-letters", "true or false"}},
		{"-nonsense", []string{"unknown flag -nonsense"}},
		{"-listn x", []string{"unknown flag -listn", "did you mean -listen?"}},
		{"-listen", []string{"-listen", "value is missing"}},
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

func TestAllProblemsAreToldAtOnce(t *testing.T) {
	got := problemsOf("-listn", "x", "-kafka.consumers", "0", "junk", "-demo", "-kafka.property", "foo.bar=1", "-kafka.property", "acks=1", "-listen", ":1", "-=", "-log-level")
	lines := strings.Split(got, "\n")
	if len(lines) != 9 || !has(got, "-listn", "-kafka.consumers", "unexpected argument ***", "-demo", "foo.bar", "acks", "-listen", `"-" is no flag`, "-log-level") {
		t.Errorf("got %d problems:\n%s", len(lines), got)
	}
}

func TestConfigurationsAreAccepted(t *testing.T) {
	for _, args := range []string{
		"-listen 127.0.0.1:0", "-listen localhost:1", "-listen [::1]:65535", "-listen 0.0.0.0:1 -insecure", "-ops-listen :7071", "-insecure=false",
		"-kafka a:1 -kafka.partitioner orders=crc32 -kafka.partitioner *=any", "-kafka embedded -demo -kafka.data-dir /x", "-kafka a,[::1]:9092,SSL://c:1",
		"-kafka a:1,b:2 -kafka.property security.protocol=ssl -kafka.property client.rack=r1 -kafka.property debug=broker",
		"-kafka.property security.protocol=sasl_ssl -kafka.property sasl.mechanism=PLAIN -kafka.property sasl.username=me -kafka.property sasl.password=a=b,c",
		"-kafka.consumers 1", "-kafka.consumers 16", "-kafka.history-readers 1", "-kafka.history-readers 64", "-kafka.isolation read_uncommitted",
		"-memory-budget 16MiB", "-memory-budget 16777216", "-memory-budget 1024GiB", "-slow-after 100ms", "-slow-after 1h", "-drain-timeout 1ms", "-drain-timeout 60m",
		"-log-level warn -log-format json", "-max-groups 1", "-max-groups 10000", "-kafka.group-instance tailrace-0.eu_1", "-kafka.group-instance " + strings.Repeat("n", 249), "-group-names ^a.*$ -kafka.group-protocol consumer -kafka.create-dead-letters=false",
	} {
		if got := problemsOf(strings.Fields(args)...); got != "" {
			t.Errorf("%s: %s", args, got)
		}
	}
}

// The help is a file that is looked at when it changes: go test ./services/cmd/tailrace -run Help -update.
func TestHelpTeaches(t *testing.T) {
	_, s, action, _ := configure([]string{"-bad", "-help"}, nil)
	if action != setting.Help {
		t.Fatalf("got action %v", action)
	}
	settingtest.Help(t, s, intro, *update, "../../README.md")
}

func TestPropertiesThatAreRefusedAreNotSuggested(t *testing.T) {
	if names := kafka.PropertyNames(); slices.Contains(names, "acks") || !slices.Contains(names, "sasl.password") {
		t.Errorf("got %v", names)
	}
}
