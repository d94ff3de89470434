package hub

import (
	"io"
	"math"
	"slices"
)

// limits are what ends a subscription, or cuts pieces out of it.
type limits struct {
	stops   map[int32]int64 // first offsets not to be delivered
	left    []int32         // partitions of stops, not reached yet
	stopAll bool            // there are stops
	records int64           // left; math.MaxInt64: no limit
	bytes   int64
	most    int // bytes of a record; 0: no limit
}

func newLimits(r *Request) *limits {
	l := &limits{stops: map[int32]int64{}, records: math.MaxInt64, bytes: math.MaxInt64, most: r.MaxRecordBytes}
	if r.Stop.Records > 0 {
		l.records = r.Stop.Records
	}
	if r.Stop.Bytes > 0 {
		l.bytes = r.Stop.Bytes
	}
	if l.records == math.MaxInt64 && l.bytes == math.MaxInt64 && l.most == 0 && len(r.Stop.Positions) == 0 && !r.Stop.AtEnd {
		return nil
	}
	return l
}

// limit cuts a batch down to the limits. The first parts, the prelude, lie before the start and pass.
func (s *Subscription) limit(b *Batch, prelude int) {
	l := s.limits
	out, ended := Batch{Parts: make([]Part, 0, len(b.Parts))}, false
	for i := range b.Parts {
		p := &b.Parts[i]
		if i < prelude || p.Kind == Topology {
			out.Parts = append(out.Parts, *p)
			continue
		}
		if p.Kind == Recreated || p.Kind == Gap && p.Next < p.From {
			if stop, ok := l.stops[p.Partition]; ok && p.From > stop {
				if p.Kind == Gap && p.Next >= stop {
					continue // what is lost lay beyond the stop
				}
				p.From = stop
			}
			l.void(p.Partition)
		}
		if ended && p.Lo < p.Hi {
			break // bound leaves no more records than end it
		}
		ended = !l.part(&out, *p) || ended // what comes after the last record is told: positions may have gone back
	}
	if ended {
		s.final = io.EOF
	}
	s.again = s.again || len(b.Parts) > 0 // what was left out may have taken the room of what comes next
	*b = out
	if s.final == nil && s.stopReached() {
		s.final = io.EOF
	}
}

// stopReached says whether all positions of the stop are reached.
func (s *Subscription) stopReached() bool {
	l := s.limits
	if l == nil || !l.stopAll {
		return false
	}
	for len(l.left) > 0 && s.placeOf(l.left[0]).next >= l.stops[l.left[0]] {
		l.left = l.left[1:]
	}
	return len(l.left) == 0
}

// void takes a stop as reached whose records are gone: the log goes on with others at the same offsets.
func (l *limits) void(partition int32) {
	delete(l.stops, partition)
	l.left = slices.DeleteFunc(l.left, func(p int32) bool { return p == partition })
}

// part adds what the limits leave of a part. It returns false if the end is reached.
func (l *limits) part(out *Batch, p Part) bool {
	if stop, ok := l.stops[p.Partition]; ok && p.Next > stop {
		if p.From >= stop {
			return true
		}
		if p.Next = stop; p.Kind == Records {
			p.Hi = max(p.Lo, min(p.Hi, p.search(stop)))
		}
	}
	if p.Kind != Records {
		out.Parts = append(out.Parts, p)
		return true
	}
	from, lo := p.From, p.Lo
	flush := func(hi int, next int64) {
		if lo < hi || next > from {
			out.add(p.Entry, lo, hi, from, next)
		}
		from, lo = next, hi
	}
	for i := p.Lo; i < p.Hi; i++ {
		size, offset := p.recordBytes(i), p.Meta[i].Offset
		if l.most > 0 && size > l.most {
			flush(i, offset)
			gap := &Entry{Kind: Gap, Reason: GapTooLarge, Partition: p.Partition, From: offset, Next: offset + 1, End: p.End}
			out.add(gap, 0, 0, offset, offset+1)
			from, lo = offset+1, i+1
			continue
		}
		l.records--
		l.bytes -= int64(size)
		if l.records == 0 || l.bytes <= 0 {
			flush(i+1, offset+1)
			return false
		}
	}
	if lo == p.Lo || lo < p.Hi || from < p.Next {
		flush(p.Hi, p.Next)
	}
	return true
}
