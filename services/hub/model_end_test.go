package hub_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"tailrace.dev/tailrace/services/hub"
)

// judgeEnd judges a final error.
func (r *reader) judgeEnd(end error) error {
	var outOfRange *hub.OffsetOutOfRangeError
	var lagged *hub.LaggedError
	var unknown *hub.UnknownPartitionError
	switch {
	case errors.Is(end, io.EOF):
		if err := r.judgePositions(); err != nil {
			return err
		}
		if !r.stopReached() && !r.anyReset() {
			return errors.New("EOF before the stop was reached")
		}
	case errors.Is(end, hub.ErrTopicDeleted):
		if !r.mayBeGone() {
			return errors.New("the topic was not deleted")
		}
	case errors.Is(end, hub.ErrDraining):
		if !r.drained {
			return errors.New("the hub does not drain")
		}
	case errors.As(end, &lagged):
		return r.judgeLagged()
	case errors.As(end, &unknown):
		if unknown.Count != r.started.Count || unknown.Partition < unknown.Count || !slices.Contains(r.request.Partitions, unknown.Partition) {
			return fmt.Errorf("%w: the topic had %d partitions, it reads %v", end, r.started.Count, r.request.Partitions)
		}
	case errors.As(end, &outOfRange):
		return r.judgeOutOfRange(outOfRange)
	default:
		return fmt.Errorf("unexpected end: %w", end)
	}
	return nil
}

func (r *reader) judgeOutOfRange(e *hub.OffsetOutOfRangeError) error {
	if r.request.OnOutOfRange != hub.OutOfRangeFail {
		return errors.New("the policy is not to fail")
	}
	c := r.cursors[e.Partition]
	if c == nil {
		return fmt.Errorf("%w: of a partition that is not read", e)
	}
	now := c.partition.now()
	reached := c.reach()
	outside := func(v *life) bool { return e.Offset < *v.oldest || e.Offset > v.end() }
	if !slices.Contains(reached, now) || slices.ContainsFunc(reached, outside) {
		return nil
	}
	return fmt.Errorf("%w: but the log holds [%d, %d)", e, *now.oldest, now.end())
}

// gone says whether a log that is read was deleted for good, so that the reader has to end. Where the topic was made anew, a partition that
// is unavailable cannot tell.
func (r *reader) gone() bool {
	for _, c := range r.cursors {
		if c.partition.unavailable && !r.log.topics[r.request.Topic].deleted {
			continue
		}
		alive := func(v *life) bool { return !r.deleted(v) }
		if !slices.ContainsFunc(c.reach(), alive) {
			return true
		}
	}
	return false
}

// mayBeGone says whether the reader may end: also where a later log was deleted that came and went unnoticed.
func (r *reader) mayBeGone() bool {
	for _, c := range r.cursors {
		if slices.ContainsFunc(c.partition.lives[c.reach()[0].index:], r.deleted) {
			return true
		}
	}
	return len(r.cursors) == 0 && len(r.log.topics[r.request.Topic].gone) > 0
}

func (r *reader) deleted(v *life) bool {
	return slices.Contains(r.log.topics[r.request.Topic].gone, v.id)
}

func (r *reader) anyReset() bool {
	for _, c := range r.cursors {
		if c.reset || len(c.partition.lives) > 1 {
			return true
		}
	}
	return false
}

func (r *reader) judgeTooLarge(v *life, pos int64, p *hub.Part) error {
	if err := v.lost(pos, p.From, r.wants); err != nil {
		return err
	}
	if p.Next > v.high() {
		return errors.New("goes beyond the log's high watermark")
	}
	large := 0
	for i := p.From; i < p.Next; i++ {
		switch s := v.slots[i]; {
		case s.kind != plainCommitted || !r.wants(s):
		case r.tooLarge(s):
			large++
		case !s.compacted:
			return fmt.Errorf("offset %d is not too large", i)
		}
	}
	if large == 0 {
		return errors.New("there is nothing too large")
	}
	return nil
}

func describeRequest(r hub.Request) string {
	start := fmt.Sprintf("start %d", r.Start.Kind)
	if r.Start.Kind == hub.AtPositions {
		start = fmt.Sprintf("positions %v missing %d", r.Start.Positions, r.Start.Missing)
	}
	return fmt.Sprintf("%s id %q partitions %v keys %q scope %d %s stop %+v policy %d most %d slow %d",
		r.Topic, r.TopicID, r.Partitions, r.Keys, r.KeyScope, start, r.Stop, r.OnOutOfRange, r.MaxRecordBytes, r.Slow)
}

func describe(p *hub.Part) string {
	switch p.Kind {
	case hub.Records:
		var offsets []int64
		for i := p.Lo; i < p.Hi; i++ {
			offsets = append(offsets, p.Meta[i].Offset)
		}
		return fmt.Sprintf("records %v of partition %d [%d, %d)", offsets, p.Partition, p.From, p.Next)
	case hub.Gap:
		return fmt.Sprintf("gap of partition %d [%d, %d) reason %d, %d left out", p.Partition, p.From, p.Next, p.Reason, p.Left)
	case hub.Topology:
		return fmt.Sprintf("topology %d", p.Count)
	}
	return fmt.Sprintf("kind %d of partition %d [%d, %d)", p.Kind, p.Partition, p.From, p.Next)
}

// noLock is the lock of a log that only one goroutine uses at a time.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// forms counts what was made.
type forms struct {
	made  map[*hub.Entry]int
	bytes int64
}

// judgeForm asks for a form of what was read: it is made once for all who share it.
func (r *reader) judgeForm(p *hub.Part) error {
	if !r.shared || p.Kind != hub.Records {
		return nil
	}
	form := p.Form(hub.FormID(len(p.Meta)%2), func(e *hub.Entry) *hub.Form {
		form := &hub.Form{Body: bytes.ToUpper(e.Body)}
		if r.forms != nil {
			r.forms.made[e]++
			r.forms.bytes += int64(cap(form.Body))
		}
		return form
	})
	if r.forms != nil && r.forms.made[p.Entry] > 1 {
		return errors.New("a form is made twice")
	}
	if !bytes.Equal(form.Body, bytes.ToUpper(p.Body)) {
		return errors.New("a form is of another entry")
	}
	return nil
}
