package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// peakOf is the most memory that a process has had resident, in bytes.
func peakOf(t testing.TB, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// TestManyGroupsInOneProcess: groups that hold all that they get stay within their budget, and what the process has resident within what -help says;
// then each gets every record.
func TestManyGroupsInOneProcess(t *testing.T) {
	const partitions, value = 8, 1000
	groups, records, budget := size(20, 100), size(4_000, 20_000), size(32, 256)
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(partitions)
	noise := rand.NewChaCha8([32]byte{})
	fill := make([]*kgo.Record, records)
	for n := range fill {
		v := make([]byte, value)
		_, _ = noise.Read(v)
		fill[n] = &kgo.Record{Topic: topic, Partition: int32(n % partitions), Value: v}
	}
	j.write(fill...)
	p := startPair(t, pairOptions{kafka: kafka, plain: true, withoutEdge: true, service: []string{"-group-memory-budget", fmt.Sprintf("%dMiB", budget), "-max-groups", "200"}})
	idle := peakOf(t, p.service.pid())

	client := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var began, got atomic.Int64
	release := make(chan struct{})
	var working sync.WaitGroup
	for n := range groups {
		working.Go(func() {
			s, err := client.Consume(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = s.CloseRequest(); _ = s.CloseResponse() }()
			start := &tailracev1.ConsumeStart{Group: fmt.Sprintf("%s-%d", topic, n), Topics: []string{topic}, MaxInFlight: 1000}
			err = s.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: start}})
			seen := make(map[[2]int64]bool, records)
			for err == nil && len(seen) < records {
				var m *tailracev1.ConsumeResponse
				if m, err = s.Receive(); err != nil || len(m.GetDeliveries().GetDeliveries()) == 0 {
					continue
				}
				if len(seen) == 0 {
					began.Add(1)
					<-release
				}
				var last int64
				for _, d := range m.GetDeliveries().GetDeliveries() {
					seen[[2]int64{int64(d.GetRecord().GetPartition()), d.GetRecord().GetOffset()}] = true
					last = d.GetTag()
				}
				err = s.Send(ackOf(nil, last))
			}
			if err != nil {
				t.Errorf("group %d: %v after %d records", n, err, len(seen))
			}
			got.Add(int64(len(seen)))
		})
	}
	await(t, 2*time.Minute, "every group has records", func() bool { return began.Load() == int64(groups) })
	held := func() float64 { v, _ := tryMetric(t, p.rpcOps, "tailrace_group_bytes"); return v }
	quiet, before := time.Now(), -1.0
	await(t, 2*time.Minute, "no group takes more", func() bool {
		if now := held(); now != before {
			quiet, before = time.Now(), now
		}
		return time.Since(quiet) > time.Second
	})
	most := float64(budget<<20 + groups*partitions*2*64<<10) // that a partition may hold, and that may come at once
	if before > most {
		t.Errorf("the groups hold %.0f MB, at most %.0f are allowed", before/1e6, most/1e6)
	}
	close(release)
	working.Wait()
	if want := int64(groups * records); got.Load() != want {
		t.Errorf("%d records were delivered, want %d", got.Load(), want)
	}
	ahead := 0
	for n := range groups {
		ahead += min(max(64<<20/(n+1), 512<<10), 8<<20)
	}
	// What the groups hold may double until Go's collector runs; what is fetched ahead costs librdkafka several hundred bytes a record more.
	bound := idle + 2*int64(most) + 2*int64(ahead)
	peak := peakOf(t, p.service.pid())
	if peak > bound {
		t.Errorf("%d MB were resident, want at most %d", peak/1e6, bound/1e6)
	}
	proof(t, "%d groups that held %.0f MB of a budget of %d MiB: %d MB resident at most (bound %d), %d before", groups, before/1e6, budget, peak/1e6, bound/1e6, idle/1e6)
}
