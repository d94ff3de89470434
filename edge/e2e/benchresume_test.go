package e2e_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkResume kills the service, and then the edge, under 2,000 clients and under one. Sockets outlive the service; after the loss
// of the edge all clients come back at once with their positions.
func BenchmarkResume(b *testing.B) {
	const partitions, missed, clients = 4, 1000, 2000
	kafka := broker(b)
	j := newJudge(b, kafka)
	p := startPair(b, pairOptions{kafka: kafka, plain: true})
	for b.Loop() {
		var service, edge [2]resumed
		for i, n := range []int{1, clients} {
			service[i] = afterService(b, j, p, partitions, n)
			edge[i] = afterEdge(b, j, p, partitions, n, missed)
		}
		add := func(name string, r [2]resumed) {
			table.add(figure{
				name: fmt.Sprintf("%s: ready → first record at the last of %d clients (beside: one client)", name, clients),
				ours: ms(r[1].last), reference: ms(r[0].last), ratio: r[1].last / r[0].last, cpu: r[1].cpu,
			})
			table.add(figure{name: "… at the median client", ours: ms(r[1].middle), reference: ms(r[0].middle), ratio: r[1].middle / r[0].middle})
		}
		add("service killed and started again, sockets stay", service)
		add(fmt.Sprintf("edge killed and started again, clients come back at once with positions, %d records missed", missed), edge)
	}
}

// resumed is how long after the process was ready clients had records again, in milliseconds.
type resumed struct {
	middle, last float64
	cpu          string
}

// afterService kills the service while records come at 100/s.
func afterService(b *testing.B, j *judge, p *pair, partitions, n int) (r resumed) {
	b.Helper()
	topic := j.topic(partitions)
	c := join(b, n, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic + "?as=text" }, stamped: true})
	defer c.leave()
	const records = 1500
	written := make(chan struct{})
	go func() {
		defer close(written)
		j.pace(topic, partitions, records, 100, stampedValue)
	}()
	c.await(b, "records before the loss", &c.records, int64(100*n))
	p.service.kill()
	had := c.forget() // what counts was sent since
	p.startService()
	ready := time.Now()
	<-written
	c.await(b, "records in all", &c.records, int64(records*n)-had)
	heard := c.heard(ready)
	if len(heard) != n {
		b.Errorf("%d of %d clients got a record after the restart", len(heard), n)
	}
	return resumed{middle: quantile(heard, 0.5), last: quantile(heard, 1)}
}

// afterEdge kills the edge, writes what clients miss, and lets them come back.
func afterEdge(b *testing.B, j *judge, p *pair, partitions, n, missed int) (r resumed) {
	b.Helper()
	topic := j.topic(partitions)
	j.pace(topic, partitions, 100, 0, stampedValue)
	c := join(b, n, crowdOptions{address: p.ws, path: func(int) string { return "/ws/" + topic + "?start=earliest" }})
	c.await(b, "records before the loss", &c.records, int64(100*n))
	var positions []string
	for partition, end := range j.ends(topic) {
		positions = append(positions, fmt.Sprintf("%d:%d", partition, end))
	}
	c.leave()
	p.edge.kill()
	j.pace(topic, partitions, missed, 0, stampedValue)
	p.startEdge()
	ready, before := time.Now(), p.burnt()
	path := "/ws/" + topic + "?as=text&positions=" + strings.Join(positions, ",")
	p.profiled(b, "edge-"+strconv.Itoa(n), func() {
		c = join(b, n, crowdOptions{address: p.ws, path: func(int) string { return path }, stamped: true})
		c.await(b, "missed records", &c.records, int64(missed*n))
	})
	defer c.leave()
	if got := c.records.Load(); got != int64(missed*n) {
		b.Errorf("%d records resumed, want %d", got, missed*n)
	}
	heard := c.heard(ready)
	return resumed{middle: quantile(heard, 0.5), last: quantile(heard, 1), cpu: per(int64(n), "client", p.burnt().since(before).costs()...)}
}
