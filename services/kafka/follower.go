package kafka

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/hub"
)

// Bounds of a burst: what was polled is appended when Kafka has nothing more at hand, or when a burst has grown this long.
const (
	burstRecords = 256
	burstBytes   = 256 << 10
)

// How long a follower waits for the leaders of a new topic, and everybody else for it; and for how long it is not asked for again where none came.
const (
	meetTimeout = 200 * time.Millisecond
	meetAgain   = 2 * time.Second
)

// How long a follower waits for its bell, which also rings for commands; and, where it has none, in Poll, and so for how long a command may wait for it.
const (
	idleWait = 100 * time.Millisecond
	idlePoll = 10 * time.Millisecond
)

// appender is what a follower needs of a hub.Topic.
type appender interface {
	Name() string
	ID() string
	Count() int32
	Append(batch ...*hub.Entry)
}

// key names a partition.
type key struct {
	topic     string
	partition int32
}

func (k key) String() string { return k.topic + "/" + strconv.Itoa(int(k.partition)) }

// follower is the shared consumer: one fetch for each partition, however many subscribers. Its goroutine is the only one that calls its
// consumer and the only writer of its partitions.
type follower struct {
	client *Client
	log    *slog.Logger
	m      *Metrics

	// guarded by mu
	mu   sync.Mutex
	cmds []command // at most one follow, one unfollow and one finding for each partition, as callers wait for the former
	bell *bell     // nil: none could be made, or run does not run

	stopped chan struct{} // closed when run has ended: nothing is appended any more

	// owned by run
	consumer  *confluent.Consumer
	hung      bool // the consumer rings the bell
	open      func() (*confluent.Consumer, error)
	logs      topicLogs
	renewal   renewal
	parts     map[key]*followed
	known     meetings
	dirty     []*followed // with something to append
	records   int         // in the burst
	bytes     int
	headers   int
	checker   checker
	unhappy   int // partitions that are unavailable
	fetched   meter
	topicSets map[appender]*topicBatch
}

// topicBatch gathers the entries of a topic for one Append.
type topicBatch struct {
	entries    []*hub.Entry
	partitions int
	counts     []int32 // of the topic's partitions, as seen, the newest first
}

func newFollower(c *Client, n int) *follower {
	return &follower{
		client:    c,
		log:       c.log.With("follower", n),
		m:         c.metrics,
		fetched:   meter{total: c.metrics.fetched.WithLabelValues(consumerFollower)},
		stopped:   make(chan struct{}),
		parts:     map[key]*followed{},
		known:     meetings{},
		logs:      topicLogs{},
		renewal:   renewal{barred: map[string]struct{}{}},
		topicSets: map[appender]*topicBatch{},
	}
}

// run serves until ctx ends, and closes the consumer.
func (f *follower) run(ctx context.Context) {
	defer close(f.stopped)
	defer f.checker.wait()
	b, err := newBell()
	if err != nil {
		f.log.Warn("no bell for a follower: it polls all the time", "error", err)
	} else {
		f.setBell(b)
		f.hung = b.hang(f.consumer)
		defer context.AfterFunc(ctx, b.ring)()
	}
	defer func() {
		if b != nil {
			f.setBell(nil)
			b.takeDown(f.consumer)
			b.close()
		}
		closeBounded(f.log, "follower", func() { _ = f.consumer.Close() })
	}()
	for ctx.Err() == nil {
		f.execute()
		f.renewAgain()
		f.check(ctx)
		wait := idlePoll
		if len(f.dirty) > 0 || f.hung {
			wait = 0
		}
		switch e := f.consumer.Poll(int(wait / time.Millisecond)).(type) {
		case nil:
			f.flush()
			if f.hung {
				b.wait(idleWait)
			}
		case *confluent.Message:
			f.message(e)
		case confluent.PartitionEOF:
			f.end(e)
		case confluent.Error:
			f.failure(e)
		case *confluent.Stats:
			f.fetched.take(f.consumer, e)
			f.stats(e.String())
		}
		if f.records >= burstRecords || f.bytes >= burstBytes {
			f.flush()
		}
	}
	f.flush()
}

func (f *follower) add(ps []*followed) {
	var anew []string
	for _, p := range ps {
		if f.logs.isAnother(p.key.topic, p.topic.ID()) {
			anew = append(anew, p.key.topic)
		}
		if old := f.parts[p.key]; old != nil {
			if !old.gone { // else it is another topic now
				f.log.Error("partition followed twice; the later one is served", "topic", p.key.topic, "partition", p.key.partition)
			}
			f.remove([]*followed{old})
		}
		f.parts[p.key] = p
		set := f.topicSets[p.topic]
		if set == nil {
			set = &topicBatch{}
			f.topicSets[p.topic] = set
		}
		set.partitions++
		p.set = set
	}
	f.m.followed.Add(float64(len(ps)))
	f.renew(anew...)
	f.bar()
	var left []*followed
	for _, p := range ps {
		if !p.assigned && !p.barred {
			left = append(left, p)
		}
	}
	f.assign(left)
}

func (f *follower) remove(ps []*followed) {
	f.flush()
	var known []*followed
	for _, p := range ps {
		if f.parts[p.key] != p {
			continue
		}
		known = append(known, p)
		delete(f.parts, p.key)
		if p.set.partitions--; p.set.partitions == 0 {
			delete(f.topicSets, p.topic)
		}
		if p.away {
			f.unhappy--
			f.m.unavailable.Dec()
		}
		f.letGo(p)
	}
	f.m.followed.Sub(float64(len(known)))
	f.unassign(known)
}

// assign begins or begins again to fetch at each partition's next. What could not be assigned is tried again by check.
func (f *follower) assign(ps []*followed) {
	for _, p := range ps {
		f.meet(p.key.topic)
	}
	f.incremental(ps, "assign", f.consumer.IncrementalAssign, func(p *followed) { p.assigned, p.assignedAt = true, time.Now() })
}

// meet asks for the leaders of a topic that this consumer has not seen: without, its first partition waits for timers of half a second.
func (f *follower) meet(topic string) {
	if f.client.health.get().Up && f.known.due(topic, meetAgain) {
		_, err := f.consumer.GetMetadata(&topic, false, int(meetTimeout/time.Millisecond))
		f.known.note(topic, err)
	}
}

// unassign ends fetching; records under way are dropped by librdkafka.
func (f *follower) unassign(ps []*followed) {
	var live []*followed
	for _, p := range ps {
		if p.assigned {
			live = append(live, p)
		}
	}
	f.incremental(live, "unassign", f.consumer.IncrementalUnassign, func(p *followed) { p.assigned = false })
}

// incremental calls do for all partitions at once, and one by one when that fails: one conflict fails a call whole.
func (f *follower) incremental(ps []*followed, op string, do func([]confluent.TopicPartition) error, then func(*followed)) {
	if len(ps) == 0 {
		return
	}
	tps := make([]confluent.TopicPartition, len(ps))
	for i, p := range ps {
		tps[i] = confluent.TopicPartition{Topic: &p.key.topic, Partition: p.key.partition, Offset: confluent.Offset(p.next)}
	}
	err := do(tps)
	if err == nil {
		for _, p := range ps {
			then(p)
		}
		return
	}
	if len(ps) > 1 {
		for _, p := range ps {
			f.incremental([]*followed{p}, op, do, then)
		}
		return
	}
	f.log.Error("a partition's assignment could not be changed", "op", op, "topic", ps[0].key.topic, "partition", ps[0].key.partition, "offset", ps[0].next, "error", err)
}

// reassign moves a partition's fetch to its next, which has just been set.
func (f *follower) reassign(p *followed) {
	f.unassign([]*followed{p})
	f.assign([]*followed{p})
}

func (f *follower) message(m *confluent.Message) {
	p := f.parts[key{*m.TopicPartition.Topic, m.TopicPartition.Partition}]
	if p == nil || p.barred || m.TopicPartition.Error != nil || !p.message(m) {
		f.m.dropped.Inc()
		return
	}
	f.records++
	f.bytes += messageBytes(m)
	f.headers += len(m.Headers)
	f.touch(p)
}

// end: the partition's end was reached. Its offset is the last stable one, and lies behind holes that follow the last record.
func (f *follower) end(e confluent.PartitionEOF) {
	if p := f.parts[key{*e.Topic, e.Partition}]; p != nil && !p.barred {
		p.reached(int64(e.Offset))
		f.touch(p)
	}
}

// touch marks a partition for the next flush; life in it ends its unavailability.
func (f *follower) touch(p *followed) {
	if !p.dirty {
		p.dirty = true
		f.dirty = append(f.dirty, p)
	}
	if p.away {
		f.available(p)
	}
}

// flush appends what the burst brought: one Append for each topic.
func (f *follower) flush() {
	if len(f.dirty) == 0 {
		return
	}
	for _, p := range f.dirty {
		p.dirty = false
		f.place(p)
		if e := p.take(); e != nil {
			p.set.entries = append(p.set.entries, e)
		}
	}
	for _, p := range f.dirty {
		if len(p.set.entries) > 0 {
			p.topic.Append(p.set.entries...)
			p.set.entries = p.set.entries[:0:0]
		}
	}
	f.m.recordsIn.Add(float64(f.records))
	f.m.bytesIn.Add(float64(f.bytes - f.records*recordOverhead - f.headers*headerOverhead))
	clear(f.dirty)
	f.dirty, f.records, f.bytes, f.headers = f.dirty[:0], 0, 0, 0
}

// emit appends a control entry of one partition that nothing is pending of, or that makes what is pending void.
func (f *follower) emit(p *followed, e *hub.Entry) {
	f.flush()
	p.topic.Append(e)
}

// tell appends a control entry behind what is pending, so at the place where that ends.
func (f *follower) tell(p *followed, kind hub.Kind) {
	f.flush()
	p.topic.Append(p.control(kind))
}

func (f *follower) available(p *followed) {
	p.away = false
	f.unhappy--
	f.m.unavailable.Dec()
	f.tell(p, hub.Available)
}

func (f *follower) unavailable(p *followed) {
	if p.away || p.gone {
		return
	}
	p.away = true
	f.unhappy++
	f.m.unavailable.Inc()
	f.tell(p, hub.Unavailable)
}

// failure handles an error event. It names no partition, so that a look at all of them has to tell what it is about; librdkafka itself
// retries for ever, and positions do not change by it.
func (f *follower) failure(e confluent.Error) {
	f.m.errors.Inc()
	if e.Code() == confluent.ErrAllBrokersDown {
		f.client.health.down(errNoBroker)
		for _, p := range f.parts {
			f.unavailable(p)
		}
	}
	f.log.Debug("consumer error", "code", e.Code().String(), "error", e)
	f.checker.wanted = true
}
