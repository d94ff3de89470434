package kafka

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// watcher looks at the followed topics for what the fetch protocol does not tell: a topic that was deleted and created again is read on at
// the old offset in the new log without any error; only its id shows it. The same look serves growth and deletion.
type watcher struct {
	client *Client
	log    *slog.Logger

	mu     sync.Mutex // guards the rest; a look holds it while it acts, not while it asks Kafka
	topics map[string]*watched
}

// watched is one topic that is followed.
type watched struct {
	refs    map[*follower]int // partitions of each
	topic   appender
	id      string // of the log that is read; empty: not known yet
	count   int32
	missing time.Time // since when the topic is not found; zero: it is there
	gone    bool      // told as deleted
}

func newWatcher(c *Client) *watcher {
	return &watcher{client: c, log: c.log, topics: map[string]*watched{}}
}

const (
	lookTimeout = 5 * time.Second
	lookAtLeast = 5 * time.Second // between the end of a look and the next
	lookShare   = 50              // for this many times as long as a look took, none is made: many topics must not keep Kafka busy
)

// run looks at intervals until ctx ends. With nothing to watch it still asks, so that health is current.
func (w *watcher) run(ctx context.Context) {
	for {
		began := time.Now()
		look, cancel := context.WithTimeout(ctx, lookTimeout)
		w.look(look)
		cancel()
		timer := time.NewTimer(max(w.client.cfg.WatchInterval, min(lookShare*time.Since(began), lookAtLeast)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			w.client.tails.expire()
		}
	}
}

// add counts a partition of t in; drop counts it out.
func (w *watcher) add(f *follower, t appender) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.topics[t.Name()]
	if s == nil || s.topic != t {
		s = &watched{refs: map[*follower]int{}, topic: t, id: t.ID(), count: t.Count()}
		w.topics[t.Name()] = s
	}
	s.refs[f]++
}

func (w *watcher) drop(f *follower, t appender) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.topics[t.Name()]
	if s == nil || s.topic != t {
		return
	}
	if s.refs[f]--; s.refs[f] == 0 {
		delete(s.refs, f)
	}
	if len(s.refs) == 0 {
		delete(w.topics, t.Name())
	}
}

// look asks Kafka once about all watched topics and tells their followers what changed. It may be called concurrently.
func (w *watcher) look(ctx context.Context) {
	w.mu.Lock()
	names := make([]string, 0, len(w.topics))
	for name := range w.topics {
		names = append(names, name)
	}
	w.mu.Unlock()
	if len(names) == 0 {
		w.client.admin.ping(ctx)
		return
	}
	found, err := w.client.admin.describe(ctx, names)
	if err != nil {
		w.log.Debug("look at followed topics", "error", err) // health has said it
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range found {
		if s := w.topics[d.name]; s != nil {
			w.compare(s, d)
		}
	}
}

// compare acts on the difference between what is followed and what is there.
func (w *watcher) compare(s *watched, d topicInfo) {
	now := time.Now()
	switch {
	case d.missing:
		if s.missing.IsZero() {
			s.missing = now
			w.log.Warn("topic is gone", "topic", d.name, "grace", w.client.cfg.DeletedAfter)
		}
		if !s.gone && now.Sub(s.missing) >= w.client.cfg.DeletedAfter {
			s.gone = true
			w.log.Warn("topic counts as deleted", "topic", d.name)
			w.tell(s, func(f *follower, first bool) { f.deleted(s.topic, first) })
		}
		return
	case d.err != nil:
		return
	}
	s.missing = time.Time{}
	if slices.Contains(d.leaders, -1) { // librdkafka waits for a leader in silence
		w.tell(s, func(f *follower, _ bool) { f.checker.wanted = true })
	}
	if s.id == "" {
		s.id = d.id
	}
	if d.id != s.id {
		w.log.Warn("topic was created anew", "topic", d.name, "old", s.id, "new", d.id, "before", s.count, "now", d.count)
		s.id, s.count = d.id, min(s.count, d.count)
		w.tell(s, func(f *follower, _ bool) { f.recreated(s.topic, d.id, d.count) })
	}
	if d.count > s.count {
		w.log.Info("topic has more partitions", "topic", d.name, "before", s.count, "now", d.count)
		s.count = d.count
		w.tell(s, func(f *follower, _ bool) { f.grown(s.topic, d.id, d.count) }) // each, behind its Recreated of that log
	}
}

// tell sends a finding to every follower of the topic; the first of them appends what concerns the topic as a whole.
func (w *watcher) tell(s *watched, act func(f *follower, first bool)) {
	first := true
	for f := range s.refs {
		f.send(command{found: func(first bool) func() { return func() { act(f, first) } }(first)})
		first = false
	}
}

// grown, deleted and recreated run in the follower's goroutine.
func (f *follower) grown(t appender, id string, count int32) {
	f.flush()
	t.Append(&hub.Entry{Kind: hub.Topology, Partition: -1, Count: count, TopicID: id, End: -1})
}

func (f *follower) deleted(t appender, first bool) {
	ps := f.of(t)
	f.unassign(ps)
	f.flush()
	for _, p := range ps {
		p.gone = true
	}
	if first {
		t.Append(&hub.Entry{Kind: hub.Deleted, Partition: -1, End: -1})
	}
}

func (f *follower) recreated(t appender, id string, count int32) {
	ps := f.of(t)
	es := make([]*hub.Entry, len(ps))
	var over []*followed
	for i, p := range ps { // what is pending may be of either log
		es[i] = p.jump(hub.Recreated, 0, -1)
		es[i].TopicID, es[i].Count = id, count
		if p.key.partition >= count {
			over = append(over, p)
		}
	}
	f.unassign(over)
	for _, p := range over {
		if p.away {
			f.available(p)
		}
		p.gone = true
	}
	f.logs.isAnother(t.Name(), id)
	f.renew(t.Name())
	for i, p := range ps {
		f.emit(p, es[i])
	}
	f.bar()
}

// of returns the partitions of a topic that this follower has.
func (f *follower) of(t appender) []*followed {
	var ps []*followed
	for _, p := range f.parts {
		if p.topic == t && !p.gone {
			ps = append(ps, p)
		}
	}
	return ps
}
