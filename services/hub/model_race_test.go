package hub_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestRacingReaders lets writers, a disturber and readers run as they like on a hub with little memory. Every reader is judged as in
// TestModel; that each is woken as long as something is missing is shown by its reaching the end.
func TestRacingReaders(t *testing.T) {
	for seed := range uint64(*racesFlag) {
		t.Run(fmt.Sprint(seed+1), func(t *testing.T) { race(t, seed+1) })
	}
}

// races is what the goroutines of one race share. The log is guarded by mu, which is never held over a call into the hub.
type races struct {
	mu      sync.Mutex
	src     *hubtest.Source
	log     *plainLog
	hub     *hub.Hub
	written chan struct{} // closed when all has been appended
}

func race(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 2))
	r := &races{src: hubtest.New(), log: newPlainLog(), written: make(chan struct{})}
	r.src.SetFiltersHistory(random.IntN(2) == 0)
	r.src.SetShape(hubtest.Shape{EntryRecords: random.IntN(8), Holes: hubtest.Holes(random.IntN(3))})
	const partitions = 4
	r.src.CreateTopic("a", partitions)
	r.log.create("a", r.src.TopicID("a"), partitions)
	r.hub = hub.New(r.src, hub.Config{
		MemoryBudget: 32 << 10, Retain: 20 * time.Millisecond, Linger: 5 * time.Millisecond, HistoryReaders: 2,
		SlowAfter: 10 * time.Millisecond,
	})
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Minute)
	defer stop()
	running := make(chan error, 1)
	go func() { running <- r.hub.Run(ctx) }()

	var writers, readers errgroup.Group
	for i := range int32(partitions) {
		own := rand.New(rand.NewPCG(seed, uint64(i)+10))
		writers.Go(func() error { r.write(own, i); return nil })
	}
	for i := range 10 {
		own := rand.New(rand.NewPCG(seed, uint64(i)+100))
		readers.Go(func() error { return r.read(ctx, own, i) })
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
	close(r.written)
	err := readers.Wait()
	stop()
	if end := <-running; !errors.Is(end, context.Canceled) && end != nil {
		t.Errorf("run: %v", end)
	}
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if v := r.src.Violations(); len(v) > 0 {
		t.Errorf("seed %d: the hub broke the source's contract: %v", seed, v)
	}
}

// write appends to one partition, and disturbs it now and then.
func (r *races) write(random *rand.Rand, partition int32) {
	w := &world{serial: int(partition) * 1_000_000}
	for range *racesFlag * 100 {
		r.mu.Lock()
		p := r.log.topics["a"].partitions[partition]
		v := p.now()
		switch random.IntN(40) {
		case 0:
			r.src.AppendHoles("a", partition, 2)
			p.appendHoles(2)
		case 1:
			oldest := min(v.end(), *v.oldest+random.Int64N(60))
			r.src.Retain("a", partition, oldest)
			*v.oldest = max(*v.oldest, oldest)
		case 2:
			p.unavailable = !p.unavailable
			r.src.SetUnavailable("a", partition, p.unavailable)
		default:
			records := w.draw(random, partition, 4)
			r.src.Append("a", partition, records...)
			p.append(plainCommitted, records...)
		}
		r.mu.Unlock()
		pause(random)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.src.SetUnavailable("a", partition, false)
	r.log.topics["a"].partitions[partition].unavailable = false
}

// pause yields, and rarely stalls for a moment: load, not synchronisation.
func pause(random *rand.Rand) {
	switch n := random.IntN(60); {
	case n == 0:
		time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond) //nolint:forbidigo // a stall is what it makes; nothing waits for it
	case n < 20:
		runtime.Gosched()
	}
}

// read subscribes, reads with stalls, leaves and comes back at its positions, until it has seen the end of what was written.
func (r *races) read(ctx context.Context, random *rand.Rand, number int) error {
	w := &world{log: r.log}
	r.mu.Lock()
	request := w.request(random, r.log.topics["a"])
	r.mu.Unlock()
	request.Stop, request.OnOutOfRange, request.TopicID = hub.Stop{}, hub.OutOfRangeEarliest, ""
	request.Slow = min(request.Slow, hub.SlowConflate) // it is to see the end
	for visit := 0; ; visit++ {
		name := fmt.Sprintf("reader %d, visit %d", number, visit)
		s, err := r.sit(ctx, random, name, request)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", name, describeRequest(request), err)
		}
		leaves := visit < 6
		ended, err := r.visit(random, s, leaves)
		if err != nil {
			return fmt.Errorf("%s of %s: %w\nafter\n%s", name, describeRequest(request), err, strings.Join(s.last, "\n"))
		}
		if ended {
			return nil
		}
		request.Start = hub.Start{Kind: hub.AtPositions, Positions: s.sub.Positions(nil)}
		s.sub.Close()
	}
}

// sit subscribes.
func (r *races) sit(ctx context.Context, random *rand.Rand, name string, request hub.Request) (*seat, error) {
	s := &seat{waker: newFlags(), token: 7}
	s.reader = newReader(name, request, r.log)
	s.reader.lock, s.reader.races, s.shared = &r.mu, true, random.IntN(2) == 0
	s.trace = func(format string, args ...any) {
		s.last = append(s.last[max(0, len(s.last)-30):], fmt.Sprintf(format, args...))
	}
	r.mu.Lock()
	// What the hub knows of the end of a partition that it follows may be old.
	before := r.log.topics["a"].snapshot(func(int32) (int64, bool) { return 0, true })
	r.mu.Unlock()
	sub, err := r.hub.Subscribe(ctx, request, s.waker, s.token)
	if err != nil {
		return nil, err
	}
	s.sub = sub
	r.mu.Lock()
	defer r.mu.Unlock()
	return s, s.begin(before)
}

// visit reads until the end, or leaves before if it may. Wherever nothing is left to pull it waits for its waker.
func (r *races) visit(random *rand.Rand, s *seat, leaves bool) (ended bool, err error) {
	for {
		for anything := true; anything; {
			if anything, err = s.pull(limits[1+random.IntN(len(limits)-1)]); err != nil {
				return false, err
			}
			if leaves && random.IntN(200) == 0 && s.settled() {
				return false, nil
			}
			pause(random)
		}
		if ended, err := r.wait(s); ended || err != nil {
			return ended, err
		}
	}
}

// wait waits for the seat's waker, or the end. Heartbeats move the positions of those to whom nothing comes that is theirs; they don't pull.
func (r *races) wait(s *seat) (ended bool, err error) {
	heartbeat := time.NewTicker(10 * time.Millisecond)
	defer heartbeat.Stop()
	for late := 0; ; {
		select {
		case <-s.waker.moved:
			return false, nil
		case <-s.waker.ready:
			return false, nil
		case <-heartbeat.C:
			r.mu.Lock()
			err := s.judgeMoved()
			atEnd := s.atEnd()
			r.mu.Unlock()
			if err != nil {
				return false, err
			}
			select {
			case <-r.written:
				late++
			default:
			}
			if late > 0 && atEnd {
				s.sub.Close()
				return true, nil
			}
			if late > 2500 { // the hub may wait for others to come for their chunks
				return false, fmt.Errorf("was not woken at %v", s.sub.Positions(nil))
			}
		}
	}
}

// atEnd says whether all cursors are where the log ends now.
func (r *reader) atEnd() bool {
	for _, c := range r.cursors {
		if c.pos < c.partition.now().end() || c.asked >= 0 {
			return false
		}
	}
	return true
}

// settled says whether the reader can be resumed without losing a gap that is still to be told.
func (r *reader) settled() bool {
	for _, c := range r.cursors {
		if c.asked >= 0 {
			return false
		}
	}
	return true
}
