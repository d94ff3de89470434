package group

import (
	"cmp"
	"slices"
)

// What an item is in.
type state uint8

const (
	waiting state = iota // in its queue
	held                 // by a worker
	delayed              // to be dealt later: not in its queue, but in Group.later
	dying                // on its way to the dead letters
	settled              // done, or of no interest any more
)

// item is one record of a lane until it is done.
type item struct {
	lane   *lane
	queue  *queue
	record *Record
	seq    int64 // at the lane's tracker
	state  state

	attempts int    // deliveries
	failures int    // of them, those that count
	reason   string // of the last failure
	named    bool   // by the ack or nack that is being looked at

	// While a worker holds it.
	worker *Worker
	tag    int64
	due    int64 // when the time to acknowledge it is over
	older  *item // those that the worker holds, in the order of delivery
	newer  *item

	// In its queue: neighbours among those that wait (only next), or among those that are held.
	prev, next *item
}

// queue holds what waits of one key, or of all records without order (loose).
type queue struct {
	lane  *lane
	hash  uint64
	loose bool

	first, last *item // that wait
	count       int
	heldFirst   *item // that are held; of a key: by one worker, in order
	heldLast    *item

	holder *Worker // who alone may have what comes next; never of a loose one
	notYet int64   // nothing is dealt before
	timed  bool    // it stands in Group.later

	line       *line // where it stands to be dealt from; nil: nowhere
	prev, next *queue
}

// line is a list of queues that have something to deal.
type line struct{ first, last *queue }

func (l *line) push(q *queue) {
	q.line, q.prev, q.next = l, l.last, nil
	if l.last == nil {
		l.first = q
	} else {
		l.last.next = q
	}
	l.last = q
}

func (q *queue) leave() {
	if q.line == nil {
		return
	}
	if q.prev == nil {
		q.line.first = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		q.line.last = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.line, q.prev, q.next = nil, nil, nil
}

// push puts an item behind the others that wait.
func (q *queue) push(it *item) {
	it.state, it.prev, it.next = waiting, nil, nil
	if q.last == nil {
		q.first = it
	} else {
		q.last.next = it
	}
	q.last = it
	q.count++
}

// pushFront puts an item before the others that wait.
func (q *queue) pushFront(it *item) {
	it.state, it.prev, it.next = waiting, nil, q.first
	if q.first == nil {
		q.last = it
	}
	q.first = it
	q.count++
}

func (q *queue) pop() *item {
	it := q.first
	if q.first = it.next; q.first == nil {
		q.last = nil
	}
	it.next = nil
	q.count--
	return it
}

// hold and unhold keep the list of held ones.
func (q *queue) hold(it *item) {
	it.state, it.prev, it.next = held, q.heldLast, nil
	if q.heldLast == nil {
		q.heldFirst = it
	} else {
		q.heldLast.next = it
	}
	q.heldLast = it
}

func (q *queue) unhold(it *item) {
	if it.prev == nil {
		q.heldFirst = it.next
	} else {
		it.prev.next = it.next
	}
	if it.next == nil {
		q.heldLast = it.prev
	} else {
		it.next.prev = it.prev
	}
	it.prev, it.next = nil, nil
}

// lane is one assigned partition.
type lane struct {
	group   *Group
	id      Partition
	tracker *Tracker
	keys    map[uint64]*queue
	loose   queue
	ready   line // queues that anybody may take from
	serving bool // it stands in Group.lanesReady
	prev    *lane
	next    *lane

	leaving bool          // revoked: nothing is dealt
	gone    bool          // revoked or lost, and let go
	busy    int           // held or dying
	quiet   chan struct{} // closed when busy is 0; while leaving

	paused    bool
	committed int64   // what was committed last, -1 nothing
	offered   int64   // what a commit under way has, -1 none
	batches   []batch // of items that are not all below the front
	stuck     stuck
}

// batch is what one Append brought: neighbours.
type batch struct {
	first int64 // its first sequence number
	items []item
}

// at finds the item of a sequence number that is not below the front; nil: there is none.
func (l *lane) at(seq int64) *item {
	n, found := slices.BinarySearchFunc(l.batches, seq, func(b batch, seq int64) int { return cmp.Compare(b.first, seq) })
	if !found {
		n--
	}
	if n < 0 || seq-l.batches[n].first >= int64(len(l.batches[n].items)) {
		return nil
	}
	return &l.batches[n].items[seq-l.batches[n].first]
}

// forget lets go of the batches below the front.
func (l *lane) forget() {
	low := l.tracker.Low()
	for len(l.batches) > 0 && l.batches[0].first+int64(len(l.batches[0].items)) <= low {
		l.batches[0] = batch{}
		l.batches = l.batches[1:]
	}
}

func newLane(g *Group, at Place) *lane {
	l := &lane{group: g, id: at.Partition, tracker: NewTracker(at.Offset, at.Epoch), keys: map[uint64]*queue{}, committed: -1, offered: -1}
	l.loose = queue{lane: l, loose: true}
	return l
}

// queueOf finds the queue of a key, or makes it. Keys whose hashes meet share one: they are kept in order with each other, too.
func (l *lane) queueOf(key []byte) *queue {
	if key == nil || l.group.settings.Ordering == OrderNone {
		return &l.loose
	}
	hash := l.group.hash(key)
	q := l.keys[hash]
	if q == nil {
		q = l.group.newQueue()
		q.lane, q.hash = l, hash
		l.keys[hash] = q
	}
	return q
}

// laneLine is the list of lanes with something that anybody may take.
type laneLine struct{ first, last *lane }

func (ls *laneLine) push(l *lane) {
	if l.serving {
		return
	}
	l.serving, l.prev, l.next = true, ls.last, nil
	if ls.last == nil {
		ls.first = l
	} else {
		ls.last.next = l
	}
	ls.last = l
}

func (ls *laneLine) remove(l *lane) {
	if !l.serving {
		return
	}
	if l.prev == nil {
		ls.first = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		ls.last = l.prev
	} else {
		l.next.prev = l.prev
	}
	l.serving, l.prev, l.next = false, nil, nil
}
