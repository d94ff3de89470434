package kafka

import (
	"strings"
	"time"
	"unicode/utf8"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// This file is the only place where a Kafka record becomes bytes of tailrace.v1. It writes by hand what proto.Marshal of a
// tailracev1.Record would (a test compares them), because it runs once for every record that enters the service.

// Tags of the fields, (number << 3) | wire type.
const (
	tagBatchRecords = 2<<3 | 2 // RecordBatch.records

	tagTopic     = 1<<3 | 2
	tagPartition = 2 << 3
	tagOffset    = 3 << 3
	tagTime      = 4<<3 | 2
	tagTimeType  = 5 << 3
	tagEpoch     = 6 << 3
	tagKey       = 7<<3 | 2
	tagValue     = 8<<3 | 2
	tagHeaders   = 9<<3 | 2

	tagSeconds = 1 << 3 // google.protobuf.Timestamp
	tagNanos   = 2 << 3

	tagHeaderName  = 1<<3 | 2
	tagHeaderValue = 2<<3 | 2
)

// What google.protobuf.Timestamp can hold: the years 1 to 9999. A record outside is told without a time, since a reader could not decode it
// as JSON (producers that write microseconds where Kafka has milliseconds do exist).
const (
	minSeconds = -62135596800
	maxSeconds = 253402300799
)

// encodeRecords turns messages of one partition, in offset order, into the Body and Meta of an entry: one exact allocation each, because
// the ring keeps them as they are.
func encodeRecords(msgs []*confluent.Message) ([]byte, []hub.Meta) {
	total := 0
	meta := make([]hub.Meta, len(msgs))
	for i, m := range msgs {
		n := recordSize(m)
		meta[i].End = int32(n) // for a moment
		total += 1 + lengthSize(n)
	}
	body := make([]byte, 0, total)
	for i, m := range msgs {
		body = appendPiece(body, m, int(meta[i].End), &meta[i])
	}
	return body, meta
}

// appendPiece appends the piece of one record, of that size, and fills in its meta.
func appendPiece(b []byte, m *confluent.Message, size int, meta *hub.Meta) []byte {
	b = append(b, tagBatchRecords)
	b = appendVarint(b, uint64(size))
	return appendRecord(b, m, meta)
}

// appendRecord appends the encoded Record, and fills in its meta.
func appendRecord(b []byte, m *confluent.Message, meta *hub.Meta) []byte {
	tp := &m.TopicPartition
	*meta = hub.Meta{Offset: int64(tp.Offset), Time: -1, Key: -1, Epoch: -1}
	if tp.Topic != nil && *tp.Topic != "" {
		b = append(b, tagTopic)
		b = appendString(b, *tp.Topic)
	}
	if tp.Partition != 0 {
		b = append(b, tagPartition)
		b = appendVarint(b, uint64(int64(tp.Partition)))
	}
	if tp.Offset != 0 {
		b = append(b, tagOffset)
		b = appendVarint(b, uint64(tp.Offset))
	}
	if seconds, nanos, ok := recordTime(m); ok {
		meta.Time = m.Timestamp.UnixMilli()
		b = append(b, tagTime)
		b = appendVarint(b, uint64(timeSize(seconds, nanos)))
		if seconds != 0 {
			b = append(b, tagSeconds)
			b = appendVarint(b, uint64(seconds))
		}
		if nanos != 0 {
			b = append(b, tagNanos)
			b = appendVarint(b, uint64(nanos))
		}
		b = append(b, tagTimeType, byte(timeType(m)))
	}
	if tp.LeaderEpoch != nil {
		meta.Epoch = *tp.LeaderEpoch
		b = append(b, tagEpoch)
		b = appendVarint(b, uint64(int64(*tp.LeaderEpoch)))
	}
	if m.Key != nil {
		b = append(b, tagKey)
		b = appendVarint(b, uint64(len(m.Key)))
		meta.Key, meta.KeyLen = int32(len(b)), int32(len(m.Key))
		b = append(b, m.Key...)
	}
	if m.Value != nil {
		b = append(b, tagValue)
		b = appendVarint(b, uint64(len(m.Value)))
		b = append(b, m.Value...)
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		name := headerName(h.Key)
		b = append(b, tagHeaders)
		b = appendVarint(b, uint64(headerSize(name, h.Value)))
		if name != "" {
			b = append(b, tagHeaderName)
			b = appendString(b, name)
		}
		if h.Value != nil {
			b = append(b, tagHeaderValue)
			b = appendVarint(b, uint64(len(h.Value)))
			b = append(b, h.Value...)
		}
	}
	meta.End = int32(len(b))
	return b
}

// recordSize is the length of the encoded Record, without its own tag and length.
func recordSize(m *confluent.Message) int {
	tp := &m.TopicPartition
	n := 0
	if tp.Topic != nil && *tp.Topic != "" {
		n += 1 + lengthSize(len(*tp.Topic))
	}
	if tp.Partition != 0 {
		n += 1 + varintSize(uint64(int64(tp.Partition)))
	}
	if tp.Offset != 0 {
		n += 1 + varintSize(uint64(tp.Offset))
	}
	if seconds, nanos, ok := recordTime(m); ok {
		n += 1 + lengthSize(timeSize(seconds, nanos)) + 2
	}
	if tp.LeaderEpoch != nil {
		n += 1 + varintSize(uint64(int64(*tp.LeaderEpoch)))
	}
	if m.Key != nil {
		n += 1 + lengthSize(len(m.Key))
	}
	if m.Value != nil {
		n += 1 + lengthSize(len(m.Value))
	}
	for i := range m.Headers {
		n += 1 + lengthSize(headerSize(headerName(m.Headers[i].Key), m.Headers[i].Value))
	}
	return n
}

func headerSize(name string, value []byte) int {
	n := 0
	if name != "" {
		n += 1 + lengthSize(len(name))
	}
	if value != nil {
		n += 1 + lengthSize(len(value))
	}
	return n
}

// headerName makes a name that protobuf can carry: Kafka promises UTF-8 but checks nothing, and one bad name must not end a stream.
func headerName(name string) string {
	if utf8.ValidString(name) {
		return name
	}
	return strings.ToValidUTF8(name, "\uFFFD")
}

// recordTime splits a record's time; ok is false where there is none that can be told.
func recordTime(m *confluent.Message) (seconds, nanos int64, ok bool) {
	if m.TimestampType == confluent.TimestampNotAvailable {
		return 0, 0, false
	}
	seconds = m.Timestamp.Unix()
	if seconds < minSeconds || seconds > maxSeconds {
		return 0, 0, false
	}
	return seconds, int64(m.Timestamp.Nanosecond()), true
}

func timeType(m *confluent.Message) tailracev1.TimestampType {
	if m.TimestampType == confluent.TimestampLogAppendTime {
		return tailracev1.TimestampType_TIMESTAMP_TYPE_APPEND
	}
	return tailracev1.TimestampType_TIMESTAMP_TYPE_CREATE
}

func timeSize(seconds, nanos int64) int {
	n := 0
	if seconds != 0 {
		n += 1 + varintSize(uint64(seconds))
	}
	if nanos != 0 {
		n += 1 + varintSize(uint64(nanos))
	}
	return n
}

func appendString(b []byte, s string) []byte {
	b = appendVarint(b, uint64(len(s)))
	return append(b, s...)
}

func appendVarint(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func lengthSize(n int) int { return varintSize(uint64(n)) + n }

func varintSize(v uint64) int {
	n := 1
	for ; v >= 0x80; v >>= 7 {
		n++
	}
	return n
}

// messageBytes estimates what a message holds in memory while it waits to be encoded.
func messageBytes(m *confluent.Message) int {
	n := len(m.Key) + len(m.Value) + recordOverhead
	for i := range m.Headers {
		n += len(m.Headers[i].Key) + len(m.Headers[i].Value) + headerOverhead
	}
	return n
}

// recordOverhead is charged for each record besides its bytes, in memory bounds of this package.
const recordOverhead = 384

// headerOverhead is the same for each header.
const headerOverhead = 64

// millis is the time of a record as Kafka keeps it.
func millis(t time.Time) time.Time { return time.UnixMilli(t.UnixMilli()) }
