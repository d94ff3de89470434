package stream_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/stream"
)

// readFrom makes the test binary the benchmark's reader: it drains the stream at this URL and ends.
var readFrom = flag.String("stream.read-from", "", "drain the stream at this URL and exit; used by the benchmark")

func TestMain(m *testing.M) {
	flag.Parse()
	if *readFrom != "" {
		os.Exit(drain(*readFrom))
	}
	goleak.VerifyTestMain(m)
}

func drain(url string) int {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	res, err := client.Post(url, "application/connect+proto", bytes.NewReader(make([]byte, 5)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// BenchmarkSend is the path from ready bytes to the socket over h2c, 128-byte values, beside generated structs that are encoded for each
// message. The reader is a process of its own, so that records/CPU-s is the server's.
func BenchmarkSend(b *testing.B) {
	for _, records := range []int{10, 100, 1000} {
		for _, kind := range []string{"shadow", "structs"} {
			b.Run(fmt.Sprintf("%s/%d", kind, records), func(b *testing.B) { benchmarkSend(b, kind, records) })
		}
	}
}

func benchmarkSend(b *testing.B, kind string, records int) {
	offsets := make([]int64, records)
	entry := &hub.Entry{Kind: hub.Records, Partition: 1, Next: int64(records), End: int64(records)}
	for i := range offsets {
		piece := hubtest.Piece("orders", 1, int64(i), 3, hubtest.Record{Key: fmt.Appendf(nil, "key-%d", i), Value: bytes.Repeat([]byte("v"), 128)})
		entry.Body = append(entry.Body, piece...)
		entry.Meta = append(entry.Meta, hub.Meta{Offset: int64(i), Time: hubtest.FirstTime, End: int32(len(entry.Body)), Key: -1})
	}
	parts := []hub.Part{{Entry: entry, Hi: records, Next: entry.Next}}
	body, _ := hub.AppendBatches(nil, parts)
	batches := &tailracev1.Records{}
	if err := proto.Unmarshal(body, batches); err != nil {
		b.Fatal(err)
	}
	structs := &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_Records{Records: batches}}

	s := stream.New(stream.Config{Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	server := s.ServeBench(func() int { return b.N }, parts, structs)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	defer func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	}()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	reader := exec.Command(self, "-stream.read-from", "http://"+ln.Addr().String()+"/bench/"+kind)
	reader.Stderr = os.Stderr

	b.SetBytes(int64(len(body)))
	before := cpu(b)
	b.ResetTimer()
	if err := reader.Run(); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N*records)/(cpu(b)-before).Seconds(), "records/CPU-s")
}

// cpu is what this process has used, without its children.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
