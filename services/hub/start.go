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

	resolved map[int32]ResolvedPartition // nil: nothing is resolved yet
	topicID  string
	count    int32
	twice    bool // positions beyond the end were resolved twice

	// What open finds out.
	scope []int32
	begin []beginning // of each partition of scope
	fresh []ResolvedPartition
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
// something the hub doesn't know, and not at all for what it follows: latest, and positions in the ring. Errors: those of Source.Resolve,
// *InvalidError, *OffsetOutOfRangeError by policy, *LimitError, ErrDraining, ErrUnavailable (the source could not be reached for Config.ResolveWait), and ctx's.
// Slow policies other than catch_up are ErrUnimplemented.
//
// Positions of partitions that are not among Partitions are ignored, as are stops of partitions that are not read.
func (h *Hub) Subscribe(ctx context.Context, r Request, w Waker, token uint64) (*Subscription, error) {
	if err := r.validate(); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(h.cfg.ResolveWait)
	o := &opening{hub: h, request: &r, waker: w, token: token}
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
			res, err := o.resolve(ctx, lacks.partitions)
			if err == nil {
				o.answer(res)
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

// validate says what is wrong with a request.
func (r *Request) validate() error {
	if r.Topic == "" {
		return &InvalidError{"topic", "is empty"}
	}
	seen := map[int32]struct{}{}
	for _, p := range r.Partitions {
		if _, twice := seen[p]; twice || p < 0 {
			return &InvalidError{"partitions", fmt.Sprintf("%d is negative or named twice", p)}
		}
		seen[p] = struct{}{}
	}
	if err := validPositions("start.positions", r.Start.Positions); err != nil {
		return err
	}
	if err := validPositions("stop.positions", r.Stop.Positions); err != nil {
		return err
	}
	switch {
	case r.Start.Kind == Last && r.Start.Last < 1:
		return &InvalidError{"start.last", "is not positive"}
	case r.Stop.Records < 0:
		return &InvalidError{"stop.records", "is negative"}
	case r.Stop.Bytes < 0:
		return &InvalidError{"stop.bytes", "is negative"}
	case r.MaxRecordBytes < 0:
		return &InvalidError{"max_record_bytes", "is negative"}
	case r.Slow != SlowCatchUp:
		return fmt.Errorf("slow policy: %w", ErrUnimplemented)
	}
	return nil
}

func validPositions(field string, ps []Position) error {
	seen := make(map[int32]struct{}, len(ps))
	for _, p := range ps {
		if _, twice := seen[p.Partition]; twice || p.Partition < 0 || p.Offset < 0 {
			return &InvalidError{field, fmt.Sprintf("partition %d is negative, named twice, or at a negative offset", p.Partition)}
		}
		seen[p.Partition] = struct{}{}
	}
	return nil
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
	defer h.mu.Unlock()
	if t.pins--; t.pins == 0 && t.abandoned() {
		h.forget(t)
	}
}

// answer takes what the source resolved.
func (o *opening) answer(res Resolved) {
	if o.resolved == nil || o.topicID != res.TopicID {
		o.resolved = make(map[int32]ResolvedPartition, len(res.Partitions))
	}
	o.topicID, o.count = res.TopicID, res.Count
	for _, p := range res.Partitions {
		o.resolved[p.Partition] = p
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
	t.enterSub(s)
	t.followFrom(o.fresh)
	return s, nil, nil
}

// filters says whether less than the whole topic is asked for.
func (o *opening) filters() bool {
	return o.request.Keys != nil || o.request.Partitions != nil || o.skips()
}

// skips says whether partitions without a position are left out.
func (o *opening) skips() bool {
	return o.request.Start.Kind == AtPositions && o.request.Start.Missing == MissingSkip
}

// plan decides where each partition begins. followMu and mu are held.
func (o *opening) plan() (*need, error) {
	t := o.topic
	if o.resolved != nil {
		switch {
		case o.topicID == t.id:
		case slices.ContainsFunc(t.follows, func(f follow) bool { return f.state != idle }):
			return &need{settle: true, resolve: true}, nil
		default:
			t.rename(o.topicID)
		}
		if count := min(o.count, maxCount); len(t.parts) == 0 {
			t.extend(count)
		} else {
			t.grow(&Entry{Kind: Topology, Count: count})
		}
	}
	if len(t.parts) == 0 {
		return &need{resolve: true}, nil
	}
	t.room(int32(len(t.parts)))
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
		if f.state == live && state.id != t.id {
			return &need{settle: true, resolve: true}, nil
		}
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
		if len(lacking) == len(t.parts) {
			lacking = nil
		}
		return &need{resolve: true, partitions: lacking}, nil
	}
	return nil, nil
}

// rename begins another log, while nothing is followed.
func (t *Topic) rename(id string) {
	t.id = id
	for i := range t.parts {
		p := &t.parts[i]
		p.id, p.recreated, p.seen = id, t.place(), -1
	}
}

// choose finds out which partitions are read.
func (o *opening) choose() error {
	r, count := o.request, int32(len(o.topic.parts))
	for _, p := range r.Partitions {
		if p >= count {
			return &UnknownPartitionError{Topic: r.Topic, Partition: p, Count: count}
		}
	}
	named := map[int32]struct{}{}
	if r.Start.Kind == AtPositions {
		for _, p := range r.Start.Positions {
			if p.Partition >= count {
				return &UnknownPartitionError{Topic: r.Topic, Partition: p.Partition, Count: count}
			}
			named[p.Partition] = struct{}{}
		}
	}
	var hashed map[int32]struct{}
	if o.hashes() {
		hashed = make(map[int32]struct{}, len(r.Keys))
		for _, key := range r.Keys {
			hashed[PartitionOf(key, count)] = struct{}{}
		}
	}
	o.scope = o.scope[:0]
	for p := range count {
		_, isNamed := named[p]
		_, isHashed := hashed[p]
		switch {
		case r.Partitions != nil && !slices.Contains(r.Partitions, p):
		case isNamed, !o.skips() && (hashed == nil || isHashed):
			o.scope = append(o.scope, p)
		}
	}
	return nil
}

// hashes says whether keys are looked for only where they hash to.
func (o *opening) hashes() bool {
	r := o.request
	if r.Keys == nil {
		return false
	}
	if r.KeyScope == KeyScopeDefault {
		return r.Start.Kind != Earliest && r.Start.Kind != AtTime
	}
	return r.KeyScope == KeyScopeHashed
}

var errBeyond = errors.New("position beyond the end")

// beginAt decides where one partition begins. It returns false if that has to be resolved first.
func (o *opening) beginAt(i int, id int32, isLive bool, p *partition) (known bool, err error) {
	r, at := o.request, &o.begin[i]
	res, resolved := o.resolved[id]
	if !isLive && !resolved {
		return false, nil
	}
	at.epoch = -1
	at.end = res.End
	if isLive {
		at.end = p.next
		if resolved {
			p.see(res.End)
		}
		at.end = p.end
	}
	latest, latestKnown := at.end, true
	if isLive && !p.unavailable {
		latest = p.next
	} else if isLive {
		latestKnown = resolved
	}
	position, named := Position{}, false
	if r.Start.Kind == AtPositions {
		for _, pos := range r.Start.Positions {
			if pos.Partition == id {
				position, named = pos, true
			}
		}
	}
	switch {
	case r.Start.Kind == Latest, r.Start.Kind == AtPositions && !named && r.Start.Missing == MissingLatest:
		at.next = latest
		return latestKnown, nil
	case !named:
		at.next, at.incomplete = res.Start, res.Incomplete
		return resolved, nil
	}
	at.mark = mark{position.Offset, position.Epoch}
	foreign := r.TopicID != "" && r.TopicID != o.topic.id
	if !foreign && isLive {
		if seg, _ := o.topic.locateLocked(id, position.Offset); seg != nil || position.Offset >= p.next && position.Offset <= p.end {
			return true, nil
		}
	}
	switch {
	case !resolved:
		return false, nil
	case !foreign && position.Offset >= res.Oldest && position.Offset <= at.end:
		return true, nil
	case !foreign && position.Offset > at.end && !o.twice:
		return false, errBeyond
	}
	if !latestKnown {
		latest = res.End
	}
	return true, o.outOfRange(at, position, res, foreign, latest)
}

// outOfRange acts by policy on a position that is not in the log.
func (o *opening) outOfRange(at *beginning, position Position, res ResolvedPartition, foreign bool, latest int64) error {
	to := res.Oldest
	switch o.request.OnOutOfRange {
	case OutOfRangeFail:
		return &OffsetOutOfRangeError{
			Topic: o.request.Topic, Partition: position.Partition, Offset: position.Offset, Oldest: res.Oldest, End: at.end,
		}
	case OutOfRangeLatest:
		to = latest
	}
	reason := GapStart
	switch {
	case foreign:
		reason = GapRecreated
	case to < position.Offset:
		reason = GapTruncation
	}
	at.mark = mark{to, -1}
	at.gap = &Entry{Kind: Gap, Reason: reason, Partition: position.Partition, From: position.Offset, Next: to, End: at.end}
	return nil
}
