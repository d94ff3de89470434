package kafka

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// properties of librdkafka 2.15 that text can set, by which a mistyped name is told what it may have meant. A name that is not among them is
// left to librdkafka.
const properties = `
	acks allow.auto.create.topics api.version.fallback.ms api.version.request api.version.request.timeout.ms auto.commit.enable
	auto.commit.interval.ms auto.offset.reset batch.num.messages batch.size bootstrap.servers broker.address.family
	broker.address.ttl broker.version.fallback check.crcs client.dns.lookup client.id client.rack compression.codec
	compression.level compression.type connections.max.idle.ms consume.callback.max.messages coordinator.query.interval.ms
	debug delivery.report.only.error delivery.timeout.ms enable.auto.commit enable.auto.offset.store enable.gapless.guarantee
	enable.idempotence enable.metrics.push enable.partition.eof enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
	enable.ssl.certificate.verification enabled_events fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes
	fetch.min.bytes fetch.queue.backoff.ms fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type
	group.remote.assignor heartbeat.interval.ms https.ca.location https.ca.pem internal.termination.signal isolation.level
	linger.ms log.connection.close log.thread.name log_level max.in.flight max.in.flight.requests.per.connection
	max.partition.fetch.bytes max.poll.interval.ms max.poll.records message.copy.max.bytes message.max.bytes
	message.send.max.retries message.timeout.ms metadata.broker.list metadata.max.age.ms
	metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy offset.store.method offset.store.path
	offset.store.sync.interval.ms partition.assignment.strategy partitioner plugin.library.paths produce.offset.report
	queue.buffering.backpressure.threshold queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms
	queued.max.messages.kbytes queued.min.messages queuing.strategy receive.message.max.bytes reconnect.backoff.jitter.ms
	reconnect.backoff.max.ms reconnect.backoff.ms request.required.acks request.timeout.ms retries retry.backoff.max.ms
	retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin sasl.kerberos.principal
	sasl.kerberos.service.name sasl.mechanism sasl.mechanisms sasl.oauthbearer.assertion.algorithm
	sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
	sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
	sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.jwt.template.file
	sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
	sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.client.credentials.client.id
	sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
	sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.grant.type
	sasl.oauthbearer.metadata.authentication.type sasl.oauthbearer.method sasl.oauthbearer.scope
	sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
	session.timeout.ms share.acknowledgement.mode socket.blocking.max.ms socket.connection.setup.timeout.ms
	socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes socket.send.buffer.bytes
	socket.timeout.ms ssl.ca.certificate.stores ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem
	ssl.cipher.suites ssl.crl.location ssl.curves.list ssl.endpoint.identification.algorithm ssl.engine.id ssl.engine.location
	ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location ssl.keystore.password ssl.providers ssl.sigalgs.list
	statistics.interval.ms sticky.partitioning.linger.ms topic.blacklist topic.metadata.propagation.max.ms
	topic.metadata.refresh.fast.cnt topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms
	topic.metadata.refresh.sparse transaction.timeout.ms transactional.id
`

// PropertyNames returns the librdkafka properties that -kafka.property takes.
func PropertyNames() []string {
	return slices.DeleteFunc(strings.Fields(properties), func(n string) bool { return ownProperties[n] != "" })
}

// CheckProperties reports every property that librdkafka does not know or refuses, with its message, and what it refuses of them together, such as
// a mechanism without its password. Those that Validate refuses are left out. It connects to nobody; with properties it takes up to half a second. near returns the candidate that a
// mistyped name may have meant, or nothing.
func (c Config) CheckProperties(near func(name string, candidates []string) string) []error {
	var errs []error
	own := false
	for _, k := range slices.Sorted(maps.Keys(c.Properties)) {
		if ownProperties[k] != "" || bindings(k) {
			own = true // Validate has said it
			continue
		}
		if why := c.refused(k); why != "" {
			hint := ""
			if n := near(k, PropertyNames()); n != "" && strings.HasPrefix(why, unknownProperty) {
				hint = ", did you mean " + n + "?"
			}
			errs = append(errs, fmt.Errorf("-kafka.property %s=%s: librdkafka says: %s%s", k, Mask(k, c.Properties[k]), why, hint))
		}
	}
	if own || len(errs) > 0 || len(c.Properties) == 0 {
		return errs
	}
	for _, settings := range []*confluent.ConfigMap{c.follower(nil), c.reader(nil), c.producer(nil)} {
		if why := c.probe(*settings, "", ""); why != "" && !slices.ContainsFunc(errs, func(e error) bool { return strings.Contains(e.Error(), why) }) {
			errs = append(errs, fmt.Errorf("-kafka.property %s: librdkafka says: %s", strings.Join(c.Masked(), " "), why))
		}
	}
	return errs
}

const unknownProperty = "No such configuration property"

// refused is what librdkafka says when one property is set.
func (c Config) refused(k string) string {
	// A combination that is refused only once all was set, so that no client is made.
	why := c.probe(confluent.ConfigMap{"enable.gapless.guarantee": true, "enable.idempotence": false}, k, c.Properties[k])
	for _, p := range []string{unknownProperty, "Invalid value", "Configuration property", "Property ", "Failed to parse", "dlopen"} {
		if strings.HasPrefix(why, p) {
			return why
		}
	}
	return ""
}

// probe makes a client that knows no broker, and returns what librdkafka has against it, without secrets.
func (c Config) probe(m confluent.ConfigMap, k, v string) string {
	m = maps.Clone(m)
	for name := range m {
		if strings.HasPrefix(name, "go.") {
			delete(m, name)
		}
	}
	delete(m, "bootstrap.servers")
	delete(m, "debug") // it would log
	m["log_level"] = 0
	if k != "" {
		m[k] = v
	}
	var err error
	if m["group.id"] != nil {
		var client *confluent.Consumer
		if client, err = confluent.NewConsumer(&m); err == nil {
			err = client.Close()
		}
	} else {
		var client *confluent.Producer
		if client, err = confluent.NewProducer(&m); err == nil {
			client.Close()
		}
	}
	if err == nil {
		return ""
	}
	text := strings.TrimSpace(err.Error())
	if e, ok := errors.AsType[confluent.Error](err); ok {
		text = strings.TrimSpace(e.Error())
	}
	for name, value := range c.Properties {
		if value != "" && Mask(name, value) != value {
			text = strings.ReplaceAll(text, value, "***")
		}
	}
	return text
}
