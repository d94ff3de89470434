package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/protobuf/encoding/protowire"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// consumeStart asks to be a worker of a group.
func consumeStart(group, topic string, inFlight int) *tailracev1.ConsumeRequest {
	return &tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: &tailracev1.ConsumeStart{
		Group: group, Topics: []string{topic}, MaxInFlight: int32(inFlight),
	}}}
}

func ackOf(tags []int64, upTo int64) *tailracev1.ConsumeRequest {
	return &tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: tags, UpTo: upTo}}}
}

// queueWay is how the one worker of BenchmarkConsume works.
type queueWay struct {
	keyed    bool // records have one of 10,000 keys
	inFlight int
	tags     bool // each tag is acknowledged by its own name, else all up to the last
}

func (w queueWay) String() string {
	keys, acks := "no keys", "up to"
	if w.keyed {
		keys = "10 k keys"
	}
	if w.tags {
		acks = "by tags"
	}
	return fmt.Sprintf("%s, %s in flight, acks %s", keys, count(w.inFlight), acks)
}

// BenchmarkConsume reads a topic from the start as a queue, by one worker that acknowledges every record, beside a bare group consumer that commits.
func BenchmarkConsume(b *testing.B) {
	const partitions = 8
	rounds := size(3, 5)
	records := size(400_000, 1_000_000)
	kafka := broker(b)
	j := newJudge(b, kafka)
	topics := map[bool]string{}
	for _, keyed := range []bool{false, true} {
		topics[keyed] = j.topic(partitions)
		fillKeyed(j, topics[keyed], partitions, records, keyed)
	}
	ways := []queueWay{{false, 1000, false}, {false, 10_000, true}, {true, 1000, true}, {true, 10_000, false}}
	p := startPair(b, pairOptions{kafka: kafka, plain: true, withoutEdge: true})
	for b.Loop() {
		bare, ours := map[bool]*reading{false: {}, true: {}}, make([]reading, len(ways))
		for round := range rounds {
			for keyed, topic := range topics {
				ref := readAsMember(b, kafka, topic, fmt.Sprintf("%s-bare-%d", topic, round), records)
				bare[keyed].seconds, bare[keyed].bare = append(bare[keyed].seconds, ref.Seconds), append(bare[keyed].bare, ref.cpu())
			}
			for i, way := range ways {
				topic := topics[way.keyed]
				group := fmt.Sprintf("%s-%d-%d", topic, i, round)
				p.profiled(b, strconv.Itoa(i), func() {
					before := p.service.cpu()
					took := consumeAll(b, p, group, topic, records, way)
					ours[i].add(took, burnt{service: p.service.cpu() - before})
				})
				j.awaitCommitted(group, topic)
			}
		}
		for i, way := range ways {
			o, ref := &ours[i], bare[way.keyed]
			cpu, refCPU := median(o.service), median(ref.bare)
			perSecond := func(d time.Duration) string { return kilo(float64(records) / d.Seconds()) }
			ratio := float64(refCPU) / float64(cpu)
			table.add(figure{
				name: fmt.Sprintf("one worker, %s, %s records with acks, per CPU second of the process (beside: a bare group consumer)", way, count(records)),
				ours: perSecond(cpu), reference: perSecond(refCPU), ratio: ratio, target: ">= 0.5", met: ratio >= 0.5,
				cpu: per(int64(records), "record", cost{"service", cpu}, cost{"bare", refCPU}),
			})
			table.add(figure{
				name: "… per second", ours: kilo(float64(records) / median(o.seconds)), reference: kilo(float64(records) / median(ref.seconds)), ratio: median(ref.seconds) / median(o.seconds),
			})
		}
	}
}

// fillKeyed writes records in runs of 100 to a partition, with one of 10,000 keys each where they have any.
func fillKeyed(j *judge, topic string, partitions, records int, keyed bool) {
	j.t.Helper()
	for n := 0; n < records; n += 10_000 {
		batch := make([]*kgo.Record, min(10_000, records-n))
		for i := range batch {
			batch[i] = &kgo.Record{Topic: topic, Partition: int32((n + i) / 100 % partitions), Value: jsonValue(n + i)}
			if keyed {
				batch[i].Key = []byte("key-" + strconv.Itoa(i))
			}
		}
		j.write(batch...)
	}
}

// readAsMember reads a topic from its start by a bare group consumer.
func readAsMember(b *testing.B, kafka, topic, group string, records int) (result pollResult) {
	b.Helper()
	r := startReference(b, "-brokers", kafka, "-topic", topic, "-group", group, "-records", strconv.Itoa(records))
	defer r.end()
	r.tells(&result)
	if result.Records < records {
		b.Fatalf("pollbench has read %d records of %d", result.Records, records)
	}
	return result
}

// rawConsume is a Consume stream whose answers are left as bytes, uncompressed: its reader's cost is not to be measured.
func rawConsume(ctx context.Context, b *testing.B, p *pair) *connect.BidiStreamForClient[tailracev1.ConsumeRequest, []byte] {
	b.Helper()
	client := connect.NewClient[tailracev1.ConsumeRequest, []byte](h2c(b), "http://"+p.rpc+tailracev1connect.StreamServiceConsumeProcedure,
		connect.WithGRPC(), connect.WithCodec(rawCodec{}), connect.WithAcceptCompression("gzip", nil, nil))
	return client.CallBidiStream(ctx)
}

// consumeAll is a worker that acknowledges what it gets, until that is the topic. It returns when the service has taken the last ack.
func consumeAll(b *testing.B, p *pair, group, topic string, records int, way queueWay) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	s := rawConsume(ctx, b, p)
	if err := s.Send(consumeStart(group, topic, way.inFlight)); err != nil {
		b.Fatal(err)
	}
	var tags []int64
	for got := 0; got < records; {
		m, err := s.Receive()
		if err != nil {
			b.Fatalf("after %d records: %v", got, err)
		}
		if tags = appendTags(b, tags[:0], *m); len(tags) == 0 {
			continue
		}
		got += len(tags)
		request := ackOf(nil, tags[len(tags)-1])
		if way.tags {
			request = ackOf(tags, 0)
		}
		if err := s.Send(request); err != nil {
			b.Fatalf("acknowledging after %d records: %v", got, err)
		}
	}
	if err := s.CloseRequest(); err != nil {
		b.Fatal(err)
	}
	if _, err := s.Receive(); !errors.Is(err, io.EOF) {
		b.Fatalf("the end of the stream is %v", err)
	}
	return time.Since(began)
}

// appendTags appends the tags of an encoded ConsumeResponse: field deliveries (2) of delivery (1).
func appendTags(b *testing.B, tags []int64, message []byte) []int64 {
	b.Helper()
	each(b, message, 2, func(deliveries []byte) {
		each(b, deliveries, 1, func(delivery []byte) { tags = append(tags, tagOf(b, delivery)) })
	})
	return tags
}

// tagOf is the tag (2) of an encoded Delivery, which comes behind the record.
func tagOf(b *testing.B, delivery []byte) int64 {
	b.Helper()
	_, _, n := protowire.ConsumeField(delivery) // the record
	number, _, k := protowire.ConsumeTag(delivery[max(n, 0):])
	tag, l := protowire.ConsumeVarint(delivery[max(n, 0)+max(k, 0):])
	if n < 0 || k < 0 || l < 0 || number != 2 {
		b.Fatalf("a delivery that is not a record and its tag: %x", delivery)
	}
	return int64(tag)
}

// awaitCommitted waits until a group has committed the ends of a topic.
func (j *judge) awaitCommitted(group, topic string) {
	j.t.Helper()
	ends := j.ends(topic)
	await(j.t, time.Minute, "commits of group "+group+" at the ends of "+topic, func() bool {
		committed, err := j.admin.FetchOffsets(j.t.Context(), group)
		if err != nil {
			return false
		}
		for p, end := range ends {
			if at, ok := committed.Lookup(topic, p); end > 0 && (!ok || at.At != end) {
				return false
			}
		}
		return true
	})
}
