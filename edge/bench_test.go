package edge_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/edge/frame/frametest"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// crowd starts this test binary again as a process that opens n connections to addr and reads them, so that the CPU and memory measured
// here are the server's. path "" reads without a handshake. It returns when all are open.
func crowd(b *testing.B, addr, path string, n int) {
	b.Helper()
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(exe, "-edge.crowd", fmt.Sprintf("%s %d %s", addr, n, path))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "open\n" {
		b.Fatalf("crowd: %q, %v", line, err)
	}
}

// runCrowd is the other process. It ends with its standard input.
func runCrowd(spec string) error {
	part := strings.SplitN(spec, " ", 3)
	n, err := strconv.Atoi(part[1])
	if err != nil {
		return err
	}
	var opened sync.WaitGroup
	failed := make(chan error, n)
	limit := make(chan struct{}, 64)
	opened.Add(n)
	for range n {
		go func() {
			limit <- struct{}{}
			conn, br, err := join(part[0], part[2])
			<-limit
			opened.Done()
			if err != nil {
				failed <- err
				return
			}
			if br.Buffered() > 0 {
				_, _ = br.Discard(br.Buffered())
			}
			br = nil
			buf := make([]byte, 16<<10)
			for {
				if _, err := conn.Read(buf); err != nil {
					return
				}
			}
		}()
	}
	opened.Wait()
	select {
	case err := <-failed:
		return err
	default:
	}
	fmt.Println("open")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// join opens one connection, and with a path waits until its subscription has started and caught up.
func join(addr, path string) (net.Conn, *bufio.Reader, error) {
	if path == "" {
		conn, err := net.Dial("tcp", addr)
		return conn, bufio.NewReaderSize(conn, 16), err
	}
	if strings.HasPrefix(path, "/sse/") {
		s, err := openStream(addr, path)
		for err == nil {
			var e event
			if e, err = s.next(); e.name == "caughtup" {
				return s.conn, s.lines, nil
			}
		}
		return nil, nil, err
	}
	path, proto := strings.CutPrefix(path, "proto ")
	c, err := dial(addr, path, clientOptions{proto: proto})
	if err != nil {
		return nil, nil, err
	}
	for {
		m, err := c.next()
		if err != nil {
			return nil, nil, err
		}
		if m.Op == "caughtup" {
			return c.conn, c.br, nil
		}
	}
}

func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// pause makes the pace of a benchmark; nothing is synchronised by it.
func pause(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// BenchmarkFanOut brings records of 128 bytes to 1,000 sockets, for 3 s each: at 100/s, at 1,000/s, and as many as go. deliveries/cpu-s is
// what counts; bare is a loop that writes one ready frame of the same size to each of 1,000 connections.
func BenchmarkFanOut(b *testing.B) {
	const sockets, lasting = 1000, 3 * time.Second
	value := strings.Repeat("x", 128)
	b.Run("bare", func(b *testing.B) {
		ln := listen(b)
		defer ln.Close()
		conns := make(chan net.Conn, sockets)
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				conns <- c
			}
		}()
		crowd(b, ln.Addr().String(), "", sockets)
		var cs []net.Conn
		for range sockets {
			cs = append(cs, <-conns)
		}
		ready := make([]byte, 225)
		for b.Loop() {
			from, busy, n := time.Now(), cpu(b), 0
			for time.Since(from) < lasting {
				for _, c := range cs {
					if _, err := c.Write(ready); err != nil {
						b.Fatal(err)
					}
					n++
				}
			}
			b.ReportMetric(float64(n)/(cpu(b)-busy).Seconds(), "deliveries/cpu-s")
		}
		for _, c := range cs {
			c.Close()
		}
	})
	for _, k := range []struct {
		name, path string
		rate       int
	}{{"100 per s", "/ws/t", 100}, {"1000 per s", "/ws/t", 1000}, {"full rate", "/ws/t", 0}, {"100 per s, binary", "proto /ws/t", 100}, {"full rate, binary", "proto /ws/t", 0}, {"100 per s, events", "/sse/t", 100}, {"full rate, events", "/sse/t", 0}} {
		rate := k.rate
		b.Run(k.name, func(b *testing.B) {
			r := start(b, config())
			r.src.CreateTopic("t", 1)
			crowd(b, r.addr, k.path, sockets)
			for b.Loop() {
				from, busy, sent := time.Now(), cpu(b), r.metric(b, "tailrace_edge_records_sent_total", "")
				writes := r.metric(b, "tailrace_edge_writes_total", "")
				for n := 0; time.Since(from) < lasting; n++ {
					r.src.Append("t", 0, hubtest.Text("k", value))
					switch {
					case rate > 0:
						pause(time.Until(from.Add(time.Duration(n+1) * time.Second / time.Duration(rate))))
					case n%256 == 0:
						// No faster than one reader in the middle of the crowd: the log is the buffer, but this store keeps it in memory.
						for int(r.metric(b, "tailrace_edge_records_sent_total", "")-sent)/sockets < n-100000 {
							pause(time.Millisecond)
						}
					}
				}
				took := (cpu(b) - busy).Seconds()
				sent = r.metric(b, "tailrace_edge_records_sent_total", "") - sent
				b.ReportMetric(sent/took, "deliveries/cpu-s")
				b.ReportMetric(sent/(r.metric(b, "tailrace_edge_writes_total", "")-writes), "records/write")
				b.ReportMetric(took/lasting.Seconds(), "cores")
			}
		})
	}
}

// BenchmarkIdle is the process memory of an idle session with a subscription, among 5,000.
func BenchmarkIdle(b *testing.B) {
	b.Run("sockets", func(b *testing.B) { benchmarkIdle(b, "/ws/t") })
	b.Run("events", func(b *testing.B) { benchmarkIdle(b, "/sse/t") })
}

func benchmarkIdle(b *testing.B, path string) {
	const sockets = 5000
	r := start(b, config())
	r.src.CreateTopic("t", 8)
	used := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse + m.MSpanInuse + m.OtherSys
	}
	crowd(b, r.addr, path, 10) // what the first need is not per socket
	before, goroutines := used(), runtime.NumGoroutine()
	crowd(b, r.addr, path, sockets)
	await(b, "handshakes are over", func() bool { return runtime.NumGoroutine() <= goroutines+4 })
	for b.Loop() {
		b.ReportMetric(float64(used()-before)/sockets, "B/session")
		b.ReportMetric(float64(runtime.NumGoroutine()-goroutines), "goroutines")
		from, busy := time.Now(), cpu(b)
		pause(time.Second)
		b.ReportMetric(float64(cpu(b)-busy)/float64(time.Since(from))*100, "cpu-%")
	}
}

// BenchmarkLatency is the time from Append to the client's read, for one socket at 100/s.
func BenchmarkLatency(b *testing.B) {
	r := start(b, config())
	r.src.CreateTopic("t", 1)
	c := r.dial(b, "/ws/t")
	c.until(b, "caughtup")
	_ = c.conn.SetReadDeadline(time.Time{})
	var at atomic.Int64
	var took []time.Duration
	for b.Loop() {
		at.Store(time.Now().UnixNano())
		r.src.Append("t", 0, hubtest.Text("k", "v"))
		if _, err := c.next(); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Duration(time.Now().UnixNano()-at.Load()))
		pause(10 * time.Millisecond)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkParse is the cost of a client's message, from the masked bytes to the op.
func BenchmarkParse(b *testing.B) {
	for name, text := range map[string]string{
		"ping":      `{"op":"ping","id":"x"}`,
		"subscribe": `{"op":"subscribe","id":"a","topic":"orders","keys":["k1","k2"],"start":{"positions":{"0":12,"1":[40,3]}}}`,
		"publish":   `{"op":"publish","id":"p1","topic":"orders","key":"k1","value":{"any":"` + strings.Repeat("x", 128) + `"},"headers":[["h","v"]]}`,
	} {
		inProto, err := frametest.Client([]byte(text))
		if err != nil {
			b.Fatal(err)
		}
		parse := func(b *testing.B, rd *edge.Reader, data []byte, parse func([]byte) (frame.Op, *frame.Error)) {
			b.Helper()
			buf := make([]byte, len(data))
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				copy(buf, data)
				_, it, payload := rd.Next(buf, 1<<20)
				if it != edge.ItemMessage {
					b.Fatal(errors.New("no message"))
				}
				if _, bad := parse(payload); bad != nil {
					b.Fatal(bad.Message)
				}
			}
		}
		b.Run(name, func(b *testing.B) { parse(b, new(edge.Reader), maskedFrame(fin|opText, []byte(text)), frame.Parse) })
		b.Run(name+" binary", func(b *testing.B) {
			parse(b, edge.NewBinaryReader(), maskedFrame(fin|opBin, inProto), frame.Proto{}.Parse)
		})
	}
}
