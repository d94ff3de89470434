package hub_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
	"tailrace.dev/tailrace/services/label"
)

// gathered returns the values of a metric by its label topic.
func gathered(t *testing.T, reg *prometheus.Registry, name string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			all[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}

// deaf is a Waker of a reader that is not listening.
type deaf struct{}

func (deaf) Moved(*hub.Topic) {}
func (deaf) Ready(uint64)     {}

// lagging is a hub with metrics, over a store that delivers by itself.
type lagging struct {
	t   *testing.T
	src *hubtest.Source
	hub *hub.Hub
	reg *prometheus.Registry
}

func newLagging(t *testing.T) *lagging {
	t.Helper()
	l := &lagging{t: t, src: hubtest.New(), reg: prometheus.NewRegistry()}
	l.hub = hub.New(l.src, hub.Config{Registerer: l.reg})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.hub.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func (l *lagging) subscribe(r hub.Request) *hub.Subscription {
	l.t.Helper()
	s, err := l.hub.Subscribe(l.t.Context(), r, deaf{}, 0)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(s.Close)
	return s
}

// drain pulls all there is, and returns the records.
func (l *lagging) drain(s *hub.Subscription) (records int) {
	l.t.Helper()
	for empty := 0; empty < 3; {
		b, err := s.Pull(1 << 20)
		if err != nil {
			l.t.Fatal(err)
		}
		if records += b.Records; len(b.Parts) == 0 && !b.CaughtUp {
			empty++
			synctest.Wait() // history may be on its way
		}
	}
	return records
}

func (l *lagging) want(when string, most, sum float64) {
	l.t.Helper()
	synctest.Wait()
	if got := gathered(l.t, l.reg, "tailrace_hub_lag_records_max")["t"]; got != most {
		l.t.Errorf("%s: the last lags by %v, want %v", when, got, most)
	}
	if got := gathered(l.t, l.reg, "tailrace_hub_lag_records")["t"]; got != sum {
		l.t.Errorf("%s: all lag by %v, want %v", when, got, sum)
	}
}

func texts(key string, n int) (rs []hubtest.Record) {
	for i := range n {
		rs = append(rs, hubtest.Text(key, strconv.Itoa(i)))
	}
	return rs
}

// TestLagIsSeenWithoutTheOwner: the lag of subscriptions whose owners do nothing, as in a write that does not end, is that of what was appended.
func TestLagIsSeenWithoutTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t)
		l.src.CreateTopic("t", 2)
		whole := l.subscribe(hub.Request{Topic: "t"})
		one := l.subscribe(hub.Request{Topic: "t", Partitions: []int32{1}})
		keyed := l.subscribe(hub.Request{Topic: "t", Keys: [][]byte{[]byte("mine")}})
		for _, s := range []*hub.Subscription{whole, one, keyed} {
			l.drain(s)
		}
		l.want("at first", 0, 0)
		l.src.Append("t", 0, texts("other", 10)...)
		l.src.Append("t", 1, texts("other", 5)...)
		l.want("while nobody reads", 15, 15+5)
		if got := l.drain(whole); got != 15 {
			t.Fatalf("pulled %d records, want 15", got)
		}
		l.want("when one has read", 5, 5)
		l.drain(one)
		l.want("when both have read", 0, 0)
		past := l.subscribe(hub.Request{Topic: "t", Start: hub.Start{Kind: hub.Earliest}})
		l.want("of one that starts in the past", 15, 15)
		if got := l.drain(past); got != 15 {
			t.Fatalf("pulled %d records, want 15", got)
		}
		l.want("when it has come to the end", 0, 0)
	})
}

// TestTopicsBeyondTheBoundShareALabel: there are no more values of the label topic than the bound allows, and nothing is left out.
func TestTopicsBeyondTheBoundShareALabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t)
		for n := range label.Topics + 20 {
			name := "t" + strconv.Itoa(n)
			l.src.CreateTopic(name, 1)
			l.subscribe(hub.Request{Topic: name})
			gathered(t, l.reg, "tailrace_hub_subscriptions") // each is met by itself
		}
		got := gathered(t, l.reg, "tailrace_hub_subscriptions")
		sum := 0.0
		for _, n := range got {
			sum += n
		}
		if len(got) != label.Topics+1 || got[label.Other] != 20 || sum != label.Topics+20 {
			t.Errorf("%d labels, %v subscriptions of others, %v in all; want %d, 20, %d", len(got), got[label.Other], sum, label.Topics+1, label.Topics+20)
		}
	})
}

// TestTheCounterOfOthersDoesNotGoDown: when one of the topics that share a label is let go of, what came of it still counts.
func TestTheCounterOfOthersDoesNotGoDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLagging(t)
		for n := range label.Topics {
			name := "t" + strconv.Itoa(n)
			l.src.CreateTopic(name, 1)
			l.subscribe(hub.Request{Topic: name})
		}
		gathered(t, l.reg, "tailrace_hub_records_total") // all that have a label are met
		want := func(when string, records float64, topics int) {
			t.Helper()
			synctest.Wait()
			if got := gathered(t, l.reg, "tailrace_hub_records_total")[label.Other]; got != records {
				t.Errorf("%s: %v records of others, want %v", when, got, records)
			}
			if got := l.hub.Stats().Topics; got != topics {
				t.Errorf("%s: %d topics, want %d", when, got, topics)
			}
		}
		l.src.CreateTopic("x", 1)
		l.src.CreateTopic("y", 1)
		x := l.subscribe(hub.Request{Topic: "x"})
		l.subscribe(hub.Request{Topic: "y"})
		l.src.Append("x", 0, texts("k", 3)...)
		l.src.Append("y", 0, texts("k", 2)...)
		want("with both", 5, label.Topics+2)
		x.Close()
		<-time.After(10 * hub.DefaultConfig().Linger)
		want("when one is gone", 5, label.Topics+1)
		back := l.subscribe(hub.Request{Topic: "x"})
		l.src.Append("x", 0, texts("k", 1)...)
		want("when it is back", 6, label.Topics+2)
		l.src.CreateTopic("x", 1)
		l.src.DeleteTopic("x")
		synctest.Wait() // seen, or created anew for all that is known
		back.Close()
		l.src.CreateTopic("x", 1)
		l.subscribe(hub.Request{Topic: "x"})
		<-time.After(10 * hub.DefaultConfig().Linger)
		want("when it was deleted and is there again", 6, label.Topics+2)
	})
}

// watched is a Source that tells when something is asked for.
type watched struct {
	hub.Source
	asked func()
}

func (w *watched) Resolve(ctx context.Context, topic string, q hub.Query) (hub.Resolved, error) {
	w.asked()
	return w.Source.Resolve(ctx, topic, q)
}

// TestNamesThatNoTopicHasAreNoLabels: who asks for topics that do not exist takes no labels from those that do.
func TestNamesThatNoTopicHasAreNoLabels(t *testing.T) {
	reg := prometheus.NewRegistry()
	asked := 0
	h := hub.New(&watched{hubtest.New(), func() {
		asked++
		if got := gathered(t, reg, "tailrace_hub_subscriptions"); len(got) != 0 {
			t.Errorf("got %v, want nothing of a topic that may not exist", got)
		}
	}}, hub.Config{Registerer: reg})
	if _, err := h.Subscribe(t.Context(), hub.Request{Topic: "nowhere"}, deaf{}, 0); !errors.Is(err, hub.ErrUnknownTopic) || asked == 0 {
		t.Errorf("got %v, asked %d times, want %v", err, asked, hub.ErrUnknownTopic)
	}
}
