package group

// Tracker turns acks in any order into the front of a partition: the offset below which every record is done. Offsets that no record has
// (transactions, compaction) are passed. Every method is O(1), amortised. It is not safe for concurrent use.
type Tracker struct {
	slots     []slot // a ring; its length is a power of two
	low, high int64  // sequence numbers: slots are in use for [low, high)
	bytes     int64  // of the records in use

	next  int64 // the offset after the newest record, or after the hole behind it
	epoch int32 // leader epoch of the record before the front, -1 unknown
}

type slot struct {
	offset int64
	epoch  int32
	bytes  int32
	done   bool
}

// NewTracker returns a tracker that begins at an offset; epoch is that of the record before it, -1 unknown.
func NewTracker(from int64, epoch int32) *Tracker {
	return &Tracker{next: from, epoch: epoch}
}

// Append takes the next record and returns the number by which Done knows it. A record below the end of what was appended or passed has been here
// before: ok is false and nothing changes. Offsets below bytes are charged to the window until the front is behind them.
func (t *Tracker) Append(offset int64, epoch int32, bytes int) (seq int64, ok bool) {
	if offset < t.next {
		return 0, false
	}
	if int(t.high-t.low) == len(t.slots) {
		t.grow()
	}
	*t.at(t.high) = slot{offset: offset, epoch: epoch, bytes: int32(bytes)}
	t.bytes += int64(bytes)
	t.next = offset + 1
	t.high++
	return t.high - 1, true
}

// Pass says that there is no record below next that was not appended. A lower one than known is ignored.
func (t *Tracker) Pass(next int64) { t.next = max(t.next, next) }

// Done marks a record as done, and says whether the front moved. Only the first time counts.
func (t *Tracker) Done(seq int64) (moved bool) {
	if seq < t.low || seq >= t.high {
		return false
	}
	t.at(seq).done = true
	for t.low < t.high {
		s := t.at(t.low)
		if !s.done {
			break
		}
		t.epoch, moved = s.epoch, true
		t.bytes -= int64(s.bytes)
		t.low++
	}
	return moved
}

// Front is the offset that may be committed, and the leader epoch of the record before it (-1 unknown).
func (t *Tracker) Front() (offset int64, epoch int32) {
	if t.low == t.high {
		return t.next, t.epoch
	}
	return t.at(t.low).offset, t.epoch
}

// Low is the number of the record at the front, or of the one that comes next: all below are done.
func (t *Tracker) Low() int64 { return t.low }

// Next is the offset that comes after all that was appended or passed.
func (t *Tracker) Next() int64 { return t.next }

// Beyond is how much lies beyond the front, done or not: the record at the front is the one that holds it.
func (t *Tracker) Beyond() (records int, bytes int64) { return int(t.high - t.low), t.bytes }

func (t *Tracker) at(seq int64) *slot { return &t.slots[seq&int64(len(t.slots)-1)] }

func (t *Tracker) grow() {
	old := *t
	t.slots = make([]slot, max(16, 2*len(old.slots)))
	for seq := t.low; seq < t.high; seq++ {
		*t.at(seq) = *old.at(seq)
	}
}
