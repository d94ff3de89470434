package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/peterbourgon/ff/v3"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/size"
)

// embeddedKafka as -kafka starts a broker inside the process.
const embeddedKafka = "embedded"

// Smallest memory budget that makes sense: a few chunks of history.
const minMemoryBudget = 16 << 20

// Config is all that can be set. Each field is a flag, and an environment variable: -ops-listen is TAILRACE_OPS_LISTEN, -kafka.data-dir is
// TAILRACE_KAFKA_DATA_DIR. The flag wins.
type Config struct {
	Listen       string
	OpsListen    string
	Insecure     bool
	DataDir      string // -kafka.data-dir
	Kafka        kafka.Config
	MemoryBudget size.Bytes
	SlowAfter    time.Duration
	Demo         bool
	DrainTimeout time.Duration
	LogLevel     slog.Level
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
		DrainTimeout: 10 * time.Second,
	}
	c.Kafka.Bootstrap = "127.0.0.1:9092"
	c.Kafka.Properties = map[string]string{}
	return c
}

const intro = `tailrace streams the records of Kafka topics over Connect, gRPC and gRPC-Web.

Try it, with a broker of its own and a live topic:
  tailrace -kafka embedded -demo
  buf curl --http2-prior-knowledge -d '{"topic":"demo"}' http://localhost:7070/tailrace.v1.StreamService/Subscribe

With your Kafka:
  tailrace -kafka broker-1:9092,broker-2:9092
  tailrace -kafka broker-1:9093 -kafka.property security.protocol=sasl_ssl -kafka.property sasl.mechanisms=PLAIN \
           -kafka.property sasl.username=me -kafka.property sasl.password=secret

Publish a record:
  curl -H 'Content-Type: application/json' -d '{"topic":"demo","records":[{"key":"aw==","value":"aGVsbG8="}]}' \
       http://localhost:7070/tailrace.v1.StreamService/Publish

Every flag can be set in the environment: -ops-listen as TAILRACE_OPS_LISTEN, -kafka.data-dir as TAILRACE_KAFKA_DATA_DIR.
TAILRACE_KAFKA_PROPERTY holds one property a line. A flag wins over the environment.

SIGTERM or Ctrl-C drains: streams end with "unavailable", reason DRAINING, and callers come back elsewhere. A second one exits at once.

Flags:
`

// parseConfig reads flags and environment. -help prints to help and returns flag.ErrHelp.
func parseConfig(args []string, help io.Writer) (Config, error) {
	c := defaultConfig()
	fs := flag.NewFlagSet("tailrace", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.Listen, "listen", c.Listen, "serve RPCs on this `address`; off loopback only with -insecure")
	fs.StringVar(&c.OpsListen, "ops-listen", c.OpsListen, "serve /healthz, /readyz, /metrics and (to loopback) /debug/pprof on this `address`")
	fs.BoolVar(&c.Insecure, "insecure", c.Insecure, "let -listen be reachable from other machines, though nobody is authenticated")
	fs.StringVar(&c.Kafka.Bootstrap, "kafka", c.Kafka.Bootstrap, "bootstrap `servers` of Kafka, separated by commas; or \"embedded\" for a broker inside this process")
	fs.StringVar(&c.DataDir, "kafka.data-dir", c.DataDir, "keep the embedded broker's topics in this `folder`; empty: in memory, gone at the end")
	fs.Var(properties(c.Kafka.Properties), "kafka.property", "librdkafka `property` k=v for all clients, such as security.protocol=ssl; may be repeated")
	fs.Var(partitioners(c.Kafka.Partitioners), "kafka.partitioner", "topic=`partitioner`: where the topic's producers put keys: murmur2 (Java clients, the default), crc32 (librdkafka's default), fnv1a (Sarama) or any; *=… is for all other topics; may be repeated")
	fs.StringVar((*string)(&c.Kafka.Isolation), "kafka.isolation", string(c.Kafka.Isolation), "which records readers see: `level` read_committed or read_uncommitted")
	fs.IntVar(&c.Kafka.Consumers, "kafka.consumers", c.Kafka.Consumers, "consumers that share the followed partitions; more use more cores")
	fs.IntVar(&c.Kafka.HistoryReaders, "kafka.history-readers", c.Kafka.HistoryReaders, "consumers that read history for those who start in the past or fell behind")
	fs.Var(&c.MemoryBudget, "memory-budget", "`size` of what is kept of topics in memory, such as 256MiB; beyond it, readers are served from Kafka")
	fs.DurationVar(&c.SlowAfter, "slow-after", c.SlowAfter, "a reader is slow, and its slow policy acts, when it is this much of a topic's traffic behind")
	fs.BoolVar(&c.Demo, "demo", c.Demo, "keep a small topic \"demo\" alive; with -kafka embedded only")
	fs.DurationVar(&c.DrainTimeout, "drain-timeout", c.DrainTimeout, "how long calls under way may take when the process is told to end")
	fs.TextVar(&c.LogLevel, "log-level", c.LogLevel, "`level` of the log on standard error: debug, info, warn or error")

	err := ff.Parse(fs, args, ff.WithEnvVarPrefix("TAILRACE"))
	if errors.Is(err, flag.ErrHelp) {
		_, _ = io.WriteString(help, intro)
		fs.SetOutput(help)
		fs.PrintDefaults()
		return Config{}, flag.ErrHelp
	}
	if err != nil {
		return Config{}, err
	}
	if fs.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q: there are only flags, see -help", fs.Arg(0))
	}
	return c, c.Validate()
}

// Validate reports the first setting that cannot be, by flag and value, and what to do.
func (c *Config) Validate() error {
	for _, l := range []struct{ name, addr string }{{"-listen", c.Listen}, {"-ops-listen", c.OpsListen}} {
		if _, _, err := net.SplitHostPort(l.addr); err != nil {
			return fmt.Errorf("%s %q: %w: want host:port, such as 127.0.0.1:7070", l.name, l.addr, err)
		}
	}
	if !c.Insecure && !onLoopback(c.Listen) {
		return fmt.Errorf("-listen %q: anybody who reaches it could read and publish; keep it on 127.0.0.1, or add -insecure if the network is trusted", c.Listen)
	}
	if c.DataDir != "" && !c.Embedded() {
		return fmt.Errorf("-kafka.data-dir %q: it belongs to the embedded broker, but -kafka is %q; leave it out, or use -kafka %s", c.DataDir, c.Kafka.Bootstrap, embeddedKafka)
	}
	if c.Demo && !c.Embedded() {
		return fmt.Errorf("-demo: it writes to a topic, which it does with the embedded broker only, but -kafka is %q; leave it out, or use -kafka %s", c.Kafka.Bootstrap, embeddedKafka)
	}
	if c.MemoryBudget < minMemoryBudget {
		least := size.Bytes(minMemoryBudget)
		return fmt.Errorf("-memory-budget %s: want at least %s", &c.MemoryBudget, &least)
	}
	if err := hub.CheckSlowAfter(c.SlowAfter); err != nil {
		return fmt.Errorf("-slow-after %s: %w", c.SlowAfter, err)
	}
	if c.DrainTimeout <= 0 || c.DrainTimeout > time.Hour {
		return fmt.Errorf("-drain-timeout %s: want more than 0, at most 1h", c.DrainTimeout)
	}
	return c.Kafka.Validate()
}

// LogValue is the configuration as it is printed at the start, with secrets masked.
func (c *Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("listen", c.Listen),
		slog.String("ops_listen", c.OpsListen),
		slog.Bool("insecure", c.Insecure),
		slog.String("kafka", c.Kafka.Bootstrap),
		slog.String("kafka_data_dir", c.DataDir),
		slog.String("kafka_property", strings.Join(c.Kafka.Masked(), " ")),
		slog.String("kafka_isolation", string(c.Kafka.Isolation)),
		slog.Int("kafka_consumers", c.Kafka.Consumers),
		slog.Int("kafka_history_readers", c.Kafka.HistoryReaders),
		slog.String("memory_budget", c.MemoryBudget.String()),
		slog.Duration("slow_after", c.SlowAfter),
		slog.Bool("demo", c.Demo),
		slog.Duration("drain_timeout", c.DrainTimeout),
		slog.String("log_level", c.LogLevel.String()),
	)
}

// onLoopback says that an address can be reached from this machine only. A host name other than localhost is not taken at its word.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// properties is the repeated flag -kafka.property. In the environment, where nothing can be repeated, there is one a line.
type properties map[string]string

func (p properties) Set(text string) error {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		k, v, ok := strings.Cut(line, "=")
		if !ok || k == "" {
			return errors.New("want name=value, such as security.protocol=ssl")
		}
		p[k] = v
	}
	return nil
}

func (p properties) String() string { return "" }

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

func (p partitioners) String() string { return "" }
