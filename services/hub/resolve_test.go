package hub_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// asked is a source whose resolves go another way.
type asked struct {
	*hubtest.Source
	resolves atomic.Int32
	resolve  func(ctx context.Context, n int32) error // of the nth, from 1
}

func (a *asked) Resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	if err := a.resolve(ctx, a.resolves.Add(1)); err != nil {
		return hub.Resolved{}, err
	}
	return a.Source.Resolve(ctx, topic, q)
}

// TestSharedAnswers: what one Subscribe is answered serves those that wait with it, unless the answer was its own affair.
func TestSharedAnswers(t *testing.T) {
	const waiting = 10
	for name, c := range map[string]struct {
		resolve  func(ctx context.Context, n int32) error
		leave    bool // the first gives up after a second
		failed   int  // of the others
		resolves int32
	}{
		"the source's own deadline": {func(context.Context, int32) error {
			<-time.After(10 * time.Second)
			return fmt.Errorf("asking: %w", context.DeadlineExceeded)
		}, false, waiting, 1},
		"the first one leaves": {func(ctx context.Context, n int32) error {
			if n > 1 {
				<-time.After(time.Second)
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}, true, 0, 2},
		"a panic": {func(_ context.Context, n int32) error {
			if n > 1 {
				<-time.After(time.Second)
				return nil
			}
			<-time.After(time.Second)
			panic("the source's fault")
		}, false, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := &asked{Source: hubtest.New(), resolve: c.resolve}
				src.CreateTopic("a", 2)
				h := hub.New(src, hub.Config{})
				ctx, cancel := context.WithCancel(t.Context())
				var all sync.WaitGroup
				all.Go(func() {
					if err := h.Run(ctx); err != nil {
						t.Errorf("run: %v", err)
					}
				})
				synctest.Wait()
				first, leave := context.WithCancel(t.Context())
				var others sync.WaitGroup
				others.Go(func() {
					defer func() { _ = recover() }()
					if s, err := h.Subscribe(first, hub.Request{Topic: "a"}, newSignal(), 1); err == nil {
						s.Close()
					}
				})
				synctest.Wait()
				var failed atomic.Int32
				for range waiting {
					others.Go(func() {
						s, err := h.Subscribe(t.Context(), hub.Request{Topic: "a"}, newSignal(), 1)
						if err != nil {
							failed.Add(1)
							if !errors.Is(err, context.DeadlineExceeded) {
								t.Errorf("subscribe: %v", err)
							}
							return
						}
						s.Close()
					})
				}
				synctest.Wait()
				if c.leave {
					leave()
				}
				others.Wait()
				leave()
				if got := src.resolves.Load(); int(failed.Load()) != c.failed || got != c.resolves {
					t.Errorf("%d failed, %d resolves; want %d, %d", failed.Load(), got, c.failed, c.resolves)
				}
				cancel()
				all.Wait()
			})
		})
	}
}

// TestNothingToReadIsAsked: a subscription whose keys lie in none of its partitions follows nothing, so nobody tells the hub that the topic is
// another by now; the next one has to ask.
func TestNothingToReadIsAsked(t *testing.T) {
	bubble(t, hub.Config{}, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 4)
		key := []byte("key-1")
		elsewhere := (hub.PartitionOf(key, 4) + 1) % 4
		request := hub.Request{Topic: "a", Keys: [][]byte{key}, Partitions: []int32{elsewhere}, KeyScope: hub.KeyScopeHashed}
		subscribe(t, h, request, newSignal()).Close()
		src.CreateTopic("a", 5)
		if got, want := subscribe(t, h, request, newSignal()).Started(), src.TopicID("a"); got.TopicID != want || got.Count != 5 {
			t.Errorf("got topic id %q with %d partitions, want %q with 5", got.TopicID, got.Count, want)
		}
	})
}
