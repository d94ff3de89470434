package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	rpcface "tailrace.dev/tailrace/services/stream"
)

// counted is a socket that counts what it gets, and understands nothing of it.
type counted struct {
	conn           net.Conn
	bytes, records atomic.Int64 // behind the response head
	ended          chan struct{}
}

// countSocket opens a socket and counts until it is closed.
func countSocket(t *testing.T, p *pair, path string) *counted {
	t.Helper()
	conn, err := net.Dial("tcp", p.ws)
	if err != nil {
		t.Fatal(err)
	}
	c := &counted{conn: conn, ended: make(chan struct{})}
	t.Cleanup(func() { conn.Close() })
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", path, p.ws)
	br := bufio.NewReader(conn)
	var response *http.Response
	if err == nil {
		response, err = http.ReadResponse(br, nil)
	}
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %v, %v", response, err)
	}
	go func() {
		defer close(c.ended)
		mark := []byte(`"offset":`)
		var rest []byte
		for buf := make([]byte, 64<<10); ; {
			n, err := br.Read(buf)
			c.bytes.Add(int64(n))
			rest = append(rest, buf[:n]...)
			c.records.Add(int64(bytes.Count(rest, mark)))
			if at := bytes.LastIndex(rest, mark); at >= 0 {
				rest = rest[at+len(mark):]
			}
			rest = append([]byte(nil), rest[max(0, len(rest)-len(mark)+1):]...)
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *counted) await(t *testing.T, records int64) {
	t.Helper()
	await(t, time.Minute, fmt.Sprintf("%d records at a socket", records), func() bool { return c.records.Load() >= records })
}

// figures compares metrics of a pair with what was counted elsewhere.
type figures struct {
	*testing.T
	p *pair
}

func (f *figures) service(name string, labels ...string) float64 {
	return metric(f.T, f.p.rpcOps, name, labels...)
}

func (f *figures) edge(name string, labels ...string) float64 {
	return metric(f.T, f.p.wsOps, name, labels...)
}

// become waits until a figure, which may be handed over a little later, is what it should be.
func (f *figures) become(what string, get func() float64, want float64) {
	f.Helper()
	if !eventually(f.Context(), 30*time.Second, func() bool { return get() == want }) {
		f.Errorf("%s: got %v, want %v", what, get(), want)
	}
}

// TestFiguresAreWhatWasCounted drives traffic of every kind through both processes, and holds their metrics against what was counted by its ends.
func TestFiguresAreWhatWasCounted(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(2)
	p := startPair(t, pairOptions{kafka: kafka, edge: []string{"-heartbeat-interval", "2m", "-stall-timeout", "10m"}}) // counted sockets answer no pings
	f := &figures{t, p}
	payload := 0.0
	write := func(n int, at time.Time) {
		var records []*kgo.Record
		for i := range n {
			r := &kgo.Record{
				Topic: topic, Partition: int32(i % 2), Timestamp: at, Key: []byte("k" + strconv.Itoa(i%7)), Value: letters(100 + i),
				Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("w")}},
			}
			payload += float64(len(r.Key) + len(r.Value) + 2)
			records = append(records, r)
		}
		j.write(records...)
	}

	// History: what was there before anybody asked. The second reader finds the edge's chunks.
	const old, live = 60, 200
	write(old, time.Now())
	before := payload
	delays := []func(string, ...string) float64{f.service, f.edge}
	delay := []string{"tailrace_stream_delivery_delay_seconds", "tailrace_edge_delivery_delay_seconds"}
	readers := make([]*counted, 0, 8)
	for range 2 {
		c := countSocket(t, p, "/ws/"+topic+"?start=earliest&until=end")
		c.await(t, old)
		readers = append(readers, c)
	}
	f.become("history of Kafka", func() float64 { return f.service("tailrace_kafka_history_records_total") }, old)
	f.become("bytes of it", func() float64 { return f.service("tailrace_kafka_history_bytes_total") }, before)
	f.become("history of services", func() float64 { return f.edge("tailrace_edge_upstream_history_records_total") }, old)
	if reads, hits := f.edge("tailrace_hub_history_reads_total"), f.edge("tailrace_hub_history_hits_total"); reads < 2 || hits < 2 || reads != f.edge("tailrace_edge_upstream_history_reads_total") {
		t.Errorf("the edge read %v chunks and found %v, want at least 2 and 2: a partition, a chunk", reads, hits)
	}
	for i, get := range delays {
		if n := get(delay[i] + "_count"); n != 0 {
			t.Errorf("%s has %v samples of history, want none", delay[i], n)
		}
	}

	// Live, to three sockets: first from the future, then from the past.
	const sockets = 3
	for range sockets {
		c := countSocket(t, p, "/ws/"+topic)
		readers = append(readers, c)
	}
	f.become("subscriptions", func() float64 { return f.edge("tailrace_hub_subscriptions", `topic="`+topic+`"`) }, sockets)
	f.become("sessions", func() float64 { return f.edge("tailrace_edge_sessions", `kind="websocket"`) }, 2+sockets)
	f.become("feeds", func() float64 { return f.edge("tailrace_edge_feeds") }, 2)
	f.become("partitions", func() float64 { return f.service("tailrace_kafka_followed_partitions") }, 2)
	read := f.service("tailrace_kafka_records_total")
	for _, phase := range []struct {
		at        time.Time
		low, high float64 // of each delay, seconds
		upTo      int64
	}{
		{time.Now().Add(time.Hour), 0, 0, live},
		{time.Now().Add(-20 * time.Second), 20, 65, 2 * live},
	} {
		var n, sum [2]float64
		for i, get := range delays {
			n[i], sum[i] = get(delay[i]+"_count"), get(delay[i]+"_sum")
		}
		write(live, phase.at)
		for _, c := range readers[2:] {
			c.await(t, phase.upTo)
		}
		if ring := f.edge("tailrace_hub_bytes", `holder="ring"`); ring < 100*live || ring > 20*payload { // it keeps them for half a minute
			t.Errorf("the ring takes %v bytes for %d records", ring, live)
		}
		for i, get := range delays {
			await(t, 30*time.Second, delay[i]+" has samples", func() bool { return get(delay[i]+"_count") > n[i] })
			more := get(delay[i]+"_count") - n[i]
			if mean := (get(delay[i]+"_sum") - sum[i]) / more; mean < phase.low || mean > phase.high || more > sockets*live {
				t.Errorf("%s of records of %v: %v samples, on average %v s, want from %v to %v", delay[i], phase.at, more, mean, phase.low, phase.high)
			}
		}
	}
	f.become("records in", func() float64 { return f.service("tailrace_kafka_records_total") - read }, 2*live)
	f.become("bytes in", func() float64 { return f.service("tailrace_kafka_bytes_total") }, payload-before)
	f.become("records by feeds", func() float64 { return f.edge("tailrace_edge_feed_records_total") }, 2*live)
	f.become("records into the ring", func() float64 { return f.edge("tailrace_hub_records_total", `topic="`+topic+`"`) }, 2*live)
	f.become("records to sockets", func() float64 { return f.edge("tailrace_edge_records_sent_total") }, 2*old+sockets*2*live)
	f.become("records in frames", func() float64 { return f.edge("tailrace_edge_frame_records_sum") }, 2*old+sockets*2*live)
	f.become("bytes to sockets", func() float64 {
		sum := int64(0)
		for _, c := range readers {
			sum += c.bytes.Load()
		}
		return f.edge("tailrace_edge_sent_bytes_total") - float64(sum)
	}, 0)
	f.become("lag", func() float64 { return f.edge("tailrace_hub_lag_records", `topic="`+topic+`"`) }, 0)

	publishFigures(t, f, topic)

	// Ends: a client that leaves, and those that the edge ends.
	for _, c := range readers {
		c.conn.Close()
		<-c.ended
	}
	f.become("ends", func() float64 {
		return f.edge("tailrace_edge_sessions_ended_total", `initiator="client"`, `reason="client_eof"`)
	}, 2+sockets)
	f.become("sessions left", func() float64 { return f.edge("tailrace_edge_sessions") }, 1) // that of publishFigures
	for consumer, least := range map[string]float64{"follower": payload - before, "history": before} {
		await(t, time.Minute, "bytes fetched, "+consumer, func() bool {
			got := f.service("tailrace_kafka_fetched_bytes_total", `consumer="`+consumer+`"`)
			return got >= least && got < 100*payload+1e6
		})
	}
	labelsAreClosed(t, p, topic)
	proof(t, "%d live records to %d sockets, %d from history twice, publishes: the figures of both processes are what was counted", 2*live, sockets, old)
}

// letters are bytes that do not compress.
func letters(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'A' + byte(rand.N(58)) //nolint:gosec // a payload
		if b[i] == '\\' {
			b[i] = 'z'
		}
	}
	return b
}

// publishFigures publishes by request and by socket. It leaves a session open.
func publishFigures(t *testing.T, f *figures, topic string) {
	t.Helper()
	posts := 0.0
	for name, n := range map[string]int{topic: 5, "no-such-topic": 2} {
		for range n {
			response, err := http.Post("http://"+f.p.ws+"/publish/"+name+"?key=k", "text/plain", strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if (response.StatusCode == http.StatusOK) != (name == topic) {
				t.Errorf("publish to %s: status %d", name, response.StatusCode)
			}
		}
		if name == topic {
			posts = float64(n)
		}
	}
	s := dial(t.Context(), t, f.p, "/ws", nil)
	const bySocket = 3
	for i := range bySocket {
		if err := s.sendJSON(map[string]any{"op": "publish", "id": "p" + strconv.Itoa(i), "topic": topic, "key": "k", "text": "x"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.run(func() bool { return len(s.published) == bySocket }); err != nil {
		t.Fatal(err)
	}
	acknowledged := posts + bySocket
	f.become("acknowledged at the edge", func() float64 { return f.edge("tailrace_edge_publish_seconds_count", `outcome="acknowledged"`) }, acknowledged)
	f.become("refused at the edge", func() float64 { return f.edge("tailrace_edge_publish_seconds_count", `outcome="refused"`) }, 2)
	f.become("acknowledged at Kafka", func() float64 { return f.service("tailrace_kafka_published_records_total", `outcome="acknowledged"`) }, acknowledged)
	f.become("their latencies", func() float64 { return f.service("tailrace_kafka_publish_seconds_count", `outcome="acknowledged"`) }, acknowledged)
	for _, sum := range []float64{f.service("tailrace_kafka_publish_seconds_sum"), f.edge("tailrace_edge_publish_seconds_sum")} {
		if mean := sum / acknowledged; mean <= 0 || mean > 30 {
			t.Errorf("a publish took %v s on average", mean)
		}
	}
	if streams, open := f.edge("tailrace_edge_publish_streams"), f.service("tailrace_stream_open", "PublishStream"); streams != 1 || open != 1 {
		t.Errorf("%v publish streams at the edge, %v at the service, want 1", streams, open)
	}
}

var sampleLine = regexp.MustCompile(`(?m)^(tailrace_[a-z_]+)\{([^}]*)\}`)

// labelsAreClosed holds every label value that both processes have told after all that against the tables.
func labelsAreClosed(t *testing.T, p *pair, topic string) {
	t.Helper()
	rows := documented(t, "../../services/README.md")
	maps.Copy(rows, documented(t, "../README.md"))
	procedures := []string{
		tailracev1connect.StreamServiceSubscribeProcedure, tailracev1connect.StreamServicePublishProcedure, tailracev1connect.StreamServicePublishStreamProcedure,
		tailracev1connect.TopicServiceGetTopicProcedure, tailracev1connect.TopicServiceListTopicsProcedure,
		tailracev1connect.GroupServiceListGroupsProcedure, tailracev1connect.GroupServiceGetGroupProcedure, "/grpc.health.v1.Health/Check",
	}
	codes := []string{"ok"}
	for c := connect.CodeCanceled; c <= connect.CodeUnauthenticated; c++ {
		codes = append(codes, c.String())
	}
	open := map[string][]string{
		"topic": {topic}, "procedure": procedures, "code": codes, "upstream": {"http://" + p.rpc},
		"reason": {
			rpcface.ReasonInvalidArgument, rpcface.ReasonForbidden, rpcface.ReasonUnknownTopic, rpcface.ReasonUnknownPartition, rpcface.ReasonTopicDeleted,
			rpcface.ReasonOffsetOutOfRange, rpcface.ReasonLagged, rpcface.ReasonLimit, rpcface.ReasonUnavailable, rpcface.ReasonDraining, rpcface.ReasonUnimplemented,
			rpcface.ReasonStalled, rpcface.ReasonCanceled, rpcface.ReasonDeadline, rpcface.ReasonConnectionLost, rpcface.ReasonInternal, rpcface.ReasonDone, rpcface.ReasonGroupSettings,
			rpcface.ReasonUnknownGroup, rpcface.ReasonGroupActive,
		},
	}
	checked := 0
	for _, ops := range []string{p.rpcOps, p.wsOps} {
		code, body, err := get(t.Context(), "http://"+ops+"/metrics")
		if err != nil || code != http.StatusOK {
			t.Fatal(code, errors.Join(err, context.Cause(t.Context())))
		}
		for _, line := range sampleLine.FindAllStringSubmatch(body, -1) {
			name := line[1]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, ok := strings.CutSuffix(name, suffix); ok && rows[base].kind == "histogram" {
					name = base
				}
			}
			for _, l := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(line[2], -1) {
				allowed := rows[name].values[l[1]]
				if allowed == nil {
					allowed = open[l[1]]
				}
				if l[1] != "le" && !slices.Contains(allowed, l[2]) {
					t.Errorf("%s{%s=%q}: the value is in no table", name, l[1], l[2])
				}
				checked++
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d label values were checked", checked)
	}
}
