package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
)

// TestSlots: however many groups hold what they may, the next has some; who waits gets what is given back, or the reason.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kafka.NewSlots()
		life, end := context.WithCancel(t.Context())
		// fill takes until a group has to wait, and returns how many it has.
		fill := func(group, topic string) (n int) {
			for {
				ctx, cancel := context.WithCancel(life)
				got := make(chan error, 1)
				go func() { got <- s.Take(ctx, group, topic) }()
				synctest.Wait()
				select {
				case err := <-got:
					cancel()
					if err != nil {
						t.Fatal(err)
					}
					n++
				default:
					cancel()
					if err := <-got; !errors.Is(err, context.Canceled) {
						t.Errorf("got %v", err)
					}
					return n
				}
			}
		}
		all := 0
		for i := range 50 {
			n := fill(fmt.Sprintf("g%d", i), "dead")
			if n < 4 || i == 0 && n != 100 || i == 1 && n != 50 {
				t.Errorf("group %d has %d", i, n)
			}
			all += n
		}
		if n := fill("g0", "another"); n != 4 {
			t.Errorf("for another topic the first group has %d", n)
		} else {
			all += n
		}
		if all > 200+51*4 {
			t.Errorf("%d are held", all)
		}
		// What comes back goes to those that may have it.
		got := make(chan string, 2)
		wait := func(group string) {
			go func() {
				if err := s.Take(life, group, "dead"); err == nil {
					got <- group
				} else {
					got <- err.Error()
				}
			}()
			synctest.Wait()
		}
		wait("g0") // it has far too many
		wait("g49")
		s.Leave("g49", "dead")
		if who := <-got; who != "g49" {
			t.Errorf("%s got what g49 gave back", who)
		}
		synctest.Wait()
		if n := s.Waiting(); n != 1 {
			t.Errorf("%d wait", n)
		}
		closed := make(chan struct{})
		go func() { defer close(closed); s.Close() }()
		synctest.Wait()
		if why := <-got; why != "dead letter: "+hub.ErrDraining.Error() {
			t.Errorf("who waited was told %q", why)
		}
		if err := s.Take(life, "new", "dead"); !errors.Is(err, hub.ErrDraining) {
			t.Errorf("got %v", err)
		}
		for range 4 {
			s.Leave("g0", "another")
		}
		synctest.Wait()
		select {
		case <-closed:
			t.Error("it is closed while letters are under way")
		default:
		}
		for i := range 50 {
			for name := fmt.Sprintf("g%d", i); s.Held(name, "dead") > 0; {
				s.Leave(name, "dead")
			}
		}
		<-closed
		end()
	})
}

// TestStuckDeadLettersBesideOthers: a topic of dead letters takes nothing, and a group has very many for it. Another group's are stored.
func TestStuckDeadLettersBesideOthers(t *testing.T) {
	t.Parallel()
	const poison = 500
	fake, cluster := faulty(t)
	stuck, well := cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 1, nil)
	cluster.CreateTopic(t, stuck+".dlq", 1, nil)
	cluster.CreateTopic(t, well+".dlq", 1, nil)
	var rs []*kgo.Record
	for _, topic := range []string{stuck, well} {
		for i := range poison {
			rs = append(rs, &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)})
		}
	}
	if err := cluster.Client(t).ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	allow := refuseProduce(t, fake, cluster, stuck+".dlq", 0, kerr.NotLeaderForPartition) // librdkafka goes on trying
	gs, _ := newGroups(t, cluster, func(c *kafka.Config) { c.PublishTimeout = 2 * patience })
	var nacked atomic.Int64
	poisoned := func(*tailracev1.Record) bool { nacked.Add(1); return false }
	begin := func(topic string) {
		s := startOf(topic+"-group", topic)
		s.MaxAttempts, s.MaxInFlight = 1, 1000
		newTaken().work(t, gs, s, poisoned)
	}
	begin(stuck)
	eventually(t, func() bool { return nacked.Load() == poison }, "all of a group wait for their topic")
	begin(well)
	eventually(t, func() bool { return lag(t, cluster, well+"-group", well) == 0 }, "the letters of another group are stored")
	if at, n := frontOf(t, cluster, stuck+"-group", stuck), letters(t, cluster, stuck+".dlq"); at > 0 || len(n) > 0 {
		t.Errorf("the stuck group is at %d, with %d letters", at, len(n))
	}
	if got := letters(t, cluster, well+".dlq"); len(got) != poison {
		t.Errorf("the other group has %d letters, want %d", len(got), poison)
	}
	allow()
	eventually(t, func() bool { return lag(t, cluster, stuck+"-group", stuck) == 0 }, "the stuck letters are stored")
}
