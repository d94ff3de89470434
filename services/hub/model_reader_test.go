package hub_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"tailrace.dev/tailrace/services/hub"
)

// reader is one subscription and the judge of what it delivers. It compares every part with the plain log when it comes, so that records
// and gaps together are exactly the log.
type reader struct {
	name    string
	request hub.Request
	sub     *hub.Subscription
	log     *plainLog
	lock    sync.Locker // of the log; none is needed where all take turns
	shared  bool        // uses At, Read and Skip where it can, and forms
	forms   *forms      // nil: nobody counts
	before  struct {    // the last batch that came by Read
		at    hub.Seq
		first *hub.Entry
	}

	keys    map[string]struct{} // nil: all records
	grows   bool                // reads partitions that are added later
	cursors map[int32]*cursor
	started hub.Started

	records  int64
	bytes    int64
	caughtUp bool
	ceded    bool // a partition with a stop is over: it was reached
	ended    error
	drained  bool // the hub drains: ErrDraining is due
	races    bool // positions may move between a pull and a look at them
	leniency      // what slow policies are judged by
	trace    func(format string, args ...any)
}

func newReader(name string, request hub.Request, log *plainLog) *reader {
	r := &reader{
		name: name, request: request, log: log, lock: noLock{}, cursors: map[int32]*cursor{}, grows: request.Partitions == nil,
		trace: func(string, ...any) {},
	}
	if request.Keys != nil {
		r.keys = map[string]struct{}{}
		for _, k := range request.Keys {
			r.keys[string(k)] = struct{}{}
		}
	}
	return r
}

func (r *reader) wants(p *plainRecord) bool {
	if r.keys == nil {
		return true
	}
	if p.key == nil {
		return false
	}
	_, ok := r.keys[string(p.key)]
	return ok
}

func (r *reader) tooLarge(p *plainRecord) bool {
	return r.request.MaxRecordBytes > 0 && p.size > r.request.MaxRecordBytes
}

// pull takes what the subscription has, and judges it. It says whether there was anything.
func (r *reader) pull(limit int) (any bool, err error) {
	if r.ended != nil {
		return false, nil
	}
	r.lock.Lock()
	due := r.stopReached() && !r.anyReset()
	r.look()
	r.lock.Unlock()
	batch, whole, end := r.take(limit)
	r.lock.Lock()
	defer r.lock.Unlock()
	if end != nil {
		if len(batch.Parts) > 0 || batch.CaughtUp {
			return false, fmt.Errorf("pull returned %d parts together with %w", len(batch.Parts), end)
		}
		r.trace("%s ends: %v", r.name, end)
		r.ended = end
		return false, r.judgeEnd(end)
	}
	if due && batch.Records > 0 {
		return true, errors.New("records after the stop was reached")
	}
	if whole && batch.Bytes > limit {
		limit = len(batch.Parts[0].Body) // one entry, never more
	}
	if err := r.judgeSlow(&batch); err != nil {
		return true, err
	}
	if err := r.judge(&batch, limit); err != nil {
		return true, err
	}
	if err := r.judgePositions(); err != nil {
		return true, err
	}
	if err := r.judgeCaughtUp(&batch); err != nil {
		return true, err
	}
	r.noteLive()
	if due && len(batch.Parts) == 0 && !batch.CaughtUp {
		return true, errors.New("no EOF after the stop was reached")
	}
	return len(batch.Parts) > 0 || batch.CaughtUp, nil
}

// take pulls, or where the reader may share, reads as all who stand at its place do: then entries come whole.
func (r *reader) take(limit int) (batch hub.Batch, whole bool, err error) {
	at, shared := r.sub.At()
	if shared && r.shared && r.sub.Topic().Read(at, limit, &batch) {
		r.sub.Skip(&batch)
		if len(batch.Parts) > 0 {
			r.before.at, r.before.first = at, batch.Parts[0].Entry
		}
		return batch, true, nil
	}
	if r.before.first != nil && r.sub.Topic().Read(r.before.at, limit, &batch) && (len(batch.Parts) == 0 || batch.Parts[0].Entry != r.before.first) {
		return batch, true, fmt.Errorf("Read(%d) once began with another entry", r.before.at)
	}
	batch, err = r.sub.Pull(limit)
	return batch, false, err
}

func (r *reader) judge(b *hub.Batch, limit int) error {
	records, bytes := 0, 0
	for i := range b.Parts {
		p := &b.Parts[i]
		before := r.position(p.Partition)
		if err := r.judgePart(p); err != nil {
			return fmt.Errorf("%s at %d: %w", describe(p), before, err)
		}
		r.trace("%s gets %s", r.name, describe(p))
		if err := r.judgeForm(p); err != nil {
			return fmt.Errorf("%s: %w", describe(p), err)
		}
		if p.Kind == hub.Records {
			records += p.Hi - p.Lo
			bytes += len(p.Piece(p.Lo, p.Hi))
		}
	}
	if b.CaughtUp {
		r.trace("%s has caught up", r.name)
	}
	if b.Records != records || b.Bytes != bytes {
		return fmt.Errorf("batch says %d records, %d bytes; its parts hold %d, %d", b.Records, b.Bytes, records, bytes)
	}
	if bytes > limit && records > 1 {
		return fmt.Errorf("batch of %d records has %d bytes, more than %d", records, bytes, limit)
	}
	return nil
}

func (r *reader) position(partition int32) int64 {
	if c := r.cursors[partition]; c != nil {
		return c.pos
	}
	return -1
}

func (r *reader) judgePart(p *hub.Part) error {
	if p.Kind == hub.Topology {
		return r.judgeTopology(p)
	}
	c := r.cursors[p.Partition]
	if c == nil {
		return errors.New("a partition that is not read")
	}
	if began := c.fresh; began && p.Kind == hub.Advance {
		c.begin(p.Next, r.wants)
		if c.told = c.pos; !c.fresh {
			return nil
		}
	} else if began {
		c.begin(p.From, r.wants)
	}
	if c.asked >= 0 && p.Kind != hub.Unavailable && p.Kind != hub.Available {
		return r.judgeStartGap(c, p)
	}
	if p.From < c.pos {
		return errors.New("begins before the position")
	}
	var err error
	switch p.Kind {
	case hub.Records:
		err = r.judgeRecords(c, p)
	case hub.Gap, hub.Recreated:
		err = r.judgeGap(c, p)
	case hub.Advance:
		if p.Next < p.From {
			return errors.New("goes backwards")
		}
		err = c.keep(func(v *life) error { return v.lost(c.pos, p.Next, r.wants) })
		c.pos = max(c.pos, p.Next)
	case hub.Unavailable, hub.Available:
		if p.From != p.Next {
			return errors.New("moves the position")
		}
		return nil
	default:
		return errors.New("unexpected kind")
	}
	c.fresh = false
	c.told = c.pos
	if err == nil && c.stop >= 0 && !c.reset && c.pos > c.stop {
		return fmt.Errorf("goes beyond the stop %d", c.stop)
	}
	return err
}

func (r *reader) judgeRecords(c *cursor, p *hub.Part) error {
	for i := p.Lo; i < p.Hi; i++ {
		meta := p.Meta[i]
		if meta.Offset < c.pos || meta.Offset < p.From || meta.Offset >= p.Next {
			return fmt.Errorf("offset %d comes at %d", meta.Offset, c.pos)
		}
		err := c.keep(func(v *life) error {
			if err := v.lost(c.pos, meta.Offset, r.wants); err != nil {
				return err
			}
			if meta.Offset >= v.end() {
				return fmt.Errorf("offset %d is not below the end %d", meta.Offset, v.end())
			}
			want := v.slots[meta.Offset]
			switch {
			case want.kind != plainCommitted:
				return fmt.Errorf("offset %d has no record", meta.Offset)
			case !bytes.Equal(p.Piece(i, i+1), want.piece):
				return fmt.Errorf("offset %d has other bytes than the log", meta.Offset)
			case !bytes.Equal(p.KeyOf(i), want.key):
				return fmt.Errorf("offset %d has another key than in the log", meta.Offset)
			case meta.Epoch != want.epoch:
				return fmt.Errorf("offset %d has epoch %d, want %d", meta.Offset, meta.Epoch, want.epoch)
			case !r.wants(want):
				return fmt.Errorf("offset %d was not asked for", meta.Offset)
			case r.tooLarge(want):
				return fmt.Errorf("offset %d is too large", meta.Offset)
			}
			return r.judgePatience(c, v, meta.Offset)
		})
		if err != nil {
			return err
		}
		if limit := r.request.Stop.Records; limit > 0 && r.records >= limit {
			return errors.New("more records than the stop allows")
		}
		if limit := r.request.Stop.Bytes; limit > 0 && r.bytes >= limit {
			return errors.New("more bytes than the stop allows")
		}
		if c.stop >= 0 && !c.reset && meta.Offset >= c.stop {
			return fmt.Errorf("offset %d is at or beyond the stop %d", meta.Offset, c.stop)
		}
		r.records++
		r.bytes += int64(recordSize(p.Piece(i, i+1)))
		c.pos, c.epoch = meta.Offset+1, meta.Epoch
	}
	err := c.keep(func(v *life) error { return v.lost(c.pos, p.Next, r.wants) })
	c.pos = max(c.pos, p.Next)
	return err
}

// judgeTopology takes the new partitions in, or gives up those that are over.
func (r *reader) judgeTopology(p *hub.Part) error {
	t := r.log.topics[r.request.Topic]
	if p.Count == r.started.Count || !slices.Contains(t.counts, p.Count) {
		return fmt.Errorf("%d partitions; the topic had %v, the reader knew %d", p.Count, t.counts, r.started.Count)
	}
	r.started.Partitions = slices.DeleteFunc(slices.Clone(r.started.Partitions), func(s hub.StartedPartition) bool { return s.Partition >= p.Count })
	for i, c := range r.cursors {
		if i < p.Count {
			continue
		}
		if !c.fresh && !c.reset {
			return fmt.Errorf("%d partitions; the end of partition %d was not told", p.Count, i)
		}
		r.ceded = r.ceded || c.stop >= 0
		delete(r.cursors, i)
	}
	was := r.started.Count
	r.started.Count = p.Count
	r.live, r.counts = false, false // where it gains a partition it starts in the past, and its slow policy does not count until it is live again
	for i := range p.Count {
		moved := r.keys != nil && r.scope() == hub.KeyScopeHashed // keys may hash to another old partition now
		switch {
		case !r.grows || r.cursors[i] != nil || i < was && !moved || moved && !hashesTo(r.keys, i, p.Count):
		default:
			r.open(i, 0, "")
			if r.acts == hub.SlowConflate {
				r.cursors[i].conflated = 1 << 62 // or perhaps not: it depends on what the hub knew of it first
			}
			r.live = false
		}
	}
	return nil
}

// open begins to read a partition at pos, in the log of a topic id. Without one it is a partition that was added.
func (r *reader) open(partition int32, pos int64, id string) {
	p := r.log.topics[r.request.Topic].partitions[partition]
	c := &cursor{partition: p, pos: pos, epoch: -1, asked: -1, stop: -1, told: pos, fresh: id == ""}
	for _, v := range p.lives {
		if v.id == id {
			c.lives = append(c.lives, v)
		}
	}
	r.cursors[partition] = c
}

// topicID returns the id of the log that all positions are in; false if they are in several.
func (r *reader) topicID() (id string, ok bool) {
	for _, c := range r.cursors {
		if id != "" && id != c.lives[0].id || c.asked >= 0 {
			return "", false
		}
		id = c.lives[0].id
	}
	return id, id != ""
}

func (r *reader) scope() hub.KeyScope {
	if r.request.KeyScope != hub.KeyScopeDefault {
		return r.request.KeyScope
	}
	if r.request.Start.Kind == hub.Earliest || r.request.Start.Kind == hub.AtTime {
		return hub.KeyScopeAll
	}
	return hub.KeyScopeHashed
}
