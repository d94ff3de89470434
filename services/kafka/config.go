package kafka

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/hub"
)

// Isolation says which records readers see: Kafka's isolation.level.
type Isolation string

// The isolation levels.
const (
	ReadCommitted   Isolation = "read_committed"
	ReadUncommitted Isolation = "read_uncommitted"
)

// Config of a Client. Take DefaultConfig and change it.
type Config struct {
	// Bootstrap is the flag -kafka: comma-separated host:port. Required.
	Bootstrap string
	// Properties is the repeated flag -kafka.property: librdkafka properties for all clients, such as security.protocol. Those
	// that correctness depends on are refused, with the reason.
	Properties map[string]string
	// Partitioners is the flag -kafka.partitioner: how the producers of a topic choose the partition of a key, by topic, or "*" for all others;
	// default hub.Murmur2. Records that are published here go the same way.
	Partitioners map[string]hub.Partitioner
	// Isolation is the flag -kafka.isolation; default read_committed.
	Isolation Isolation
	// Consumers is the flag -kafka.consumers: how many consumers share the followed partitions; default 1, at most 16.
	Consumers int
	// HistoryReaders is the flag -kafka.history-readers: how many consumers read history; default 8, at most 64. One that is busy holds up to 24 MiB that it fetched ahead.
	HistoryReaders int
	// Linger is how long a published record may wait for others to share its request; default 0, at most 1 s.
	Linger time.Duration
	// PublishTimeout is how long a published record may wait to be handed over before it is refused, and then for its acknowledgement before its
	// outcome is unknown; default 30 s.
	PublishTimeout time.Duration
	// PublishBytes bounds what waits to be handed over to Kafka, and as much again what was and is not answered yet; callers wait, each for
	// its own records. Default 64 MiB, at least 16 MiB.
	PublishBytes int64
	// WatchInterval is how often followed topics are looked at for growth, re-creation and deletion; default 1 s. Where Kafka takes long to
	// answer it becomes more, up to 5 s.
	WatchInterval time.Duration
	// DeletedAfter is how long a topic must be gone to count as deleted; default 10 s.
	DeletedAfter time.Duration
	// StatsInterval is how often consumers tell what they fetch, by which partitions that silently stopped or that an open transaction holds
	// are found; default 5 s.
	StatsInterval time.Duration
	// HeldAfter is how long an open transaction must hold the end of a partition to be named in the log and a metric; default 60 s, which is how
	// long Kafka lets a transaction be open unless its producer asks for more.
	HeldAfter time.Duration
	// GroupProtocol is the flag -kafka.group-protocol: classic (default; cooperative-sticky), or consumer (KIP-848).
	GroupProtocol string
	// GroupInstance is the flag -kafka.group-instance: this process is a static member (KIP-345) of its groups under that name, so that a restart within
	// the session timeout moves no partition: it does not leave its groups at its end either. Empty: it is not. Kafka tells such names apart within
	// a group only, so all groups of a process may share one; no two processes may have the same: the later takes the place of the earlier, which waits.
	GroupInstance string
	// SessionTimeout is for how long a group waits for a member that vanished before its partitions go to others; default 6 s, which is the least
	// that brokers allow unless told otherwise (group.min.session.timeout.ms). With the consumer protocol it is the broker's
	// (group.consumer.session.timeout.ms, 45 s unless set).
	SessionTimeout time.Duration
	// MaxPollInterval is how long a member may be busy with itself before it leaves its groups; default 5 min, at least SessionTimeout. Workers
	// do not count, however slow they are.
	MaxPollInterval time.Duration
	// CreateDeadLetters is the flag -kafka.create-dead-letters: topics of dead letters that do not exist are created; default true.
	CreateDeadLetters bool
	// TraceHeaders gives a published record without a traceparent header that of the span in its call's context, if that is sampled; off by default.
	TraceHeaders bool
}

// DefaultConfig returns the defaults, without Bootstrap.
func DefaultConfig() Config {
	return Config{
		Properties:     map[string]string{},
		Partitioners:   map[string]hub.Partitioner{},
		Isolation:      ReadCommitted,
		Consumers:      1,
		HistoryReaders: 8,
		PublishTimeout: 30 * time.Second,
		PublishBytes:   64 << 20,
		WatchInterval:  time.Second,
		DeletedAfter:   10 * time.Second,
		StatsInterval:  5 * time.Second,
		HeldAfter:      time.Minute,

		GroupProtocol:     "classic",
		SessionTimeout:    6 * time.Second,
		MaxPollInterval:   5 * time.Minute,
		CreateDeadLetters: true,
	}
}

// ownProperties are the librdkafka properties that correctness depends on, with the reason why -kafka.property refuses them.
var ownProperties = map[string]string{
	"bootstrap.servers":                     "use -kafka",
	"metadata.broker.list":                  "use -kafka",
	"client.id":                             "names this service and its role in the broker's logs and quotas",
	"group.id":                              "broadcast never joins a group, and who consumes names its own",
	"group.instance.id":                     "use -kafka.group-instance",
	"group.protocol":                        "use -kafka.group-protocol",
	"isolation.level":                       "use -kafka.isolation: consumers and offset look-ups must agree",
	"auto.offset.reset":                     "a position out of range is told as a gap, never skipped silently",
	"enable.auto.commit":                    "positions belong to the client; nothing is stored in Kafka",
	"auto.commit.enable":                    "positions belong to the client; nothing is stored in Kafka",
	"enable.auto.offset.store":              "positions belong to the client; nothing is stored in Kafka",
	"enable.partition.eof":                  "the end of a partition and its holes are known by it",
	"statistics.interval.ms":                "partitions that silently stopped are found by it",
	"enable.idempotence":                    "a retry inside librdkafka must not double a record",
	"acks":                                  "acknowledged means: by all in-sync replicas",
	"request.required.acks":                 "acknowledged means: by all in-sync replicas",
	"partitioner":                           "use -kafka.partitioner: key subscriptions look for keys there",
	"message.timeout.ms":                    "outcomes are told by the service's own publish timeout",
	"delivery.timeout.ms":                   "outcomes are told by the service's own publish timeout",
	"message.max.bytes":                     "the broker is to judge the size of a record",
	"batch.size":                            "a record that is too large must not take others down with it",
	"queue.buffering.max.messages":          "admission in front of the producer stays below it",
	"queue.buffering.max.kbytes":            "admission in front of the producer stays below it",
	"queue.buffering.max.ms":                "the service sends what it has at once",
	"linger.ms":                             "the service sends what it has at once",
	"allow.auto.create.topics":              "an unknown topic is refused, never created by accident",
	"transactional.id":                      "the producer is not transactional",
	"delivery.report.only.error":            "every record gets its answer",
	"enable.gapless.guarantee":              "a failed record does not stop its successors",
	"max.poll.interval.ms":                  "members of groups poll at all times, however slow their workers are",
	"session.timeout.ms":                    "records of a process that was killed are at others within 6 s; with -kafka.group-protocol consumer it is the broker's",
	"heartbeat.interval.ms":                 "it belongs to the session timeout",
	"topic.metadata.refresh.interval.ms":    "groups find added partitions by it",
	"offset.store.method":                   "positions belong to the client; nothing is stored in Kafka",
	"fetch.queue.backoff.ms":                "at its default of one second it stalls bulk reads",
	"queued.max.messages.kbytes":            "memory is bounded by it",
	"fetch.wait.max.ms":                     "the time to the first record depends on it",
	"enable.metrics.push":                   "clients push nothing to the broker",
	"partition.assignment.strategy":         "groups are cooperative, see -kafka.group-protocol",
	"queuing.strategy":                      "order within a partition depends on it",
	"max.in.flight":                         "order and idempotence depend on it",
	"transaction.timeout.ms":                "the producer is not transactional",
	"api.version.request":                   "idempotence needs the features that it asks brokers for",
	"broker.version.fallback":               "idempotence needs the features that it asks brokers for",
	"test.mock.num.brokers":                 "use -kafka embedded for a broker without Kafka",
	"topic.blacklist":                       "a topic that Kafka has would seem not to exist",
	"enable.sparse.connections":             "without it a broker that is gone is tried again without a pause",
	"enabled_events":                        "it belongs to the binding",
	"default.topic.config":                  "it belongs to the binding; name the property itself",
	"produce.offset.report":                 "every record gets its offset",
	"message.copy.max.bytes":                "it decides who owns the bytes of a record",
	"max.in.flight.requests.per.connection": "order and idempotence depend on it",
}

// instanceName is what Kafka's JoinGroupRequest.validateGroupInstanceId takes and does not begin with a dot. With another every join would fail.
var instanceName = regexp.MustCompile(`^[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}$`)

// Validate reports every setting that cannot be, by flag (or field, where there is none) and value. The error unwraps into one for each.
func (c Config) Validate() error {
	var errs []error
	if strings.TrimSpace(c.Bootstrap) == "" {
		errs = append(errs, errors.New("-kafka: no bootstrap servers"))
	}
	for _, k := range slices.Sorted(maps.Keys(c.Properties)) {
		why, own := ownProperties[k]
		switch {
		case own:
			errs = append(errs, fmt.Errorf("-kafka.property %s=%s: cannot be set: %s", k, Mask(k, c.Properties[k]), why))
		case bindings(k):
			errs = append(errs, fmt.Errorf("-kafka.property %s=%s: cannot be set: it belongs to the binding", k, Mask(k, c.Properties[k])))
		}
	}
	if c.Isolation != ReadCommitted && c.Isolation != ReadUncommitted {
		errs = append(errs, fmt.Errorf("-kafka.isolation %q: want %s or %s", c.Isolation, ReadCommitted, ReadUncommitted))
	}
	if c.GroupInstance != "" && !instanceName.MatchString(c.GroupInstance) {
		errs = append(errs, fmt.Errorf("-kafka.group-instance %q: want at most 249 letters, digits, dots, dashes and underscores, and no dot first", c.GroupInstance))
	}
	if c.GroupProtocol != "classic" && c.GroupProtocol != "consumer" {
		errs = append(errs, fmt.Errorf("-kafka.group-protocol %q: want classic or consumer", c.GroupProtocol))
	}
	for _, r := range []struct {
		name         string
		v, low, high int64
	}{
		{"-kafka.consumers", int64(c.Consumers), 1, 16},
		{"-kafka.history-readers", int64(c.HistoryReaders), 1, 64},
		{"Config.Linger", int64(c.Linger), 0, int64(time.Second)},
		{"Config.PublishTimeout", int64(c.PublishTimeout), int64(time.Second), int64(5 * time.Minute)},
		{"Config.PublishBytes", c.PublishBytes, 16 << 20, 1 << 30},
		{"Config.WatchInterval", int64(c.WatchInterval), int64(100 * time.Millisecond), int64(time.Minute)},
		{"Config.StatsInterval", int64(c.StatsInterval), int64(100 * time.Millisecond), int64(time.Minute)},
		{"Config.HeldAfter", int64(c.HeldAfter), int64(c.StatsInterval), int64(time.Hour)},
		{"Config.SessionTimeout", int64(c.SessionTimeout), int64(100 * time.Millisecond), int64(5 * time.Minute)},
		{"Config.MaxPollInterval", int64(c.MaxPollInterval), int64(c.SessionTimeout), int64(time.Hour)},
		{"Config.DeletedAfter", int64(c.DeletedAfter), int64(c.WatchInterval), int64(time.Hour)},
	} {
		if r.v < r.low || r.v > r.high {
			errs = append(errs, fmt.Errorf("%s %d: want %d to %d", r.name, r.v, r.low, r.high))
		}
	}
	return errors.Join(errs...)
}

// bindings says that a property belongs to confluent-kafka-go.
func bindings(k string) bool { return strings.HasPrefix(k, "go.") || strings.HasSuffix(k, "_cb") }

// partitioner is how the producers of a topic choose the partition of a key.
func (c Config) partitioner(topic string) hub.Partitioner {
	if p, ok := c.Partitioners[topic]; ok {
		return p
	}
	return c.Partitioners["*"]
}

// Mask returns the value of a property, or *** where its name says that it is a secret, or is not known: it may be that of a secret, mistyped.
func Mask(k, v string) string {
	if ownProperties[k] == "" && !slices.Contains(strings.Fields(properties), k) {
		return "***"
	}
	for _, s := range []string{"password", "passphrase", "secret", "key", "jaas", "token", "pem", "credential", "oauthbearer.config", "oauthbearer.extensions", "kinit.cmd"} {
		if strings.Contains(strings.ToLower(k), s) {
			return "***"
		}
	}
	return v
}

// Masked returns the properties as k=v, ordered, with secrets masked: for the line that a process prints at its start.
func (c Config) Masked() []string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(c.Properties)) {
		out = append(out, k+"="+Mask(k, c.Properties[k]))
	}
	return out
}

// compresses says whether the producer does, so that the size of a record does not tell what the broker will see.
func (c Config) compresses() bool {
	for _, k := range []string{"compression.type", "compression.codec"} {
		if v, ok := c.Properties[k]; ok && v != "none" {
			return true
		}
	}
	return false
}

// settings puts together what a client is made with: defaults, which properties may change; the properties; and what correctness depends on,
// which Validate has kept properties from.
func (c Config) settings(role string, logs chan confluent.LogEvent, defaults, own confluent.ConfigMap) *confluent.ConfigMap {
	m := confluent.ConfigMap{
		// The default of ten seconds would be the time to come back after an outage.
		"reconnect.backoff.max.ms": 1000,
	}
	maps.Copy(m, defaults)
	for k, v := range c.Properties {
		m[k] = v
	}
	maps.Copy(m, confluent.ConfigMap{
		"bootstrap.servers":        c.Bootstrap,
		"client.id":                "tailrace-" + role,
		"allow.auto.create.topics": false,
		"enable.metrics.push":      false, // it logs a line for each change of the subscription
		"go.logs.channel.enable":   true,
		"go.logs.channel":          logs,
	})
	maps.Copy(m, own)
	return &m
}

func (c Config) admin(logs chan confluent.LogEvent) *confluent.ConfigMap {
	return c.settings("admin", logs, nil, confluent.ConfigMap{
		// With connections on demand a question that waits for a broker which is gone makes librdkafka try to connect without a pause: thousands
		// of times a second, a core of ours and a flood for the broker that comes back. The price is a connection to every broker.
		"enable.sparse.connections": false,
	})
}

// consumer returns the settings of both kinds of consumers.
func (c Config) consumer(role string, logs chan confluent.LogEvent, defaults, own confluent.ConfigMap) *confluent.ConfigMap {
	maps.Copy(own, confluent.ConfigMap{
		"group.id":                 "tailrace-broadcast", // the library wants one to assign; it is never joined
		"isolation.level":          string(c.Isolation),
		"auto.offset.reset":        "error",
		"enable.auto.commit":       false,
		"enable.auto.offset.store": false,
		"enable.partition.eof":     true,
	})
	return c.settings(role, logs, defaults, own)
}

// follower: a long poll, so that idle partitions cost nothing; its price is that a partition which joins waits for the poll in flight.
func (c Config) follower(logs chan confluent.LogEvent) *confluent.ConfigMap {
	return c.consumer("follower", logs, confluent.ConfigMap{
		"fetch.error.backoff.ms": 100,
	}, confluent.ConfigMap{
		"fetch.wait.max.ms":          100,
		"fetch.queue.backoff.ms":     10, // the default of 1000 makes a bulk read three times as long
		"queued.max.messages.kbytes": 32 << 10,
		"statistics.interval.ms":     int(c.StatsInterval / time.Millisecond),
	})
}

// reader: short polls, since somebody waits; small buffers, since there are several, and since what librdkafka has at hand is one queue for all
// places of a reader: who asks for one must take what lies before it.
func (c Config) reader(logs chan confluent.LogEvent) *confluent.ConfigMap {
	return c.consumer("history", logs, confluent.ConfigMap{
		"fetch.error.backoff.ms":    100,
		"fetch.max.bytes":           4 << 20,
		"max.partition.fetch.bytes": 512 << 10,
	}, confluent.ConfigMap{
		"fetch.wait.max.ms":          10,
		"fetch.queue.backoff.ms":     10,
		"queued.max.messages.kbytes": 2 << 10,
		"statistics.interval.ms":     int(c.StatsInterval / time.Millisecond),
	})
}

// member: a member of a group. Its positions are given to it as numbers; what is out of range must be told, never skipped. The more members there are
// in this process, this one among them, the less it fetches ahead: a record that librdkafka holds costs several hundred bytes beside its own.
func (c Config) member(logs chan confluent.LogEvent, process, group string, members int) *confluent.ConfigMap {
	ahead := func(all, least, most int) int { return min(max(all/max(members, 1), least), most) }
	own := confluent.ConfigMap{
		"group.id":                           group,
		"client.id":                          memberClient + process, // who it is must be told of a group's members
		"group.protocol":                     c.GroupProtocol,
		"isolation.level":                    string(c.Isolation),
		"auto.offset.reset":                  "error",
		"enable.auto.commit":                 false,
		"enable.auto.offset.store":           false,
		"enable.partition.eof":               true,
		"topic.metadata.refresh.interval.ms": 3000, // partitions that were added are found by it
		"fetch.wait.max.ms":                  100,
		"fetch.queue.backoff.ms":             5,
		"queued.max.messages.kbytes":         ahead(64<<10, 512, 8<<10),
		"message.max.bytes":                  1000, // a consumer's fetch.max.bytes must not be less; it bounds nothing else here
		"max.poll.interval.ms":               int(c.MaxPollInterval / time.Millisecond),
		"statistics.interval.ms":             int(c.StatsInterval / time.Millisecond),
	}
	if c.GroupProtocol == "classic" {
		own["session.timeout.ms"] = int(c.SessionTimeout / time.Millisecond)
		own["heartbeat.interval.ms"] = int(c.SessionTimeout / 4 / time.Millisecond)
		own["partition.assignment.strategy"] = "cooperative-sticky"
	}
	if c.GroupInstance != "" {
		own["group.instance.id"] = c.GroupInstance
	}
	return c.settings("group", logs, confluent.ConfigMap{
		"fetch.error.backoff.ms": 100,
		// What is fetched ahead is thrown away where a partition has to wait for its workers, and fetched again.
		"queued.min.messages":       ahead(16_000, 200, 2000),
		"max.partition.fetch.bytes": ahead(2<<20, 16<<10, 256<<10),
		"fetch.max.bytes":           ahead(16<<20, 64<<10, 2<<20), // compressed: in memory a response may be many times as large
	}, own)
}

// producer: its queue is far above what admission lets through, so that it is never full.
func (c Config) producer(logs chan confluent.LogEvent) *confluent.ConfigMap {
	return c.settings("producer", logs, nil, confluent.ConfigMap{
		"enable.idempotence":           true,
		"acks":                         "all",
		"partitioner":                  "murmur2_random",
		"linger.ms":                    strconv.FormatFloat(float64(c.Linger)/float64(time.Millisecond), 'f', 3, 64),
		"message.timeout.ms":           int(c.PublishTimeout / time.Millisecond),
		"message.max.bytes":            maxMessageBytes,
		"queue.buffering.max.messages": 4 * int(c.PublishBytes/recordOverhead),
		"queue.buffering.max.kbytes":   4 * int(c.PublishBytes>>10),
		"batch.size":                   batchBytes,
		"go.delivery.report.fields":    "none",
		"go.events.channel.size":       reportsAhead,
		"go.produce.channel.size":      0,
	})
}

// maxMessageBytes is what the producer takes; below it the broker judges.
const maxMessageBytes = 10_000_000
