package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace.dev/tailrace/services/hub"
)

// After an unclean election, or where a broker lost its log, another branch of records may lie where a reader has been: the offsets are there, and
// nothing is out of range. The leader epoch of the record before a position tells (KIP-320): the reader's branch ends where the first record of a later
// epoch lies. The client has no OffsetForLeaderEpoch, so that record is looked for by reading; nearly always the newest epoch of the log, which
// comes with its end, says that there is none.
//
// Limits: a position without epoch is not checked. An epoch that is not in the log any more, and has only older ones below the position, is
// taken for compacted away.
const (
	branchTime = 3 * time.Second // of one Resolve
	branchMost = 64              // epochs remembered of a partition
)

// branch is what is known of one leader epoch in a partition.
type branch struct {
	upTo int64 // there is no record of a later epoch below; -1: nothing is known
	ends int64 // at the first record of a later epoch; -1: not known
}

// lost says how many offsets below a position are of a branch that the log has lost: those from the first record on whose epoch is later than that of the
// record before the position. It shares what it finds with all that ask.
func (c *Client) lost(ctx context.Context, topic, id string, partition int32, at int64, epoch int32, b logBounds) (int64, error) {
	if epoch < 0 || b.epoch <= epoch || at <= b.oldest {
		return 0, nil
	}
	t := c.tails.of(tailKey{logKey{id, partition}, b.epoch})
	select {
	case t.turn <- struct{}{}:
		defer func() { <-t.turn }()
	case <-ctx.Done():
		return 0, fmt.Errorf("branch of %q partition %d: %w: %w", topic, partition, hub.ErrUnavailable, ctx.Err())
	}
	br, known := t.branches[epoch]
	if !known || br.ends > b.end {
		br = branch{-1, -1}
	}
	p := &probe{client: c, id: hub.ChunkID{Topic: topic, TopicID: id, Partition: partition}}
	if br.upTo < at && br.ends < 0 {
		e, _, err := p.at(ctx, at-1, at)
		switch {
		case err != nil:
			return 0, err
		case e >= 0 && e <= epoch:
			br.upTo = at
		default: // later, or a hole
			if br.ends, err = p.first(ctx, epoch, max(b.oldest, br.upTo), at); err != nil {
				return 0, err
			}
			if br.ends == at {
				br.upTo, br.ends = at, -1
			}
		}
	}
	if t.branches == nil || len(t.branches) >= branchMost {
		t.branches = map[int32]branch{}
	}
	t.branches[epoch] = br
	if br.ends < 0 || br.upTo >= at {
		return 0, nil
	}
	return max(at-br.ends, 0), nil
}

// probe reads single records.
type probe struct {
	client *Client
	id     hub.ChunkID
}

// at returns epoch and offset of the first record of [from, to); an epoch of -1: none, or it has none.
func (p *probe) at(ctx context.Context, from, to int64) (epoch int32, offset int64, err error) {
	for p.id.From = from; p.id.From < to; {
		es, next, err := p.client.ReadAt(ctx, p.id, to, 1, nil)
		if outside, ok := errors.AsType[*hub.OffsetOutOfRangeError](err); ok && outside.Oldest > p.id.From {
			p.id.From = outside.Oldest // retention moves on meanwhile
			continue
		}
		if err != nil {
			return 0, 0, fmt.Errorf("branch of %q partition %d: %w: %w", p.id.Topic, p.id.Partition, hub.ErrUnavailable, err)
		}
		if len(es) > 0 {
			return es[0].Meta[0].Epoch, es[0].Meta[0].Offset, nil
		}
		p.id.From = next
	}
	return -1, to, nil
}

// first looks for the first record of [low, high) whose epoch is later, high if there is none: epochs never go back in a log.
func (p *probe) first(ctx context.Context, epoch int32, low, high int64) (int64, error) {
	found := high
	for low < high {
		middle := low + (high-low)/2
		e, offset, err := p.at(ctx, middle, high)
		switch {
		case err != nil:
			return 0, err
		case offset < high && e <= epoch:
			low = offset + 1
			continue
		case offset < high:
			found = offset
		}
		high = middle
	}
	return found, nil
}

// checkBranches finds out which of the positions asked for lie on a branch that the log has lost.
func (c *Client) checkBranches(ctx context.Context, topic, id string, asked map[int32]hub.Position, bounds map[int32]logBounds, ps []hub.ResolvedPartition) error {
	limited, cancel := context.WithTimeout(ctx, branchTime)
	defer cancel()
	g, all := errgroup.WithContext(limited)
	g.SetLimit(2 * cap(c.searches))
	for i := range ps {
		p := &ps[i]
		at, placed := asked[p.Partition]
		b := bounds[p.Partition]
		if !placed || at.Epoch < 0 || b.epoch <= at.Epoch || at.Offset <= p.Oldest || at.Offset > p.End {
			continue
		}
		g.Go(func() (err error) {
			p.Lost, err = c.lost(all, topic, id, p.Partition, at.Offset, at.Epoch, b)
			return err
		})
	}
	return g.Wait()
}
