// Package embedded is the Kafka broker that lives inside the service when it is started with -kafka embedded: for trying Tailrace out and
// for fast tests, not for data that matters. It speaks the Kafka protocol over TCP on loopback, to the same client as a real broker.
package embedded

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/twmb/franz-go/pkg/kfake"
)

// Partitions is how many partitions a topic gets that is created without a number.
const Partitions = 4

// Config of a Broker. The zero value is a broker in memory on a free port.
type Config struct {
	// Port on 127.0.0.1; 0 takes a free one. Clients that are to survive a restart of the broker need a fixed one.
	Port int
	// DataDir keeps topics across restarts; empty: memory, and all is gone when the broker ends. Idempotent producers do not survive the
	// restart of a broker in memory, so that one must not outlive it.
	DataDir string
	// Logger gets warnings; nil: none.
	Logger *slog.Logger
}

// Broker is a running broker.
type Broker struct {
	cluster *kfake.Cluster
	addr    string
}

// Start starts a broker. Topics are never created by mere mention.
func Start(cfg Config) (*Broker, error) {
	if cfg.Port < 0 || cfg.Port > 65535 {
		return nil, fmt.Errorf("embedded broker: port %d: want 0 to 65535", cfg.Port)
	}
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.Ports(cfg.Port),
		kfake.ClusterID("tailrace-embedded"),
		kfake.DefaultNumPartitions(Partitions),
		kfake.ListenFn(net.Listen),
	}
	if cfg.DataDir != "" {
		opts = append(opts, kfake.DataDir(cfg.DataDir))
	}
	if cfg.Logger != nil {
		opts = append(opts, kfake.WithLogger(logger{cfg.Logger}))
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return nil, fmt.Errorf("embedded broker on port %d: %w", cfg.Port, err)
	}
	return &Broker{cluster: cluster, addr: cluster.ListenAddrs()[0]}, nil
}

// Addr is what to give to -kafka: host:port.
func (b *Broker) Addr() string { return b.addr }

// CreateTopic creates a topic; partitions 0 is Partitions. configs are Kafka's topic settings, such as cleanup.policy.
func (b *Broker) CreateTopic(name string, partitions int32, configs map[string]string) error {
	if partitions == 0 {
		partitions = Partitions
	}
	if err := b.cluster.CreateTopic(name, partitions, configs); err != nil {
		return fmt.Errorf("create topic %q: %w", name, err)
	}
	return nil
}

// HasTopic says whether a topic exists.
func (b *Broker) HasTopic(name string) bool { return b.cluster.TopicInfo(name) != nil }

// Close stops the broker and, with a data directory, saves its state. Idempotent.
func (b *Broker) Close() { b.cluster.Close() }

// logger passes the broker's warnings on and leaves out a line for each request.
type logger struct{ to *slog.Logger }

func (l logger) Logf(level kfake.LogLevel, format string, args ...any) {
	if level == kfake.LogLevelNone || level > kfake.LogLevelWarn {
		return
	}
	l.to.Warn("embedded broker", "message", fmt.Sprintf(format, args...))
}
