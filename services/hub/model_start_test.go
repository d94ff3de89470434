package hub_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// modelReach is how far the start Last looks back in the model: not far, so that it often finds less than was asked for.
const modelReach = 12

// request draws a request.
func (w *world) request(random *rand.Rand, t *plainTopic) hub.Request {
	r := hub.Request{Topic: t.name, KeyScope: hub.KeyScope(random.IntN(3)), OnOutOfRange: hub.OutOfRange(max(0, random.IntN(5)-2))}
	if random.IntN(5) < 2 {
		for i := range t.count() {
			if random.IntN(2) == 0 || i == t.count()-1 && r.Partitions == nil {
				r.Partitions = append(r.Partitions, i)
			}
		}
	}
	if random.IntN(2) == 0 {
		for range 1 + random.IntN(3) {
			key := keyName(random.IntN(keyNames))
			if random.IntN(8) == 0 {
				key = []byte{} // which is not the same as none
			}
			r.Keys = append(r.Keys, key)
		}
	}
	if random.IntN(5) == 0 {
		r.MaxRecordBytes = 60 + random.IntN(100)
	}
	switch random.IntN(20) {
	case 0:
		r.TopicID = "of long ago"
	case 1, 2, 3:
		r.TopicID = t.id
	}
	switch random.IntN(10) {
	case 0, 1, 2:
	case 3, 4:
		r.Start.Kind = hub.Earliest
	case 5:
		at := hubtest.FirstTime - 3 + random.Int64N(t.partitions[random.Int32N(t.count())].now().high()+6)
		r.Start = hub.Start{Kind: hub.AtTime, Time: time.UnixMilli(at)}
	case 6:
		r.Start = hub.Start{Kind: hub.Last, Last: 1 + random.IntN(6)}
	default:
		r.Start.Kind = hub.AtPositions
		r.Start.Missing = hub.Missing(random.IntN(3))
		r.Start.Positions = w.positions(random, t, r.Partitions, 4)
	}
	switch random.IntN(16) {
	case 0:
		r.Stop.AtEnd = true
	case 1:
		r.Stop.Positions = w.positions(random, t, r.Partitions, 2)
	case 2:
		r.Stop.Records = 1 + random.Int64N(20)
	case 3:
		r.Stop.Bytes = 1 + random.Int64N(1000)
	}
	r.Slow = hub.SlowPolicy(max(0, random.IntN(8)-4)) // last: what is drawn before stays what it was
	return r
}

// positions draws a position in some of the partitions: most in the log, some beside it.
func (w *world) positions(random *rand.Rand, t *plainTopic, among []int32, share int) []hub.Position {
	var positions []hub.Position
	for _, p := range t.present() {
		if among != nil && !slices.Contains(among, p.number) || random.IntN(share) == 0 {
			continue
		}
		v := p.now()
		low, high := *v.oldest, v.end()
		if random.IntN(4) == 0 {
			low, high = max(0, low-3), high+3
		}
		positions = append(positions, hub.Position{Partition: p.number, Offset: low + random.Int64N(high-low+1), Epoch: -1})
	}
	return positions
}

// judgeTime judges a start at a time: the first record that is not older, or the end as it was. Records are a millisecond apart.
func (r *reader) judgeTime(c *cursor, p hub.StartedPartition, low, high int64) error {
	v := c.partition.now()
	if v.id != r.started.TopicID {
		return nil // of a log that is gone, which nobody can look into
	}
	asked := r.request.Start.Time.UnixMilli() - hubtest.FirstTime
	if p.Start < min(asked, low) || p.Start > high {
		return fmt.Errorf("want from %d on, or the end, between %d and %d", asked, low, high)
	}
	return v.lost(max(asked, *v.oldest), p.Start, func(*plainRecord) bool { return true })
}

// judgeLast judges a start at the last n records that are wanted.
func (r *reader) judgeLast(c *cursor, p hub.StartedPartition, low, high int64) error {
	v, n := c.partition.now(), r.request.Start.Last
	if v.id != r.started.TopicID {
		return nil
	}
	if p.Start < 0 || p.Start > high {
		return fmt.Errorf("want at most the end, %d", high)
	}
	surely, perhaps := 0, 0 // records from the start on that were counted
	for i := p.Start; i < v.end(); i++ {
		s := v.slots[i]
		if s.kind != plainCommitted || !r.wants(s) {
			continue
		}
		if perhaps++; i < low && !s.compacted {
			surely++
		}
	}
	reached := p.Start >= low-modelReach && p.Start <= high-modelReach
	switch {
	case surely > n:
		return fmt.Errorf("has %d records below %d, want %d", surely, low, n)
	case p.Incomplete && !reached:
		return fmt.Errorf("is incomplete, though it did not look back over %d offsets", modelReach)
	case p.Incomplete && surely >= n:
		return errors.New("is incomplete, though it has all")
	case !p.Incomplete && perhaps < n && p.Start > *v.oldest:
		return fmt.Errorf("has %d records, want %d", perhaps, n)
	}
	return nil
}
