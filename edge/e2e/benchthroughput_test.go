package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// reading is what rounds of reading a topic from the start took.
type reading struct {
	seconds       []float64
	service, edge []time.Duration
	bare          []time.Duration // of the reference
}

func (r *reading) add(took time.Duration, used burnt) {
	r.seconds = append(r.seconds, took.Seconds())
	r.service, r.edge = append(r.service, used.service), append(r.edge, used.edge)
}

// BenchmarkThroughput reads a topic from the start: by the bare poll loop, by one gRPC stream, by one socket in either form.
func BenchmarkThroughput(b *testing.B) {
	const partitions, rounds = 8, 5
	records := size(400_000, 1_000_000)
	kafka := broker(b)
	j := newJudge(b, kafka)
	topic := j.topic(partitions)
	fill(j, topic, partitions, records, jsonValue)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		var bare, rpc, text, binary reading
		take := func(to *reading, name string, read func() time.Duration) {
			p.again() // or it would read what it has in memory
			p.profiled(b, name, func() {
				before := p.burnt()
				took := read()
				to.add(took, p.burnt().since(before))
			})
		}
		for range rounds {
			ref := readBare(b, kafka, topic, records)
			bare.seconds, bare.bare = append(bare.seconds, ref.Seconds), append(bare.bare, ref.cpu())
			take(&rpc, "rpc", func() time.Duration { return readByGRPC(b, p, topic, records) })
			take(&text, "json", func() time.Duration { return readBySocket(b, p, topic, records, false) })
			take(&binary, "binary", func() time.Duration { return readBySocket(b, p, topic, records, true) })
		}
		rate := func(r *reading) string { return kilo(float64(records) / median(r.seconds)) }
		share := func(r *reading) float64 { return median(bare.seconds) / median(r.seconds) }
		of := func(what string) string {
			return fmt.Sprintf("%s, %s records from the start, %d rounds", what, count(records), rounds)
		}
		n := int64(records)
		reference := cost{"bare", median(bare.bare)}
		table.add(figure{
			name: of("one gRPC subscriber"), ours: rate(&rpc), reference: rate(&bare), ratio: share(&rpc), target: ">= 0.8", met: share(&rpc) >= 0.8,
			cpu: per(n, "record", cost{"service", median(rpc.service)}, reference),
		})
		ratio := float64(median(rpc.service)) / float64(reference.cpu)
		table.add(figure{
			name: "… CPU of the service", ours: per(n, "record", cost{"service", median(rpc.service)}), reference: per(n, "record", reference),
			ratio: ratio, target: "<= 2", met: ratio <= 2,
		})
		table.add(figure{
			name: of("one WebSocket subscriber, JSON"), ours: rate(&text), reference: rate(&bare), ratio: share(&text), target: ">= 0.6", met: share(&text) >= 0.6,
			cpu: per(n, "record", cost{"service", median(text.service)}, cost{"edge", median(text.edge)}, reference),
		})
		table.add(figure{
			name: of("one WebSocket subscriber, binary"), ours: rate(&binary), reference: rate(&bare), ratio: share(&binary),
			cpu: per(n, "record", cost{"service", median(binary.service)}, cost{"edge", median(binary.edge)}, reference),
		})
	}
}

// rawCodec leaves messages as bytes, so that the reader's cost is not measured with the service's.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return proto.Marshal(m)
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	into, ok := v.(*[]byte)
	if !ok {
		return errors.ErrUnsupported
	}
	*into = append((*into)[:0], data...)
	return nil
}

var _ connect.Codec = rawCodec{}

func readByGRPC(b *testing.B, p *pair, topic string, records int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	// Uncompressed, as the reference reads its topic. (A client of grpc-go would ask for gzip, which is linked into this process.)
	client := connect.NewClient[tailracev1.SubscribeRequest, []byte](h2c(b), "http://"+p.rpc+tailracev1connect.StreamServiceSubscribeProcedure,
		connect.WithGRPC(), connect.WithCodec(rawCodec{}), connect.WithAcceptCompression("gzip", nil, nil))
	began := time.Now()
	s, err := client.CallServerStream(ctx, connect.NewRequest(&tailracev1.SubscribeRequest{Topic: topic, Start: earliest()}))
	if err != nil {
		b.Fatal(err)
	}
	got := 0
	for got < records && s.Receive() {
		got += countRecords(b, *s.Msg())
	}
	if got < records {
		b.Fatalf("after %d records: %v", got, s.Err())
	}
	return time.Since(began)
}

// countRecords counts the records of an encoded SubscribeResponse: field records (2) of batches (1) of records (2).
func countRecords(b *testing.B, message []byte) (n int) {
	b.Helper()
	each(b, message, 2, func(records []byte) {
		each(b, records, 1, func(batch []byte) {
			each(b, batch, 2, func([]byte) { n++ })
		})
	})
	return n
}

func each(b *testing.B, message []byte, field protowire.Number, do func([]byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			b.Fatal(protowire.ParseError(n))
		}
		message = message[n:]
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			do(value)
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			b.Fatal(protowire.ParseError(n))
		}
		message = message[n:]
	}
}

// readBySocket counts records by the name of a field that each has, in the binary form by one that each value has.
func readBySocket(b *testing.B, p *pair, topic string, records int, binary bool) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	o, mark := dialOptions{}, []byte(`"offset":`)
	if binary {
		o.protocols, mark = []string{"tailrace.v1.proto"}, []byte(`"pad":"`)
	}
	began := time.Now()
	s, err := dialSocket(ctx, p.ws, "/ws/"+topic+"?start=earliest", o)
	if err != nil {
		b.Fatal(err)
	}
	defer s.abort(true)
	s.br = bufio.NewReaderSize(s.br, 64<<10)
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	defer stop()
	for got := 0; got < records; {
		_, message, err := s.next()
		if err != nil {
			b.Fatalf("after %d records: %v", got, err)
		}
		got += bytes.Count(message, mark)
	}
	return time.Since(began)
}
