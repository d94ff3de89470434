package hub

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// opening is a Subscribe under way. It belongs to its caller's goroutine.
type opening struct {
	hub     *Hub
	topic   *Topic
	request *Request
	waker   Waker
	token   uint64

	asked map[int32]struct{} // Request.Partitions; nil: all
	named map[int32]Position // Request.Start.Positions, for AtPositions

	resolved    map[int32]answer // nil: nothing is resolved yet
	topicID     string
	partitioner Partitioner
	count       int32
	twice       bool // positions beyond the end were resolved twice

	// What open finds out.
	scope []int32
	begin []beginning // of each partition of scope
	fresh []ResolvedPartition
}

// answer is what the source said of one partition. It holds while the log only grows: asked is the topic's head before it was asked.
type answer struct {
	ResolvedPartition
	asked Seq
}

// beginning is where one partition begins.
type beginning struct {
	mark
	end        int64
	incomplete bool
	gap        *Entry // to tell first
}

// need is what open lacks.
type need struct {
	resolve    bool
	partitions []int32         // to resolve; nil: all
	beyond     bool            // a position lies beyond the end: ask again before it counts
	gone       <-chan struct{} // wait for this first
	settle     bool            // the source has not told yet that the topic was created again: wait a little
	retired    bool            // the topic was deleted: begin with another Topic
}

const (
	askAgain   = 500 * time.Millisecond
	maxResolve = 20 // rounds of one Subscribe
)

// Subscribe resolves the request, follows what it needs, and returns when Started is known. It blocks for a round trip where that needs
// something the hub doesn't know, and not at all for what it follows: latest, and positions in the ring. Latest is the end where it was
// asked for, else where the ring ends: what is acknowledged already, and did not come yet, is read too. Errors: those of Source.Resolve,
// *InvalidError, *OffsetOutOfRangeError by policy, *LimitError, ErrDraining, ErrUnavailable (the source could not be reached for Config.ResolveWait), and ctx's.
//
// Positions of partitions that are not among Partitions are ignored, as are stops of partitions that are not read.
func (h *Hub) Subscribe(ctx context.Context, r Request, w Waker, token uint64) (*Subscription, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(h.cfg.ResolveWait)
	o := newOpening(h, &r, w, token)
	defer func() { h.unpin(o.topic) }()
	var away time.Duration
	for range maxResolve {
		if err := h.pin(&o.topic, r.Topic); err != nil {
			return nil, err
		}
		s, lacks, err := o.open()
		if s != nil || err != nil {
			return s, err
		}
		wait := time.Duration(0)
		switch {
		case lacks.gone != nil:
			select {
			case <-lacks.gone:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			continue
		case lacks.retired:
			h.unpin(o.topic)
			o.topic, o.resolved = nil, nil
			continue
		case lacks.settle:
			o.resolved = nil
			wait = restAtFirst
		case lacks.beyond:
			o.twice, wait = true, askAgain
		}
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		for lacks.resolve {
			res, asked, err := o.resolve(ctx, lacks.partitions)
			if err == nil {
				o.answer(res, asked)
				break
			}
			away = min(max(2*away, restAtFirst), restAtMost)
			if !errors.Is(err, ErrUnavailable) || time.Now().Add(away).After(deadline) {
				return nil, err
			}
			if err := pause(ctx, away); err != nil {
				return nil, err
			}
		}
		if lacks.settle && time.Now().After(deadline) {
			return nil, ErrUnavailable
		}
	}
	return nil, fmt.Errorf("resolve %q: %w", r.Topic, ErrUnavailable)
}

func newOpening(h *Hub, r *Request, w Waker, token uint64) *opening {
	o := &opening{hub: h, request: r, waker: w, token: token}
	if r.Partitions != nil {
		o.asked = make(map[int32]struct{}, len(r.Partitions))
		for _, p := range r.Partitions {
			o.asked[p] = struct{}{}
		}
	}
	if r.Start.Kind == AtPositions {
		o.named = make(map[int32]Position, len(r.Start.Positions))
		for _, p := range r.Start.Positions {
			o.named[p.Partition] = p
		}
	}
	return o
}

// pin finds the topic, or makes it, and keeps it from being let go of.
func (h *Hub) pin(t **Topic, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped || h.draining.Load() {
		return ErrDraining
	}
	if *t != nil {
		return nil
	}
	at := h.topics[name]
	if at != nil && at.deleted.Load() {
		h.takeOut(at)
		h.retired[at] = struct{}{}
		at = nil
	}
	if at == nil {
		if len(h.topics)+len(h.retired) >= h.cfg.MaxTopics {
			return &LimitError{Limit: "topics", Value: int64(h.cfg.MaxTopics), Retry: h.cfg.Linger}
		}
		at = newTopic(h, name)
		h.topics[name] = at
	}
	at.pins++
	*t = at
	return nil
}

func (h *Hub) unpin(t *Topic) {
	if t == nil {
		return
	}
	h.mu.Lock()
	t.pins--
	h.mu.Unlock()
	h.letGo(t)
}

// answer takes what the source resolved.
func (o *opening) answer(res Resolved, asked Seq) {
	if o.resolved == nil || o.topicID != res.TopicID {
		o.resolved = make(map[int32]answer, len(res.Partitions))
	}
	o.topicID, o.count, o.partitioner = res.TopicID, res.Count, res.Partitioner
	for _, p := range res.Partitions {
		o.resolved[p.Partition] = answer{p, asked}
	}
}

// expire drops an answer that may be of a part of the log which is lost by now. mu is held.
func (o *opening) expire(id int32, p *partition) {
	if a, ok := o.resolved[id]; ok && a.asked < p.truncated {
		delete(o.resolved, id)
		o.twice = false
	}
}

// open makes the subscription if all that it needs is known; otherwise it says what is lacking.
func (o *opening) open() (_ *Subscription, _ *need, err error) {
	t := o.topic
	var added int64
	defer func() { t.announce(added) }()
	t.followMu.Lock()
	defer t.followMu.Unlock()
	if t.deleted.Load() {
		return nil, &need{retired: true}, nil
	}
	if o.filters() {
		if n := t.terms.keyCount() + len(o.request.Keys); n > maxTerms {
			return nil, nil, &LimitError{Limit: "keys", Value: maxTerms, Retry: o.hub.cfg.Retain}
		}
		t.feedMu.Lock()
		defer t.feedMu.Unlock()
	}
	t.mu.Lock()
	lacks, err := o.plan()
	if err != nil || lacks != nil {
		added = t.commit()
		return nil, lacks, err
	}
	s := o.subscribe()
	added = t.commit()
	t.register(s)
	t.followFrom(o.fresh)
	return s, nil, nil
}

// plan decides where each partition begins. followMu and mu are held.
func (o *opening) plan() (*need, error) {
	t := o.topic
	if o.resolved != nil {
		if o.topicID != t.id && t.busy() {
			return &need{settle: true, resolve: true}, nil
		}
		t.adopt(o.topicID, o.count)
		t.partitioner = o.partitioner
	}
	if len(t.parts) == 0 {
		return &need{resolve: true}, nil
	}
	t.room(t.number)
	if err := o.choose(); err != nil {
		if o.resolved == nil {
			return &need{resolve: true}, nil //nolint:nilerr // the topic may have grown
		}
		return nil, err
	}
	o.begin, o.fresh = make([]beginning, len(o.scope)), nil
	var lacking, beyond []int32
	for i, p := range o.scope {
		f, state := &t.follows[p], &t.parts[p]
		if f.state == leaving {
			return &need{gone: f.gone}, nil
		}
		if f.state == live && (state.id != t.id || state.over) {
			return &need{settle: true, resolve: true}, nil
		}
		o.expire(p, state)
		known, err := o.beginAt(i, p, f.state == live, state)
		switch {
		case errors.Is(err, errBeyond):
			beyond = append(beyond, p)
		case err != nil:
			return nil, err
		case !known:
			lacking = append(lacking, p)
		}
	}
	if lacking == nil && beyond != nil {
		return &need{beyond: true, resolve: true, partitions: beyond}, nil
	}
	if lacking != nil {
		if len(lacking) == int(t.number) {
			lacking = nil
		}
		return &need{resolve: true, partitions: lacking}, nil
	}
	if len(o.scope) == 0 && o.resolved == nil && !slices.ContainsFunc(t.follows, func(f follow) bool { return f.state == live }) {
		return &need{resolve: true}, nil // nobody would have told that the topic is another by now
	}
	return nil, nil
}

// adopt takes what was resolved: another log only while nothing is followed. followMu and mu are held.
func (t *Topic) adopt(id string, count int32) {
	if id != t.id {
		t.id = id
		t.shrink(count)
		t.rename(id)
	}
	if len(t.parts) == 0 {
		t.extend(min(count, maxCount))
	} else {
		t.resize(&Entry{Kind: Topology, Count: count, TopicID: id})
	}
}

// rename begins another log, while nothing is followed.
func (t *Topic) rename(id string) {
	t.id = id
	for i := range t.parts {
		p := &t.parts[i]
		p.id, p.recreated, p.seen = id, t.place(), -1
	}
}
