package hubtest_test

import (
	"context"
	"fmt"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// waker is a hub.Waker with one flag.
type waker chan struct{}

func (w waker) Moved(*hub.Topic) { w.Ready(0) }

func (w waker) Ready(uint64) {
	select {
	case w <- struct{}{}:
	default:
	}
}

// A Source from New delivers by itself what is appended.
func ExampleNew() {
	src := hubtest.New()
	src.CreateTopic("orders", 1)
	h := hub.New(src, hub.Config{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Run(ctx) }()
	defer func() { cancel(); <-done }()

	woken := make(waker, 1)
	sub, err := h.Subscribe(ctx, hub.Request{Topic: "orders", Start: hub.Start{Kind: hub.Earliest}}, woken, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sub.Close()
	src.Append("orders", 0, hubtest.Text("k1", "one"), hubtest.Text("k2", "two"))
	for seen := 0; seen < 2; {
		batch, err := sub.Pull(64 << 10)
		if err != nil {
			fmt.Println(err)
			return
		}
		for _, p := range batch.Parts {
			for i := p.Lo; i < p.Hi; i++ {
				fmt.Printf("offset %d key %s\n", p.Meta[i].Offset, p.KeyOf(i))
				seen++
			}
		}
		if len(batch.Parts) == 0 && !batch.CaughtUp {
			<-woken
		}
	}
	// Output:
	// offset 0 key k1
	// offset 1 key k2
}

// A Source from NewStepped delivers when it is told to.
func ExampleNewStepped() {
	src := hubtest.NewStepped()
	src.CreateTopic("orders", 1)
	src.Append("orders", 0, hubtest.Text("k", "committed"))
	src.AppendOpen("orders", 0, hubtest.Text("k", "in a transaction"))
	fmt.Println(src.Offsets("orders", 0))
	src.Abort("orders", 0)
	src.Retain("orders", 0, 1)
	fmt.Println(src.Offsets("orders", 0))
	fmt.Println(src.Deliver("orders", 0, -1), "entries: nobody follows")
	// Output:
	// 0 1 2
	// 1 3 3
	// 0 entries: nobody follows
}
