package edge

import (
	"maps"
	"slices"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

// place is where a reader of events stands, moved part by part: what the id of an event tells.
type place struct {
	topicID string
	marks   []hub.Position // of the partitions that are read, in their order
	// After the topic was created again: the partitions of which that was told. The positions of the others are still those of the old log,
	// and not told: who resumes reads them from their first record. nil: all are of one log.
	fresh map[int32]struct{}
}

// set makes p a copy of q. Its memory is used again.
func (p *place) set(q *place) {
	p.topicID, p.marks, p.fresh = q.topicID, append(p.marks[:0], q.marks...), maps.Clone(q.fresh)
}

// pass moves p past a part.
func (p *place) pass(part *hub.Part) {
	epoch := int32(-1)
	switch part.Kind {
	case hub.Records:
		if part.Lo < part.Hi {
			epoch = part.Meta[part.Hi-1].Epoch
		}
	case hub.Recreated:
		p.renew(part)
	case hub.Advance, hub.Gap:
	default:
		return
	}
	if part.Next == part.From && part.Kind != hub.Recreated {
		return // only an end was told
	}
	m := hub.Position{Partition: part.Partition, Offset: part.Next, Epoch: epoch}
	i, known := slices.BinarySearchFunc(p.marks, m, func(a, b hub.Position) int { return int(a.Partition) - int(b.Partition) })
	if known {
		p.marks[i] = m
	} else {
		p.marks = slices.Insert(p.marks, i, m)
	}
}

// renew takes note of a partition that goes on in another log.
func (p *place) renew(part *hub.Part) {
	if p.topicID != part.TopicID {
		p.topicID, p.fresh = part.TopicID, make(map[int32]struct{})
	}
	if p.fresh == nil {
		return // told while the subscription knew of that log already
	}
	p.fresh[part.Partition] = struct{}{}
	if !slices.ContainsFunc(p.marks, func(m hub.Position) bool { return !p.tells(m) }) {
		p.fresh = nil
	}
}

func (p *place) tells(m hub.Position) bool {
	_, fresh := p.fresh[m.Partition]
	return fresh || p.fresh == nil
}

// appendID appends the id of an event after which a reader stands at p.
func (p *place) appendID(dst []byte) []byte {
	id := frame.EventID{TopicID: p.topicID, Positions: p.marks}
	if p.fresh != nil {
		id.Positions = slices.DeleteFunc(slices.Clone(p.marks), func(m hub.Position) bool { return !p.tells(m) })
	}
	return frame.AppendEventID(dst, &id)
}
