package kafka

import (
	"cmp"
	"context"
	"time"
)

// Admission is admission, with a clock of the test's.
type Admission struct {
	a  *admission
	of map[*pending]*Waiting
}

// Waiting is a record in an Admission.
type Waiting struct {
	p *pending
	// Name is the test's.
	Name string
}

// NewAdmission is newAdmission.
func NewAdmission(bytes int64) *Admission {
	return &Admission{newAdmission(bytes), map[*pending]*Waiting{}}
}

// Entry is a record that enters an Admission.
type Entry struct {
	Caller, Topic     string
	Partition, Leader int32
	Count             int32 // partitions of the topic, 0: 64
	Bytes, Limit      int64 // limit: max.message.bytes, 0: not known
	Name              string
	Old               time.Duration // of what is known of the topic
}

// Enter is enter; inside: the caller need not wait. A refusal is told by its code and reason.
func (a *Admission) Enter(ctx context.Context, e Entry, now time.Time, wait time.Duration) (w *Waiting, inside bool, refusal string) {
	p := &pending{ctx: ctx, topic: e.Topic, partition: e.Partition, cost: e.Bytes + recordOverhead, wire: e.Bytes + recordFrame, by: now.Add(wait)}
	p.settings.maxBytes = e.Limit
	count := cmp.Or(e.Count, 64)
	info := &topicInfo{name: e.Topic, count: count, leaders: make([]int32, count), at: now.Add(-e.Old)}
	info.leaders[e.Partition] = e.Leader
	if why := a.a.enter(p, e.Caller, info, now); why != nil {
		return nil, false, why.code + " " + why.reason
	}
	w = &Waiting{p, e.Name}
	a.of[p] = w
	return w, p.entered == nil || isClosed(p.entered), ""
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Inside says whether a record's caller need not wait any more.
func (w *Waiting) Inside() bool { return w.p.entered == nil || isClosed(w.p.entered) }

// Take is take: the records to hand over, and how many are late.
func (a *Admission) Take(now time.Time) (records []*Waiting, late int) {
	var t taken
	a.a.take(now, &instance{}, &t)
	for _, p := range t.records {
		records = append(records, a.of[p])
	}
	return records, len(t.late)
}

// Answer is answered.
func (a *Admission) Answer(w *Waiting, acked, settled bool, now time.Time) {
	a.a.answered(w.p, acked, settled, now)
}

// Tick is tick: how many are refused for a leader, and for their time, and the topics in doubt.
func (a *Admission) Tick(now time.Time) (gone, late int, suspects []string) {
	refused, causes, suspects := a.a.tick(now)
	for i := range refused {
		if causes[i] != nil {
			gone++
		} else {
			late++
		}
	}
	return gone, late, suspects
}

// Reach is reach.
func (a *Admission) Reach(up bool, now time.Time) { a.a.reach(up, now) }

// Learn is learn, of one topic.
func (a *Admission) Learn(topic string, now time.Time, leaders ...int32) {
	a.a.learn([]topicInfo{{name: topic, count: int32(len(leaders)), leaders: leaders, at: now}}, now)
}

// Held is the cost of what waits and of what was handed over, and the lanes.
func (a *Admission) Held() (waiting, handed int64, lanes int) {
	a.a.mu.Lock()
	defer a.a.mu.Unlock()
	return a.a.waiting, a.a.handed, len(a.a.lanes)
}
