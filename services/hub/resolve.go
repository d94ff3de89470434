package hub

import (
	"context"
	"errors"
	"slices"
)

// flight is a Resolve of all partitions that concurrent Subscribes share.
type flight struct {
	done chan struct{}
	res  Resolved
	err  error
}

// resolveAll resolves the start latest or earliest for all partitions, once for all that ask while it is under way.
func (t *Topic) resolveAll(ctx context.Context, kind StartKind) (Resolved, error) {
	for {
		t.followMu.Lock()
		f := t.flight[kind]
		leads := f == nil
		if leads {
			f = &flight{done: make(chan struct{})}
			t.flight[kind] = f
		}
		t.followMu.Unlock()
		if leads {
			f.res, f.err = t.hub.src.Resolve(ctx, t.name, Query{Start: Start{Kind: kind}})
			t.followMu.Lock()
			t.flight[kind] = nil
			t.followMu.Unlock()
			close(f.done)
			return f.res, f.err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return Resolved{}, ctx.Err()
		}
		if errors.Is(f.err, context.Canceled) || errors.Is(f.err, context.DeadlineExceeded) {
			continue // it was the other's context that ended
		}
		return f.res, f.err
	}
}

// resolve asks the source what the request needs to know. need are the partitions, nil: all, or not known yet.
func (o *opening) resolve(ctx context.Context, need []int32) (Resolved, error) {
	r, t := o.request, o.topic
	switch r.Start.Kind {
	case Latest, Earliest:
		res, err := t.resolveAll(ctx, r.Start.Kind)
		if !errors.Is(err, ErrUnavailable) || need == nil {
			return res, err
		}
		// Another partition may be the one that is away.
		return t.hub.src.Resolve(ctx, t.name, Query{Partitions: need, Start: r.Start})
	case AtPositions:
		start := r.Start
		if need != nil {
			start.Positions = nil
			for _, p := range r.Start.Positions {
				if slices.Contains(need, p.Partition) {
					start.Positions = append(start.Positions, p)
				}
			}
		} else {
			need = r.Partitions
			if need != nil {
				start.Positions = slices.DeleteFunc(slices.Clone(start.Positions), func(p Position) bool {
					return !slices.Contains(need, p.Partition)
				})
			}
		}
		return t.hub.src.Resolve(ctx, t.name, Query{TopicID: r.TopicID, Partitions: need, Start: start})
	default:
		return t.hub.src.Resolve(ctx, t.name, Query{Partitions: r.Partitions, Keys: r.Keys, KeyScope: r.KeyScope, Start: r.Start})
	}
}
