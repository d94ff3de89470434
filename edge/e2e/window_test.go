package e2e_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestWindowOfAStuckPartition: one record that a worker does not acknowledge holds its partition at the window of 10,000 records, or of 64 MiB. Beyond it
// nothing is dealt, and nothing is asked of the broker; the committed offset stays; the other partition goes on. When it is done, all goes on.
func TestWindowOfAStuckPartition(t *testing.T) {
	kafka := startCounted(t)
	j := newJudge(t, kafka.direct)
	p := startPair(t, pairOptions{kafka: kafka.through, withoutEdge: true})
	for _, test := range []struct {
		name        string
		records     int
		bytes       int // of each
		least, most int64
	}{
		{"records", 15_000, 40, 10_000, 11_000},
		{"bytes", 100, 900_000, 72, 80},
	} {
		if test.bytes > 1000 && !*full {
			continue // 90 MB
		}
		const beside, size = 2000, 100
		topic := j.topic(2)
		group := topic + "-group"
		other := func() {
			rs := make([]*kgo.Record, beside)
			for i := range rs {
				rs[i] = &kgo.Record{Topic: topic, Partition: 1, Value: noise(size)}
			}
			j.write(rs...)
		}
		for written := 0; written < test.records; {
			rs := make([]*kgo.Record, min(test.records-written, 10_000_000/test.bytes))
			for i := range rs {
				rs[i] = &kgo.Record{Topic: topic, Value: noise(test.bytes)}
			}
			j.write(rs...)
			written += len(rs)
		}
		other()
		before := kafka.sent.Load()
		c := hold(t, p.rpc, group, topic)
		until := func(what string, ok func() bool) {
			t.Helper()
			await(t, time.Minute, test.name+": "+what, func() bool {
				select {
				case err := <-c.failed:
					t.Fatalf("%s: %v", test.name, err)
				default:
				}
				return ok()
			})
		}
		until("the window and the other partition are dealt", func() bool { return c.came[0].Load() >= test.least && c.came[1].Load() == beside })
		other() // while this comes the partition comes to its end
		until("the other partition goes on", func() bool { return c.came[1].Load() == 2*beside })
		dealt, sent := c.came[0].Load(), kafka.sent.Load()
		other()
		until("the other partition goes on again", func() bool { return c.came[1].Load() == 3*beside })
		asked := kafka.since(sent)
		if now := c.came[0].Load(); now != dealt || dealt > test.most {
			t.Errorf("%s: %d of %d records were dealt, and then %d, want at most %d", test.name, dealt, test.records, now, test.most)
		}
		if most := 1.5 * beside * size / 1e6; asked > most {
			t.Errorf("%s: the broker sent %.2f MB while the other partition got %.2f", test.name, asked, beside*size/1e6)
		}
		var at [2]int64
		committed := func() [2]int64 {
			offsets, err := j.admin.FetchOffsets(t.Context(), group)
			if err != nil {
				t.Fatal(err)
			}
			for p := range at {
				o, _ := offsets.Lookup(topic, int32(p))
				at[p] = o.At
			}
			return at
		}
		until("the other partition is committed", func() bool { return committed()[1] == 3*beside })
		if at[0] > 0 {
			t.Errorf("%s: the committed offset has moved to %d", test.name, at[0])
		}
		if err := c.line.ack([]int64{c.first.Load()}); err != nil {
			t.Fatal(err)
		}
		until("all is committed", func() bool { return committed() == [2]int64{int64(test.records), 3 * beside} })
		all := kafka.since(before)
		stored := j.bytes(topic)
		if all > 2*stored {
			t.Errorf("%s: the broker sent %.2f MB of %.2f", test.name, all, stored)
		}
		if n := c.came[0].Load(); n != int64(test.records) {
			t.Errorf("%s: %d deliveries of %d records", test.name, n, test.records)
		}
		c.line.close()
		<-c.ended
		proof(t, "%s: a record that nobody acknowledged held its partition at %d of %d records (%.1f MB dealt); the broker sent %.2f MB for %.2f MB in the log",
			test.name, dealt, test.records, float64(dealt)*float64(test.bytes)/1e6, all, stored)
	}
}

// holding is a worker that acknowledges all but the first record of the first partition.
type holding struct {
	line   *rpcLine
	came   [2]atomic.Int64 // by partition
	first  atomic.Int64    // its tag
	failed chan error
	ended  chan struct{}
}

// hold starts one.
func hold(t *testing.T, address, group, topic string) *holding {
	t.Helper()
	line, err := dialRPC(t.Context(), address, connect.WithAcceptCompression("gzip", nil, nil)) // it would take most of the time
	if err == nil {
		err = line.begin(group, topic, false, 10*time.Minute)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &holding{line: line, failed: make(chan error, 1), ended: make(chan struct{})}
	go func() {
		defer close(c.ended)
		for {
			if err := c.take(); err != nil {
				c.failed <- err
				return
			}
		}
	}()
	return c
}

func (c *holding) take() error {
	h, err := c.line.hear()
	if err != nil {
		return err
	}
	if h.over != nil || len(h.refused) > 0 {
		return fmt.Errorf("over: %w, refused: %v", h.over, h.refused)
	}
	var tags []int64
	for _, d := range h.records {
		c.came[d.at.partition].Add(1)
		if d.at != (placeOf{}) || !c.first.CompareAndSwap(0, d.tag) {
			tags = append(tags, d.tag)
		}
	}
	if len(tags) == 0 {
		return nil
	}
	return c.line.ack(tags)
}
