package edge

import (
	"sync"
	"time"
)

// tasks runs calls that block, at most max at a time and at most half of them for one topic, so that a topic that is away does not keep
// the others waiting. Each runs in a goroutine that ends. What waits for a place costs no goroutine, and waits no longer than its
// deadline; topics take turns. The queues are bounded by the callers: a session has at most a few calls under way.
type tasks struct {
	max  int
	done sync.WaitGroup

	mu      sync.Mutex
	running int
	lines   map[string]*line // by topic; each has a call that runs or waits
	turns   []*line          // those in which a call waits
}

// line is the calls for one topic.
type line struct {
	topic   string
	running int
	queue   []*task
}

// task is a call. Exactly one of call and late is called, unless it was dropped.
type task struct {
	line     *line
	deadline time.Time
	call     func()
	late     func() // the deadline came before a place; must not block
	taken    bool   // it has or had a place, or was late
}

func newTasks(limit int) *tasks { return &tasks{max: limit, lines: make(map[string]*line)} }

// run runs call as soon as there is room.
func (t *tasks) run(topic string, deadline time.Time, call, late func()) *task {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[topic]
	if l == nil {
		l = &line{topic: topic}
		t.lines[topic] = l
	}
	k := &task{line: l, deadline: deadline, call: call, late: late}
	if t.running >= t.max || !t.mayRun(l) {
		if l.queue = append(l.queue, k); len(l.queue) == 1 {
			t.turns = append(t.turns, l)
		}
		return k
	}
	t.begin(k)
	t.done.Go(func() {
		for next := k; next != nil; next = t.next(next) {
			if time.Now().Before(next.deadline) {
				next.call()
			} else {
				next.late()
			}
		}
	})
	return k
}

func (t *tasks) mayRun(l *line) bool { return l.running < (t.max+1)/2 }

func (t *tasks) begin(k *task) {
	t.running++
	k.line.running++
	k.taken = true
}

// next takes a task's place away and gives it to one that waits and may have it. No more than two topics can have half of the places, so
// the search is short.
func (t *tasks) next(over *task) *task {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	over.line.running--
	t.tidy(over.line)
	for i := 0; i < len(t.turns); {
		l := t.turns[i]
		if !t.mayRun(l) {
			i++
			continue
		}
		t.turns[i] = t.turns[0]
		t.turns[0] = nil
		t.turns = t.turns[1:]
		k := l.first()
		if k != nil {
			t.begin(k)
		}
		if len(l.queue) > 0 {
			t.turns = append(t.turns, l)
		}
		t.tidy(l)
		if k != nil {
			return k
		}
	}
	return nil
}

// first takes the first task out of the queue that was not dropped.
func (l *line) first() *task {
	for len(l.queue) > 0 {
		k := l.queue[0]
		l.queue[0] = nil
		if l.queue = l.queue[1:]; k.call != nil {
			return k
		}
	}
	return nil
}

// tidy forgets a line without calls.
func (t *tasks) tidy(l *line) {
	if l.running == 0 && len(l.queue) == 0 {
		delete(t.lines, l.topic)
	}
}

// drop forgets a task that has no place yet: nothing is called. It is false if the task has one, or was late.
func (t *tasks) drop(k *task) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.taken {
		return false
	}
	k.call, k.late = nil, nil // its place in the queue goes with the next look
	return true
}

// expire ends the waiting of those whose deadline has come. The workers call it now and then.
func (t *tasks) expire(now time.Time) {
	var late []*task
	t.mu.Lock()
	turns := t.turns[:0]
	for _, l := range t.turns {
		wait := l.queue[:0]
		for _, k := range l.queue {
			switch {
			case k.call == nil: // dropped
			case now.Before(k.deadline):
				wait = append(wait, k)
			default:
				k.taken = true
				late = append(late, k)
			}
		}
		clear(l.queue[len(wait):])
		l.queue = wait
		if len(wait) > 0 {
			turns = append(turns, l)
		}
		t.tidy(l)
	}
	clear(t.turns[len(turns):])
	t.turns = turns
	t.mu.Unlock()
	for _, k := range late {
		k.late()
	}
}

// wait waits for all calls to end, the queued ones too.
func (t *tasks) wait() { t.done.Wait() }
