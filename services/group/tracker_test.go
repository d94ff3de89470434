package group_test

import (
	"math/rand/v2"
	"testing"

	"tailrace.dev/tailrace/services/group"
)

// plain is a tracker that anybody can check: a set of what is not done.
type plain struct {
	offsets []int64 // appended, by sequence number
	epochs  []int32
	sizes   []int64
	done    map[int64]bool
	next    int64
	epoch   int32
}

func (p *plain) firstOpen() int {
	for i := range p.offsets {
		if !p.done[int64(i)] {
			return i
		}
	}
	return len(p.offsets)
}

func (p *plain) front() (int64, int32) {
	i := p.firstOpen()
	epoch := p.epoch
	if i > 0 {
		epoch = p.epochs[i-1]
	}
	if i < len(p.offsets) {
		return p.offsets[i], epoch
	}
	return p.next, epoch
}

func (p *plain) beyond() (n int, bytes int64) {
	for i := p.firstOpen(); i < len(p.sizes); i++ {
		n, bytes = n+1, bytes+p.sizes[i]
	}
	return n, bytes
}

// play does what the steps say with both, and compares them after each.
func play(t *testing.T, from int64, steps []byte) {
	t.Helper()
	tr := group.NewTracker(from, 7)
	p := &plain{done: map[int64]bool{}, next: from, epoch: 7}
	for i, s := range steps {
		arg := int64(s >> 2)
		switch s & 3 {
		case 0, 1: // a record, behind a hole at times, or one that was here before
			offset, epoch, size := p.next+max(arg-50, 0), int32(i), int(arg)*10
			if arg == 40 {
				offset = p.next - 1
			}
			seq, ok := tr.Append(offset, epoch, size)
			if want := offset >= p.next; ok != want {
				t.Fatalf("step %d: append %d: got %v, want %v", i, offset, ok, want)
			}
			if !ok {
				continue
			}
			if want := int64(len(p.offsets)); seq != want {
				t.Fatalf("step %d: got sequence number %d, want %d", i, seq, want)
			}
			p.offsets, p.epochs, p.sizes, p.next = append(p.offsets, offset), append(p.epochs, epoch), append(p.sizes, int64(size)), offset+1
		case 2: // done, near the front
			seq := int64(p.firstOpen()) + arg - 3
			was, _ := p.front()
			known := seq >= 0 && seq < int64(len(p.offsets))
			if known {
				p.done[seq] = true
			}
			now, _ := p.front()
			if got := tr.Done(seq); got && !known || (now != was) && !got {
				t.Fatalf("step %d: done %d: the front moved: %v; from %d to %d", i, seq, got, was, now)
			}
		case 3:
			next := p.next + arg - 10
			tr.Pass(next)
			p.next = max(p.next, next)
		}
		gotOffset, gotEpoch := tr.Front()
		if wantOffset, wantEpoch := p.front(); gotOffset != wantOffset || gotEpoch != wantEpoch {
			t.Fatalf("step %d: got front %d epoch %d, want %d epoch %d", i, gotOffset, gotEpoch, wantOffset, wantEpoch)
		}
		gotN, gotBytes := tr.Beyond()
		if wantN, wantBytes := p.beyond(); gotN != wantN || gotBytes != wantBytes {
			t.Fatalf("step %d: got %d records of %d bytes beyond the front, want %d of %d", i, gotN, gotBytes, wantN, wantBytes)
		}
		if tr.Next() != p.next {
			t.Fatalf("step %d: got next %d, want %d", i, tr.Next(), p.next)
		}
	}
}

func TestTrackerAgainstPlainSet(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		steps := make([]byte, 300)
		for i := range steps {
			steps[i] = byte(random.Uint32())
		}
		play(t, int64(seed), steps)
	}
}

func FuzzTracker(f *testing.F) {
	f.Add(int64(0), []byte{0, 0, 0, 14, 18, 22, 255, 0, 2})
	f.Add(int64(1<<40), []byte{160, 240, 241, 242, 243, 3, 7})
	f.Fuzz(func(t *testing.T, from int64, steps []byte) {
		if from < 0 || from > 1<<60 || len(steps) > 1000 {
			return
		}
		play(t, from, steps)
	})
}
