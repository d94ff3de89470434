package kafka

import "time"

// How long a follower waits before it tries again to open another consumer: doubled each time.
const (
	renewalPause = 100 * time.Millisecond
	renewalMost  = 10 * time.Second
)

// renewal is what a follower does while the topics in barred were created anew and another consumer cannot be opened, as where descriptors or threads
// have run out: their partitions are unavailable, those of other topics are read on, and it tries again.
type renewal struct {
	barred map[string]struct{} // by name; not more than are followed
	pause  time.Duration
	next   time.Time
}

// renew goes on with another consumer, each partition at its next, because the present one must not read the logs of these names (see topicLogs). Closing
// the old one may take a while. Where none can be opened, bar must follow, once the partitions have been told where they are.
func (f *follower) renew(topics ...string) {
	for _, topic := range topics {
		f.renewal.barred[topic] = struct{}{}
	}
	if len(topics) == 0 {
		return
	}
	c, err := f.open()
	if err != nil {
		r := &f.renewal
		r.pause = min(max(2*r.pause, renewalPause), renewalMost)
		r.next = time.Now().Add(r.pause)
		f.log.Error("open another consumer for a topic that was created anew", "topics", len(r.barred), "first", topics[0], "error", err, "retry", r.pause)
		return
	}
	old := f.consumer
	if f.bell != nil { // run alone sets it
		f.bell.takeDown(old)
		f.hung = f.bell.hang(c)
	}
	f.checker.group.Go(func() { closeBounded(f.log, "follower", func() { _ = old.Close() }) })
	f.consumer, f.known, f.renewal = c, meetings{}, renewal{barred: map[string]struct{}{}}
	var all []*followed
	for _, p := range f.parts {
		if p.assigned, p.barred = false, false; !p.gone {
			all = append(all, p)
		}
	}
	f.assign(all)
}

// bar takes the partitions that the consumer must not read away from it.
func (f *follower) bar() {
	if len(f.renewal.barred) == 0 {
		return
	}
	var ps []*followed
	for _, p := range f.parts {
		if _, barred := f.renewal.barred[p.key.topic]; barred && !p.barred && !p.gone {
			p.barred = true
			ps = append(ps, p)
		}
	}
	f.unassign(ps)
	for _, p := range ps {
		f.unavailable(p)
	}
}

// renewAgain tries again when it is time.
func (f *follower) renewAgain() {
	if len(f.renewal.barred) == 0 || time.Now().Before(f.renewal.next) {
		return
	}
	for topic := range f.renewal.barred {
		f.renew(topic)
		return
	}
}
