package hub_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// world is a hub over a stepped source beside the plain log, in a synctest bubble. Steps change the source and the log together.
type world struct {
	setup   setup
	src     *hubtest.Source
	hub     *hub.Hub
	log     *plainLog
	began   time.Time
	readers []*seat
	pending []*attempt
	serial  int
	needed  map[place]time.Time // when a partition was last read by somebody
	resume  []resume
	lines   []string
	tracing bool
	forms   forms
}

// setup is what does not change within a history.
type setup struct {
	Partitions    int32
	Budget        int64
	Retain        time.Duration
	Linger        time.Duration
	Readers       int // history readers
	Filters       bool
	Subscriptions int // most at once
	Drains        bool
	SlowAfter     time.Duration
}

// seat is a reader and its waker.
type seat struct {
	*reader
	waker *flags
	token uint64
	woken bool     // there may be something to pull
	away  []int32  // partitions that were unavailable when it was pulled last
	last  []string // of the trace, in a race
}

// attempt is a Subscribe under way.
type attempt struct {
	seat      *seat
	before    *snapshot
	done      chan struct{}
	sub       *hub.Subscription
	err       error
	deadline  time.Time
	cancelled context.CancelFunc
}

// resume is what a closed subscription left to go on from.
type resume struct {
	request   hub.Request
	positions []hub.Position
	id        string
}

// flags is a Waker for several seats.
type flags struct {
	moved chan struct{} // one slot
	ready chan uint64
}

func newFlags() *flags {
	return &flags{moved: make(chan struct{}, 1), ready: make(chan uint64, 4096)}
}

func (f *flags) Moved(*hub.Topic) {
	select {
	case f.moved <- struct{}{}:
	default:
	}
}

func (f *flags) Ready(token uint64) {
	select {
	case f.ready <- token:
	default:
		panic("a waker was called 4096 times in one step")
	}
}

func (w *world) tracef(format string, args ...any) {
	if !w.tracing {
		return
	}
	line := fmt.Sprintf("%8s  ", time.Since(w.began)) + fmt.Sprintf(format, args...)
	if w.lines = append(w.lines, line); *seedFlag != 0 {
		fmt.Fprintln(os.Stderr, line) // at once: what comes next may hang or panic
	}
}

// play runs a history and returns what was wrong, and the trace if it is asked for.
func play(t *testing.T, h history, tracing bool) (lines []string, err error) {
	w := &world{setup: h.setup, tracing: tracing, log: newPlainLog(), needed: map[place]time.Time{}, forms: forms{made: map[*hub.Entry]int{}}}
	defer func() {
		// A deadlock of the bubble panics here: goroutines were left behind, or wait for ever.
		if p := recover(); p != nil && err == nil {
			err = fmt.Errorf("panic: %v", p)
		}
		lines = w.lines
	}()
	synctest.Test(t, func(*testing.T) {
		err = w.run(h.steps)
	})
	return w.lines, err
}

func (w *world) run(steps []step) error {
	w.began = time.Now()
	w.src = hubtest.NewStepped()
	w.src.SetFiltersHistory(w.setup.Filters)
	w.src.SetReach(modelReach)
	for _, name := range topics {
		w.createTopic(name, w.setup.Partitions)
	}
	w.hub = hub.New(w.src, hub.Config{
		MemoryBudget: w.setup.Budget, Retain: w.setup.Retain, Linger: w.setup.Linger, HistoryReaders: w.setup.Readers,
		SlowAfter: w.setup.SlowAfter,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.hub.Run(ctx) }()
	synctest.Wait()
	err := w.playSafely(steps)
	for _, a := range w.pending {
		a.cancelled()
	}
	cancel()
	synctest.Wait()
	if err == nil {
		select {
		case <-done: //nolint:errcheck // Run returns when its context ends, with that error
			if following := w.src.Counts().Following; following > 0 {
				err = fmt.Errorf("%d partitions are followed after Run returned", following)
			}
		default:
			err = errors.New("run does not return")
		}
	}
	return err
}

// playSafely makes a panic an error, so that the bubble can end and the history be shrunk.
func (w *world) playSafely(steps []step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return w.play(steps)
}

func (w *world) play(steps []step) error {
	for _, s := range steps {
		w.tracef("step %v", s)
		if err := w.do(s); err != nil {
			return fmt.Errorf("step %v: %w", s, err)
		}
		if err := w.settle(); err != nil {
			return fmt.Errorf("after step %v: %w", s, err)
		}
	}
	w.tracef("end of the history")
	return w.finish()
}

// settle lets the hub do what it can without time passing, and checks what must hold at any moment.
func (w *world) settle() error {
	synctest.Wait()
	w.note()
	if err := w.arrivals(); err != nil {
		return err
	}
	w.hearWakers()
	if v := w.src.Violations(); len(v) > 0 {
		return fmt.Errorf("the hub broke the source's contract: %v", v)
	}
	for _, s := range w.readers {
		if s.ended != nil || s.woken {
			continue
		}
		if away := s.sub.Unavailable(nil); !slices.Equal(away, s.away) {
			return fmt.Errorf("%s was not woken: partitions %v are unavailable, %v were", s.name, away, s.away)
		}
	}
	return w.audit()
}

// hearWakers marks the seats that were woken.
func (w *world) hearWakers() {
	for _, s := range w.readers {
		select {
		case <-s.waker.moved:
			for _, other := range w.readers {
				other.woken = other.woken || other.waker == s.waker
			}
		default:
		}
	}
	for _, s := range w.readers {
		for len(s.waker.ready) > 0 {
			token := <-s.waker.ready
			for _, other := range w.readers {
				other.woken = other.woken || other.waker == s.waker && other.token == token
			}
		}
	}
}

// arrivals seats the subscriptions that have started.
func (w *world) arrivals() error {
	for _, a := range slices.Clone(w.pending) {
		select {
		case <-a.done:
		default:
			if time.Since(a.deadline) > time.Second {
				return fmt.Errorf("%s: Subscribe outlives its context", a.seat.name)
			}
			continue
		}
		a.cancelled()
		w.pending = slices.DeleteFunc(w.pending, func(b *attempt) bool { return a == b })
		if a.err != nil {
			w.tracef("%s is refused: %v", a.seat.name, a.err)
			if err := w.judgeRefusal(a); err != nil {
				return fmt.Errorf("%s is refused: %w", a.seat.name, err)
			}
			continue
		}
		a.seat.sub = a.sub
		if err := a.seat.begin(a.before); err != nil {
			return fmt.Errorf("%s: %w", a.seat.name, err)
		}
		w.tracef("%s starts: %+v", a.seat.name, a.seat.started)
		w.readers = append(w.readers, a.seat)
	}
	return nil
}

// judgeRefusal judges why a subscription was not started.
func (w *world) judgeRefusal(a *attempt) error {
	t := w.log.topics[a.seat.request.Topic]
	var unknown *hub.UnknownPartitionError
	var outOfRange *hub.OffsetOutOfRangeError
	switch {
	case errors.Is(a.err, hub.ErrUnavailable), errors.Is(a.err, context.DeadlineExceeded):
		return nil // waited for a source that was away or slow; who may wait is told by the deadline
	case errors.Is(a.err, hub.ErrUnknownTopic), errors.Is(a.err, hub.ErrTopicDeleted):
		if len(t.gone) > 0 {
			return nil
		}
	case errors.As(a.err, &unknown):
		if unknown.Partition >= unknown.Count && a.before.had(t, unknown.Count) {
			return nil
		}
	case errors.As(a.err, &outOfRange):
		if a.seat.request.OnOutOfRange != hub.OutOfRangeFail {
			break
		}
		p := t.partitions[outOfRange.Partition]
		low, _ := a.before.bounds(p, t.id)
		foreign := a.seat.request.TopicID != "" && a.seat.request.TopicID != t.id
		if foreign || outOfRange.Offset < *p.now().oldest || outOfRange.Offset > low {
			return nil
		}
	}
	return a.err
}

// audit compares the hub's books with what is open.
func (w *world) audit() error {
	stats := w.hub.Stats()
	open := 0
	now := time.Now()
	for _, s := range w.readers {
		if s.ended == nil {
			open++
		}
		t := w.log.topics[s.request.Topic]
		for i := range int32(len(t.partitions)) {
			if s.cursors[i] != nil || s.grows && (i < t.count() || !w.src.Told(t.name, i)) {
				w.needed[place{t.name, i}] = now
			}
		}
	}
	for _, a := range w.pending {
		for i := range w.log.topics[a.seat.request.Topic].count() {
			w.needed[place{a.seat.request.Topic, i}] = now
		}
	}
	if len(w.pending) == 0 && (stats.Subscriptions < open || stats.Subscriptions > len(w.readers)) {
		return fmt.Errorf("stats say %d subscriptions, %d are open", stats.Subscriptions, open)
	}
	if held := stats.RingBytes + stats.ChunkBytes + stats.FormBytes + stats.ConflatedBytes; held > w.setup.Budget+budgetSlack || held < 0 {
		return fmt.Errorf("%+v; the budget is %d", stats, w.setup.Budget)
	}
	if stats.FormBytes > w.forms.bytes {
		return fmt.Errorf("forms hold %d bytes, %d were made", stats.FormBytes, w.forms.bytes)
	}
	if following := w.src.Counts().Following; stats.Partitions != following {
		return fmt.Errorf("stats say %d partitions are followed, it is %d", stats.Partitions, following)
	}
	for _, name := range topics {
		for _, i := range w.src.Following(name) {
			if idle := now.Sub(w.needed[place{name, i}]); idle > w.setup.Linger+lingerSlack {
				return fmt.Errorf("partition %d of %s is followed %v after its last reader", i, name, idle)
			}
		}
	}
	return nil
}

// place is a partition of a topic.
type place struct {
	topic     string
	partition int32
}

func (w *world) createTopic(name string, partitions int32) {
	w.src.CreateTopic(name, partitions)
	w.log.create(name, w.src.TopicID(name), partitions)
}
