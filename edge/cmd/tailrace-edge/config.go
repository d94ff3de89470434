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

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/edge/upstream"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/size"
)

// Smallest memory budget that makes sense: a few chunks of history.
const minMemoryBudget = 16 << 20

// Config is all that can be set. Each field is a flag, and an environment variable: -ops-listen is TAILRACE_OPS_LISTEN. The flag wins.
type Config struct {
	Listen       string
	OpsListen    string
	Insecure     bool
	Upstreams    []string
	MemoryBudget size.Bytes
	SlowAfter    time.Duration
	Edge         edge.Config
	LogLevel     slog.Level
}

func defaultConfig() Config {
	return Config{
		Listen:       "127.0.0.1:8080",
		OpsListen:    "127.0.0.1:8081",
		Upstreams:    []string{"http://127.0.0.1:7070"},
		MemoryBudget: 256 << 20,
		SlowAfter:    hub.DefaultConfig().SlowAfter,
		Edge:         edge.DefaultConfig(),
	}
}

const intro = `tailrace-edge brings the streams of a tailrace service to browsers, over WebSocket or server-sent events.

Try it, beside "tailrace -kafka embedded -demo":
  tailrace-edge
  websocat 'ws://localhost:8080/ws/demo?start=earliest'
  curl -N 'http://localhost:8080/sse/demo?start=earliest'
and open http://localhost:8080/ in a browser.

For pages of another origin, behind a name of your own:
  tailrace-edge -upstream http://tailrace-1:7070 -upstream http://tailrace-2:7070 \
                -allowed-hosts stream.example.org -allowed-origins https://app.example.org

Every flag can be set in the environment: -ops-listen as TAILRACE_OPS_LISTEN. TAILRACE_UPSTREAM may hold several addresses, separated
by commas. A flag wins over the environment.

SIGTERM or Ctrl-C drains: every client is told to come back, spread over some seconds. A second one exits at once.

Flags:
`

// parseConfig reads flags and environment. -help prints to help and returns flag.ErrHelp.
func parseConfig(args []string, help io.Writer) (Config, error) {
	c := defaultConfig()
	maxMessage := size.Bytes(c.Edge.MaxMessageBytes)
	fs := flag.NewFlagSet("tailrace-edge", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&c.Listen, "listen", c.Listen, "serve WebSockets, event streams and the page on this `address`; off loopback only with -insecure")
	fs.StringVar(&c.OpsListen, "ops-listen", c.OpsListen, "serve /healthz, /readyz, /metrics and (to loopback) /debug/pprof on this `address`")
	fs.BoolVar(&c.Insecure, "insecure", c.Insecure, "let -listen be reachable from other machines, though nobody is authenticated")
	fs.Var(&list{values: &c.Upstreams}, "upstream", "`address` of a tailrace service; may be repeated")
	fs.Var(&list{values: &c.Edge.AllowedOrigins}, "allowed-origins", "`origins` of pages that may connect, besides this edge's own host, such as https://app.example.org; separated by commas")
	fs.Var(&list{values: &c.Edge.AllowedHosts}, "allowed-hosts", "`names` under which this edge is reached, besides localhost and loopback addresses; separated by commas")
	fs.Var(&c.MemoryBudget, "memory-budget", "`size` of what is kept of topics in memory, such as 256MiB; beyond it, readers are served from the service")
	fs.DurationVar(&c.SlowAfter, "slow-after", c.SlowAfter, "a reader is slow, and its slow policy acts, when it is this much of a topic's traffic behind")
	fs.DurationVar(&c.Edge.HeartbeatInterval, "heartbeat-interval", c.Edge.HeartbeatInterval, "ping a client that was silent for this long, and tell it something when it was told nothing")
	fs.DurationVar(&c.Edge.StallTimeout, "stall-timeout", c.Edge.StallTimeout, "give up a client that neither reads nor answers for this long")
	fs.DurationVar(&c.Edge.UpstreamGrace, "upstream-grace", c.Edge.UpstreamGrace, "close the sockets when the service has been away for this long, so that clients try another edge; 0: never")
	fs.DurationVar(&c.Edge.MaxConnectionAge, "max-connection-age", c.Edge.MaxConnectionAge, "tell a client to connect anew after this long, or up to a tenth sooner; 0: never")
	fs.IntVar(&c.Edge.PublishRate, "publish-rate", c.Edge.PublishRate, "most publishes of one socket in a second, on average; 0: any")
	fs.IntVar(&c.Edge.MaxSessions, "max-sessions", c.Edge.MaxSessions, "most open sockets and event streams; more are told to come back later")
	fs.IntVar(&c.Edge.MaxPerAddress, "max-sessions-per-address", c.Edge.MaxPerAddress, "most open sockets of one address, or IPv6 network of 64 bits; more are refused with 429. 0: no limit, as behind a balancer all have its address")
	fs.IntVar(&c.Edge.MaxSubscriptions, "max-subscriptions", c.Edge.MaxSubscriptions, "most open subscriptions of a socket")
	fs.IntVar(&c.Edge.MaxKeys, "max-keys", c.Edge.MaxKeys, "most keys that the subscriptions of a socket have together")
	fs.Var(&maxMessage, "max-message-bytes", "most `bytes` of one message from a client")
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
	c.Edge.MaxMessageBytes = int64(maxMessage)
	return c, c.Validate()
}

// Validate reports the first setting that cannot be, by flag and value, and what to do.
func (c *Config) Validate() error {
	for _, l := range []struct{ name, addr string }{{"-listen", c.Listen}, {"-ops-listen", c.OpsListen}} {
		if _, _, err := net.SplitHostPort(l.addr); err != nil {
			return fmt.Errorf("%s %q: %w: want host:port, such as 127.0.0.1:8080", l.name, l.addr, err)
		}
	}
	if !c.Insecure && !onLoopback(c.Listen) {
		return fmt.Errorf("-listen %q: anybody who reaches it could read and publish; keep it on 127.0.0.1, or add -insecure if the network is trusted", c.Listen)
	}
	if len(c.Upstreams) == 0 {
		return errors.New("-upstream: want the address of a service, such as http://127.0.0.1:7070")
	}
	for _, u := range c.Upstreams {
		if _, err := upstream.CheckAddress(u); err != nil {
			return fmt.Errorf("-%w", err)
		}
	}
	if c.MemoryBudget < minMemoryBudget {
		least := size.Bytes(minMemoryBudget)
		return fmt.Errorf("-memory-budget %s: want at least %s", &c.MemoryBudget, &least)
	}
	if err := hub.CheckSlowAfter(c.SlowAfter); err != nil {
		return fmt.Errorf("-slow-after %s: %w", c.SlowAfter, err)
	}
	if err := c.Edge.Validate(); err != nil {
		return fmt.Errorf("flags of the sockets: %w", err)
	}
	return nil
}

// LogValue is the configuration as it is printed at the start. It has no secrets.
func (c *Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("listen", c.Listen),
		slog.String("ops_listen", c.OpsListen),
		slog.Bool("insecure", c.Insecure),
		slog.String("upstream", strings.Join(c.Upstreams, ",")),
		slog.String("allowed_origins", strings.Join(c.Edge.AllowedOrigins, ",")),
		slog.String("allowed_hosts", strings.Join(c.Edge.AllowedHosts, ",")),
		slog.String("memory_budget", c.MemoryBudget.String()),
		slog.Duration("slow_after", c.SlowAfter),
		slog.Duration("heartbeat_interval", c.Edge.HeartbeatInterval),
		slog.Duration("stall_timeout", c.Edge.StallTimeout),
		slog.Duration("upstream_grace", c.Edge.UpstreamGrace),
		slog.Duration("max_connection_age", c.Edge.MaxConnectionAge),
		slog.Int("publish_rate", c.Edge.PublishRate),
		slog.Int("max_sessions", c.Edge.MaxSessions),
		slog.Int("max_sessions_per_address", c.Edge.MaxPerAddress),
		slog.Int("max_subscriptions", c.Edge.MaxSubscriptions),
		slog.Int("max_keys", c.Edge.MaxKeys),
		slog.Int64("max_message_bytes", c.Edge.MaxMessageBytes),
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

// drainTimeout is how long a drain may take: the spread of the goodbyes, and time for the last ones to leave.
func (c *Config) drainTimeout() time.Duration {
	spread := time.Duration(c.Edge.MaxSessions) * time.Second / time.Duration(c.Edge.DrainRate)
	return max(c.Edge.DrainSpread, spread) + 4*c.Edge.CloseTimeout
}

// list is a flag of several values, separated by commas or given repeatedly. The first use replaces the default.
type list struct {
	values *[]string
	set    bool
}

func (l *list) Set(text string) error {
	if !l.set {
		*l.values, l.set = nil, true
	}
	for v := range strings.SplitSeq(text, ",") {
		if v = strings.TrimSpace(v); v != "" {
			*l.values = append(*l.values, v)
		}
	}
	return nil
}

func (l *list) String() string {
	if l.values == nil {
		return ""
	}
	return strings.Join(*l.values, ",")
}
