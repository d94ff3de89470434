package group_test

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// gone removes a worker from the world.
func (w *world) gone(o *worker) {
	w.workers = slices.DeleteFunc(w.workers, func(x *worker) bool { return x == o })
}

func (w *world) end() {
	o := w.some()
	if o == nil {
		return
	}
	w.note("%s: worker ends", o.proc.name)
	if w.random.IntN(3) == 0 {
		o.Leave()
		w.left(o)
	} else {
		o.Close()
		for len(o.what) > 0 {
			tag := slices.Min(slices.Collect(maps.Keys(o.what)))
			var rest time.Duration
			if n := o.what[tag].failures + 1; n > 1 {
				rest = min(group.EndedRest<<(n-2), group.EndedRestMost)
			}
			w.fail(o, tag, nil, rest)
		}
	}
	w.gone(o)
}

// left is a worker that ended in order: nothing that it held has failed.
func (w *world) left(o *worker) {
	for _, f := range o.what {
		w.free(f)
	}
}

func (w *world) pull() {
	if o := w.some(); o != nil {
		w.pullBy(o)
	}
}

// pullBy checks each delivery against all that it must not be.
func (w *world) pullBy(o *worker) int {
	select {
	case <-o.Signal():
	default:
	}
	got, err := o.Pull(1 + w.random.IntN(100))
	if err != nil {
		if !errors.Is(err, hub.ErrDraining) && !errors.Is(err, hub.ErrUnavailable) {
			w.fatal("pull: %v", err)
		}
		return 0
	}
	o.empty = len(got.Deliveries) == 0
	for _, d := range got.Deliveries {
		w.delivered(o, d)
	}
	return len(got.Deliveries)
}

func (w *world) delivered(o *worker, d group.Delivery) {
	l, f := w.find(o, d.Record)
	if f == nil {
		w.fatal("%s delivers offset %d, which it does not have", o.proc.name, d.Record.Offset)
	}
	key := f.entry.key
	w.note("%s: deliver %d of %d key %q tag %d attempt %d", o.proc.name, d.Record.Offset, l.log.id.Partition, key, d.Tag, d.Attempt)
	switch now := time.Now(); {
	case f.done || f.dying:
		w.fatal("offset %d is delivered though it is done", d.Record.Offset)
	case f.holder != nil:
		w.fatal("offset %d is delivered though a worker holds it", d.Record.Offset)
	case l.log.moving:
		w.fatal("offset %d is delivered of a partition that is revoked", d.Record.Offset)
	case d.Tag != o.tag+1:
		w.fatal("got tag %d, want %d", d.Tag, o.tag+1)
	case d.Attempt != f.attempts+1:
		w.fatal("offset %d: got attempt %d, want %d", d.Record.Offset, d.Attempt, f.attempts+1)
	case now.Before(f.notYet):
		w.fatal("offset %d is delivered %v early", d.Record.Offset, f.notYet.Sub(now))
	case len(o.held) >= o.start.MaxInFlight:
		w.fatal("a worker holds more than %d", o.start.MaxInFlight)
	}
	if key != "" && w.start.Ordering == group.OrderByKey {
		for _, e := range l.log.entries {
			before := l.state[e.offset]
			if before == nil || e.key != key {
				continue
			}
			if e.offset < d.Record.Offset && !before.done && !before.dying && before.holder != o {
				w.fatal("offset %d is delivered before %d of its key", d.Record.Offset, e.offset)
			}
			if e.offset > d.Record.Offset && before.holder != nil {
				w.fatal("offset %d is delivered while %d of its key is held", d.Record.Offset, e.offset)
			}
		}
	}
	o.tag = d.Tag
	f.attempts++
	f.holder, f.tag, f.due = o, d.Tag, time.Now().Add(o.start.AckTimeout)
	o.held[d.Tag], o.what[d.Tag] = l, f
}

// find tells which life a delivery is of: records don't say their partitions, so their addresses must.
func (w *world) find(o *worker, r *group.Record) (*life, *fate) {
	for _, l := range w.logs {
		if l.owner == nil || l.owner.proc != o.proc {
			continue
		}
		if l.owner.records[r] {
			return l.owner, l.owner.state[r.Offset]
		}
	}
	return nil, nil
}

// tags picks some that the worker holds, some of them twice, some that it held, and one of the future.
func (w *world) tags(o *worker) []int64 {
	var tags []int64
	for _, tag := range slices.Sorted(maps.Keys(o.what)) {
		if w.random.IntN(2) == 0 {
			tags = append(tags, tag)
		}
		if w.random.IntN(10) == 0 {
			tags = append(tags, tag, tag)
		}
	}
	if w.random.IntN(4) == 0 && o.tag > 0 {
		tags = append(tags, 1+w.random.Int64N(o.tag), o.tag+1)
	}
	w.random.Shuffle(len(tags), func(i, j int) { tags[i], tags[j] = tags[j], tags[i] })
	return tags
}

// notHeld are the tags that a worker does not hold: those that it holds may be named twice.
func notHeld(o *worker, tags []int64) (not []int64) {
	for _, tag := range tags {
		if o.what[tag] == nil {
			not = append(not, tag)
		}
	}
	return not
}

func (w *world) ack() {
	o := w.some()
	if o == nil {
		return
	}
	tags, upTo := w.tags(o), int64(0)
	if w.random.IntN(4) == 0 {
		upTo = w.random.Int64N(o.tag + 2)
	}
	w.ackBy(o, tags, upTo)
}

func (w *world) ackBy(o *worker, tags []int64, upTo int64) {
	w.note("%s: ack %v up to %d", o.proc.name, tags, upTo)
	refused := o.Ack(tags, upTo)
	want := notHeld(o, tags)
	for _, tag := range tags {
		if f := o.what[tag]; f != nil {
			w.done(f)
		}
	}
	for tag, f := range o.what {
		if tag <= upTo {
			w.done(f)
		}
	}
	if !slices.Equal(refused, want) {
		w.fatal("ack %v: got %v refused, want %v", tags, refused, want)
	}
}

func (w *world) done(f *fate) {
	w.free(f)
	f.done, f.entry.acked = true, true
}

func (w *world) nack() {
	o := w.some()
	if o == nil {
		return
	}
	tags := w.tags(o)
	delay := time.Duration(w.random.IntN(3)) * 700 * time.Millisecond
	w.note("%s: nack %v delay %v", o.proc.name, tags, delay)
	refused := o.Nack(tags, delay, "not today")
	want := notHeld(o, tags)
	named := map[*fate]bool{}
	for _, tag := range tags {
		if f := o.what[tag]; f != nil {
			named[f] = true
		}
	}
	for f := range named {
		if f.holder == o {
			w.fail(o, f.tag, named, delay)
		}
	}
	if !slices.Equal(refused, want) {
		w.fatal("nack %v: got %v refused, want %v", tags, refused, want)
	}
}

// fail is a delivery that failed, and those of its key behind it.
func (w *world) fail(o *worker, tag int64, named map[*fate]bool, delay time.Duration) {
	first, l := o.what[tag], o.held[tag]
	for _, e := range l.log.entries {
		f := l.state[e.offset]
		if f == nil || f.holder != o || f != first &&
			(w.start.Ordering == group.OrderNone || e.key == "" || e.key != first.entry.key || e.offset < first.entry.offset) {
			continue
		}
		w.free(f)
		if f == first {
			f.notYet = time.Now().Add(delay)
		}
		if f == first || named[f] {
			if f.failures++; f.failures >= w.start.MaxAttempts {
				f.dying = true
			}
		}
	}
}

// advance lets time pass: then nobody sleeps who could have something.
func (w *world) advance(d time.Duration) {
	w.note("%v pass", d)
	until := time.Now().Add(d)
	for now := time.Now(); now.Before(until); now = time.Now() { // to each timeout, so that what happens at it is known
		next := until
		for _, o := range w.workers {
			for _, f := range o.what {
				if f.due.After(now) && f.due.Before(next) {
					next = f.due
				}
			}
		}
		time.Sleep(next.Sub(now))
		w.settle()
	}
	const rest = 90 * time.Millisecond // for those who were woken, and then for more, and more
	if w.happens(rest) {
		return
	}
	time.Sleep(rest)
	w.settle()
	for _, o := range w.workers {
		if !o.empty || len(o.held) >= o.start.MaxInFlight || len(o.Signal()) > 0 {
			continue
		}
		if n := w.pullBy(o); n > 0 {
			w.fatal("a worker of %s sleeps though there were %d records for it", o.proc.name, n)
		}
	}
}

// happens says whether time alone changes something soon.
func (w *world) happens(within time.Duration) bool {
	now := time.Now()
	soon := func(at time.Time) bool { return at.After(now) && !at.After(now.Add(within)) }
	for _, l := range w.logs {
		if l.owner == nil {
			continue
		}
		for _, f := range l.owner.state {
			if soon(f.notYet) || f.holder != nil && soon(f.due) {
				return true
			}
		}
	}
	return false
}

// timeouts does in the model what time did.
func (w *world) timeouts() {
	now := time.Now()
	for _, o := range w.workers {
		for {
			late := slices.DeleteFunc(slices.Collect(maps.Keys(o.what)), func(tag int64) bool { return o.what[tag].due.After(now) })
			if len(late) == 0 {
				break
			}
			w.fail(o, slices.MinFunc(late, cmp.Compare[int64]), nil, 0)
		}
	}
}
