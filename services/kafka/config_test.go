package kafka_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"tailrace.dev/tailrace/services/kafka"
)

func TestConfigErrorsNameFlagAndValue(t *testing.T) {
	for _, test := range []struct {
		change func(*kafka.Config)
		want   []string
	}{
		{func(*kafka.Config) {}, nil},
		{func(c *kafka.Config) { c.Properties["security.protocol"] = "ssl" }, nil},
		{func(c *kafka.Config) { c.Bootstrap = " " }, []string{"-kafka"}},
		{func(c *kafka.Config) { c.Properties["acks"] = "1" }, []string{"-kafka.property", "acks=1", "in-sync"}},
		{func(c *kafka.Config) { c.Properties["isolation.level"] = "x" }, []string{"isolation.level=x", "-kafka.isolation"}},
		{func(c *kafka.Config) { c.Properties["go.batch.producer"] = "true" }, []string{"go.batch.producer=***", "binding"}},
		{func(c *kafka.Config) { c.Isolation = "both" }, []string{"-kafka.isolation", `"both"`, "read_committed"}},
		{func(c *kafka.Config) { c.Consumers = 0 }, []string{"-kafka.consumers 0", "1 to 16"}},
		{func(c *kafka.Config) { c.HistoryReaders = 65 }, []string{"-kafka.history-readers 65", "1 to 64"}},
		{func(c *kafka.Config) { c.Linger = time.Minute }, []string{"Config.Linger"}},
		{func(c *kafka.Config) { c.PublishBytes = 1 }, []string{"Config.PublishBytes 1"}},
		{func(c *kafka.Config) { c.DeletedAfter = 0 }, []string{"Config.DeletedAfter"}},
		{func(c *kafka.Config) { c.GroupProtocol, c.Consumers, c.Isolation = "eager", 0, "both" }, []string{`-kafka.group-protocol "eager"`, "-kafka.consumers 0", `-kafka.isolation "both"`}},
	} {
		cfg := kafka.DefaultConfig()
		cfg.Bootstrap = "127.0.0.1:9092"
		test.change(&cfg)
		err := cfg.Validate()
		if (err == nil) != (test.want == nil) {
			t.Errorf("%v: got %v", test.want, err)
			continue
		}
		for _, w := range test.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("got %q, want it to name %q", err, w)
			}
		}
	}
}

func TestOwnPropertiesHaveReasons(t *testing.T) {
	for k, why := range kafka.OwnProperties {
		cfg := kafka.DefaultConfig()
		cfg.Bootstrap = "127.0.0.1:9092"
		cfg.Properties[k] = "v"
		if err := cfg.Validate(); err == nil || why == "" || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: got %v, reason %q", k, err, why)
		}
	}
}

func TestSecretsAreMasked(t *testing.T) {
	cfg := kafka.DefaultConfig()
	cfg.Properties = map[string]string{"sasl.password": "s3cret", "sasl.username": "me", "ssl.key.pem": "s3cret", "sasl.oauthbearer.client.secret": "s3cret", "sasl.oauthbearer.extensions": "a=s3cret", "sasl.kerberos.kinit.cmd": "kinit s3cret"}
	got := strings.Join(cfg.Masked(), " ")
	if strings.Contains(got, "s3cret") || !strings.Contains(got, "sasl.username=me") {
		t.Errorf("got %s", got)
	}
}

func TestAWrongPropertyEndsRun(t *testing.T) {
	cfg := kafka.DefaultConfig()
	cfg.Bootstrap = "127.0.0.1:9092"
	for name, props := range map[string]map[string]string{
		"unknown": {"no.such.property": "1"},
		"illegal": {"socket.keepalive.enable": "perhaps"},
	} {
		cfg.Properties = props
		c, err := kafka.New(cfg, discard, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Run(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
	}
}

// Whatever librdkafka can be set to is either refused with a reason or known by name; what it does not know, or does not like, is told in its words.
func TestPropertiesAreCheckedByTheLibrary(t *testing.T) {
	near := func(name string, candidates []string) string {
		if i := slices.Index(candidates, "sasl.password"); i >= 0 && name == "sasl.pasword" {
			return candidates[i]
		}
		return ""
	}
	for _, test := range []struct {
		properties map[string]string
		want       []string // in the one problem; nil: none
	}{
		{map[string]string{}, nil},
		{map[string]string{"client.rack": "r", "debug": "broker", "socket.timeout.ms": "10", "compression.type": "lz4", "fetch.max.bytes": "20000000"}, nil},
		{map[string]string{"acks": "0"}, nil}, // Validate says it
		{map[string]string{"sasl.pasword": "hunter2"}, []string{"sasl.pasword=***", `No such configuration property: "sasl.pasword"`, "did you mean sasl.password?"}},
		{map[string]string{"socket.timeout.ms": "9"}, []string{"socket.timeout.ms=9", "outside allowed range 10..300000"}},
		{map[string]string{"socket.timeout.ms": "x"}, []string{"socket.timeout.ms=x", "Invalid value"}},
		{map[string]string{"security.protocol": "tls"}, []string{"security.protocol=tls", `Invalid value "tls"`}},
		{map[string]string{"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.password": "hunter2"}, []string{"sasl.username and sasl.password must be set", "sasl.password=***"}},
		{map[string]string{"security.protocol": "sasl_ssl", "sasl.mechanism": "GSSAPI"}, []string{"librdkafka says"}},
		{map[string]string{"security.protocol": "ssl", "ssl.key.pem": "hunter2"}, []string{"ssl.key.pem=***", "ssl.key.pem failed"}},
		{map[string]string{"retries": "0"}, []string{"retries=0", "idempotence"}},
	} {
		cfg := kafka.DefaultConfig()
		cfg.Bootstrap = "127.0.0.1:9092"
		cfg.Properties = test.properties
		got := cfg.CheckProperties(near)
		if (len(got) == 0) != (test.want == nil) || len(got) > 1 {
			t.Errorf("%v: got %v, want %q", test.properties, got, test.want)
			continue
		}
		for _, word := range test.want {
			if !strings.Contains(got[0].Error(), word) {
				t.Errorf("%v: got %v, want %q in it", test.properties, got[0], word)
			}
		}
		if len(got) > 0 && strings.Contains(got[0].Error(), "hunter2") {
			t.Errorf("a secret is in %v", got[0])
		}
	}
}

// What a client of ours is made with cannot be set by a property.
func TestWhatClientsAreMadeWithIsRefused(t *testing.T) {
	for _, k := range kafka.OwnSettings() {
		if kafka.OwnProperties[k] == "" {
			t.Errorf("%s could be set by -kafka.property, and would be ignored", k)
		}
	}
	for _, name := range kafka.PropertyNames() {
		cfg := kafka.DefaultConfig()
		cfg.Properties = map[string]string{name: "x"}
		if why := cfg.Refused(name); strings.Contains(why, "No such configuration property") {
			t.Error(why)
		}
	}
}

// TestMembersFetchAheadTogether: what the members of a process fetch ahead is about the same in all, however many they are, and never nothing.
// TestAnyNumberOfMembersOpens: librdkafka refuses settings that do not go together.
func TestAnyNumberOfMembersOpens(t *testing.T) {
	for _, members := range []int{1, 2, 16, 17, 100, 300, 10_000} {
		if err := kafka.OpenMember(members); err != nil {
			t.Errorf("of %d members: %v", members, err)
		}
	}
}

func TestMembersFetchAheadTogether(t *testing.T) {
	for _, key := range []string{"queued.min.messages", "queued.max.messages.kbytes", "max.partition.fetch.bytes", "fetch.max.bytes"} {
		one, most := kafka.MemberSetting(key, 1), 0
		for members := range 1000 {
			n := kafka.MemberSetting(key, members+1)
			if n <= 0 || n > one {
				t.Fatalf("%s of %d members: %d, want from 1 to %d", key, members+1, n, one)
			}
			if members < 100 {
				most = max(most, n*(members+1))
			}
		}
		if most > 12*one {
			t.Errorf("%s of up to 100 members is %d in all, that of one is %d", key, most, one)
		}
	}
}
