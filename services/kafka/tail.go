package kafka

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Bounds of what is remembered of the ends of logs.
const (
	tailIdle  = 30 * time.Second // a tail that nobody asked for this long is forgotten
	tailBytes = 16 << 20         // of all tails; past it the least recently used are forgotten
	tailEntry = 12               // bytes of one record in a tail
)

// tails remember the keys of the newest records of partitions, as far as searches for the last n have read them: so that a thousand searches for
// different keys in one partition read its end once, not a thousand times.
type tails struct {
	seed maphash.Seed
	most int // bytes

	mu    sync.Mutex
	parts map[tailKey]*tail
	bytes int // of those in parts, as last told by weigh
}

func newTails() *tails {
	return &tails{seed: maphash.MakeSeed(), most: tailBytes, parts: map[tailKey]*tail{}}
}

// tailKey names the end of a log by the newest leader epoch too: another branch of records can only come with a later one (see branch.go).
type tailKey struct {
	logKey
	epoch int32
}

// tail is what was read of the end of one partition's log: all records of [low, high). Who holds turn owns the rest.
type tail struct {
	key  tailKey
	turn chan struct{} // of one slot: taken by putting something in

	low, high int64
	blocks    []tailBlock      // ascending
	size      int              // bytes of the blocks
	read      int64            // bytes of the records that were read for it: what they cost
	branches  map[int32]branch // by leader epoch

	// guarded by tails.mu
	weight int
	used   time.Time
}

// tailBlock is a stretch of a tail.
type tailBlock struct {
	from    int64
	offsets []uint32 // less from, ascending
	hashes  []uint64 // of their keys; 0: no key
}

// of returns the tail of a partition.
func (ts *tails) of(k tailKey) *tail {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.parts[k]
	if t == nil {
		t = &tail{key: k, turn: make(chan struct{}, 1)}
		ts.parts[k] = t
	}
	t.used = time.Now()
	return t
}

// weigh notes what a tail holds, and forgets others if all hold too much. Whoever is at work with one of those keeps it until he is done.
func (ts *tails) weigh(t *tail) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.parts[t.key] != t {
		return
	}
	ts.bytes += t.size - t.weight
	t.weight = t.size
	for ts.bytes > ts.most && len(ts.parts) > 1 {
		var oldest *tail
		for _, o := range ts.parts {
			if o != t && o.weight > 0 && (oldest == nil || o.used.Before(oldest.used)) {
				oldest = o
			}
		}
		if oldest == nil {
			return
		}
		ts.forget(oldest)
	}
}

// expire forgets what nobody has asked for.
func (ts *tails) expire() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.parts {
		if time.Since(t.used) > tailIdle {
			ts.forget(t)
		}
	}
}

// forget drops a tail. mu is held.
func (ts *tails) forget(t *tail) {
	ts.bytes -= t.weight
	delete(ts.parts, t.key)
}

// hash is that of a key, never 0; of no key it is 0.
func (ts *tails) hash(key []byte) uint64 {
	if key == nil {
		return 0
	}
	return max(maphash.Bytes(ts.seed, key), 1)
}

// block makes one of what was read.
func (ts *tails) block(from int64, es []*hub.Entry) tailBlock {
	n := 0
	for _, e := range es {
		n += len(e.Meta)
	}
	b := tailBlock{from: from, offsets: make([]uint32, 0, n), hashes: make([]uint64, 0, n)}
	for _, e := range es {
		for i := range e.Meta {
			b.offsets = append(b.offsets, uint32(e.Meta[i].Offset-from))
			b.hashes = append(b.hashes, ts.hash(e.KeyOf(i)))
		}
	}
	return b
}

// reset empties a tail, at an offset.
func (t *tail) reset(at int64) { t.low, t.high, t.blocks, t.size, t.read = at, at, nil, 0, 0 }

// grow takes blocks of a stretch that lies next to what is there.
func (t *tail) grow(from, to int64, bs []tailBlock) {
	for _, b := range bs {
		t.size += tailEntry * len(b.offsets)
	}
	if to == t.low {
		t.low, t.blocks = from, slices.Concat(bs, t.blocks)
		return
	}
	t.high, t.blocks = to, append(t.blocks, bs...)
}

// trim forgets whole blocks below an offset.
func (t *tail) trim(below int64) {
	for len(t.blocks) > 1 && t.blocks[1].from <= below {
		t.size -= tailEntry * len(t.blocks[0].offsets)
		t.read -= t.read * (t.blocks[1].from - t.low) / (t.high - t.low)
		t.low, t.blocks = t.blocks[1].from, t.blocks[1:]
	}
}

// last finds the n-th newest record below end that has one of the keys (nil: any record) and returns its offset; or, where there are fewer, the
// offset of the oldest of them and how many there are. Without any, the offset is end.
func (t *tail) last(n int, keys map[uint64]struct{}, end int64) (offset int64, found int) {
	offset = end
	for _, b := range slices.Backward(t.blocks) {
		for i, after := range slices.Backward(b.offsets) {
			if keys != nil {
				if _, ok := keys[b.hashes[i]]; !ok {
					continue
				}
			}
			o := b.from + int64(after)
			if o >= end {
				continue
			}
			offset = o
			if found++; found == n {
				return offset, found
			}
		}
	}
	return offset, found
}
