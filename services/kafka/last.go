package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace.dev/tailrace/services/hub"
)

// Bounds of a search for the last n records of a partition. What reaches one of them is incomplete.
const (
	searchOffsets = 100_000         // read back at most
	searchFirst   = 128             // the first step; each further one is as long as all before it
	searchBytes   = 64 << 20        // of records, in one partition
	searchStep    = 16 << 20        // of records in one step, judging by those before it
	searchTime    = 3 * time.Second // of one Resolve, in all partitions together
)

// searching is how many steps of searches are read at once, in turns: a quarter of the history readers, so that searches never keep replays from
// them, and at least one.
func searching(cfg Config) int { return max(cfg.HistoryReaders/4, 1) }

// search is one Resolve's search for the last n records.
type search struct {
	client *Client
	topic  string
	id     string
	n      int
	keys   map[uint64]struct{} // nil: any record
	bounds map[int32]logBounds
}

// last resolves the start hub.Last: fills in the starts of partitions whose bounds are known. Searches wait for turns, a step a turn; when their
// time is up, what was found by then is the answer, and incomplete.
//
// Searches of a partition share what they have read of it (tails): it may be half a minute old, so that records which were compacted away
// meanwhile may be among the n.
func (c *Client) last(ctx context.Context, topic, id string, q *hub.Query, bounds map[int32]logBounds, ps []hub.ResolvedPartition) error {
	s := &search{client: c, topic: topic, id: id, n: q.Start.Last, bounds: bounds}
	if q.Keys != nil {
		s.keys = make(map[uint64]struct{}, len(q.Keys))
		for _, key := range q.Keys {
			if key == nil {
				key = []byte{}
			}
			s.keys[c.tails.hash(key)] = struct{}{}
		}
	}
	limited, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()
	g, all := errgroup.WithContext(limited)
	g.SetLimit(2 * cap(c.searches)) // one reads, one waits
	for i := range ps {
		g.Go(func() error { return s.partition(all, &ps[i]) })
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return fmt.Errorf("search %q: %w: %w", topic, hub.ErrUnavailable, ctx.Err())
	}
	return err
}

// partition finds the start in one partition.
func (s *search) partition(ctx context.Context, p *hub.ResolvedPartition) error {
	if p.Oldest == p.End || s.keys == nil && p.End-p.Oldest <= int64(s.n) {
		p.Start = p.Oldest // all there is
		return nil
	}
	ts := s.client.tails
	t := ts.of(tailKey{logKey{s.id, p.Partition}, s.bounds[p.Partition].epoch})
	for {
		select {
		case t.turn <- struct{}{}:
		case <-ctx.Done():
			s.giveUp(p, p.End)
			return nil
		}
		done, err := s.step(ctx, t, p)
		ts.weigh(t)
		<-t.turn
		if done || err != nil {
			return err
		}
	}
}

// step looks at what was read and, if that is not enough, reads some more. The tail's turn is held.
func (s *search) step(ctx context.Context, t *tail, p *hub.ResolvedPartition) (done bool, err error) {
	limit := max(p.Oldest, p.End-searchOffsets)
	if t.low == t.high || t.low >= p.End || p.End-t.high > max(t.high-t.low, searchFirst) {
		t.reset(p.End) // nothing yet, another branch of the log, or so long ago that to go on from there is no gain
	}
	from, to := t.high, p.End
	if to <= from {
		offset, found := t.last(s.n, s.keys, p.End)
		switch {
		case found == s.n || t.low <= p.Oldest:
			p.Start = max(offset, p.Oldest)
			return true, nil
		case t.low <= limit || t.read >= searchBytes:
			s.giveUp(p, offset)
			return true, nil
		}
		from, to = max(t.low-s.length(t, found), limit), t.low
	}
	select {
	case s.client.searches <- struct{}{}:
		err = s.read(ctx, t, from, to)
		<-s.client.searches
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch outside := (*hub.OffsetOutOfRangeError)(nil); {
	case err == nil:
		t.trim(p.End - searchOffsets)
		return false, nil
	case errors.As(err, &outside) && outside.Oldest > from: // retention moves on while we search
		if p.Oldest = min(outside.Oldest, p.End); from == t.high || p.Oldest > t.low {
			t.reset(p.End)
		}
		return false, nil
	case errors.As(err, &outside):
		t.reset(p.End)
		return false, fmt.Errorf("search %q partition %d: its end moved back: %w", s.topic, p.Partition, hub.ErrUnavailable)
	case ctx.Err() != nil:
		offset := p.End
		if t.high >= p.End {
			offset, _ = t.last(s.n, s.keys, p.End)
		}
		s.giveUp(p, offset)
		return true, nil
	}
	return false, err
}

// length is how far the next step goes back.
func (s *search) length(t *tail, found int) int64 {
	seen := t.high - t.low
	if seen == 0 {
		return searchFirst // nothing is known of the records' sizes
	}
	n := max(seen, searchFirst)
	if s.keys == nil {
		n = max(n, int64(s.n-found)) // all are wanted
	}
	return min(n, max(searchStep*seen/max(t.read, 1), 1))
}

// giveUp ends a search early. Of any records, the start is where the n-th would be if there were no holes: never more than n come. With keys it
// is at the oldest one that was found.
func (s *search) giveUp(p *hub.ResolvedPartition, offset int64) {
	p.Start, p.Incomplete = max(offset, p.Oldest), true
	if s.keys == nil {
		p.Start = max(p.End-int64(s.n), p.Oldest)
	}
}

// read reads [from, to), which lies next to what the tail has.
func (s *search) read(ctx context.Context, t *tail, from, to int64) error {
	var bs []tailBlock
	var bytes int64
	for at := from; at < to; {
		id := hub.ChunkID{Topic: s.topic, TopicID: s.id, Partition: t.key.partition, From: at}
		es, next, err := s.client.ReadAt(ctx, id, to, hub.MaxChunkRecords, nil)
		if err != nil {
			return err
		}
		if b := s.client.tails.block(at, es); len(b.offsets) > 0 {
			bs = append(bs, b)
		}
		for _, e := range es {
			bytes += int64(len(e.Body))
		}
		at = next
	}
	t.read += bytes
	t.grow(from, to, bs)
	return nil
}
