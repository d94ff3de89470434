package group

import (
	"cmp"
	"log/slog"
	"slices"
	"time"
)

// A front is stuck when its partition waits for the one record at it. It is told when that has been so for a while, and again from time to time.
const (
	lasting   = int64(time.Second)
	tellStuck = int64(time.Minute)
	tellOther = int64(10 * time.Second) // after another record was told
	// MaxHolders is how many records of a group are named at a time as holders of a front: those that have been for longest.
	MaxHolders = 10
	// keyTold is how many bytes of a key the log has.
	keyTold = 100
)

// stuck is what is known of a front that stands still while its partition waits.
type stuck struct {
	on    bool
	since int64
	seq   int64 // of the record that holds it
	told  bool  // that the partition waits
	again int64 // when to tell it next
}

// Where a record that holds a front may be.
const (
	atWorker     = "at a worker"
	waitsForTurn = "waits"
	waitsDelay   = "waits for the delay of its nack"
	isDying      = "is to become a dead letter"
)

// Holder is a record that holds the front of its partition, which waits.
type Holder struct {
	Partition
	Offset   int64
	Key      []byte // nil: none
	Attempts int    // how often it was delivered
	Reason   string // of its last failure; empty: none
	State    string // where it is, for people
	Worker   string // who holds it; empty: nobody
	For      time.Duration
	Records  int // beyond the front
	Bytes    int64
}

// note takes the number of the record at the front.
func (s *stuck) note(seq, now int64) {
	switch {
	case !s.on:
		*s = stuck{on: true, since: now, seq: seq, again: now + lasting}
	case s.seq != seq: // not its predecessor's minute
		s.since, s.seq, s.again = now, seq, max(now+lasting, s.again-tellStuck+tellOther)
	}
}

// windowFull says that a lane waits for its front, and not for memory that others have.
func (g *Group) windowFull(l *lane) bool {
	records, bytes := l.tracker.Beyond()
	return l.paused && (records > g.cfg.WindowRecords/2 || bytes > g.cfg.WindowBytes/2)
}

// stuckFronts looks after the lanes that wait for one record, names it in the log, and says how many there are.
func (g *Group) stuckFronts(now int64) (n int) {
	for _, l := range g.lanes {
		low := l.tracker.Low()
		if !g.windowFull(l) {
			if l.stuck.told {
				g.cfg.Logger.Info("the partition goes on", slog.String("group", g.settings.Group), slog.String("topic", l.id.Topic),
					slog.Int("partition", int(l.id.Partition)))
			}
			l.stuck = stuck{}
			continue
		}
		n++
		l.stuck.note(low, now)
		if now >= l.stuck.again {
			l.stuck.told, l.stuck.again = true, now+tellStuck
			g.tellStuck(l, now)
		}
	}
	return n
}

func (g *Group) tellStuck(l *lane, now int64) {
	h, ok := g.holder(l, now)
	if !ok {
		return
	}
	attrs := []any{
		slog.String("group", g.settings.Group), slog.String("topic", h.Topic), slog.Int("partition", int(h.Partition.Partition)), slog.Int64("offset", h.Offset),
		slog.String("key", string(h.Key[:min(len(h.Key), keyTold)])), slog.Int("attempts", h.Attempts), slog.String("state", h.State), slog.Duration("for", h.For),
		slog.Int("records_beyond", h.Records), slog.Int64("bytes_beyond", h.Bytes),
	}
	if h.Worker != "" {
		attrs = append(attrs, slog.String("worker", h.Worker))
	}
	if h.Reason != "" {
		attrs = append(attrs, slog.String("reason", h.Reason))
	}
	g.cfg.Logger.Warn("a record that nobody acknowledges holds its partition, which waits", attrs...)
}

// holder names the record that holds the front of a lane.
func (g *Group) holder(l *lane, now int64) (h Holder, ok bool) {
	it := l.at(l.tracker.Low())
	if it == nil || it.record == nil {
		return Holder{}, false
	}
	records, bytes := l.tracker.Beyond()
	h = Holder{
		Partition: l.id, Offset: it.record.Offset, Key: it.record.Key, Attempts: it.attempts, Reason: it.reason,
		For: time.Duration(now - l.stuck.since), Records: records, Bytes: bytes,
	}
	switch it.state {
	case held:
		h.State, h.Worker = atWorker, it.worker.start.Name
	case waiting:
		h.State = waitsForTurn
	case delayed:
		h.State = waitsDelay
	case dying:
		h.State = isDying
	case settled:
		return Holder{}, false
	}
	return h, true
}

// holders names the records that hold fronts, at most MaxHolders, the longest first.
func (g *Group) holders() (hs []Holder) {
	now := g.now()
	for _, l := range g.lanes {
		if !l.stuck.on || l.stuck.seq != l.tracker.Low() || !g.windowFull(l) {
			continue
		}
		if h, ok := g.holder(l, now); ok {
			hs = append(hs, h)
		}
	}
	slices.SortFunc(hs, func(a, b Holder) int { return cmp.Compare(b.For, a.For) })
	return hs[:min(len(hs), MaxHolders)]
}
