package group

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Backoff of a dead letter that could not be stored.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
)

// die makes a record a dead letter. It counts as busy: a revocation waits for it as for what is held.
func (g *Group) die(it *item) {
	it.state = dying
	it.lane.busy++
	it.failures = 0 // from here on: of attempts to store it
	g.letters = append(g.letters, it)
	g.toGrave()
}

func (g *Group) toGrave() {
	select {
	case g.graves <- struct{}{}:
	default:
	}
}

// bury stores dead letters. The answers come when they come.
func (g *Group) bury(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.graves:
		}
		g.mu.Lock()
		letters := g.letters
		g.letters = nil
		g.mu.Unlock()
		for _, it := range letters {
			if l, ok := g.letter(it); ok {
				g.cfg.DeadLetters.Bury(ctx, l, func(err error) { g.buried(ctx, it, err) })
			}
		}
	}
}

// letter is what is stored of a record.
func (g *Group) letter(it *item) (Letter, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if it.lane.gone || it.state != dying {
		return Letter{}, false
	}
	return Letter{
		To: hub.DeadLetterTopic(it.lane.id.Topic, g.settings.DeadLetter), Partition: it.lane.id, Record: *it.record,
		Group: g.settings.Group, Attempts: it.attempts, Reason: it.reason, Time: time.Now(),
	}, true
}

// buried takes the answer. Until the letter is stored the front stays, but for a record that goes round, of which there are letters enough.
func (g *Group) buried(ctx context.Context, it *item, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if it.lane.gone || it.state != dying {
		return
	}
	how, over := dead, err == nil
	if errors.Is(err, ErrGoesRound) {
		g.cfg.Logger.WarnContext(ctx, "dead letter not stored, the record goes round: it has been one so often", slog.String("group", g.settings.Group),
			slog.String("topic", it.lane.id.Topic), slog.Int("partition", int(it.lane.id.Partition)), slog.Int64("offset", it.record.Offset))
		how, over = dropped, true
	}
	if over {
		g.done(it, how)
		g.eased(it.lane)
		return
	}
	wait := min(minBackoff<<min(it.failures, 10), maxBackoff)
	if it.failures++; it.failures == 1 {
		g.cfg.Logger.WarnContext(ctx, "dead letter not stored, its partition waits", slog.String("group", g.settings.Group),
			slog.String("topic", it.lane.id.Topic), slog.Int("partition", int(it.lane.id.Partition)), slog.Int64("offset", it.record.Offset), slog.Any("error", err))
	}
	at := g.now() + int64(wait)
	g.later.push(delay{at: at, item: it})
	g.arm(at)
}
