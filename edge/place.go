package edge

import (
	"slices"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

// place is where a reader of events stands, moved part by part: what the id of an event tells.
type place struct {
	topicID string
	marks   []hub.Position // in the order of their partitions; who resumes reads partitions without one from their first record
}

// set makes p a copy of q. Its memory is used again.
func (p *place) set(q *place) {
	p.topicID, p.marks = q.topicID, append(p.marks[:0], q.marks...)
}

// pass moves p past a part.
func (p *place) pass(part *hub.Part) {
	m := hub.Position{Partition: part.Partition, Offset: part.Next, Epoch: -1}
	switch part.Kind {
	case hub.Records:
		if part.Lo < part.Hi {
			m.Epoch = part.Meta[part.Hi-1].Epoch
		} else if part.Next == part.From {
			return
		}
	case hub.Advance, hub.Gap:
		if part.Next == part.From {
			return // only an end was told
		}
	case hub.Recreated:
		if part.TopicID == "" {
			p.marks = slices.DeleteFunc(p.marks, func(m hub.Position) bool { return m.Partition == part.Partition })
			return // the log made anew does not have it
		}
		if p.topicID != part.TopicID {
			p.topicID, p.marks = part.TopicID, p.marks[:0] // the others are told one after the other
		}
	default:
		return
	}
	i, known := slices.BinarySearchFunc(p.marks, m, func(a, b hub.Position) int { return int(a.Partition) - int(b.Partition) })
	if known {
		p.marks[i] = m
	} else {
		p.marks = slices.Insert(p.marks, i, m)
	}
}

// appendID appends the id of an event after which a reader stands at p.
func (p *place) appendID(dst []byte) []byte {
	return frame.AppendEventID(dst, &frame.EventID{TopicID: p.topicID, Positions: p.marks})
}
