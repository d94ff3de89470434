package hub

// For tests in package hub_test.

var (
	HashMurmur2 = murmur2
	TurnChunks  = turnChunks
)

// Pinned returns the Seq of the segment that a subscription keeps.
func (s *Subscription) Pinned() Seq { return s.seg.base }

// Terms counts the terms of a topic.
func (t *Topic) Terms() int {
	t.terms.mu.RLock()
	defer t.terms.mu.RUnlock()
	return len(t.terms.keys) + len(t.terms.partitions)
}

// Refs counts the refs in a key's log.
func (t *Topic) Refs(key string) int {
	t.terms.mu.RLock()
	defer t.terms.mu.RUnlock()
	tm := t.terms.keys[key]
	if tm == nil {
		return 0
	}
	tm.mu.Lock()
	defer tm.mu.Unlock()
	return len(tm.refs)
}
