package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/edge/upstream"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/setting"
	"tailrace.dev/tailrace/services/size"
	"tailrace.dev/tailrace/services/trace"
)

// Bounds of the memory budget: a few chunks of history, and more than machines have.
const (
	minMemoryBudget = 16 << 20
	maxMemoryBudget = 1 << 40
)

// Config is all that can be set. Each field is a setting: a flag, an environment variable, a line of a file; see package setting.
type Config struct {
	Listen        string
	OpsListen     string
	Insecure      bool
	Upstreams     []string
	MemoryBudget  size.Bytes
	SlowAfter     time.Duration
	Edge          edge.Config
	maxMessage    size.Bytes // Edge.MaxMessageBytes, as it is set
	sessionsAsked bool       // -max-sessions is no default
	Trace         trace.Config
	LogLevel      string
	LogFormat     string
}

func defaultConfig() Config {
	c := Config{
		Listen:       "127.0.0.1:8080",
		OpsListen:    "127.0.0.1:8081",
		Upstreams:    []string{"http://127.0.0.1:7070"},
		MemoryBudget: 256 << 20,
		SlowAfter:    hub.DefaultConfig().SlowAfter,
		Edge:         edge.DefaultConfig(),
		Trace:        trace.DefaultConfig(),
		LogLevel:     "info",
		LogFormat:    "auto",
	}
	c.maxMessage = size.Bytes(c.Edge.MaxMessageBytes)
	return c
}

const intro = `tailrace-edge brings the streams of a tailrace service to browsers, over WebSocket or server-sent
events.

Try it, beside "tailrace -kafka embedded -demo":
  tailrace-edge
  websocat 'ws://localhost:8080/ws/demo?start=earliest'
  curl -N 'http://localhost:8080/sse/demo?start=earliest'
and open http://localhost:8080/ in a browser.

For pages of another origin, behind a name of your own:
  tailrace-edge -upstream http://tailrace-1:7070 -upstream http://tailrace-2:7070 \
      -allowed-hosts stream.example.org -allowed-origins https://app.example.org

Every setting is a flag, a variable of the environment, and a line of the file of -config. A flag
wins over the environment, the environment over the file.

SIGTERM or Ctrl-C drains: every client is told to come back, 500 in a second; with the default
-max-sessions that takes at most 56 s. A second one exits at once.
`

// declare binds the settings to c, which has the defaults.
func declare(c *Config) *setting.Set {
	s := setting.New("tailrace-edge")
	s.Group("Listening")
	s.Address(&c.Listen, "listen", "Serve WebSockets, event streams and the page here. Off loopback only with -insecure.")
	s.Address(&c.OpsListen, "ops-listen", "Serve /healthz, /readyz, /metrics and (to loopback) /debug/pprof here.")
	s.Bool(&c.Insecure, "insecure", "Let -listen be reachable from other machines, though nobody is authenticated.")
	s.List(&c.Edge.AllowedOrigins, "allowed-origins", "origins", "Origins of pages that may connect, besides this edge's own host, such as https://app.example.org; separated by commas.", edge.CheckOrigin)
	s.List(&c.Edge.AllowedHosts, "allowed-hosts", "names", "Names under which this edge is reached, besides localhost and loopback addresses; separated by commas.", checkHost)

	s.Group("Service")
	s.List(&c.Upstreams, "upstream", "addresses", "The tailrace services, such as http://tailrace-1:7070; separated by commas, or repeated.", checkUpstream)
	s.Duration(&c.Edge.UpstreamGrace, "upstream-grace", "Close the sockets when the service has been away for this long, so that clients try another edge. 0 is never.", 0, 24*time.Hour)

	s.Group("Readers and memory")
	s.Bytes(&c.MemoryBudget, "memory-budget", "What is kept of topics in memory: the newest records, and history that was read. Beyond it, readers are served from the service.", minMemoryBudget, maxMemoryBudget)
	s.Duration(&c.SlowAfter, "slow-after", "A reader is slow, and its slow policy acts, when it is this much of a topic's traffic behind.", 100*time.Millisecond, time.Hour)

	s.Group("Sessions: sockets and event streams")
	s.Duration(&c.Edge.HeartbeatInterval, "heartbeat-interval", "Ping a client that was silent for this long, and tell it something when it was told nothing.", time.Second, 5*time.Minute)
	s.Duration(&c.Edge.StallTimeout, "stall-timeout", "Give up a client that neither reads nor answers for this long. At least two heartbeat intervals and 5s.", time.Second, 24*time.Hour)
	s.Duration(&c.Edge.MaxConnectionAge, "max-connection-age", "Tell a client to connect anew after this long, or up to a tenth sooner. 0 is never.", 0, 720*time.Hour)
	s.Int(&c.Edge.MaxSessions, "max-sessions", "Most open sessions, as far as ulimit -n allows. More are told to come back later.", 1, 10_000_000)
	s.Int(&c.Edge.MaxPerAddress, "max-sessions-per-address", "Most open sessions of one address, or IPv6 network of 64 bits. More are refused with 429. 0 is no limit, as behind a balancer all have its address.", 0, 10_000_000)
	s.Int(&c.Edge.MaxSubscriptions, "max-subscriptions", "Most open subscriptions of a session.", 1, 1_000_000)
	s.Int(&c.Edge.MaxKeys, "max-keys", "Most keys that the subscriptions of a session have together.", 1, 10_000_000)
	s.Int(&c.Edge.PublishRate, "publish-rate", "Most publishes of one socket in a second, and over HTTP of one address, on average. 0 is any number.", 0, 1_000_000)
	s.Bytes(&c.maxMessage, "max-message-bytes", "Most bytes of one message from a client.", 1<<10, 64<<20)

	s.Group("Traces")
	s.String(&c.Trace.Endpoint, "trace.endpoint", "address", "Send OpenTelemetry traces to this OTLP receiver over HTTP, such as http://127.0.0.1:4318. Empty: no traces.")
	s.Float(&c.Trace.Ratio, "trace.ratio", "Part of the traces that begin here and are sampled. Traces of callers are sampled as they say.", 0, 1)

	s.Group("Log")
	s.Choice(&c.LogLevel, "log-level", "The least that is logged, on standard error: warn and error are what an operator must act on.", "debug", "info", "warn", "error")
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
	c.Edge.MaxMessageBytes = int64(c.maxMessage)
	c.sessionsAsked = s.Given("max-sessions")
	problems = append(problems, c.problems(s)...)
	if c.Trace.On() {
		problems = append(problems, trace.CheckEnvironment(environ)...)
	}
	if err := c.Edge.Validate(); err != nil && len(problems) == 0 { // the settings' own limits come first, and name the flag
		problems = setting.Split(err)
	}
	return c, s, action, problems
}

// problems are what settings cannot be together, by flag and value and what to do.
func (c *Config) problems(s *setting.Set) []error {
	var errs []error
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !c.Insecure && !setting.OnLoopback(c.Listen) {
		problem("-listen %q%s: anybody who reaches it could read and publish; keep it on 127.0.0.1, or add -insecure if the network is trusted", c.Listen, s.Where("listen"))
	}
	if setting.OneListener(c.Listen, c.OpsListen) {
		problem("-listen %q%s and -ops-listen %q%s: both are one address; move one to another port", c.Listen, s.Where("listen"), c.OpsListen, s.Where("ops-listen"))
	}
	if len(c.Upstreams) == 0 {
		problem("-upstream \"\"%s: want the address of a service, such as http://127.0.0.1:7070", s.Where("upstream"))
	}
	if least := 2*c.Edge.HeartbeatInterval + c.Edge.LifeGrace; c.Edge.StallTimeout < least {
		problem("-stall-timeout %s%s: want at least %s, which is two times -heartbeat-interval %s and 5s; raise it, or lower that",
			c.Edge.StallTimeout, s.Where("stall-timeout"), least, c.Edge.HeartbeatInterval)
	}
	if err := c.Trace.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

func checkUpstream(address string) error {
	if _, err := upstream.CheckAddress(address); err != nil {
		return errors.New("want http://host:port or https://host:port, without a path, a user or a password")
	}
	return nil
}

func checkHost(name string) error {
	if strings.ContainsAny(name, "/*@ \t") {
		return errors.New("want a name as in the Host header, such as stream.example.org, without a scheme or wildcards")
	}
	return nil
}

// drainTimeout is how long a drain may take: the spread of the goodbyes, and time for the last ones to leave.
func (c *Config) drainTimeout() time.Duration {
	spread := time.Duration(c.Edge.MaxSessions) * time.Second / time.Duration(c.Edge.DrainRate)
	return max(c.Edge.DrainSpread, spread) + 4*c.Edge.CloseTimeout
}
