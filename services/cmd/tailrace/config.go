package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/setting"
	"tailrace.dev/tailrace/services/size"
	"tailrace.dev/tailrace/services/trace"
)

// embeddedKafka as -kafka starts a broker inside the process.
const embeddedKafka = "embedded"

// Bounds of the memory budget: a few chunks of history, and more than machines have.
const (
	minMemoryBudget = 16 << 20
	maxMemoryBudget = 1 << 40
)

// Config is all that can be set. Each field is a setting: a flag, an environment variable, a line of a file; see package setting.
type Config struct {
	Listen       string
	OpsListen    string
	Insecure     bool
	DataDir      string // -kafka.data-dir
	Kafka        kafka.Config
	MemoryBudget size.Bytes
	SlowAfter    time.Duration
	MaxGroups    int
	GroupNames   groupNames // -group-names
	GroupGrace   time.Duration
	GroupMemory  size.Bytes
	Demo         bool
	DrainTimeout time.Duration
	Trace        trace.Config
	LogLevel     string
	LogFormat    string
}

// Embedded says that the broker is part of this process.
func (c *Config) Embedded() bool { return c.Kafka.Bootstrap == embeddedKafka }

func defaultConfig() Config {
	c := Config{
		Listen:       "127.0.0.1:7070",
		OpsListen:    "127.0.0.1:7071",
		Kafka:        kafka.DefaultConfig(),
		MemoryBudget: 256 << 20,
		SlowAfter:    hub.DefaultConfig().SlowAfter,
		MaxGroups:    100,
		GroupGrace:   500 * time.Millisecond,
		GroupMemory:  256 << 20,
		DrainTimeout: 10 * time.Second,
		Trace:        trace.DefaultConfig(),
		LogLevel:     "info",
		LogFormat:    "auto",
	}
	c.Kafka.Bootstrap = "127.0.0.1:9092"
	c.Kafka.Properties = map[string]string{}
	return c
}

const intro = `tailrace streams the records of Kafka topics over Connect, gRPC and gRPC-Web.

Try it, with a broker of its own and a live topic:
  tailrace -kafka embedded -demo
  buf curl --http2-prior-knowledge -d '{"topic":"demo"}' \
      http://localhost:7070/tailrace.v1.StreamService/Subscribe

With your Kafka:
  tailrace -kafka broker-1:9092,broker-2:9092
  tailrace -kafka broker-1:9093 -kafka.property security.protocol=sasl_ssl \
      -kafka.property sasl.mechanisms=PLAIN -config /etc/tailrace.conf
where the file, which only the service can read, has the rest:
  kafka.property sasl.username=me
  kafka.property sasl.password=secret

Publish a record:
  curl -H 'Content-Type: application/json' \
      -d '{"topic":"demo","records":[{"key":"aw==","value":"aGVsbG8="}]}' \
      http://localhost:7070/tailrace.v1.StreamService/Publish

Every setting is a flag, a variable of the environment, and a line of the file of -config. A flag
wins over the environment, the environment over the file. What may be repeated as a flag stands one
a line in a variable.

SIGTERM or Ctrl-C drains: streams end with "unavailable", reason DRAINING, and callers come back
elsewhere. A second one exits at once.
`

// declare binds the settings to c, which has the defaults.
func declare(c *Config) *setting.Set {
	s := setting.New("tailrace")
	s.Group("Listening")
	s.Address(&c.Listen, "listen", "Serve RPCs here. Off loopback only with -insecure.")
	s.Address(&c.OpsListen, "ops-listen", "Serve /healthz, /readyz, /metrics and (to loopback) /debug/pprof here.")
	s.Bool(&c.Insecure, "insecure", "Let -listen be reachable from other machines, though nobody is authenticated.")

	s.Group("Kafka")
	s.String(&c.Kafka.Bootstrap, "kafka", "servers", "Bootstrap servers, host:port separated by commas; or \"embedded\" for a broker inside this process.")
	s.String(&c.DataDir, "kafka.data-dir", "folder", "Keep the embedded broker's topics here; empty: in memory, gone at the end.")
	s.Pairs(c.Kafka.Properties, "kafka.property", "A librdkafka property for all clients, such as security.protocol=ssl; may be repeated. Those that correctness depends on, such as acks and isolation.level, are refused with the reason.", kafka.Mask)
	s.Var(partitioners(c.Kafka.Partitioners), "kafka.partitioner", "topic=word", "Where the topic's producers put keys: murmur2 (Java clients, the default), crc32 (librdkafka's default), fnv1a (Sarama) or any; *=… is for all other topics; may be repeated.", "")
	s.Choice((*string)(&c.Kafka.Isolation), "kafka.isolation", "Which records readers see: committed ones, or also those of transactions that are open or were aborted.", string(kafka.ReadCommitted), string(kafka.ReadUncommitted))
	s.Int(&c.Kafka.Consumers, "kafka.consumers", "Consumers that share the followed partitions. More use more cores.", 1, 16)
	s.Int(&c.Kafka.HistoryReaders, "kafka.history-readers", "Consumers that read history for those who start in the past or fell behind. A busy one holds up to 24 MiB.", 1, 64)
	s.Bool(&c.Demo, "demo", "Keep a small topic \"demo\" alive; with -kafka embedded only.")

	s.Group("Queue mode")
	s.Int(&c.MaxGroups, "max-groups", "Consumer groups that this process is a member of at a time. Each is a Kafka client with its threads and connections, and fetches ahead, in memory, 64 MiB divided by the number of groups when it is joined: at least 512 KiB, at most 8 MiB.", 1, 10_000)
	s.Var(&c.GroupNames, "group-names", "pattern", "A regular expression that the names of consumer groups must match as a whole; empty: all are allowed.", "")
	s.Duration(&c.GroupGrace, "group-grace", "How long workers may still acknowledge what they hold when its partition goes to another process, and at a drain; Kafka waits meanwhile.", time.Millisecond, 5*time.Second)
	s.Bytes(&c.GroupMemory, "group-memory-budget", "What consumer groups hold in memory of records that are not acknowledged or wait behind one that is not. Beyond half of it, partitions with more than their share are not read on, beyond it those with more than 64 KiB. What is fetched ahead comes on top, see -max-groups; and however little is left, a partition may take 128 KiB.", minMemoryBudget, maxMemoryBudget)
	s.Choice(&c.Kafka.GroupProtocol, "kafka.group-protocol", "How consumer groups share partitions: classic (cooperative), or consumer (KIP-848).", "classic", "consumer")
	s.String(&c.Kafka.GroupInstance, "kafka.group-instance", "name", "This process is a static member of its groups under that name, so that a restart within 6 s moves no partition; it does not leave them at its end. All its groups share the name, no two processes may. Empty: it is not.")
	s.Bool(&c.Kafka.CreateDeadLetters, "kafka.create-dead-letters", "Create topics for dead letters where there are none.")

	s.Group("Readers and memory")
	s.Bytes(&c.MemoryBudget, "memory-budget", "What is kept of topics in memory: the newest records, and history that was read. Beyond it, readers are served from Kafka.", minMemoryBudget, maxMemoryBudget)
	s.Duration(&c.SlowAfter, "slow-after", "A reader is slow, and its slow policy acts, when it is this much of a topic's traffic behind.", 100*time.Millisecond, time.Hour)
	s.Duration(&c.DrainTimeout, "drain-timeout", "How long calls under way may take when the process is told to end.", time.Millisecond, time.Hour)

	s.Group("Traces")
	s.String(&c.Trace.Endpoint, "trace.endpoint", "address", "Send OpenTelemetry traces to this OTLP receiver over HTTP, such as http://127.0.0.1:4318. Empty: no traces.")
	s.Float(&c.Trace.Ratio, "trace.ratio", "Part of the traces that begin here and are sampled. Traces of callers are sampled as they say.", 0, 1)

	s.Group("Log")
	s.Choice(&c.LogLevel, "log-level", "The least that is logged, on standard error: debug has every call, warn and error are what an operator must act on.", "debug", "info", "warn", "error")
	s.Choice(&c.LogFormat, "log-format", "auto is text on a terminal and JSON otherwise.", "auto", "text", "json")
	return s
}

// configure reads arguments, environment and file, and says what to do. All that is wrong is told at once; the settings are there all the same, to
// be printed.
func configure(args, environ []string) (Config, *setting.Set, setting.Action, []error) {
	c := defaultConfig()
	s := declare(&c)
	action, problems := s.Parse(args, environ)
	if action == setting.Help || action == setting.Version {
		return c, s, action, nil
	}
	if c.Trace.On() {
		problems = append(problems, trace.CheckEnvironment(environ)...)
	}
	return c, s, action, append(problems, c.problems(s)...)
}

// problems are what settings cannot be together, and what only Kafka's library knows, by flag and value and what to do.
func (c *Config) problems(s *setting.Set) []error {
	var errs []error
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !c.Insecure && !setting.OnLoopback(c.Listen) {
		problem("-listen %q%s: anybody who reaches it could read and publish; keep it on 127.0.0.1, or add -insecure if the network is trusted", c.Listen, s.Where("listen"))
	}
	if setting.OneListener(c.Listen, c.OpsListen) {
		problem("-listen %q%s and -ops-listen %q%s: both are one address; move one to another port", c.Listen, s.Where("listen"), c.OpsListen, s.Where("ops-listen"))
	}
	if c.DataDir != "" && !c.Embedded() {
		problem("-kafka.data-dir %q%s: it belongs to the embedded broker, but -kafka is %q; leave it out, or use -kafka %s", c.DataDir, s.Where("kafka.data-dir"), c.Kafka.Bootstrap, embeddedKafka)
	}
	if c.Demo && !c.Embedded() {
		problem("-demo%s: it writes to a topic, which it does with the embedded broker only, but -kafka is %q; leave it out, or use -kafka %s", s.Where("demo"), c.Kafka.Bootstrap, embeddedKafka)
	}
	switch bad := badServer(c.Kafka.Bootstrap); {
	case bad == "" || c.Embedded():
	case strings.Contains(c.Kafka.Bootstrap, "@"):
		problem("-kafka%s: servers have no user and password; put them into -kafka.property sasl.username=… and sasl.password=…", s.Where("kafka"))
	default:
		problem("-kafka %q%s: %s; want host:port, separated by commas, such as broker-1:9092,broker-2:9092", c.Kafka.Bootstrap, s.Where("kafka"), bad)
	}
	if err := c.Kafka.Validate(); err != nil && strings.TrimSpace(c.Kafka.Bootstrap) != "" {
		errs = append(errs, setting.Split(err)...)
	}
	if err := c.Trace.Validate(); err != nil {
		errs = append(errs, err)
	}
	return append(errs, c.Kafka.CheckProperties(setting.Nearest)...)
}

// badServer says what is wrong with bootstrap servers; nothing where librdkafka would take them.
func badServer(servers string) string {
	if strings.TrimSpace(servers) == "" {
		return "there is none"
	}
	for server := range strings.SplitSeq(servers, ",") {
		server = strings.TrimSpace(server)
		if scheme, rest, ok := strings.Cut(server, "://"); ok {
			switch strings.ToLower(scheme) {
			case "plaintext", "ssl", "sasl_plaintext", "sasl_ssl": // librdkafka's own
				server = rest
			default:
				return strconv.Quote(server) + " is a URL"
			}
		}
		if server == "" || strings.ContainsAny(server, "/ \t\n@") {
			return strconv.Quote(server) + " is no server"
		}
		if i := strings.LastIndexByte(server, ':'); i >= 0 && !strings.HasSuffix(server, "]") {
			if port, err := strconv.Atoi(server[i+1:]); err != nil || port < 1 || port > 65535 {
				return strconv.Quote(server[i+1:]) + " is no port"
			}
		}
	}
	return ""
}

// groupNames is the flag -group-names.
type groupNames struct{ pattern *regexp.Regexp }

func (n *groupNames) Set(text string) (err error) {
	if n.pattern = nil; text != "" {
		n.pattern, err = regexp.Compile(text)
	}
	return err
}

func (n *groupNames) String() string {
	if n.pattern == nil {
		return ""
	}
	return n.pattern.String()
}

// partitioners is the repeated flag -kafka.partitioner. In the environment there is one a line.
type partitioners map[string]hub.Partitioner

func (p partitioners) Set(text string) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		topic, name, ok := strings.Cut(line, "=")
		if !ok || topic == "" {
			return errors.New("want topic=partitioner, such as orders=crc32")
		}
		var err error
		if p[topic], err = hub.ParsePartitioner(name); err != nil {
			return err
		}
	}
	return nil
}

func (p partitioners) String() string {
	var out []string
	for topic, by := range p {
		out = append(out, topic+"="+by.String())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
