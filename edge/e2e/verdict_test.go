package e2e_test

import (
	"fmt"
	"slices"
	"time"
)

// verdict is what comparing a ledger with the log found.
type verdict struct {
	records, deliveries, confirmed, redelivered int
	twiceLost, twiceMoved, ackedTwice           int
}

// judge compares what the workers of a group saw and did with the log, and with Kafka's accounts. All have ended.
//
// The rules: each record was acknowledged. One that was comes again only if (a) its worker's stream ended before an answer showed that the ack had
// arrived, or (b) its partition went to another process, which had committed no further than that. A record comes to a worker only once the one
// before it of its key is acknowledged, or is held by the same stream. No two streams hold records of a key at once. attempt grows while a partition stays.
// What is nacked with a delay does not come before it.
//
// All but the first and the one of what comes again are asked of confirmed deliveries, whose ack or nack was certainly taken: others may have been on their way when
// the service took them back (a nack or a timeout before them in their key, a partition that moved), and are told as refused, or their stream ended before that.
func (l *ledger) judge(log *tape, a *accounts) verdict {
	v := verdict{records: log.count(), deliveries: len(l.all)}
	byPlace, known := map[placeOf][]*dealt{}, map[placeOf]bool{}
	for _, d := range l.all {
		byPlace[d.at] = append(byPlace[d.at], d)
		if d.confirmed {
			v.confirmed++
		}
	}
	for partition, records := range log.whole {
		last := map[string]*record{}
		for i := range records {
			at := placeOf{partition, records[i].offset}
			l.once(at, byPlace[at], a, &v)
			if l.ordered && records[i].key != nil {
				key := string(records[i].key)
				if before := last[key]; before != nil {
					l.inOrder(byPlace[placeOf{partition, before.offset}], byPlace[at])
				}
				last[key] = &records[i]
			}
			known[at] = true
		}
	}
	for at := range byPlace {
		if !known[at] {
			l.breach("%v was delivered, and is not in the log", at)
		}
	}
	if l.ordered {
		l.apart(a)
	}
	return v
}

// once judges the deliveries of one record.
func (l *ledger) once(at placeOf, ds []*dealt, a *accounts, v *verdict) {
	acks := 0
	for i, d := range ds {
		if d.took() {
			acks++
		}
		if i == 0 {
			continue
		}
		v.redelivered++
		if d.confirmed {
			l.again(ds[i-1], d, a)
		}
		for _, done := range slices.Backward(ds[:i]) {
			if !done.took() || done.until > d.seq {
				continue
			}
			l.afterAck(done, d, a, v)
			break
		}
	}
	if acks == 0 {
		l.breach("%v was never acknowledged; it was delivered %d times", at, len(ds))
	}
	if acks > 1 {
		v.ackedTwice++
	}
}

// again judges a delivery by the one before it of the same record.
func (l *ledger) again(before, d *dealt, a *accounts) {
	if a.moved(l.group, d.at.partition, before.when, d.when) {
		return
	}
	if d.attempt <= before.attempt {
		l.breach("%v came with the attempt %d after %d, at one process", d.at, d.attempt, before.attempt)
	}
	if waited := d.when.Sub(before.untilWhen); before.how == nacked && before.confirmed && waited < before.delay {
		l.breach("%v came %v after a nack with a delay of %v", d.at, waited, before.delay)
	}
}

// afterAck judges a delivery of a record that had been acknowledged.
func (l *ledger) afterAck(done, d *dealt, a *accounts, v *verdict) {
	switch {
	case !done.confirmed && done.by.over:
		v.twiceLost++
	case a.moved(l.group, d.at.partition, done.untilWhen, d.when):
		v.twiceMoved++
		if err := a.passed(l.group, d.at, done.untilWhen); err != nil && d.confirmed {
			l.breach("it came again: %v", err)
		}
	case d.confirmed:
		l.breach("%v came again after it was acknowledged, at one process", d.at)
	}
}

// inOrder judges that a record came only when the one before it of its key was done, or was at the same stream.
func (l *ledger) inOrder(before, ds []*dealt) {
	for _, d := range ds {
		ok := !d.confirmed
		for _, b := range before {
			if b.took() && b.until < d.seq || b.by == d.by && b.seq < d.seq && (b.how == held || b.until > d.seq) {
				ok = true
				break
			}
		}
		if !ok {
			l.breach("%v came to stream %d while what comes before it of its key was not done", d.at, d.by.n)
		}
	}
}

// apart judges that no two streams held records of a key at once.
func (l *ledger) apart(a *accounts) {
	byKey := map[string][]*dealt{}
	for _, d := range l.all {
		if key := d.lane(); key != "" && d.confirmed {
			byKey[key] = append(byKey[key], d)
		}
	}
	for key, ds := range byKey {
		slices.SortFunc(ds, func(x, y *dealt) int { return x.seq - y.seq })
		var last *dealt // of what came before, what was let go last
		for _, d := range ds {
			if last != nil && d.seq < last.until && d.by != last.by && !a.moved(l.group, d.at.partition, last.when, d.when) {
				l.breach("key %q was at streams %d and %d at once: %v and %v", key, last.by.n, d.by.n, last.at, d.at)
			}
			if last == nil || d.until > last.until {
				last = d
			}
		}
	}
}

func (v *verdict) String() string {
	return fmt.Sprintf("%d records, %d deliveries, %d of them confirmed, %d again (after an ack that was lost with its stream: %d; after an ack, at the next owner of the partition: %d), %d acknowledged more than once",
		v.records, v.deliveries, v.confirmed, v.redelivered, v.twiceLost, v.twiceMoved, v.ackedTwice)
}

// middle and worst of durations.
func spreadOf(ds []time.Duration) string {
	if len(ds) == 0 {
		return "none"
	}
	slices.Sort(ds)
	return fmt.Sprintf("p50 %v, max %v (%d records)", ds[len(ds)/2].Round(time.Millisecond), ds[len(ds)-1].Round(time.Millisecond), len(ds))
}
