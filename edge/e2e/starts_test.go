package e2e_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/hub"
)

// TestStartsByTimeAndLast asks the edge for the last n records and for those since a time, in JSON and in the URL, and compares with the log.
// Then many sockets ask at once, each for the last ones of a key of its own.
func TestStartsByTimeAndLast(t *testing.T) {
	const partitions, keys, rounds = 3, 20, 40
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	base := time.UnixMilli(time.Now().Add(-time.Hour).UnixMilli()).UTC()
	var rs []*kgo.Record
	for n := range keys * rounds {
		key := "k" + strconv.Itoa(n%keys)
		rs = append(rs, &kgo.Record{
			Topic: topic, Partition: hub.PartitionOf([]byte(key), partitions), Key: []byte(key), Value: strconv.AppendInt(nil, int64(n), 10),
			Timestamp: base.Add(time.Duration(n) * time.Second),
		})
	}
	j.write(rs...)
	log := j.read(topic, true)
	ofKey := func(key string) *tape {
		return log.only(func(r *record) bool { return string(r.key) == key })
	}
	last := func(of *tape, n int) *tape {
		out := newTape(true)
		for _, rs := range of.whole {
			for i := range rs[max(len(rs)-n, 0):] {
				out.add(&rs[max(len(rs)-n, 0):][i])
			}
		}
		return out
	}
	when := base.Add(500 * time.Second)
	since := log.only(func(r *record) bool { return r.time >= when.UnixMilli() })
	for _, c := range []struct {
		url  string
		json map[string]any
		want *tape
	}{
		{"last=10", map[string]any{"start": map[string]any{"last": 10}}, last(log, 10)},
		{"last=100000", map[string]any{"start": map[string]any{"last": 100_000}}, log},
		{"last=3&key=k7", map[string]any{"start": map[string]any{"last": 3}, "keys": []string{"k7"}}, last(ofKey("k7"), 3)},
		{"last=2&key=k1&partition=" + strconv.Itoa(int(hub.PartitionOf([]byte("k1"), partitions))),
			map[string]any{"start": map[string]any{"last": 2}, "keys": []string{"k1"}}, last(ofKey("k1"), 2)},
		{"time=" + when.Format(time.RFC3339), map[string]any{"start": map[string]any{"time": when.Format(time.RFC3339)}}, since},
		{"time=2100-01-01T00:00:00Z", map[string]any{"start": map[string]any{"time": "2100-01-01T00:00:00Z"}}, newTape(true)},
	} {
		byURL, byJSON := newReader(topic, true), newReader(topic, true)
		byURL.keyed, byJSON.keyed = true, true
		s := dial(ctx, t, p, "/ws/"+topic+"?until=end&"+c.url, byURL)
		c.json["until"] = "end"
		if err := s.subscribe("json", byJSON, c.json); err != nil {
			t.Fatal(err)
		}
		if err := s.run(func() bool { return s.ended["0"] != "" && s.ended["json"] != "" || len(s.errors) > 0 }); err != nil || len(s.errors) > 0 {
			t.Fatalf("%s: %v, %+v", c.url, err, s.errors)
		}
		for name, r := range map[string]*reader{"URL": byURL, "JSON": byJSON} {
			if d := r.tape.diff(c.want); d != "" {
				t.Errorf("%s by %s: got %d records, want %d:\n%s", c.url, name, r.count(), c.want.count(), d)
			}
		}
		s.abort(false)
	}

	n := size(200, 2000)
	began := time.Now()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			key := "k" + strconv.Itoa(i%(keys+5)) // some are in no record
			r := newReader(topic, true)
			r.keyed = true
			s, err := dialSession(ctx, p.ws, "/ws/"+topic+"?last=10&until=end&key="+key, r, dialOptions{})
			if err != nil {
				t.Errorf("socket %d: %v", i, err)
				return
			}
			defer s.abort(false)
			s.within(2 * time.Minute)
			if err := s.run(func() bool { return s.ended["0"] != "" || len(s.errors) > 0 }); err != nil || len(s.errors) > 0 {
				t.Errorf("socket %d: %v, %+v", i, err, s.errors)
				return
			}
			if d := r.tape.diff(last(ofKey(key), 10)); d != "" {
				t.Errorf("socket %d, %s: %s", i, key, d)
			}
		})
	}
	all.Wait()
	read := metric(t, p.rpcOps, "tailrace_kafka_history_records_total")
	proof(t, "%d sockets, each with the last 10 of a key, in %v; the service has read %.0f records of history from a log of %d", n, time.Since(began), read, log.count())
	if read > float64(n*log.count())/10 {
		t.Errorf("read %.0f records for %d starts in a log of %d", read, n, log.count())
	}
}
