package kafka_test

import (
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
		{func(c *kafka.Config) { c.Properties["go.batch.producer"] = "true" }, []string{"go.batch.producer=true"}},
		{func(c *kafka.Config) { c.Isolation = "both" }, []string{"-kafka.isolation", `"both"`, "read_committed"}},
		{func(c *kafka.Config) { c.Consumers = 0 }, []string{"-kafka.consumers 0", "1 to 16"}},
		{func(c *kafka.Config) { c.HistoryReaders = 65 }, []string{"-kafka.history-readers 65", "1 to 64"}},
		{func(c *kafka.Config) { c.Linger = time.Minute }, []string{"Config.Linger"}},
		{func(c *kafka.Config) { c.PublishBytes = 1 }, []string{"Config.PublishBytes 1"}},
		{func(c *kafka.Config) { c.DeletedAfter = 0 }, []string{"Config.DeletedAfter"}},
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
	cfg.Properties = map[string]string{"sasl.password": "s3cret", "sasl.username": "me", "ssl.key.pem": "s3cret", "sasl.oauthbearer.client.secret": "s3cret"}
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
