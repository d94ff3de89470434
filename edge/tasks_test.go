package edge_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestTasks: places, the half of them that a topic may have, turns, deadlines and what is dropped.
func TestTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tasks := edge.NewTasks(4)
		var log []string // within the bubble calls log one at a time, by the waits below
		gates := map[string]chan struct{}{}
		run := func(topic string, n int, wait time.Duration) func() bool {
			name := fmt.Sprint(topic, n)
			gate := make(chan struct{})
			gates[name] = gate
			drop := tasks.Run(topic, time.Now().Add(wait), func() {
				log = append(log, name)
				<-gate
			}, func() { log = append(log, name+" late") })
			synctest.Wait()
			return drop
		}
		expect := func(want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(log, want) {
				t.Fatalf("got %v, want %v", log, want)
			}
			log = nil
		}
		run("a", 1, time.Hour)
		run("a", 2, time.Hour)
		run("a", 3, time.Hour)
		run("a", 4, time.Second)
		dropped := run("a", 5, time.Hour)
		run("b", 1, time.Hour)
		drop := run("b", 2, time.Hour)
		expect("a1", "a2", "b1", "b2")
		if drop() {
			t.Error("dropped what runs")
		}
		if !dropped() {
			t.Error("could not drop what waits")
		}
		run("c", 1, time.Hour)
		run("c", 2, time.Minute)
		tasks.Expire(time.Now())
		expect()
		<-time.After(time.Second)
		tasks.Expire(time.Now())
		expect("a4 late")
		close(gates["b1"])
		expect("c1")
		<-time.After(time.Minute)
		close(gates["c1"]) // c2 is late by now: found where it would get the place, which goes on
		expect("c2 late")
		run("d", 1, time.Hour)
		expect("d1")
		run("a", 6, time.Hour)
		close(gates["a1"])
		expect("a3")
		for _, name := range []string{"a2", "a3", "a6", "b2", "d1"} {
			close(gates[name])
			synctest.Wait()
		}
		expect("a6")
		tasks.Wait()
		if got := tasks.Left(); got != 0 {
			t.Errorf("%d things are left, want none", got)
		}
	})
}

// TestOneTopicAway: sockets that publish to a topic that does not answer keep nobody else waiting.
func TestOneTopicAway(t *testing.T) {
	r := start(t, config())
	r.publisher.gate, r.publisher.held = make(chan struct{}), "away"
	var stuck []*client
	for i := range 300 {
		c := r.dial(t, "/ws")
		c.expect(t, "welcome")
		c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"away","text":"x"}`, i))
		c.say(t, `{"op":"ping","id":"p"}`)
		c.until(t, "pong")
		stuck = append(stuck, c)
	}
	c := r.dial(t, "/ws")
	for i := range 20 {
		c.say(t, fmt.Sprintf(`{"op":"publish","id":"%d","topic":"near","text":"x"}`, i))
		c.until(t, "published")
	}
	close(r.publisher.gate)
	for i, c := range stuck {
		if m := c.until(t, "published"); m.ID != fmt.Sprint(i) {
			t.Fatalf("got %+v", m)
		}
	}
}

// TestSubscribesInTime: those that find no place are answered like those that have one; those of a session that has ended take none.
func TestSubscribesInTime(t *testing.T) {
	cfg := config()
	cfg.Subscribes = 2
	cfg.SubscribeTimeout = 500 * time.Millisecond
	r := start(t, cfg)
	for _, topic := range []string{"away", "near"} {
		r.src.CreateTopic(topic, 1)
	}
	r.src.SetDelays(hubtest.Delays{BeforeResolve: time.Hour})
	gone := r.dial(t, "/ws")
	for i := range 100 {
		gone.say(t, fmt.Sprintf(`{"op":"subscribe","id":"%d","topic":"near"}`, i))
	}
	gone.say(t, `{"op":"ping","id":"p"}`)
	gone.until(t, "pong")
	gone.conn.Close()
	r.ended(t, "client_eof")
	c := r.dial(t, "/ws")
	for i := range 500 {
		c.say(t, fmt.Sprintf(`{"op":"subscribe","id":"%d","topic":"away"}`, i))
	}
	for range 500 {
		if m := c.until(t, "error"); m.Code != "unavailable" || !m.Retryable || !m.Final {
			t.Fatalf("got %+v", m)
		}
	}
	r.src.SetDelays(hubtest.Delays{})
	c.say(t, `{"op":"subscribe","id":"again","topic":"away"}`)
	c.until(t, "started")
}
