package kafka

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Bounds of admission.
const (
	laneBytes    = 1 << 20  // of one partition with librdkafka: more would only wait there, behind each other, whoever's it is
	laneLeast    = 64 << 10 // of one partition that may be with librdkafka however many others have
	flowLeast    = 64 << 10 // of one caller for one partition that may wait however many others have
	flowTurn     = 16 << 10 // of a caller before the next one's turn
	laneTurn     = 64       // records of a partition before the next one's turn
	takeAtOnce   = 256      // records handed over before anything else is looked at
	laneIdle     = time.Minute
	stickyBytes  = 32 << 10 // records without key and partition go where the one before them went for so much,
	stickyTime   = 10 * time.Millisecond
	batchBytes   = 1_000_000 // librdkafka's batch.size: only a record larger than this has a request for itself
	recordFrame  = 24        // of a record in a batch, beside its key, value and headers, at most
	headerFrame  = 10        // of a header, likewise
	batchFrame   = 128       // of a batch
	aloneTime    = time.Minute
	suspectAfter = 500 * time.Millisecond
	// leaderPatience is for how long a partition may be without a leader, its leader without an answer, or all of Kafka away, until publishing
	// there is refused.
	leaderPatience = 2 * time.Second
	// newPatience is the same for a partition that was added just now: its leader comes by and by, and librdkafka hears of it later.
	newPatience = 15 * time.Second
)

// States of a pending record.
const (
	recordWaiting int32 = iota // not handed over: certainly not in the log
	recordHanded               // with librdkafka
	recordOver                 // will not be handed over
)

// pending is a record on its way.
type pending struct {
	ctx       context.Context //nolint:containedctx // of the caller, as in http.Request
	topic     string
	partition int32
	record    *tailracev1.PublishRecord
	settings  topicSettings
	cost      int64     // of memory
	wire      int64     // in a batch, about
	began     time.Time // when it came
	by        time.Time // not handed over after this
	done      func(*tailracev1.PublishResult)

	state   atomic.Int32
	told    atomic.Bool   // done was called, or is being called
	entered chan struct{} // closed when it is inside the room; nil for one that was at once
	lane    *lane
	via     *instance // that it was handed over to
	time    time.Time // of its hand-over, and of the record

	reported atomic.Bool // its outcome has come, or is not waited for any more

	answered bool // guarded by admission.mu: librdkafka has told its outcome
}

// report is true for the one that gives a record its outcome.
func (p *pending) report() bool {
	if !p.reported.CompareAndSwap(false, true) {
		return false
	}
	p.via.under.Add(-1)
	return true
}

// admission stands in front of librdkafka, whose own queue is one for all: there, one partition without a leader, or one caller with much to
// say, would fill it for everybody. Records wait here, in a queue for each caller and partition (a flow), and are handed over in turns: of
// partitions, and within a partition of callers. What waits here is certainly not in the log and can still be refused.
//
// Bounds shrink as room does: a flow may have as much waiting as is still free, and a partition as much with librdkafka; so those that
// do not move leave half of the room to the others, however many they are a share, and everybody always has a little. A caller that would
// exceed it waits for its own records to leave.
type admission struct {
	bytes int64         // of what waits, and as many of what is with librdkafka
	work  chan struct{} // one slot: take may find something

	mu      sync.Mutex // guards the rest
	lanes   map[laneID]*lane
	turns   []*lane // lanes in which records wait
	sticky  map[string]*sticky
	numbers map[string]number
	waiting int64
	handed  int64
	closed  bool
	away    time.Time // since when no broker answers; zero: one does
}

type laneID struct {
	topic     string
	partition int32
}

// lane is a partition. All fields are guarded by admission.mu.
type lane struct {
	laneID
	flows   map[string]*flow // those with records that wait
	turns   []*flow
	handed  int64      // cost of what is with librdkafka
	wire    int64      // size of it
	out     []*pending // what is with librdkafka, in order, from the oldest that is not answered
	limit   int64      // max.message.bytes of the topic, 0: not known
	used    time.Time
	queued  bool      // in admission.turns
	wary    bool      // nothing was answered for long: one record at a time, until one is acknowledged
	missing bool      // there is no such topic any more
	young   time.Time // until then it is waited for
	alone   time.Time // until then one record at a time: a batch was too large for the broker

	heard       time.Time // when the leader answered last
	said        time.Time // when Kafka said what is known of the leader, and whether the topic is there
	leader      int32     // as Kafka said then, -1: none
	leaderSince time.Time // when it became that; zero: it was the first that was heard of
}

// number is how many partitions a topic has, and had before some were added.
type number struct {
	now, was int32
	since    time.Time
	said     time.Time // when Kafka said so
}

// flow is what one caller has waiting for one partition. The first inside are in the room; their callers do not wait.
type flow struct {
	caller  string
	queue   []*pending
	inside  int
	waiting int64 // cost of those inside
	credit  int64
}

// sticky is where a topic's records go that have neither key nor partition: all for a while to one partition, so that they share batches.
type sticky struct {
	partition int32
	bytes     int64
	until     time.Time
}

func newAdmission(bytes int64) *admission {
	return &admission{bytes: bytes, work: make(chan struct{}, 1), lanes: map[laneID]*lane{}, sticky: map[string]*sticky{}, numbers: map[string]number{}}
}

func (a *admission) signal() {
	select {
	case a.work <- struct{}{}:
	default:
	}
}

// enter puts a record into its flow. It is refused with a cause, or it is in the queue: then the caller waits for entered, unless that is nil.
func (a *admission) enter(p *pending, caller string, info *topicInfo, now time.Time) *cause {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return &draining
	}
	l := a.lane(laneID{p.topic, p.partition}, info, now)
	l.used, l.limit = now, p.settings.maxBytes
	if why := l.gone(now, a.away); why != nil {
		return why
	}
	f := l.flows[caller]
	if f == nil {
		f = &flow{caller: caller}
		l.flows[caller] = f
		l.turns = append(l.turns, f)
	}
	p.lane = l
	f.queue = append(f.queue, p)
	a.letIn(f)
	if f.inside < len(f.queue) {
		p.entered = make(chan struct{})
	}
	if !l.queued {
		l.queued = true
		a.turns = append(a.turns, l)
	}
	a.signal()
	return nil
}

// lane returns the lane of a partition, told what info says of its leader.
func (a *admission) lane(id laneID, info *topicInfo, now time.Time) *lane {
	l := a.lanes[id]
	if l == nil {
		l = &lane{laneID: id, flows: map[string]*flow{}, leader: info.leaders[id.partition], said: info.at}
		if n := a.number(info, now); id.partition >= n.was {
			l.young = n.since.Add(newPatience)
		}
		if l.leader < 0 {
			l.leaderSince = info.at
		}
		a.lanes[id] = l
	} else {
		l.learn(info, now)
	}
	return l
}

// number takes how many partitions a topic has. mu is held.
func (a *admission) number(info *topicInfo, now time.Time) number {
	n, known := a.numbers[info.name]
	switch {
	case n.now == info.count || info.at.Before(n.said):
		return n
	case known && info.count > n.now:
		n = number{now: info.count, was: n.now, since: now, said: info.at}
	default:
		n = number{now: info.count, was: info.count, said: info.at}
	}
	if len(a.numbers) >= infoTopics {
		clear(a.numbers)
	}
	a.numbers[info.name] = n
	return n
}

// letIn lets those at the head of a flow in for whom there is room.
func (a *admission) letIn(f *flow) {
	for f.inside < len(f.queue) {
		p := f.queue[f.inside]
		if f.waiting > 0 && f.waiting+p.cost > max(flowLeast, min(a.bytes/4, a.bytes-a.waiting)) {
			return
		}
		f.inside++
		f.waiting += p.cost
		a.waiting += p.cost
		if p.entered != nil {
			close(p.entered)
		}
	}
}

// pop takes the first record out of a flow. It does not let others in: what was taken together is let in for together.
func (a *admission) pop(f *flow) *pending {
	p := f.queue[0]
	f.queue[0] = nil
	f.queue = f.queue[1:]
	if f.inside > 0 {
		f.inside--
		f.waiting -= p.cost
		a.waiting -= p.cost
	} else if p.entered != nil {
		close(p.entered)
	}
	return p
}

// taken is what take found.
type taken struct {
	records []*pending // to hand over
	late    []*pending // not to be handed over any more
}

// take chooses what is handed over next, in turns; more: there may be more at once.
func (a *admission) take(now time.Time, via *instance, t *taken) (more bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	t.records, t.late = t.records[:0], t.late[:0]
	for idle := 0; idle < len(a.turns) && len(t.records) < takeAtOnce; {
		l := a.turns[0]
		a.turns[0] = nil
		a.turns = a.turns[1:]
		if a.takeFrom(l, now, via, t) {
			idle = 0
		} else {
			idle++
		}
		if l.queued = len(l.turns) > 0; l.queued {
			a.turns = append(a.turns, l)
		}
	}
	return len(t.records) >= takeAtOnce
}

// takeFrom takes a lane's turn.
func (a *admission) takeFrom(l *lane, now time.Time, via *instance, t *taken) (any bool) {
	for n := 0; n < laneTurn && len(l.turns) > 0; {
		f := l.turns[0]
		switch p := f.queue[0]; {
		case p.state.Load() != recordWaiting || now.After(p.by) || p.ctx.Err() != nil:
			t.late = append(t.late, a.pop(f))
			any = true
		case !a.open(l, p, now) || len(l.out) > 0 && l.out[0].via != via:
			return any
		case f.credit < p.cost:
			f.credit += flowTurn
			l.rotate()
			a.letIn(f)
			continue
		case !p.state.CompareAndSwap(recordWaiting, recordHanded):
			continue // its caller has left this moment
		default:
			f.credit -= p.cost
			p.time, p.via = now, via
			l.out = append(l.out, a.pop(f))
			l.handed += p.cost
			l.wire += p.wire
			a.handed += p.cost
			t.records = append(t.records, p)
			any = true
			n++
		}
		a.letIn(f)
		if len(f.queue) == 0 {
			delete(l.flows, f.caller)
			l.turns[0] = nil
			l.turns = l.turns[1:]
		}
	}
	return any
}

// rotate ends the turn of a lane's first flow.
func (l *lane) rotate() {
	if len(l.turns) > 1 {
		f := l.turns[0]
		l.turns[0] = nil
		l.turns = append(l.turns[1:], f)
	}
}

// open says whether a lane's next record may be handed over.
func (a *admission) open(l *lane, p *pending, now time.Time) bool {
	switch {
	case l.leader < 0 || !a.away.IsZero():
		return false // so that it can still be refused
	case l.handed == 0:
		return a.handed < 2*a.bytes
	case l.wary || now.Before(l.alone):
		return false
	case l.limit > 0 && l.limit < batchBytes+batchFrame && l.wire+p.wire+batchFrame > l.limit:
		// librdkafka may send them in one batch, which the broker would refuse whole. So a record that is too large goes alone.
		return false
	}
	room := max(laneLeast, min(laneBytes, a.bytes-a.handed))
	if l.age(now) >= leaderPatience/2 {
		room = laneLeast
	}
	return l.handed+p.cost <= room && a.handed < 2*a.bytes
}
