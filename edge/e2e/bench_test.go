package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The benchmarks measure plain builds, as processes, each beside its reference in the same run, and add figures to the table that TestMain
// prints. Run them with -bench . -benchtime 1x: one iteration is one whole measurement. -e2e.full gives the full sizes. CPU is that of whole
// processes, user and system, from the kernel's clock of each; that of this client and of Kafka is in none.

const valueBytes = 128

// cost is the CPU time that a process used for something.
type cost struct {
	of  string
	cpu time.Duration
}

// per says what each of n things cost each process.
func per(n int64, unit string, costs ...cost) string {
	var parts []string
	for _, c := range costs {
		v := float64(c.cpu.Nanoseconds()) / 1000 / float64(n)
		format := "%s %.3g"
		if v >= 1000 {
			format = "%s %.0f"
		}
		parts = append(parts, fmt.Sprintf(format, c.of, v))
	}
	return strings.Join(parts, ", ") + " µs/" + unit
}

// burnt is the CPU time of both processes so far.
type burnt struct{ service, edge time.Duration }

func (p *pair) burnt() burnt { return burnt{p.service.cpu(), p.edge.cpu()} }

func (u burnt) since(before burnt) burnt {
	return burnt{u.service - before.service, u.edge - before.edge}
}

func (u burnt) both() time.Duration { return u.service + u.edge }

func (u burnt) costs() []cost { return []cost{{"service", u.service}, {"edge", u.edge}} }

// quantile of sorted values.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(float64(len(sorted))*q), len(sorted)-1)]
}

func median[T float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func ms(v float64) string { return fmt.Sprintf("%.2f ms", v) }

func kilo(perSecond float64) string { return fmt.Sprintf("%.0f k/s", perSecond/1000) }

// count is a number as people write it: 400 k, 1 M.
func count(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + " M"
	case n >= 10_000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + " k"
	}
	return strconv.Itoa(n)
}

// pollResult is what pollbench prints.
type pollResult struct {
	Records    int     `json:"records"`
	Bytes      int     `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
	P50        float64 `json:"p50"`
	P99        float64 `json:"p99"`
}

func (r *pollResult) cpu() time.Duration { return time.Duration(r.CPUSeconds * float64(time.Second)) }

// reference is a pollbench: a process beside which Tailrace is measured.
type reference struct {
	b     *testing.B
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Reader
	ended bool
}

// startReference starts pollbench; it dies with the benchmark.
func startReference(b *testing.B, args ...string) *reference {
	b.Helper()
	cmd := exec.Command(filepath.Join(binaries(b, false), "pollbench"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := onForkThread(cmd.Start); err != nil {
		b.Fatal(err)
	}
	r := &reference{b: b, cmd: cmd, in: in, lines: bufio.NewReader(out)}
	b.Cleanup(func() {
		r.end()
		if b.Failed() && complaints.Len() > 0 {
			b.Logf("pollbench %s: %s", strings.Join(args, " "), &complaints)
		}
	})
	return r
}

// says reads one line of it.
func (r *reference) says() string {
	r.b.Helper()
	line, err := r.lines.ReadString('\n')
	if err != nil {
		r.b.Fatalf("pollbench: %v, %q", err, line)
	}
	return strings.TrimSpace(line)
}

// tells reads one line of JSON.
func (r *reference) tells(into any) {
	r.b.Helper()
	line := r.says()
	if err := json.Unmarshal([]byte(line), into); err != nil {
		r.b.Fatalf("pollbench: %v, %q", err, line)
	}
}

// asks writes a line to it.
func (r *reference) asks(format string, args ...any) {
	r.b.Helper()
	if _, err := fmt.Fprintf(r.in, format+"\n", args...); err != nil {
		r.b.Fatal(err)
	}
}

func (r *reference) cpu() time.Duration { return cpuOf(r.b, r.cmd.Process.Pid) }

func (r *reference) rss() int64 { return rssOf(r.b, r.cmd.Process.Pid) }

// end kills it. It may have ended, and end may be called twice.
func (r *reference) end() {
	if r.ended {
		return
	}
	r.ended = true
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// readBare reads a topic from its start by a bare loop around Poll.
func readBare(b *testing.B, kafka, topic string, records int) (result pollResult) {
	b.Helper()
	r := startReference(b, "-brokers", kafka, "-topic", topic, "-records", strconv.Itoa(records))
	defer r.end()
	r.tells(&result)
	if result.Records < records {
		b.Fatalf("pollbench has read %d records of %d", result.Records, records)
	}
	return result
}

// fill writes records in runs of 100 to a partition.
func fill(j *judge, topic string, partitions, records int, value func(n int) []byte) {
	j.t.Helper()
	for n := 0; n < records; n += 10_000 {
		batch := make([]*kgo.Record, min(10_000, records-n))
		for i := range batch {
			batch[i] = &kgo.Record{Topic: topic, Partition: int32((n + i) / 100 % partitions), Value: value(n + i)}
		}
		j.write(batch...)
	}
}

// jsonValue is of 128 bytes.
func jsonValue(n int) []byte {
	value := fmt.Appendf(nil, `{"n":%d,"pad":"`, n)
	for len(value) < valueBytes-2 {
		value = append(value, 'x')
	}
	return append(value, `"}`...)
}

// stampedValue begins with the time in nanoseconds.
func stampedValue(int) []byte {
	value := strconv.AppendInt(nil, time.Now().UnixNano(), 10)
	return append(append(value, ' '), strings.Repeat("x", valueBytes-1-len(value))...)
}

// pace writes records at a rate, the partitions in turn; perSecond 0: as fast as Kafka takes them. It returns when all are acknowledged.
func (j *judge) pace(topic string, partitions, records, perSecond int, value func(n int) []byte) {
	j.t.Helper()
	j.paced(records, perSecond, func(n int) *kgo.Record {
		return &kgo.Record{Topic: topic, Partition: int32(n % partitions), Value: value(n)}
	})
}

// paced is pace for records of any kind.
func (j *judge) paced(records, perSecond int, record func(n int) *kgo.Record) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), 5*time.Minute)
	defer cancel()
	var failed atomic.Pointer[error]
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for n := 0; n < records && ctx.Err() == nil; {
		due := records
		if perSecond > 0 {
			<-tick.C
			due = min(records, int(time.Since(began).Seconds()*float64(perSecond)))
		}
		for ; n < due; n++ {
			j.client.Produce(ctx, record(n), func(_ *kgo.Record, err error) {
				if err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			})
		}
	}
	err := j.client.Flush(ctx)
	if p := failed.Load(); p != nil {
		err = *p
	}
	if err != nil {
		j.t.Errorf("writing %d records: %v", records, err)
	}
}
