package hub

import (
	"context"
	"errors"
)

// flight is a Resolve of all partitions that concurrent Subscribes share.
type flight struct {
	done  chan struct{}
	asked Seq  // the topic's head before
	left  bool // the one who asked has gone; what it got is nobody else's answer
	res   Resolved
	err   error
}

// resolveAll resolves the start latest or earliest for all partitions, once for all that ask while it is under way.
func (t *Topic) resolveAll(ctx context.Context, kind StartKind) (_ Resolved, asked Seq, _ error) {
	for {
		t.followMu.Lock()
		f := t.flight[kind]
		leads := f == nil
		if leads {
			f = &flight{done: make(chan struct{}), asked: t.Head()}
			t.flight[kind] = f
		}
		t.followMu.Unlock()
		if leads {
			t.lead(ctx, f, kind)
			return f.res, f.asked, f.err
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return Resolved{}, 0, ctx.Err()
		}
		if f.left {
			continue
		}
		return f.res, f.asked, f.err
	}
}

// lead asks for all. A panic of the source is the asker's alone: the others ask again.
func (t *Topic) lead(ctx context.Context, f *flight, kind StartKind) {
	f.left = true
	defer func() {
		t.followMu.Lock()
		t.flight[kind] = nil
		t.followMu.Unlock()
		close(f.done)
	}()
	f.res, f.err = t.hub.src.Resolve(ctx, t.name, Query{Start: Start{Kind: kind}})
	f.left = f.err != nil && ctx.Err() != nil
}

// resolve asks the source what the request needs to know; asked is the topic's head before it did. need are the partitions, nil: all, or not
// known yet.
func (o *opening) resolve(ctx context.Context, need []int32) (res Resolved, asked Seq, err error) {
	r, t := o.request, o.topic
	q := Query{TopicID: r.TopicID, Partitions: need, Start: r.Start}
	switch r.Start.Kind {
	case Latest, Earliest:
		res, asked, err := t.resolveAll(ctx, r.Start.Kind)
		if !errors.Is(err, ErrUnavailable) || need == nil {
			return res, asked, err
		}
		q.TopicID = "" // another partition may be the one that is away
	case AtPositions:
		if need == nil {
			q.Partitions = r.Partitions
		}
		if q.Partitions != nil {
			q.Start.Positions = make([]Position, 0, len(q.Partitions))
			for _, p := range q.Partitions {
				if position, ok := o.named[p]; ok {
					q.Start.Positions = append(q.Start.Positions, position)
				}
			}
		}
	default:
		q = Query{Partitions: r.Partitions, Keys: r.Keys, KeyScope: r.KeyScope, Start: r.Start}
	}
	asked = t.Head()
	res, err = t.hub.src.Resolve(ctx, t.name, q)
	return res, asked, err
}
