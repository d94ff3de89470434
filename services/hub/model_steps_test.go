package hub_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// topics are those of every history. The first gets most of the steps.
var topics = []string{"a", "b"}

// do takes a step.
func (w *world) do(s step) error {
	random := s.random()
	name := topics[0]
	if random.IntN(6) == 0 {
		name = topics[1]
	}
	t := w.log.topics[name]
	if t.deleted && s.op < opSubscribe && s.op != opRecreate && s.op != opDeliver {
		return nil
	}
	i := random.Int32N(t.count())
	p := t.partitions[i]
	v := p.now()
	switch s.op {
	case opAppend:
		records := w.draw(random, i, t.count())
		w.src.Append(name, i, records...)
		p.append(plainCommitted, records...)
		w.tracef("%s/%d: %d records appended, up to %d", name, i, len(records), v.high())
	case opFlood:
		w.flood(random, p)
	case opHoles:
		n := 1 + random.IntN(4)
		w.src.AppendHoles(name, i, n)
		p.appendHoles(n)
	case opOpen:
		records := w.draw(random, i, t.count())
		w.src.AppendOpen(name, i, records...)
		p.append(plainOpen, records...)
	case opCommit:
		w.src.Commit(name, i)
		p.settle(plainCommitted)
	case opAbort:
		w.src.Abort(name, i)
		p.settle(plainHole)
	case opCompact:
		if v.end() > *v.oldest {
			offset := *v.oldest + random.Int64N(v.end()-*v.oldest)
			w.src.Compact(name, i, offset)
			v.slots[offset].compacted = true
		}
	case opRetain:
		oldest := min(v.end(), *v.oldest+1+random.Int64N(20))
		w.src.Retain(name, i, oldest)
		*v.oldest = max(*v.oldest, oldest)
		w.tracef("%s/%d: retained from %d", name, i, oldest)
	case opTruncate:
		return w.truncate(random, p)
	case opElect:
		w.src.Elect(name, i)
		v.epoch++
	case opRecreate:
		w.createTopic(name, max(1, t.count()+random.Int32N(4)-2))
	case opDelete:
		w.src.DeleteTopic(name)
		t.deleted = true
		t.gone = append(t.gone, t.id)
	case opGrow:
		if t.count() < 12 {
			t.grow(t.count() + 1 + random.Int32N(2))
			w.src.Grow(name, t.count())
			w.tracef("%s: grown to %d partitions", name, t.count())
		}
	case opUnavailable:
		p.unavailable = !p.unavailable
		w.src.SetUnavailable(name, i, p.unavailable)
		w.tracef("%s/%d: unavailable: %v", name, i, p.unavailable)
	case opDeliver:
		if random.IntN(8) == 0 {
			i = random.Int32N(int32(len(t.partitions))) // perhaps one that is over
		}
		n := w.deliver(name, i, random.IntN(8))
		next, _ := w.src.FollowedTo(name, i)
		w.tracef("%s/%d: %d entries delivered, up to %d", name, i, n, next)
	case opDeliverAll:
		w.deliverAll()
	case opRewind:
		w.src.Rewind(name, i, 1+random.Int64N(6))
		w.deliver(name, i, 3+random.IntN(6))
	case opSubscribe:
		w.subscribe(w.request(random, t), random)
	case opResume:
		if len(w.resume) > 0 {
			at := random.IntN(len(w.resume))
			r := w.resume[at]
			w.resume = slices.Delete(w.resume, at, at+1)
			r.request.Start = hub.Start{Kind: hub.AtPositions, Positions: r.positions}
			r.request.TopicID = r.id
			w.subscribe(r.request, random)
		}
	case opPull:
		if seat := w.any(random); seat != nil {
			return w.pull(seat, 1+random.IntN(6), limits[random.IntN(len(limits))])
		}
	case opPullWoken:
		return w.pullWoken(limits[random.IntN(len(limits))])
	case opHeartbeat:
		if seat := w.any(random); seat != nil {
			if err := seat.judgeMoved(); err != nil {
				return fmt.Errorf("%s: %w", seat.name, err)
			}
		}
	case opClose:
		if seat := w.any(random); seat != nil {
			return w.close(seat)
		}
	case opSleep:
		if random.IntN(3) == 0 {
			return w.stall(random, t)
		}
		time.Sleep([]time.Duration{
			time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond, time.Second, w.setup.Linger + time.Second, w.setup.Retain + time.Second,
		}[random.IntN(6)])
	case opDelays:
		d := func() time.Duration {
			return []time.Duration{0, 0, time.Millisecond, 30 * time.Millisecond, 400 * time.Millisecond}[random.IntN(5)]
		}
		w.src.SetDelays(hubtest.Delays{BeforeResolve: d(), AfterResolve: d(), BeforeRead: d(), AfterRead: d()})
	case opShape:
		w.src.SetShape(hubtest.Shape{
			EntryRecords: random.IntN(4), Holes: hubtest.Holes(random.IntN(3)), HideEnd: random.IntN(3) == 0, ChunkRecords: random.IntN(5),
		})
	case opQuiesce:
		return w.quiesce()
	case ops:
	}
	return nil
}

// limits are sizes of pulls.
var limits = []int{1, 150, 600, 4000, 256 << 10}

// draw makes records for a partition: most with a key that hashes there, some with a key that does not, some without.
func (w *world) draw(random *rand.Rand, partition, count int32) []hubtest.Record {
	var records []hubtest.Record
	for range 1 + random.IntN(5) {
		w.serial++
		value := bytes.Repeat([]byte{'x'}, random.IntN(40))
		if random.IntN(12) == 0 {
			value = bytes.Repeat([]byte{'y'}, random.IntN(900))
		}
		r := hubtest.Record{Value: fmt.Appendf(value, "%d", w.serial)}
		switch random.IntN(12) {
		case 0:
		case 1:
			r.Key = []byte{}
		case 2:
			r.Key = keyName(random.IntN(keyNames))
		default:
			for r.Key == nil {
				if k := keyName(random.IntN(keyNames)); random.IntN(4) == 0 || int32(murmur2(k)&0x7fffffff)%count == partition {
					r.Key = k
				}
			}
		}
		if random.IntN(12) == 0 {
			r.Value = nil
		}
		records = append(records, r)
	}
	return records
}

// flood appends more small records than a chunk, a batch or a look at the log of a term may have.
func (w *world) flood(random *rand.Rand, p *plainPartition) {
	var records []hubtest.Record
	for range 500 + random.IntN(2500) {
		records = append(records, hubtest.Record{Key: keyName(random.IntN(2) * random.IntN(keyNames))})
	}
	w.src.Append(p.topic, p.number, records...)
	p.append(plainCommitted, records...)
	if random.IntN(2) == 0 {
		w.deliver(p.topic, p.number, -1)
	}
	w.tracef("%s/%d: %d records appended, up to %d", p.topic, p.number, len(records), p.now().high())
}

const keyNames = 16

func keyName(i int) []byte { return fmt.Appendf(nil, "key-%d", i) }

// truncate loses the end of a partition that the hub has followed to beyond there, and has it told at once: nobody can tell a truncation
// that happened while nobody looked. What a Subscribe that is under way was told before does not hold then.
func (w *world) truncate(random *rand.Rand, p *plainPartition) error {
	if s := w.any(random); s != nil && random.IntN(2) == 0 {
		w.src.SetDelays(hubtest.Delays{AfterRead: 30 * time.Millisecond}) // what it asks for now comes when it is history no more
		if err := w.pull(s, 1, limits[random.IntN(len(limits))]); err != nil {
			return err
		}
		if err := w.settle(); err != nil {
			return err
		}
	}
	v := p.now()
	next, followed := w.src.FollowedTo(p.topic, p.number)
	if !followed || next <= *v.oldest || next > v.high() || p.unavailable {
		return nil
	}
	high := *v.oldest + random.Int64N(next-*v.oldest)
	w.src.Truncate(p.topic, p.number, high)
	p.truncate(high)
	w.deliver(p.topic, p.number, 0)
	w.tracef("%s/%d: truncated to %d", p.topic, p.number, high)
	if random.IntN(2) == 0 {
		return w.rewrite(random, p)
	}
	return nil
}

// rewrite appends anew where a log was truncated, and has it read by one who never knew another.
func (w *world) rewrite(random *rand.Rand, p *plainPartition) error {
	w.src.SetDelays(hubtest.Delays{})
	records := w.draw(random, p.number, w.log.topics[p.topic].count())
	w.src.Append(p.topic, p.number, records...)
	p.append(plainCommitted, records...)
	w.src.Deliver(p.topic, p.number, -1)
	readers := len(w.readers)
	w.subscribe(hub.Request{Topic: p.topic, Partitions: []int32{p.number}, Start: hub.Start{Kind: hub.Earliest}}, random)
	if err := w.settle(); err != nil || len(w.readers) == readers {
		return err
	}
	return w.pull(w.readers[readers], 1, 256<<10)
}

func (w *world) deliverAll() {
	for _, name := range topics {
		for i := range int32(len(w.log.topics[name].partitions)) {
			w.deliver(name, i, -1)
		}
	}
}

// subscribe begins a subscription; settle seats it.
func (w *world) subscribe(request hub.Request, random *rand.Rand) {
	if len(w.readers)+len(w.pending) >= w.setup.Subscriptions {
		return
	}
	w.serial++
	t := w.log.topics[request.Topic]
	s := &seat{waker: newFlags(), token: uint64(w.serial), woken: true}
	if len(w.readers) > 0 && random.IntN(2) == 0 {
		s.waker = w.readers[random.IntN(len(w.readers))].waker
	}
	s.reader = newReader(fmt.Sprintf("reader %d", w.serial), request, w.log)
	s.trace, s.shared, s.forms = w.tracef, random.IntN(2) == 0, &w.forms
	s.followed, s.slowAfter = w.src.FollowedTo, w.setup.SlowAfter
	a := &attempt{seat: s, done: make(chan struct{}), deadline: time.Now().Add(3 * time.Second)}
	a.before = t.snapshot(func(i int32) (int64, bool) { return w.src.FollowedTo(t.name, i) })
	for _, other := range w.readers {
		a.before.followed = a.before.followed || other.request.Topic == t.name // if only as a topic of which nothing is read
	}
	for _, other := range w.pending {
		if other.seat.request.Topic == t.name {
			a.before.after(other.before) // what that finds out may be what this one is told
		}
	}
	ctx, cancel := context.WithDeadline(context.Background(), a.deadline)
	a.cancelled = cancel
	w.tracef("%s asks for %s", s.name, describeRequest(request))
	w.pending = append(w.pending, a)
	go func() {
		defer close(a.done)
		a.sub, a.err = w.hub.Subscribe(ctx, request, s.waker, s.token)
	}()
}

func (w *world) any(random *rand.Rand) *seat {
	if len(w.readers) == 0 {
		return nil
	}
	return w.readers[random.IntN(len(w.readers))]
}

// pull pulls at most n times. Who was not given an empty batch need not be woken again.
func (w *world) pull(s *seat, n, limit int) error {
	for range n {
		anything, err := s.pull(limit)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		s.woken, s.away = anything, s.sub.Unavailable(s.away[:0])
		if !anything {
			break
		}
	}
	return nil
}

func (w *world) pullWoken(limit int) error {
	for _, s := range w.readers {
		if !s.woken {
			continue
		}
		if err := w.pull(s, 100_000, limit); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) close(s *seat) error {
	w.readers = slices.DeleteFunc(w.readers, func(other *seat) bool { return s == other })
	if s.ended == nil {
		if err := s.judgePositions(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if s.request.Stop.AtEnd || len(s.request.Stop.Positions) > 0 {
			s.request.Stop = hub.Stop{}
		}
		if id, ok := s.topicID(); ok {
			w.resume = append(w.resume, resume{request: s.request, positions: s.sub.Positions(nil), id: id})
		}
	}
	s.sub.Close()
	s.sub.Close()
	if b, err := s.sub.Pull(1000); len(b.Parts) > 0 || err == nil || s.ended == nil && !errors.Is(err, hub.ErrClosed) {
		return fmt.Errorf("%s: pull after close returns %d parts, %w", s.name, len(b.Parts), err)
	}
	w.tracef("%s is closed", s.name)
	return nil
}
