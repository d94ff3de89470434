package kafka

import (
	"strconv"
	"strings"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/prometheus/client_golang/prometheus"
)

// meter counts what the brokers have sent to a consumer, and to those that take its place. It belongs to the goroutine of the consumer.
type meter struct {
	total prometheus.Counter
	of    *confluent.Consumer
	seen  int64 // of of's, counted already
}

// received stands before the number of bytes that came from all brokers, near the end of librdkafka's statistics (its STATISTICS.md). Names of topics have no quotes.
const received = `"rx_bytes":`

// take takes a report of a consumer's statistics. It looks from the end of the text, which may have half a megabyte, and decodes nothing else.
// What a consumer got after its last report, in Config.StatsInterval, is not counted.
func (m *meter) take(c *confluent.Consumer, e *confluent.Stats) {
	if m.of != c {
		m.of, m.seen = c, 0
	}
	if n := bytesReceived(e.String()); n > m.seen {
		m.total.Add(float64(n - m.seen))
		m.seen = n
	}
}

// bytesReceived returns 0 for a report that does not say.
func bytesReceived(report string) (n int64) {
	at := strings.LastIndex(report, received)
	if at < 0 {
		return 0
	}
	digits := strings.TrimLeft(report[at+len(received):], " ")
	end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return 0
	}
	n, _ = strconv.ParseInt(digits[:end], 10, 64) // none: 0
	return n
}
