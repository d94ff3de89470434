package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// placeOf is where a record of one topic lies.
type placeOf struct {
	partition int32
	offset    int64
}

// crew is what the workers of a group have been given, and have acknowledged.
type crew struct {
	mu        sync.Mutex
	delivered map[placeOf][]string // to whom, by attempt
	acked     map[placeOf]int
}

func (c *crew) ackedCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.acked)
}

// work consumes by one socket and acknowledges everything, until the connection ends or enough says so.
func (c *crew) work(s *session, name, group, topic string, window int, enough func() bool) error {
	if err := s.sendJSON(map[string]any{"op": "consume", "id": "q", "group": group, "topics": []string{topic}, "maxInFlight": window}); err != nil {
		return err
	}
	for !enough() {
		text, err := s.hear()
		if err != nil {
			return err
		}
		var m struct {
			Op, ID  string
			Records json.RawMessage
		}
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		switch {
		case m.Op == "welcome" || m.Op == "started" || m.Op == "heartbeat":
			continue
		case m.Op != "records" || m.ID != "q":
			return fmt.Errorf("got %s", text)
		}
		var records []struct {
			Partition int32
			Offset    int64
			Tag       int64
			Attempt   int
		}
		if err := json.Unmarshal(m.Records, &records); err != nil {
			return err
		}
		var tags []int64
		c.mu.Lock()
		for _, r := range records {
			at := placeOf{r.Partition, r.Offset}
			c.delivered[at] = append(c.delivered[at], name)
			if r.Attempt < len(c.delivered[at]) { // it may be more: what was on its way to a socket that is cut counts, too
				c.mu.Unlock()
				return fmt.Errorf("attempt %d of %v, which was delivered %v", r.Attempt, at, c.delivered[at])
			}
			tags = append(tags, r.Tag)
		}
		c.mu.Unlock()
		slices.Reverse(tags) // any order will do
		if err := s.sendJSON(map[string]any{"op": "ack", "id": "q", "tags": tags}); err != nil {
			return err
		}
		c.mu.Lock()
		for _, r := range records {
			c.acked[placeOf{r.Partition, r.Offset}]++
		}
		c.mu.Unlock()
	}
	return nil
}

// TestConsumeOverSockets: two sockets, one of each form, share a group; one is cut in the middle. What the log holds is acknowledged, each record once but
// for what the one had in flight, and the group's committed offsets are the ends of the log.
func TestConsumeOverSockets(t *testing.T) {
	const partitions, window = 3, 50
	j := newJudge(t, broker(t))
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: j.bootstrap})
	total := size(3000, 60_000)
	records := make([]*kgo.Record, total)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Partition: int32(i % partitions), Key: fmt.Appendf(nil, "k%d", i%97), Value: fmt.Appendf(nil, "%d", i)}
	}
	j.write(records...)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()

	c := &crew{delivered: map[placeOf][]string{}, acked: map[placeOf]int{}}
	name := fmt.Sprintf("e2e-sockets-%d", time.Now().UnixNano())
	cut, err := dialSession(ctx, p.ws, "/ws", nil, dialOptions{protocols: []string{"tailrace.v1.proto"}})
	if err != nil {
		t.Fatal(err)
	}
	text := dial(ctx, t, p, "/ws", nil)
	var working sync.WaitGroup
	working.Go(func() {
		if err := c.work(cut, "cut", name, topic, window, func() bool { return c.ackedCount() > total/3 }); err != nil {
			t.Errorf("the socket that is to be cut: %v", err)
		}
		cut.abort(true)
	})
	ended := make(chan error, 1)
	working.Go(func() { ended <- c.work(text, "stays", name, topic, window, forever) })
	committed := func() map[int32]int64 {
		offsets, err := j.admin.FetchOffsets(ctx, name)
		if err != nil {
			return nil
		}
		at := map[int32]int64{}
		for partition, o := range offsets[topic] {
			at[partition] = o.At
		}
		return at
	}
	ends := j.ends(topic)
	await(t, 2*time.Minute, "the committed offsets are the ends", func() bool { return len(ended) > 0 || maps.Equal(committed(), ends) })
	if got := committed(); !maps.Equal(got, ends) {
		t.Fatalf("committed %v, the log ends at %v; the socket that stays: %v", got, ends, <-ended)
	}
	text.abort(true)
	working.Wait()
	twice := 0
	for partition, end := range ends {
		for offset := range end {
			at := placeOf{partition, offset}
			if c.acked[at] == 0 {
				t.Fatalf("%v was not acknowledged, and is below the committed offset", at)
			}
			if n := len(c.delivered[at]); n > 1 {
				twice++
				if n > 2 || c.delivered[at][0] != "cut" {
					t.Errorf("%v was delivered to %v", at, c.delivered[at])
				}
			}
		}
	}
	if len(c.acked) != total || twice > window {
		t.Errorf("%d of %d were acknowledged, %d twice", len(c.acked), total, twice)
	}
	proof(t, "%d records, two sockets, one cut: all acknowledged, %d of them delivered twice, committed %v is the end", total, twice, ends)
}
