package hubtest

import (
	"sync"

	"tailrace.dev/tailrace/services/hub"
)

// follower is one partition that a hub follows.
type follower struct {
	topic     *hub.Topic
	name      string
	partition int32
	wake      chan struct{} // one slot; never closed
	quit      chan struct{}
	done      chan struct{}

	delivering sync.Mutex // held from looking at the log until what was seen is appended: one writer per partition
	stopped    bool       // guarded by delivering

	// Guarded by Source.mu.
	id      string // of the log that next is in
	next    int64
	top     int64 // the highest next that was told
	cut     int64 // truncation to tell: to where, or -1
	down    bool  // Unavailable was told
	deleted bool  // Deleted was told
	count   int32 // partitions as this follower's topic was told
	over    bool  // the log was made anew without this partition, and that was told
}

// place is a partition of a hub's topic.
type place struct {
	topic     *hub.Topic
	partition int32
}

func (f *follower) signal() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Follow implements hub.Source.
func (s *Source) Follow(t *hub.Topic, partition int32, from int64) (unfollow func()) {
	f := &follower{
		topic: t, name: t.Name(), partition: partition, id: t.ID(), next: from, top: from, cut: -1, count: t.Count(),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	s.mu.Lock()
	s.counts.Follows++
	for other := range s.followers {
		if other.topic == t && other.partition == partition {
			s.violated("partition %d of %q is followed twice", partition, f.name)
		}
	}
	if cut, ok := s.cuts[place{t, partition}]; ok && cut < from {
		f.cut = cut
	}
	delete(s.cuts, place{t, partition})
	s.followers[f] = struct{}{}
	s.mu.Unlock()

	if s.stepped {
		close(f.done)
	} else {
		f.signal()
		go s.run(f)
	}
	var once sync.Once
	return func() {
		again := true
		once.Do(func() { again = false; s.unfollow(f) })
		if again {
			s.mu.Lock()
			s.violated("partition %d of %q is unfollowed twice", partition, f.name)
			s.mu.Unlock()
		}
	}
}

func (s *Source) unfollow(f *follower) {
	close(f.quit)
	<-f.done
	f.delivering.Lock()
	f.stopped = true
	f.delivering.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
	if f.cut >= 0 {
		s.cuts[place{f.topic, f.partition}] = f.cut
	}
}

func (s *Source) run(f *follower) {
	defer close(f.done)
	for {
		select {
		case <-f.wake:
			s.deliver(f, -1)
		case <-f.quit:
			return
		}
	}
}

// Following returns the partitions of a topic that are followed, by any hub, in no order.
func (s *Source) Following(topic string) []int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var partitions []int32
	for f := range s.followers {
		if f.name == topic {
			partitions = append(partitions, f.partition)
		}
	}
	return partitions
}

// FollowedTo returns the offset up to which a followed partition was delivered (the lowest, with several hubs); ok says whether it is
// followed. Of a log that no follower has been told of yet, nothing was; where one has, those that linger at the log before it do not count.
func (s *Source) FollowedTo(topic string, partition int32) (next int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := false
	for f := range s.followers {
		if f.name != topic || f.partition != partition {
			continue
		}
		if t := s.topics[topic]; t == nil || t.id != f.id {
			ok = true
		} else if !told || f.top < next {
			next, told = f.top, true
		}
	}
	return next, ok || told
}

// Told says whether all followers of a partition have been told of the log that the topic has now.
func (s *Source) Told(topic string, partition int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.topics[topic]
	for f := range s.followers {
		if f.name == topic && f.partition == partition && (t == nil || t.id != f.id) {
			return false
		}
	}
	return true
}

// Deliver gives the followers of a partition what they have not been told, at most n offsets, in one Append; a negative n is all there is. With
// n = 0, or with nothing new, it appends an Advance that tells only the end. It returns the number of entries, 0 if nobody follows.
func (s *Source) Deliver(topic string, partition int32, n int) (entries int) {
	for _, f := range s.followersOf(topic, partition) {
		entries += s.deliver(f, n)
	}
	return entries
}

// Rewind makes the followers of a partition deliver their last n offsets again, as after a resume that went back too far.
func (s *Source) Rewind(topic string, partition int32, n int64) {
	for _, f := range s.followersOf(topic, partition) {
		s.mu.Lock()
		if t := s.topics[topic]; t != nil && t.id == f.id && f.cut < 0 && !f.over {
			f.next = min(f.next, max(f.next-n, t.partitions[partition].oldest))
		}
		s.mu.Unlock()
	}
}

func (s *Source) followersOf(topic string, partition int32) []*follower {
	s.mu.Lock()
	defer s.mu.Unlock()
	var fs []*follower
	for f := range s.followers {
		if f.name == topic && f.partition == partition {
			fs = append(fs, f)
		}
	}
	return fs
}

func (s *Source) deliver(f *follower, n int) int {
	f.delivering.Lock()
	defer f.delivering.Unlock()
	if f.stopped {
		return 0
	}
	s.mu.Lock()
	es := s.news(f, n)
	s.mu.Unlock()
	if len(es) > 0 {
		f.topic.Append(es...)
	}
	return len(es)
}

// news returns what a follower is told next. s.mu is held.
func (s *Source) news(f *follower, n int) (es []*hub.Entry) {
	tell := func(e *hub.Entry) {
		e.Partition, e.From = f.partition, f.top
		es = append(es, e)
	}
	t := s.topics[f.name]
	switch {
	case f.deleted, f.over:
		return nil
	case t == nil:
		for other := range s.followers { // what one is told, all are: it is final
			other.deleted = other.deleted || other.topic == f.topic
		}
		tell(&hub.Entry{Kind: hub.Deleted, Next: f.top, End: -1})
		return es
	}
	count := int32(len(t.partitions))
	if f.partition >= count {
		tell(&hub.Entry{Kind: hub.Recreated, End: -1, TopicID: t.id, Count: count})
		f.id, f.next, f.top, f.cut, f.over = t.id, 0, 0, -1, true
		return es
	}
	tellCount := func() {
		if s.told(f, count) {
			tell(&hub.Entry{Kind: hub.Topology, Next: f.top, End: -1, Count: count, TopicID: t.id})
		}
	}
	p := t.partitions[f.partition]
	if p.unavailable {
		if t.id == f.id {
			tellCount()
		}
		if !f.down {
			f.down = true
			tell(&hub.Entry{Kind: hub.Unavailable, Next: f.top, End: -1})
		}
		return es
	}
	if f.down {
		f.down = false
		tell(&hub.Entry{Kind: hub.Available, Next: f.top, End: -1})
	}
	end := p.end()
	if s.shape.HideEnd {
		end = -1
	}
	if t.id != f.id {
		e := &hub.Entry{Kind: hub.Recreated, Next: p.oldest, End: end, TopicID: t.id}
		if f.partition%2 == 0 { // who does not know it tells it by and by
			e.Count = count
		}
		tell(e)
		f.id, f.cut, f.next, f.top = t.id, -1, p.oldest, p.oldest
	}
	if f.cut < 0 && f.top > p.high() {
		f.cut = p.high()
	}
	if f.cut >= 0 {
		tell(&hub.Entry{Kind: hub.Gap, Reason: hub.GapTruncation, Next: f.cut, End: end})
		f.next, f.top, f.cut = f.cut, f.cut, -1
	}
	if f.next < p.oldest {
		es = append(es, &hub.Entry{
			Kind: hub.Gap, Reason: hub.GapRetention, Partition: f.partition, From: f.next, Next: p.oldest, End: end,
		})
		f.next = p.oldest
		f.top = max(f.top, f.next)
	}
	tellCount()
	to := p.end()
	if n >= 0 {
		to = min(to, f.next+int64(n))
	}
	if f.next < to {
		es = append(es, live(p, s.shape, f.partition, f.next, to)...)
		f.next = to
		f.top = max(f.top, to)
	}
	if s.stepped && len(es) == 0 {
		es = append(es, &hub.Entry{Kind: hub.Advance, Partition: f.partition, From: f.next, Next: f.next, End: end})
	}
	return es
}

// told notes that all followers of f's topic and log are told of count partitions, and says whether that is news. s.mu is held.
func (s *Source) told(f *follower, count int32) (news bool) {
	if f.count == count {
		return false
	}
	for other := range s.followers {
		if other.topic == f.topic && other.id == f.id {
			other.count = count
		}
	}
	return true
}
