package kafka_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka"
)

// slow is what proto.Marshal makes of a message: the model of encodeRecords.
func slow(m *confluent.Message) *tailracev1.Record {
	r := &tailracev1.Record{
		Topic: *m.TopicPartition.Topic, Partition: m.TopicPartition.Partition, Offset: int64(m.TopicPartition.Offset),
		LeaderEpoch: m.TopicPartition.LeaderEpoch, Key: m.Key, Value: m.Value,
	}
	switch m.TimestampType {
	case confluent.TimestampCreateTime:
		r.TimeType = tailracev1.TimestampType_TIMESTAMP_TYPE_CREATE
	case confluent.TimestampLogAppendTime:
		r.TimeType = tailracev1.TimestampType_TIMESTAMP_TYPE_APPEND
	}
	if r.TimeType != 0 {
		r.Time = timestamppb.New(m.Timestamp)
	}
	for _, h := range m.Headers {
		r.Headers = append(r.Headers, &tailracev1.Header{Name: h.Key, Value: h.Value})
	}
	return r
}

func randomMessage(r *rand.Rand, topic string) *confluent.Message {
	pick := func(n int) []byte {
		switch r.IntN(4) {
		case 0:
			return nil
		case 1:
			return []byte{}
		}
		b := make([]byte, r.IntN(n))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	m := &confluent.Message{
		TopicPartition: confluent.TopicPartition{Topic: &topic, Partition: int32(r.IntN(300)), Offset: confluent.Offset(r.Int64N(1 << uint(1+r.IntN(60))))},
		Key:            pick(200), Value: pick(20_000),
		TimestampType: confluent.TimestampType(r.IntN(3)),
	}
	if m.TimestampType != confluent.TimestampNotAvailable {
		m.Timestamp = time.UnixMilli(r.Int64N(1<<42) - 1<<40)
	}
	if r.IntN(2) == 0 {
		epoch := int32(r.IntN(1000))
		m.TopicPartition.LeaderEpoch = &epoch
	}
	for range r.IntN(4) {
		m.Headers = append(m.Headers, confluent.Header{Key: fmt.Sprint("name", r.IntN(2))[:r.IntN(6)], Value: pick(300)})
	}
	return m
}

func TestRecordsAreEncodedAsProtoDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		msgs := []*confluent.Message{randomMessage(r, "t"), randomMessage(r, "orders.v1")}
		body, meta := kafka.EncodeRecords(msgs)
		var want []byte
		for i, m := range msgs {
			b, err := proto.Marshal(slow(m))
			if err != nil {
				t.Fatal(err)
			}
			want = protowire.AppendTag(want, 2, protowire.BytesType)
			want = protowire.AppendBytes(want, b)
			if got := meta[i].End; int(got) != len(want) {
				t.Fatalf("record %d ends at %d, want %d", i, got, len(want))
			}
			if k := meta[i]; (m.Key == nil) != (k.Key < 0) || m.Key != nil && !bytes.Equal(body[k.Key:k.Key+k.KeyLen], m.Key) {
				t.Fatalf("record %d: key of meta differs from %q", i, m.Key)
			}
		}
		if !bytes.Equal(body, want) {
			t.Fatalf("got  %x\nwant %x\nof %v", body, want, slow(msgs[0]))
		}
		if cap(body) != len(body) {
			t.Fatalf("body has room for %d more bytes", cap(body)-len(body))
		}
	}
}

func TestWhatProtobufCannotCarryIsToldOtherwise(t *testing.T) {
	topic := "t"
	m := &confluent.Message{
		TopicPartition: confluent.TopicPartition{Topic: &topic},
		TimestampType:  confluent.TimestampCreateTime,
		Timestamp:      time.UnixMilli(1_764_518_400_000_000), // microseconds by mistake: the year 57885
		Headers:        []confluent.Header{{Key: "bad\xff", Value: []byte("v")}},
	}
	body, meta := kafka.EncodeRecords([]*confluent.Message{m})
	var b tailracev1.RecordBatch
	if err := proto.Unmarshal(body, &b); err != nil {
		t.Fatal(err)
	}
	if got, want := b.Records[0].Headers[0].Name, "bad\uFFFD"; got != want {
		t.Errorf("header name: got %q, want %q", got, want)
	}
	if b.Records[0].Time != nil || meta[0].Time != -1 {
		t.Errorf("got time %v, %d; want none", b.Records[0].Time, meta[0].Time)
	}
}

func benchmarkMessages(n, size int) []*confluent.Message {
	topic, epoch := "orders", int32(3)
	msgs := make([]*confluent.Message, n)
	for i := range msgs {
		msgs[i] = &confluent.Message{
			TopicPartition: confluent.TopicPartition{Topic: &topic, Partition: 3, Offset: confluent.Offset(1_000_000 + i), LeaderEpoch: &epoch},
			Key:            []byte("customer-4711"), Value: make([]byte, size),
			TimestampType: confluent.TimestampCreateTime, Timestamp: time.Now(),
		}
	}
	return msgs
}

// BenchmarkEncodeRecord is the cost of a record's way into ready bytes, beside that of proto.Marshal.
func BenchmarkEncodeRecord(b *testing.B) {
	for _, size := range []int{128, 1024} {
		msgs := benchmarkMessages(256, size)
		b.Run(fmt.Sprintf("ours/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; n < b.N; n += len(msgs) {
				kafka.EncodeRecords(msgs)
			}
		})
		b.Run(fmt.Sprintf("proto/%d", size), func(b *testing.B) {
			b.ReportAllocs()
			for n := 0; n < b.N; n++ {
				if _, err := proto.Marshal(slow(msgs[n%len(msgs)])); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
