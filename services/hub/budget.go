package hub

import (
	"context"
	"time"
)

// chunkShare is the share of the budget that chunks keep however much the rings would take: one part in so many.
const chunkShare = 4

// charge adds what a writer put into a ring. Where the keeper doesn't get to run, the writer makes room for itself.
func (h *Hub) charge(t *Topic, bytes int64) {
	t.bytes.Add(bytes)
	ring := h.ringBytes.Add(bytes)
	if ring <= h.cfg.MemoryBudget/2 {
		return // chunks are looked at where they are read
	}
	h.checkBudget()
	for h.ringBytes.Load()+h.formBytes.Load() > h.cfg.MemoryBudget+h.cfg.MemoryBudget/8 {
		if t.evict() == 0 {
			return
		}
	}
}

func (h *Hub) used() int64 {
	return h.ringBytes.Load() + h.formBytes.Load() + h.history.bytes.Load() + h.slow.held.Load()
}

// checkBudget calls the keeper if the budget is exceeded.
func (h *Hub) checkBudget() {
	if h.used() > h.cfg.MemoryBudget {
		h.callKeeper()
	}
}

func (h *Hub) callKeeper() {
	select {
	case h.keep <- struct{}{}:
	default: // it is called already
	}
}

// shrink evicts until the budget is kept: chunks down to their share, then the oldest segments of the topics that hold most, then
// the remaining chunks.
func (h *Hub) shrink() {
	budget := h.cfg.MemoryBudget
	for h.used() > budget {
		if h.history.bytes.Load() > budget/chunkShare && h.history.evict() > 0 {
			continue
		}
		if t := h.largest(); t != nil && t.evict() > 0 {
			continue
		}
		if h.history.evict() == 0 {
			return
		}
	}
}

func (h *Hub) largest() (most *Topic) {
	for _, t := range h.allTopics() {
		if held := t.bytes.Load(); held > 0 && (most == nil || held > most.bytes.Load()) {
			most = t
		}
	}
	return most
}

// keeper keeps the budget, retention, lingers and growth.
func (h *Hub) keeper(ctx context.Context) {
	ticker := time.NewTicker(h.tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.keep:
			h.shrink()
			for _, t := range h.allTopics() {
				if t.grown.Swap(false) {
					h.follow(ctx, t)
				}
			}
		case <-ticker.C:
			h.look(ctx)
		}
	}
}

// look is one look at all topics.
func (h *Hub) look(ctx context.Context) {
	now := int64(time.Since(h.began))
	h.clock.Store(now)
	h.history.expire(now)
	for _, t := range h.allTopics() {
		for t.expired(now - int64(h.cfg.Retain)) {
			t.evict()
		}
		t.terms.sweep(now - int64(h.cfg.Retain))
		if t.grown.Swap(false) {
			h.follow(ctx, t)
		}
		h.release(t, now)
	}
	h.shrink()
}
