package edge

import "sync/atomic"

const (
	// freeInput is the input that a session may hold of each kind without being charged for it, so that an honest small message is taken also
	// when others have filled the bound, and costs no shared counter.
	freeInput = 4 << 10
	// opCost is about what an op takes in memory besides its bytes.
	opCost = 256
)

// input bounds what is held of all that clients have sent: unfinished messages, what waits for a worker, queued publishes and acks, and the keys of
// subscriptions. A session with more than freeInput is charged for it, and ended if it asks for more while the bound is passed.
type input struct {
	max  int64
	held atomic.Int64
}

func (in *input) full() bool { return in.held.Load() > in.max }

// charge charges a session for its unfinished message, of which n bytes are held. It is false if that is too much. Only the poller calls it.
func (in *input) charge(s *session, n int) bool {
	now := chargeable(n)
	old := s.unfinished.Load()
	if now == old || old == discharged || !s.unfinished.CompareAndSwap(old, now) {
		return true // or the worker has dropped the session meanwhile
	}
	in.held.Add(now - old)
	return now <= old || !in.full()
}

// discharged marks a session that is charged for no unfinished message any more.
const discharged = -1

// discharge ends what charge charges for.
func (in *input) discharge(s *session) {
	if n := s.unfinished.Swap(discharged); n > 0 {
		in.held.Add(-n)
	}
}

// post charges for a message on its way to a worker, which gives back what it returns. ok is false if that is too much: then nothing was
// charged.
func (in *input) post(n int) (charged int64, ok bool) {
	if charged = chargeable(n); charged == 0 {
		return 0, true
	}
	if in.held.Add(charged); in.full() {
		in.held.Add(-charged)
		return 0, false
	}
	return charged, true
}

// swap charges for n bytes that a request holds in the place of old ones. It is false if that is too much: then nothing was charged.
func (in *input) swap(old, n int) bool {
	more := chargeable(n) - chargeable(old)
	if in.held.Add(more); more > 0 && in.full() {
		in.held.Add(-more)
		return false
	}
	return true
}

// keep charges a session for n bytes more, or less, of publishes, subscriptions and consumes. It is false if that is too much. Only the session's
// worker calls it.
func (in *input) keep(s *session, n int) bool {
	old := chargeable(s.kept)
	s.kept += n
	now := chargeable(s.kept)
	if now != old {
		in.held.Add(now - old)
	}
	return n <= 0 || now == 0 || !in.full()
}

func chargeable(n int) int64 {
	if n <= freeInput {
		return 0
	}
	return int64(n)
}

// hold is called when a session stays blocked: if too much waits for it, nothing more is read from it.
func (w *worker) hold(s *session) {
	if len(s.ctl) > maxHeld && s.state == open {
		s.paused.Store(true)
	}
}

// letRead lets the poller read on.
func (w *worker) letRead(s *session) {
	if !s.paused.Load() {
		return
	}
	s.paused.Store(false)
	if begun := s.begun.Load(); begun != 0 {
		s.begun.CompareAndSwap(begun, w.srv.now()) // it was not the client who kept the rest of its message waiting
	}
	if s.state == open {
		w.startSubscribes(s)
	}
	if s.starved.CompareAndSwap(true, false) {
		if err := w.poller.rearm(s); err != nil {
			w.lose(s, err)
		}
	}
}
