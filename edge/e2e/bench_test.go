package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// The benchmarks measure plain builds, each beside its reference in the same run, and add a row to the table that TestMain prints. Run
// them with -bench . -benchtime 1x: one iteration is one whole measurement.

const valueBytes = 128

// pollResult is what pollbench prints.
type pollResult struct {
	Records    int     `json:"records"`
	Bytes      int     `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99"`
}

func pollbench(b *testing.B, kafka, topic string, records int, more ...string) *exec.Cmd {
	b.Helper()
	args := append([]string{"-brokers", kafka, "-topic", topic, "-records", strconv.Itoa(records)}, more...)
	cmd := exec.Command(filepath.Join(binaries(b, false), "pollbench"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func runPollbench(b *testing.B, kafka, topic string, records int) (result pollResult) {
	b.Helper()
	var out bytes.Buffer
	cmd := pollbench(b, kafka, topic, records)
	cmd.Stdout = &out
	if err := onForkThread(cmd.Start); err != nil {
		b.Fatal(err)
	}
	err := cmd.Wait()
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &result)
	}
	if err != nil || result.Records < records {
		b.Fatalf("pollbench: %v, %q", err, &out)
	}
	return result
}

// BenchmarkOneSubscriber reads a million records from the start: by the bare poll loop, by one gRPC stream, by one socket.
func BenchmarkOneSubscriber(b *testing.B) {
	const partitions, records, rounds = 8, 1_000_000, 3
	kafka := broker(b)
	j := newJudge(b, kafka)
	topic := j.topic(partitions)
	fill(j, topic, partitions, records)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		var bare, rpc, ws []float64 // seconds
		var bareCPU, rpcCPU, wsCPU, edgeCPU []float64
		for range rounds {
			ref := runPollbench(b, kafka, topic, records)
			bare, bareCPU = append(bare, ref.Seconds), append(bareCPU, ref.CPUSeconds)

			p.again() // or it would read what it has in memory
			service := p.service.cpu()
			rpc = append(rpc, readByGRPC(b, p, topic, records).Seconds())
			rpcCPU = append(rpcCPU, (p.service.cpu() - service).Seconds())

			p.again()
			service, edge := p.service.cpu(), p.edge.cpu()
			ws = append(ws, readBySocket(b, p, topic, records).Seconds())
			wsCPU = append(wsCPU, (p.service.cpu() - service).Seconds())
			edgeCPU = append(edgeCPU, (p.edge.cpu() - edge).Seconds())
		}
		rate := func(seconds []float64) string { return fmt.Sprintf("%.0f k/s", records/median(seconds)/1000) }
		per := func(cpu []float64) string { return fmt.Sprintf("%.2f µs", median(cpu)/records*1e6) }
		ratio := median(bare) / median(rpc)
		table.row(b, "one gRPC subscriber, 1 M records, rate", rate(rpc), rate(bare), ratio, ">= 0.8", ratio >= 0.8)
		ratio = median(rpcCPU) / median(bareCPU)
		table.row(b, "one gRPC subscriber, service CPU per record", per(rpcCPU), per(bareCPU), ratio, "<= 2", ratio <= 2)
		ratio = median(bare) / median(ws)
		table.row(b, "one WebSocket subscriber, 1 M records, rate", rate(ws), rate(bare), ratio, ">= 0.6", ratio >= 0.6)
		ratio = median(wsCPU) / median(bareCPU)
		table.row(b, "one WebSocket subscriber, service CPU per record", per(wsCPU), per(bareCPU), ratio, "-", true)
		ratio = median(edgeCPU) / median(bareCPU)
		table.row(b, "one WebSocket subscriber, edge CPU per record", per(edgeCPU), per(bareCPU), ratio, "-", true)
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// fill writes records of 128 bytes of JSON.
func fill(j *judge, topic string, partitions, records int) {
	j.t.Helper()
	for n := 0; n < records; n += 10_000 {
		batch := make([]*kgo.Record, 10_000)
		for i := range batch {
			batch[i] = &kgo.Record{Topic: topic, Partition: int32((n + i) / 100 % partitions), Value: jsonValue(n + i)}
		}
		j.write(batch...)
	}
}

func jsonValue(n int) []byte {
	value := fmt.Appendf(nil, `{"n":%d,"pad":"`, n)
	for len(value) < valueBytes-2 {
		value = append(value, 'x')
	}
	return append(value, `"}`...)
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

var _ encoding.Codec = rawCodec{}

func readByGRPC(b *testing.B, p *pair, topic string, records int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	s, err := grpcConn(b, p.rpc).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, tailracev1connect.StreamServiceSubscribeProcedure, grpc.ForceCodec(rawCodec{}))
	if err == nil {
		err = errors.Join(s.SendMsg(&tailracev1.SubscribeRequest{Topic: topic, Start: earliest()}), s.CloseSend())
	}
	if err != nil {
		b.Fatal(err)
	}
	var message []byte
	for got := 0; got < records; got += countRecords(b, message) {
		if err := s.RecvMsg(&message); err != nil {
			b.Fatalf("after %d records: %v", got, err)
		}
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

func readBySocket(b *testing.B, p *pair, topic string, records int) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	s, err := dialSocket(ctx, p.ws, "/ws/"+topic+"?start=earliest", dialOptions{})
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
		got += bytes.Count(message, []byte(`"offset":`))
	}
	return time.Since(began)
}

// BenchmarkDelay writes 100 records a second and compares their delay at one socket with that at a bare consumer, at the same time.
func BenchmarkDelay(b *testing.B) {
	const partitions = 4
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		topic := j.topic(partitions)
		const records = 1500
		cmd := pollbench(b, kafka, topic, records, "-latency")
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := onForkThread(cmd.Start); err != nil {
			b.Fatal(err)
		}
		lines := bufio.NewReader(out)
		if line, err := lines.ReadString('\n'); err != nil {
			b.Fatalf("pollbench: %v, %q", err, line)
		}
		s, err := dialSocket(b.Context(), p.ws, "/ws/"+topic+"?as=text", dialOptions{})
		if err != nil {
			b.Fatal(err)
		}
		stop := make(chan struct{})
		written := make(chan struct{})
		go func() {
			defer close(written)
			writeStamped(j, topic, partitions, records, stop)
		}()
		delays := readStamped(b, s, records)
		rest, err := io.ReadAll(lines)
		if err = errors.Join(err, cmd.Wait()); err != nil {
			b.Fatal(err)
		}
		close(stop)
		<-written
		s.abort(true)
		var bare pollResult
		if err := json.Unmarshal(rest, &bare); err != nil {
			b.Fatal(err)
		}
		p50, p99 := delays[len(delays)/2], delays[len(delays)*99/100]
		ms := func(v float64) string { return fmt.Sprintf("%.2f ms", v) }
		table.row(b, "added delay p50 at 100/s, one socket", ms(p50), ms(bare.P50), p50/bare.P50,
			fmt.Sprintf("<= 0.5 ms added, is %.2f", p50-bare.P50), p50-bare.P50 <= 0.5)
		table.row(b, "added delay p99 at 100/s, one socket", ms(p99), ms(bare.P99), p99/bare.P99, fmt.Sprintf("- (added %.2f ms)", p99-bare.P99), true)
	}
}

// writeStamped writes values that begin with the time in nanoseconds, 100 a second.
func writeStamped(j *judge, topic string, partitions, records int, stop <-chan struct{}) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for n := range records {
		select {
		case <-tick.C:
		case <-stop:
			return
		}
		value := strconv.AppendInt(nil, time.Now().UnixNano(), 10)
		value = append(append(value, ' '), strings.Repeat("x", valueBytes-1-len(value))...)
		j.client.Produce(j.t.Context(), &kgo.Record{Topic: topic, Partition: int32(n % partitions), Value: value}, nil)
	}
}

// readStamped returns the sorted delays in milliseconds.
func readStamped(b *testing.B, s *socket, records int) (delays []float64) {
	b.Helper()
	for len(delays) < records {
		_ = s.conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, message, err := s.next()
		if err != nil {
			b.Fatalf("after %d records: %v", len(delays), err)
		}
		now := time.Now().UnixNano()
		for {
			const before = `"text":"`
			at := bytes.Index(message, []byte(before))
			if at < 0 {
				break
			}
			message = message[at+len(before):]
			sent, err := strconv.ParseInt(string(message[:19]), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			delays = append(delays, float64(now-sent)/1e6)
		}
	}
	slices.Sort(delays)
	return delays
}
