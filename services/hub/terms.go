package hub

import (
	"sort"
	"sync"
)

// term is a key or a partition that somebody asked for, and the log of its entries in the ring.
type term struct {
	key       string
	partition int32 // -1: a key
	since     Seq   // the log is complete from here on

	mu   sync.Mutex // guards the fields below
	refs []ref      // in order
	lost Seq        // after the newest ref that was evicted
	subs []watch

	// Owned by Topic.feedMu.
	dirty bool
	last  *segment // that has it in its terms

	// Owned by terms.mu.
	users     int
	idleSince int64
}

// ref names an entry, or one record of it.
type ref struct {
	seq    Seq
	record int32 // -1: the whole entry, -2: a control entry
}

// watch is a subscription that wants to know of a term's entries.
type watch struct {
	sub  *Subscription
	term *subTerm
}

// terms are the terms of a topic.
type terms struct {
	mu         sync.RWMutex
	keys       map[string]*term
	partitions map[int32]*term
}

// maxTerms bounds the terms of a topic; Subscribe then answers with a LimitError.
const maxTerms = 1 << 20

func (ts *terms) init() {
	ts.keys, ts.partitions = map[string]*term{}, map[int32]*term{}
}

// useKey returns the term of a key, one user more; made with the log beginning at since if there is none.
func (ts *terms) useKey(key []byte, since Seq) *term {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	tm := ts.keys[string(key)]
	if tm == nil {
		tm = &term{key: string(key), partition: -1, since: since}
		ts.keys[tm.key] = tm
	}
	tm.users++
	return tm
}

// usePartition is useKey for the term of a partition.
func (ts *terms) usePartition(partition int32, since Seq) *term {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	tm := ts.partitions[partition]
	if tm == nil {
		tm = &term{partition: partition, since: since}
		ts.partitions[partition] = tm
	}
	tm.users++
	return tm
}

// leave gives a term up. It lingers, so that a reconnect finds its log.
func (ts *terms) leave(tm *term, now int64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	tm.users--
	tm.idleSince = now
}

// sweep drops terms that nobody has used since before.
func (ts *terms) sweep(before int64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for key, tm := range ts.keys {
		if tm.users == 0 && tm.idleSince < before {
			delete(ts.keys, key)
		}
	}
	for partition, tm := range ts.partitions {
		if tm.users == 0 && tm.idleSince < before {
			delete(ts.partitions, partition)
		}
	}
}

// covers says whether the log holds everything from a Seq on.
func (tm *term) covers(from Seq) bool {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	return tm.since <= from && tm.lost <= from
}

// read appends refs of [from, to) to dst, a few hundred at most. The log was read up to horizon. !ok: something was evicted.
func (tm *term) read(dst []ref, from, to Seq) (_ []ref, horizon Seq, ok bool) {
	const most = 512
	tm.mu.Lock()
	defer tm.mu.Unlock()
	if tm.since > from || tm.lost > from {
		return dst, from, false
	}
	i := tm.search(from)
	for n := 0; i < len(tm.refs) && tm.refs[i].seq < to; i++ {
		if n++; n > most && tm.refs[i].seq != tm.refs[i-1].seq {
			return dst, tm.refs[i].seq, true
		}
		dst = append(dst, tm.refs[i])
	}
	return dst, to, true
}

// search returns the first ref at or above a Seq. Readers mostly want the newest. mu is held.
func (tm *term) search(from Seq) int {
	const near = 16
	i := len(tm.refs)
	for last := max(0, i-near); i > last && tm.refs[i-1].seq >= from; {
		i--
	}
	if i > 0 && tm.refs[i-1].seq >= from {
		return sort.Search(i, func(i int) bool { return tm.refs[i].seq >= from })
	}
	return i
}

func (tm *term) add(r ref) {
	tm.mu.Lock()
	tm.refs = append(tm.refs, r)
	tm.mu.Unlock()
}

// trim forgets what lies below base.
func (tm *term) trim(base Seq) {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	n := sort.Search(len(tm.refs), func(i int) bool { return tm.refs[i].seq >= base })
	if n == 0 {
		return
	}
	tm.lost = tm.refs[n-1].seq + 1
	if n == len(tm.refs) {
		tm.refs = nil
		return
	}
	tm.refs = tm.refs[n:] // append moves it to new memory when the rest of the old is used up
}

func (tm *term) watch(s *Subscription, st *subTerm) {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	st.at = len(tm.subs)
	tm.subs = append(tm.subs, watch{s, st})
}

func (tm *term) unwatch(st *subTerm) {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	last := len(tm.subs) - 1
	tm.subs[st.at] = tm.subs[last]
	tm.subs[st.at].term.at = st.at
	tm.subs[last] = watch{}
	tm.subs = tm.subs[:last]
}

func (ts *terms) keyCount() int {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return len(ts.keys)
}
