package hub

import (
	"slices"
	"sync"
	"sync/atomic"
)

// seek is the kind of entries of the hub's own: the partition goes on at Next as it begins to be followed; its oldest offset was From then.
// Readers that gain the partition begin at From. Next is -1 where it ends to be followed.
const seek Kind = 0x80

// Topic is a topic's ring, and what is known of its partitions. Sources append to it; readers read it by Seq.
type Topic struct {
	hub  *Hub
	name string

	// Read without a lock.
	list     atomic.Pointer[[]*segment] // oldest first, never empty; copied on write
	head     atomic.Int64               // Seq after the newest entry
	controls atomic.Pointer[[]control]  // of entries that matter to readers of any filter; outlive the ring
	fed      atomic.Int64               // Seq up to which the logs of terms are complete
	bytes    atomic.Int64               // in the ring
	records  atomic.Int64               // ever appended
	watched  atomic.Int32               // open subscriptions
	away     atomic.Int32               // unavailable partitions
	queued   atomic.Bool                // waits for a waker
	deleted  atomic.Bool
	grown    atomic.Bool // the keeper is to follow partitions that somebody waits for
	turned   atomic.Bool // partitions became unavailable, or available, and nobody was told yet
	movers   atomic.Pointer[[]Waker]
	overdue  atomic.Pointer[overdue] // nil: nothing is

	mu          sync.Mutex // guards the fields below; short
	id          string
	parts       []partition // those from number on are over, in a log that had more
	number      int32       // of partitions
	shrunk      Seq         // after the last Topology that lowered number
	partitioner Partitioner
	controlq    []control // what controls points to, and room behind it
	seg         *segment  // the open one
	entries     []*Entry  // its data
	n           int       // entries in it, published or not
	capacity    int       // of the next one
	added       int64     // bytes put since they were charged
	touched     int64     // when anything was put, by the keeper's clock
	pace        pace

	feedMu  sync.Mutex // guards the fields below
	feedSeg *segment
	dirty   []*term
	toldCtl Seq // control entries below were told to filtered readers

	terms terms

	followMu  sync.Mutex // guards the fields below; held during Source.Follow
	follows   []follow
	whole     int // subscriptions that need all partitions
	wholeIdle int64
	subs      map[*Subscription]struct{}
	wakers    map[Waker]int
	restless  map[*Subscription]struct{} // filtered, and others' records may end them or have them catch up
	growing   bool                       // a task is at it
	flight    [2]*flight

	pins int // Subscribe calls under way; guarded by Hub.mu
}

// partition is what a topic knows of one of its partitions.
type partition struct {
	mark              // the ring's
	end         int64 // last stable offset, at least next
	cut         Seq   // the ring is continuous from here on
	recreated   Seq   // after the last Recreated
	truncated   Seq   // after the last truncation
	id          string
	seen        int32 // epoch of the last record below what the ring knows, as a reader of history found it
	unavailable bool
	over        bool // it is not in the log any more, and is to be unfollowed
}

// control is an entry that changes more than a position.
type control struct {
	seq  Seq
	e    *Entry
	from int64 // the ring's next before it, -1 none
}

const (
	maxControls = 4096 // kept per topic; a reader that fell further behind finds out by reading
	maxCount    = 100_000
)

func newTopic(h *Hub, name string) *Topic {
	t := &Topic{hub: h, name: name, capacity: minSegmentEntries, subs: map[*Subscription]struct{}{}, wakers: map[Waker]int{}, restless: map[*Subscription]struct{}{}}
	t.terms.init()
	t.list.Store(&[]*segment{})
	t.controls.Store(&[]control{})
	t.movers.Store(&[]Waker{})
	t.roll()
	t.feedSeg = t.seg
	return t
}

// Name of the topic.
func (t *Topic) Name() string { return t.name }

// ID of the topic; it changes with Recreated.
func (t *Topic) ID() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// Count of the topic's partitions.
func (t *Topic) Count() int32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.number
}

// Head is the Seq after the newest entry.
func (t *Topic) Head() Seq { return Seq(t.head.Load()) }

// Append adds a batch of entries in arrival order. One writer per partition; different partitions may be appended concurrently. What lies
// below the partition's next is dropped, except that a Gap of GapTruncation may go back. It takes one short lock, and never waits for,
// wakes or walks readers: it signals the topic's waker, so append once at the end of a burst. (Where the budget is exceeded by an eighth,
// because the keeper does not get to run, the writer evicts for itself.)
//
// An Advance that only tells an End, Unavailable and Available change what the topic knows and are not put into the ring: readers find them
// by Lag and Unavailable; of the latter two they are told.
func (t *Topic) Append(batch ...*Entry) {
	for _, e := range batch {
		switch {
		case e.Kind == Gap && e.Next < e.From:
			t.hub.history.truncate(t, e.Partition, e.Next)
		case e.Kind == Available:
			t.hub.history.revive(t, e.Partition)
		}
	}
	t.mu.Lock()
	for _, e := range batch {
		t.add(e)
	}
	t.announce(t.commit())
}

// commit publishes what was put and gives mu back. What it returns is to be announced.
func (t *Topic) commit() (added int64) {
	if added = t.added; added > 0 {
		t.added = 0
		t.publish()
	}
	t.mu.Unlock()
	return added
}

// announce charges what was added and signals. feedMu is not held.
func (t *Topic) announce(added int64) {
	if added == 0 && !t.turned.Load() {
		return
	}
	if added > 0 {
		t.hub.charge(t, added)
	}
	if t.watched.Load() > 0 {
		t.signal()
	}
	if t.grown.Load() {
		t.hub.callKeeper()
	}
}

// add puts one entry into the ring, clipped to what is new. mu is held.
func (t *Topic) add(e *Entry) {
	switch e.Kind {
	case Topology:
		t.resize(e)
		return
	case Deleted:
		if !t.deleted.Swap(true) {
			t.control(e, -1)
			t.put(e, step{partition: -1})
		}
		return
	}
	if e.Partition < 0 || int(e.Partition) >= len(t.parts) {
		return
	}
	p := &t.parts[e.Partition]
	if p.next < 0 || p.over && e.Kind != Recreated {
		return // not followed
	}
	switch e.Kind {
	case Records:
		t.addRecords(e, p)
	case Advance:
		if e.Next > p.next {
			t.put(e, step{p.next, e.Next, e.Partition, p.epoch})
			p.next = e.Next
		}
		p.see(e.End)
	case Gap:
		t.addGap(e, p)
	case Recreated:
		t.recreate(e, p)
	case Unavailable, Available:
		t.setAway(p, e.Kind == Unavailable)
		p.see(e.End)
	}
}

func (t *Topic) addRecords(e *Entry, p *partition) {
	if e.Next > p.next {
		if e.From < p.next {
			e = e.above(p.next)
		}
		if n := len(e.Meta); n > 0 {
			p.epoch = e.Meta[n-1].Epoch
		}
		t.put(e, step{p.next, e.Next, e.Partition, p.epoch})
		p.next = e.Next
		t.records.Add(int64(len(e.Meta)))
	}
	p.see(e.End)
}

func (t *Topic) addGap(e *Entry, p *partition) {
	switch {
	case e.Next < e.From && e.Next < p.next:
		t.cut(e, p, e.Next)
		p.truncated = p.cut
	case e.Next > p.next:
		if e.From < p.next {
			e = &Entry{Kind: Gap, Reason: e.Reason, Partition: e.Partition, From: p.next, Next: e.Next, End: e.End}
		}
		t.control(e, p.next)
		t.put(e, step{p.next, e.Next, e.Partition, p.epoch})
		p.next = e.Next
		p.see(e.End)
	}
}

// cut puts an entry that breaks the partition's order: it goes on at next.
func (t *Topic) cut(e *Entry, p *partition, next int64) {
	t.control(e, p.next)
	t.put(e, step{p.next, next, e.Partition, -1})
	p.mark = mark{next, -1}
	p.seen = -1
	p.end = max(next, e.End)
	p.cut = t.place()
}

// seekTo lets a partition go on at next: -1 as it ends to be followed. mu is held.
func (t *Topic) seekTo(partition int32, oldest, next, end int64) {
	p := &t.parts[partition]
	e := &Entry{Kind: seek, Partition: partition, From: oldest, Next: next, End: end}
	t.cut(e, p, next)
	if p.over = false; next >= 0 {
		p.id = t.id
	}
	t.setAway(p, false)
}

// setAway notes whether a partition can be read. mu is held; announce tells.
func (t *Topic) setAway(p *partition, away bool) {
	switch {
	case away == p.unavailable:
		return
	case away:
		t.away.Add(1)
	default:
		t.away.Add(-1)
	}
	p.unavailable = away
	t.turned.Store(true)
}

// gain lets readers that wait for a followed partition begin at its oldest offset. mu is held.
func (t *Topic) gain(partition int32, oldest int64) {
	p := &t.parts[partition]
	e := &Entry{Kind: seek, Partition: partition, From: oldest, Next: p.next, End: -1}
	t.control(e, p.next)
	t.put(e, step{p.next, p.next, partition, p.epoch})
}

// see notes an end that was told, -1 none. The newest is believed: an end may go back where a log was truncated.
func (p *partition) see(end int64) {
	if end < 0 {
		end = p.end
	}
	p.end = max(p.next, end)
}

// place is the Seq after what was put, published or not. mu is held.
func (t *Topic) place() Seq { return t.seg.base + Seq(t.n) }

// put adds an entry to the open segment. mu is held; publish makes it visible.
func (t *Topic) put(e *Entry, s step) {
	t.touched = t.hub.clock.Load()
	if t.n == len(t.entries) || t.n > 0 && (t.seg.bytes >= maxSegmentBytes || t.touched-t.seg.opened > t.hub.segmentAge) {
		t.roll()
	}
	if t.pace.readers > 0 && len(e.Meta) > 0 {
		t.arrived()
	}
	t.seg.steps[t.n] = s
	t.entries[t.n] = e
	t.n++
	size := e.size()
	t.seg.bytes += size
	t.added += size
	e.forms.home.CompareAndSwap(nil, &t.seg.forms)
}

// control notes an entry that is to be put next. mu is held.
func (t *Topic) control(e *Entry, from int64) {
	seq := t.place()
	if len(t.controlq) >= maxControls {
		t.controlq = slices.Clone(t.controlq[maxControls/2:])
	}
	t.controlq = append(t.controlq, control{seq, e, from})
}

// publish makes what was put visible: first the control entries, then the head. mu is held.
func (t *Topic) publish() {
	last := *t.controls.Load()
	if n := len(t.controlq); n > 0 && (len(last) == 0 || last[len(last)-1].seq != t.controlq[n-1].seq) {
		controls := t.controlq
		t.controls.Store(&controls)
	}
	t.seg.n.Store(int32(t.n))
	t.head.Store(int64(t.place()))
}

// roll closes the open segment and opens another. mu is held.
func (t *Topic) roll() {
	old := t.seg
	now := t.hub.clock.Load()
	g := &segment{opened: now, forms: formAccount{total: &t.hub.formBytes}}
	if old != nil {
		t.publish()
		g.base = t.place()
		switch age := now - old.opened; {
		case t.n == len(old.steps) && age < t.hub.segmentAge/4:
			t.capacity = min(2*t.capacity, maxSegmentEntries)
		case t.n < len(old.steps)/4:
			t.capacity = max(t.capacity/2, minSegmentEntries)
		}
	}
	// A segment of fewer entries than partitions would be mostly index.
	capacity := max(t.capacity, min(len(t.parts)/2, maxSegmentEntries))
	g.start = make([]mark, len(t.parts))
	for i := range t.parts {
		g.start[i] = t.parts[i].mark
	}
	g.steps = make([]step, capacity)
	entries := make([]*Entry, capacity)
	g.data.Store(&entries)
	list := *t.list.Load()
	list = append(slices.Clip(slices.Clone(list)), g)
	t.seg, t.entries, t.n = g, entries, 0
	t.list.Store(&list)
	if old != nil {
		old.after.Store(g)
	}
}
