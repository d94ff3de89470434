package hub_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

const (
	budgetSlack = 64 << 10        // what may be over the budget: the newest entry of a ring, a chunk that somebody is about to read
	lingerSlack = 2 * time.Second // how long after its linger a partition may be followed
	glance      = 100 * time.Millisecond
	patience    = 20 * time.Second // how long the hub may rest: before it asks a source again, or gives up who does not come for a chunk
)

// quiesce delivers, and pulls, woken by wakers alone, until nobody was woken for a while; then whoever is open must be where the log ends.
func (w *world) quiesce() error {
	for idle := time.Duration(0); idle < patience; {
		woken := false
		for _, s := range w.readers {
			woken = woken || s.woken && s.ended == nil
		}
		if woken {
			idle = 0
			if err := w.pullWoken(64 << 10); err != nil {
				return err
			}
		} else {
			rest := max(glance, idle/8)
			idle += rest
			w.deliverAll()   // somebody may have begun to follow
			time.Sleep(rest) //nolint:forbidigo // the bubble's clock
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	for _, s := range w.readers {
		if err := s.judgeMoved(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if err := w.judgeRest(s); err != nil {
			return fmt.Errorf("%s rests, not woken: %w", s.name, err)
		}
	}
	return nil
}

// judgeRest judges a reader to whom nothing more should come.
func (w *world) judgeRest(s *seat) error {
	if s.ended != nil {
		return nil
	}
	t := w.log.topics[s.request.Topic]
	if s.gone() {
		return errors.New("its topic was deleted")
	}
	if s.stopReached() && !s.anyReset() {
		return errors.New("its stop was reached")
	}
	unavailable := s.sub.Unavailable(nil)
	for i, c := range s.cursors {
		now := c.partition.now()
		if i >= t.count() {
			if w.tells(t) {
				return fmt.Errorf("partition %d of %d is read", i, t.count())
			}
			continue
		}
		if c.partition.unavailable {
			if _, followed := w.src.FollowedTo(t.name, i); followed && !slices.Contains(unavailable, i) {
				return fmt.Errorf("partition %d is unavailable, it says %v", i, unavailable)
			}
			continue
		}
		if slices.Contains(unavailable, i) {
			return fmt.Errorf("it says that partition %d is unavailable", i)
		}
		end := now.end()
		switch {
		case c.stop >= 0 && c.reset:
			continue // what a stop means in another log is not said
		case c.stop >= 0:
			end = min(end, max(c.stop, c.pos))
		}
		if c.pos != end || !slices.Contains(c.reach(), now) || c.asked >= 0 {
			return fmt.Errorf("partition %d is at %d, want %d", i, c.pos, end)
		}
	}
	for i := range t.count() {
		if s.cursors[i] == nil && s.grows && slices.Contains(s.added(t.count()), i) && w.tells(t) {
			return fmt.Errorf("partition %d of %d is not read", i, t.count())
		}
	}
	return nil
}

// tells says whether there is a follower that can tell a growth: the only one may be away, from before a re-creation.
func (w *world) tells(t *plainTopic) bool {
	for _, i := range w.src.Following(t.name) {
		if !t.partitions[i].unavailable {
			return true
		}
	}
	return false
}

// finish makes everything available, expects everything to arrive, and nothing to be left when all have gone.
func (w *world) finish() error {
	w.src.SetDelays(hubtest.Delays{})
	w.src.SetShape(hubtest.Shape{})
	for _, name := range topics {
		t := w.log.topics[name]
		if t.deleted {
			continue
		}
		for i, p := range t.present() {
			w.src.SetUnavailable(name, int32(i), false)
			p.unavailable = false
			w.src.Commit(name, int32(i))
			p.settle(plainCommitted)
		}
	}
	if err := w.quiesce(); err != nil {
		return err
	}
	if len(w.pending) > 0 {
		return fmt.Errorf("%s is neither started nor refused", w.pending[0].seat.name)
	}
	for _, s := range w.readers {
		// An end that was told is believed also where a truncation that nobody noticed took it; a stop keeps a position below the end.
		if s.ended != nil || s.anyReset() || len(s.request.Stop.Positions) > 0 {
			continue
		}
		if lag := s.sub.Lag(); lag != 0 {
			return fmt.Errorf("%s is at the end, its lag is %d", s.name, lag)
		}
	}
	if w.setup.Drains {
		if err := w.drain(); err != nil {
			return err
		}
	}
	for len(w.readers) > 0 {
		if err := w.close(w.readers[0]); err != nil {
			return err
		}
	}
	time.Sleep(w.setup.Linger + 2*lingerSlack) //nolint:forbidigo // the bubble's clock
	if err := w.settle(); err != nil {
		return err
	}
	left := w.hub.Stats()
	left.HistoryReads, left.ChunkHits, left.RingHits = 0, 0, 0
	left.Skipped, left.Conflated, left.Spilled, left.Failed = 0, 0, 0, 0
	if left != (hub.Stats{}) {
		return fmt.Errorf("after the last reader: %+v", left)
	}
	return nil
}

// drain expects those that are open to get what is there and then the reason, and nobody to be let in.
func (w *world) drain() error {
	w.hub.Drain()
	for _, s := range w.readers {
		s.drained = true
	}
	if err := w.settle(); err != nil {
		return err
	}
	if err := w.pullWoken(600); err != nil {
		return err
	}
	for _, s := range w.readers {
		if s.ended == nil {
			return fmt.Errorf("%s was not ended, or not woken, by drain", s.name)
		}
	}
	if _, err := w.hub.Subscribe(context.Background(), hub.Request{Topic: topics[0]}, newFlags(), 0); !errors.Is(err, hub.ErrDraining) {
		return fmt.Errorf("subscribe while draining: %w", err)
	}
	return nil
}
