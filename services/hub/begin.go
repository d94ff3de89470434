package hub

import "errors"

var errBeyond = errors.New("position beyond the end")

// beginAt decides where one partition begins. It returns false if that has to be resolved first.
func (o *opening) beginAt(i int, id int32, isLive bool, p *partition) (known bool, err error) {
	r, at := o.request, &o.begin[i]
	res, resolved := o.resolved[id]
	if !isLive && !resolved {
		return false, nil
	}
	at.epoch, at.end = -1, res.End
	if isLive {
		if resolved {
			p.see(res.End)
		}
		at.end = p.end
	}
	latest, latestKnown := at.end, true
	if isLive && !resolved {
		latest, latestKnown = p.next, !p.unavailable // what it was before it went away is not the latest
	}
	position, named := o.named[id]
	switch {
	case r.Start.Kind == Latest, r.Start.Kind == AtPositions && !named && r.Start.Missing == MissingLatest:
		at.next = latest
		return latestKnown, nil
	case !named:
		at.next, at.incomplete = res.Start, res.Incomplete
		return resolved, nil
	}
	at.mark = mark{position.Offset, position.Epoch}
	foreign := r.TopicID != "" && r.TopicID != o.topic.id
	// Where the log has gone on in later epochs, the source knows from where on.
	older := position.Epoch >= 0 && p.epoch > position.Epoch
	if !foreign && isLive && (!older || resolved && res.Lost == 0) {
		if seg, _ := o.topic.locateLocked(id, position.Offset); seg != nil || position.Offset >= p.next && position.Offset <= p.end {
			return true, nil
		}
	}
	switch {
	case !resolved:
		return false, nil
	case !foreign && res.Lost > 0:
		res.Oldest = position.Offset - res.Lost
	case !foreign && position.Offset >= res.Oldest && position.Offset <= at.end:
		return true, nil
	case !foreign && position.Offset > at.end && !o.twice:
		return false, errBeyond
	}
	return true, o.outOfRange(at, position, &res.ResolvedPartition, foreign, latest)
}

// outOfRange acts by policy on a position that is not in the log.
func (o *opening) outOfRange(at *beginning, position Position, res *ResolvedPartition, foreign bool, latest int64) error {
	to := res.Oldest
	switch o.request.OnOutOfRange {
	case OutOfRangeFail:
		return &OffsetOutOfRangeError{
			Topic: o.request.Topic, Partition: position.Partition, Offset: position.Offset, Oldest: res.Oldest, End: at.end,
		}
	case OutOfRangeLatest:
		to = latest
	}
	reason := GapStart
	switch {
	case foreign:
		reason = GapRecreated
	case to < position.Offset:
		reason = GapTruncation
	}
	at.mark = mark{to, -1}
	at.gap = &Entry{Kind: Gap, Reason: reason, Partition: position.Partition, From: position.Offset, Next: to, End: at.end}
	return nil
}
