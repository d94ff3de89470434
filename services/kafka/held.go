package kafka

import "time"

// held says whether an open transaction holds the end of a partition: the high watermark goes on, the last stable offset stands still. Readers of
// committed records wait for it, and with them all that is behind it; only its producer or Kafka's timeout can end it.
type held struct {
	at    int64     // the last stable offset
	since time.Time // zero: not held
	told  bool
}

// hold takes the last stable offset and the high watermark of a partition.
func (f *follower) hold(p *followed, stable, high int64) {
	h := &p.held
	if high <= stable || stable < 0 {
		f.letGo(p)
		return
	}
	if h.since.IsZero() || h.at != stable { // none, or another one
		f.letGo(p)
		*h = held{at: stable, since: time.Now()}
		return
	}
	d := time.Since(h.since)
	if d < f.client.cfg.HeldAfter {
		return
	}
	if f.m.hold(p.key, d); !h.told {
		h.told = true
		f.log.Warn("an open transaction holds a partition", "topic", p.key.topic, "partition", p.key.partition, "offset", stable, "behind", high-stable, "since", d.Round(time.Second),
			"advice", "readers wait for it; find its producer, or abort it with kafka-transactions.sh")
	}
}

// letGo notes that nothing holds a partition any more.
func (f *follower) letGo(p *followed) {
	if p.held.told {
		f.m.letGo(p.key)
		f.log.Info("the partition is held no longer", "topic", p.key.topic, "partition", p.key.partition, "after", time.Since(p.held.since).Round(time.Second))
	}
	p.held = held{}
}
