package hub_test

import (
	"errors"
	"fmt"
	"slices"

	"tailrace.dev/tailrace/services/hub"
)

// begin judges how a subscription was resolved, and puts the cursors there.
func (r *reader) begin(before *snapshot) error {
	r.started = r.sub.Started()
	t := r.log.topics[r.request.Topic]
	if !slices.Contains(t.ids[before.ids-1:], r.started.TopicID) && !(before.followed && slices.Contains(t.ids, r.started.TopicID)) {
		return fmt.Errorf("started with topic id %q, want %q", r.started.TopicID, t.id)
	}
	if c := r.started.Count; !before.had(t, c) {
		return fmt.Errorf("started with %d partitions of the topic, want %d", c, t.count())
	}
	var got []int32
	for _, p := range r.started.Partitions {
		got = append(got, p.Partition)
	}
	slices.Sort(got)
	if want := r.partitions(r.started.Count); !slices.Equal(got, want) {
		return fmt.Errorf("started with partitions %v, want %v", got, want)
	}
	for _, p := range r.started.Partitions {
		r.open(p.Partition, p.Start, r.started.TopicID)
		c := r.cursors[p.Partition]
		low, high := before.bounds(c.partition, r.started.TopicID)
		if r.started.Count > before.count && slices.Contains(before.idle, p.Partition) {
			low = 0 // a key may hash there now: the hub follows it from its oldest record on
		}
		if err := r.judgeStart(c, p, low, high); err != nil {
			return fmt.Errorf("partition %d starts at %d, end %d: %w", p.Partition, p.Start, p.End, err)
		}
	}
	for _, p := range r.request.Stop.Positions {
		if c := r.cursors[p.Partition]; c != nil {
			c.stop = p.Offset
		}
	}
	if r.request.Stop.AtEnd {
		for _, p := range r.started.Partitions {
			r.cursors[p.Partition].stop = p.End
		}
	}
	return nil
}

// judgeStart judges where a partition begins. Its end was between low and high while Subscribe ran.
func (r *reader) judgeStart(c *cursor, p hub.StartedPartition, low, high int64) error {
	if p.End < low || p.End > high {
		return fmt.Errorf("want an end between %d and %d", low, high)
	}
	kind := r.request.Start.Kind
	if p.Incomplete && kind != hub.Last {
		return errors.New("is incomplete")
	}
	switch kind {
	case hub.AtTime:
		return r.judgeTime(c, p, low, high)
	case hub.Last:
		return r.judgeLast(c, p, low, high)
	case hub.Latest, hub.Earliest, hub.AtPositions:
	}
	if kind == hub.AtPositions {
		at := slices.IndexFunc(r.request.Start.Positions, func(q hub.Position) bool { return q.Partition == p.Partition })
		switch {
		case at >= 0:
			position := r.request.Start.Positions[at].Offset
			foreign := r.request.TopicID != "" && r.request.TopicID != r.started.TopicID
			if !foreign && position == p.Start {
				if position > high {
					return errors.New("beyond the end")
				}
				return nil
			}
			if !foreign && position >= *c.lives[0].oldest && position <= low {
				return fmt.Errorf("though %d is in the log", position)
			}
			c.asked = position
			if kind = hub.Earliest; r.request.OnOutOfRange == hub.OutOfRangeLatest {
				kind = hub.Latest
			} else if r.request.OnOutOfRange == hub.OutOfRangeFail {
				return errors.New("though the policy is to fail")
			}
		case r.request.Start.Missing == hub.MissingLatest:
			kind = hub.Latest
		}
	}
	if kind == hub.Latest && (p.Start < low || p.Start > high) {
		return fmt.Errorf("want the latest, between %d and %d", low, high)
	}
	if kind != hub.Latest && p.Start > *c.lives[0].oldest {
		return fmt.Errorf("want the earliest, %d", *c.lives[0].oldest)
	}
	return nil
}

// judgeStartGap expects the gap that tells why reading does not begin where it was asked to.
func (r *reader) judgeStartGap(c *cursor, p *hub.Part) error {
	want := hub.GapStart
	switch {
	case r.request.TopicID != "" && r.request.TopicID != r.started.TopicID:
		want = hub.GapRecreated
	case c.asked > c.pos:
		want = hub.GapTruncation // the only reason of the two that may go back
	}
	if p.Kind != hub.Gap || p.From != c.asked || p.Next != c.pos || p.Reason != want {
		return fmt.Errorf("want first a gap [%d, %d) reason %d", c.asked, c.pos, want)
	}
	c.asked = -1
	return nil
}

// judgeGap judges what a reader is told to be missing.
func (r *reader) judgeGap(c *cursor, p *hub.Part) error {
	reason := p.Reason
	if p.Kind == hub.Recreated {
		reason = hub.GapRecreated
	}
	before := c.reach()
	if reason == hub.GapTruncation || reason == hub.GapRecreated {
		if c.reset = true; c.conflated > 0 {
			c.conflated = 1 << 62 // it may go on, or begin anew
		}
	}
	toEnd := r.request.OnOutOfRange == hub.OutOfRangeLatest
	switch reason {
	case hub.GapRetention:
		if p.Next <= p.From {
			return errors.New("is empty or goes back")
		}
		if r.request.OnOutOfRange == hub.OutOfRangeFail {
			return errors.New("the policy is to fail")
		}
		err := c.keep(func(v *life) error {
			if p.Next <= *v.oldest || toEnd && p.From < *v.oldest && p.Next <= v.end() {
				return v.lost(c.pos, p.From, r.wants)
			}
			return fmt.Errorf("the log still has what lies at and after %d", *v.oldest)
		})
		c.pos = p.Next
		return err
	case hub.GapTooLarge:
		err := c.keep(func(v *life) error { return r.judgeTooLarge(v, c.pos, p) })
		c.pos = p.Next
		return err
	case hub.GapSlow:
		return r.judgeSkipped(c, p)
	case hub.GapConflated:
		return r.judgeConflated(c, p)
	case hub.GapTruncation, hub.GapRecreated:
	default:
		return errors.New("unexpected reason")
	}
	if err := c.keep(func(v *life) error { return v.lost(c.pos, p.From, r.wants) }); err != nil {
		return err
	}
	var kept []*life
	for _, old := range before {
		fork := old.high()
		for _, v := range c.partition.lives[old.index+1:] {
			fork = min(fork, v.fork)
			truncated := reason == hub.GapTruncation && v.id == old.id && p.Next == fork && p.Next <= p.From
			recreated := reason == hub.GapRecreated && v.id != old.id && (p.TopicID == "" || p.TopicID == v.id) &&
				(p.Next <= *v.oldest || toEnd && p.Next <= v.end())
			if (truncated || recreated) && !slices.Contains(kept, v) {
				kept = append(kept, v)
			}
		}
	}
	if len(kept) == 0 {
		return errors.New("nothing of the kind has happened")
	}
	c.lives, c.pos, c.epoch = kept, p.Next, -1
	return nil
}

// judgePositions judges the positions, and moves the cursors silently where nothing was left out.
func (r *reader) judgePositions() error {
	positions := r.sub.Positions(nil)
	over := r.counted() // what came with the last record is known to the hub, and was not told
	if len(positions) != len(r.cursors) && !over {
		return fmt.Errorf("%d positions, want one for each of %d partitions", len(positions), len(r.cursors))
	}
	for _, p := range positions {
		c := r.cursors[p.Partition]
		if c == nil && over {
			continue
		}
		if c == nil {
			return fmt.Errorf("position %d of partition %d, which is not read", p.Offset, p.Partition)
		}
		if p.Offset < c.pos {
			return fmt.Errorf("position %d of partition %d, want at least %d", p.Offset, p.Partition, c.pos)
		}
		if c.fresh {
			c.begin(p.Offset, r.wants)
		}
		if err := c.keep(func(v *life) error { return v.lost(c.pos, p.Offset, r.wants) }); err != nil {
			return fmt.Errorf("position %d of partition %d, at %d: %w", p.Offset, p.Partition, c.pos, err)
		}
		if c.stop >= 0 && !c.reset && p.Offset > max(c.stop, c.pos) {
			return fmt.Errorf("position %d of partition %d is beyond the stop %d", p.Offset, p.Partition, c.stop)
		}
		if c.pos != p.Offset {
			r.trace("%s is at %d of partition %d", r.name, p.Offset, p.Partition)
		}
		c.pos = p.Offset
		if err := c.judgeEpoch(p.Epoch); err != nil {
			return fmt.Errorf("position %d of partition %d: %w", p.Offset, p.Partition, err)
		}
	}
	if lag := r.sub.Lag(); lag < 0 {
		return fmt.Errorf("lag is %d", lag)
	}
	return nil
}

// judgeEpoch: the epoch of a position is unknown, or that of a record before it and not older than that of the last record delivered.
func (c *cursor) judgeEpoch(epoch int32) error {
	if epoch == -1 || epoch == c.epoch {
		return nil
	}
	for _, v := range c.lives {
		if epoch >= c.epoch && epoch <= v.epoch {
			return nil
		}
	}
	return fmt.Errorf("epoch %d, that of the last record is %d", epoch, c.epoch)
}

// judgeMoved judges what a heartbeat tells: exactly the positions that moved without a part.
func (r *reader) judgeMoved() error {
	if r.ended != nil {
		return nil
	}
	moved := r.sub.Moved(nil)
	if err := r.judgePositions(); err != nil {
		return err
	}
	for _, p := range moved {
		c := r.cursors[p.Partition]
		if c == nil || p.Offset != c.pos {
			return fmt.Errorf("partition %d moved to %d, want its position %d", p.Partition, p.Offset, r.position(p.Partition))
		}
		if p.Offset == c.told {
			return fmt.Errorf("partition %d moved to %d, which was told before", p.Partition, p.Offset)
		}
		c.told = p.Offset
	}
	for i, c := range r.cursors {
		if c.told != c.pos && !r.stopReached() {
			return fmt.Errorf("partition %d moved from %d to %d untold", i, c.told, c.pos)
		}
	}
	return nil
}

// judgeCaughtUp: exactly once, with the batch that reaches the ends which Started told.
func (r *reader) judgeCaughtUp(b *hub.Batch) error {
	reached, excused := true, true
	for _, p := range r.started.Partitions {
		c := r.cursors[p.Partition]
		if c == nil {
			continue // it is over
		}
		reached = reached && c.pos >= p.End
		excused = excused && (c.pos >= p.End || c.reset)
	}
	switch {
	case b.CaughtUp && r.caughtUp:
		return errors.New("caught up twice")
	case b.CaughtUp && !excused:
		return errors.New("caught up too early")
	case !b.CaughtUp && !r.caughtUp && reached && !r.races:
		return errors.New("caught up, but not told")
	}
	r.caughtUp = r.caughtUp || b.CaughtUp
	return nil
}

// stopReached says whether EOF is due.
func (r *reader) stopReached() bool {
	if r.counted() {
		return true
	}
	named, reached := r.ceded, true
	for _, c := range r.cursors {
		if c.stop >= 0 {
			named = true
			reached = reached && c.pos >= c.stop && c.asked < 0
		}
	}
	return named && reached
}

// counted says whether the stop by records or bytes was reached.
func (r *reader) counted() bool {
	stop := r.request.Stop
	return stop.Records > 0 && r.records >= stop.Records || stop.Bytes > 0 && r.bytes >= stop.Bytes
}
