package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"tailrace.dev/tailrace/edge/upstream"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// answers is what a line tells.
type answers struct {
	mu   sync.Mutex
	told map[uint64]string
	n    int
	idle int
}

func (a *answers) tell(n uint64, result *tailracev1.PublishResult, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n == 0 {
		a.idle++
		return
	}
	text := "published"
	switch f := result.GetFailure(); {
	case err != nil:
		text = err.Error()
	case f != nil:
		text = f.GetReason() + " " + strings.ToLower(strings.TrimPrefix(f.GetOutcome().String(), "PUBLISH_OUTCOME_"))
	}
	a.told[n] = text
	a.n++
}

func (a *answers) of(n uint64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.told[n]
}

func (a *answers) idled() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.idle
}

// openLine opens a line whose records have a minute.
func openLine(t *testing.T, s *upstream.Source) (publish func(ns ...uint64), hangUp func(), a *answers) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	a = &answers{told: map[uint64]string{}}
	send, hangUp := s.OpenPublish(ctx, a.tell)
	return func(ns ...uint64) {
		for _, n := range ns {
			send(n, "t", &tailracev1.PublishRecord{Value: fmt.Append(nil, n)}, time.Now().Add(time.Minute), nil)
		}
	}, hangUp, a
}

func (s *script) pipes(ps ...pipeline) *script {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pipelines = ps
	return s
}

func (s *script) streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// takes takes n records (all, if negative), answers those that pass, and then does what is last.
func takes(seen *[]string, n int, pass func(value string) bool, last func(ctx context.Context) error) pipeline {
	return func(ctx context.Context, stream *pipelined) error {
		for i := 0; i != n; i++ {
			m, err := stream.Receive()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			v := string(m.GetPublish().GetRecord().GetValue())
			*seen = append(*seen, v)
			if !pass(v) {
				continue
			}
			if err := stream.Send(&tailracev1.PublishStreamResponse{Id: m.GetPublish().GetId(), Result: &tailracev1.PublishResult{
				Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{}},
			}}); err != nil {
				return err
			}
		}
		return last(ctx)
	}
}

func all(string) bool { return true }

func ok(context.Context) error { return nil }

func await(t *testing.T, a *answers, want map[uint64]string) {
	t.Helper()
	eventually(t, fmt.Sprintf("answers %v", want), func() bool {
		for n := range want {
			if a.of(n) == "" {
				return false
			}
		}
		return true
	})
	for n, text := range want {
		if got := a.of(n); got != text {
			t.Errorf("record %d: got %q, want %q", n, got, text)
		}
	}
}

func TestALineKeepsOrderOnOneStream(t *testing.T) {
	var seen []string
	svc := newScript(t).pipes(takes(&seen, -1, all, ok))
	publish, _, a := openLine(t, newSource(t, func(c *upstream.Config) { c.PublishLinger = 200 * time.Millisecond }, svc.address))
	var want []string
	for n := range uint64(500) {
		publish(n + 1)
		want = append(want, fmt.Sprint(n+1))
	}
	eventually(t, "all are answered", func() bool { return a.of(500) != "" })
	eventually(t, "the line is idle", func() bool { return a.idled() == 1 })
	if !slices.Equal(seen, want) || svc.streams() != 1 {
		t.Errorf("got %d records over %d streams, in this order: %v", len(seen), svc.streams(), seen)
	}
	publish(501) // it comes back
	await(t, a, map[uint64]string{501: "published"})
	if svc.streams() != 2 {
		t.Errorf("%d streams", svc.streams())
	}
}

// TestIdleLinesCostNothing: a thousand sockets that have published once leave no goroutine and no stream behind.
func TestIdleLinesCostNothing(t *testing.T) {
	var mu sync.Mutex
	open := 0
	svc := newScript(t).pipes(func(ctx context.Context, stream *pipelined) error {
		mu.Lock()
		open++
		mu.Unlock()
		defer func() {
			mu.Lock()
			open--
			mu.Unlock()
		}()
		return takes(new([]string), -1, all, ok)(ctx, stream)
	})
	source := newSource(t, func(c *upstream.Config) { c.PublishLinger = 500 * time.Millisecond }, svc.address)
	publish, _, a := openLine(t, source)
	publish(1)
	await(t, a, map[uint64]string{1: "published"})
	eventually(t, "idle", func() bool { return a.idled() == 1 })
	before := runtime.NumGoroutine()
	const lines = 1000
	var as []*answers
	for range lines {
		publish, _, a := openLine(t, source)
		publish(1)
		as = append(as, a)
	}
	for _, a := range as {
		eventually(t, "it is answered, and idle", func() bool { return a.of(1) == "published" && a.idled() == 1 })
	}
	eventually(t, "nothing is left", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return open == 0 && runtime.NumGoroutine() <= before+5 // of probes of its health
	})
}

// TestRunAwaitsALinesLastWord: when Run has returned nothing more is told, also not by the timer of a line.
func TestRunAwaitsALinesLastWord(t *testing.T) {
	source, err := upstream.New(upstream.Config{Addresses: []string{"http://127.0.0.1:1"}, Logger: quiet(), RetryMin: time.Millisecond, PublishWait: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran, told := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ran)
		_ = source.Run(ctx)
	}()
	publish, _ := source.OpenPublish(ctx, func(_ uint64, _ *tailracev1.PublishResult, err error) {
		defer close(told)
		if !errors.Is(err, hub.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		cancel()
		select {
		case <-ran:
			t.Error("Run returned before this")
		case <-time.After(500 * time.Millisecond): // it would have, long ago
		}
	})
	publish(1, "t", &tailracev1.PublishRecord{}, time.Now().Add(time.Minute), nil)
	<-told
	<-ran
}

// TestALostStream: what was sent and not answered is unknown and never sent again; what was not looked at goes to the next.
func TestALostStream(t *testing.T) {
	odd := func(v string) bool { return v == "1" || v == "3" }
	t.Run("by the network", func(t *testing.T) {
		var first, second []string
		taken := make(chan struct{})
		svc := newScript(t).pipes(takes(&first, 4, odd, func(ctx context.Context) error {
			close(taken)
			<-ctx.Done()
			return ctx.Err()
		}), takes(&second, -1, all, ok))
		publish, _, a := openLine(t, newSource(t, nil, svc.address))
		publish(1, 2, 3, 4)
		<-taken
		await(t, a, map[uint64]string{1: "published", 3: "published"})
		svc.close()
		await(t, a, map[uint64]string{1: "published", 2: "OUTCOME_UNKNOWN unknown", 3: "published", 4: "OUTCOME_UNKNOWN unknown"})
		publish(5, 6)
		svc.listen(t, svc.address)
		await(t, a, map[uint64]string{5: "published", 6: "published"})
		if got := fmt.Sprint(first, second); got != "[1 2 3 4] [5 6]" {
			t.Errorf("sent %s", got)
		}
	})
	t.Run("by a drain", func(t *testing.T) {
		var first, second []string
		svc := newScript(t).pipes(takes(&first, 4, odd, func(context.Context) error {
			return failure(connect.CodeUnavailable, "DRAINING", nil)
		}), takes(&second, -1, all, ok))
		publish, _, a := openLine(t, newSource(t, nil, svc.address))
		publish(1, 2, 3, 4, 5)
		await(t, a, map[uint64]string{1: "published", 2: "published", 3: "published", 4: "published", 5: "published"})
		if got := fmt.Sprint(first, second); got != "[1 2 3 4] [2 4 5]" {
			t.Errorf("sent %s", got)
		}
	})
	t.Run("by a refusal", func(t *testing.T) {
		for reason, want := range map[string]string{
			"INVALID_ARGUMENT": "INVALID_ARGUMENT refused", "UNIMPLEMENTED": "UNIMPLEMENTED refused", "LIMIT": "LIMIT refused",
			"INTERNAL": "OUTCOME_UNKNOWN unknown", "DEADLINE_EXCEEDED": "OUTCOME_UNKNOWN unknown", "NEW": "OUTCOME_UNKNOWN unknown",
		} {
			var seen []string
			svc := newScript(t).pipes(takes(&seen, 1, func(string) bool { return false }, func(context.Context) error {
				return failure(connect.CodeUnknown, reason, nil)
			}))
			publish, _, a := openLine(t, newSource(t, nil, svc.address))
			publish(1)
			await(t, a, map[uint64]string{1: want})
			if len(seen) != 1 {
				t.Errorf("%s: sent %d times", reason, len(seen))
			}
		}
	})
}

// TestALineWithoutAService: records wait, within their time; then they are refused.
func TestALineWithoutAService(t *testing.T) {
	brief := func(c *upstream.Config) { c.PublishWait = 600 * time.Millisecond }
	t.Run("it does not come", func(t *testing.T) {
		publish, _, a := openLine(t, newSource(t, brief, "127.0.0.1:1"))
		began := time.Now()
		publish(1, 2, 3)
		await(t, a, map[uint64]string{1: hub.ErrUnavailable.Error(), 2: hub.ErrUnavailable.Error(), 3: hub.ErrUnavailable.Error()})
		if waited := time.Since(began); waited < 500*time.Millisecond {
			t.Errorf("it waited for %v only", waited)
		}
	})
	t.Run("it comes", func(t *testing.T) {
		var seen []string
		svc := newScript(t).pipes(takes(&seen, -1, all, ok))
		source := newSource(t, nil, svc.address)
		eventually(t, "its presence is seen", source.Available)
		svc.close()
		eventually(t, "its absence is seen", func() bool { return !source.Available() })
		publish, _, a := openLine(t, source)
		publish(1, 2, 3)
		svc.listen(t, svc.address)
		await(t, a, map[uint64]string{1: "published", 2: "published", 3: "published"})
		if got := fmt.Sprint(seen); got != "[1 2 3]" {
			t.Errorf("sent %s", got)
		}
	})
	t.Run("it does not answer", func(t *testing.T) {
		svc := newScript(t).pipes(takes(new([]string), -1, func(string) bool { return false }, ok))
		a := &answers{told: map[uint64]string{}}
		send, _ := newSource(t, nil, svc.address).OpenPublish(t.Context(), a.tell)
		send(1, "t", &tailracev1.PublishRecord{}, time.Now().Add(500*time.Millisecond), nil)
		await(t, a, map[uint64]string{1: "OUTCOME_UNKNOWN unknown"})
	})
	t.Run("too many publish", func(t *testing.T) {
		source := newSource(t, func(c *upstream.Config) { c.PublishStreams = 2 }, "127.0.0.1:1")
		for range 2 {
			publish, _, _ := openLine(t, source)
			publish(1)
		}
		publish, _, a := openLine(t, source)
		publish(1)
		if got := a.of(1); !strings.Contains(got, "sockets that publish") {
			t.Errorf("got %q", got)
		}
	})
}

// TestALineThatIsHungUp: what was sent gets its answer, what was not is refused, and nothing is left.
func TestALineThatIsHungUp(t *testing.T) {
	release := make(chan struct{})
	var seen []string
	svc := newScript(t).pipes(func(ctx context.Context, stream *pipelined) error {
		<-release
		return takes(&seen, -1, all, ok)(ctx, stream)
	})
	publish, hangUp, a := openLine(t, newSource(t, nil, svc.address))
	publish(1)
	eventually(t, "it is sent", func() bool { return svc.streams() == 1 })
	hangUp()
	close(release)
	await(t, a, map[uint64]string{1: "published"})

	publish, hangUp, a = openLine(t, newSource(t, nil, "127.0.0.1:1"))
	publish(1, 2)
	hangUp()
	for n := range uint64(2) {
		if got := a.of(n + 1); got != "" && got != hub.ErrUnavailable.Error() {
			t.Errorf("got %q", got)
		}
	}
	await(t, a, map[uint64]string{1: hub.ErrUnavailable.Error(), 2: hub.ErrUnavailable.Error()})
}

// TestALineThatNobodyReads: a line that is hung up while its service takes nothing ends once its records have no time left.
func TestALineThatNobodyReads(t *testing.T) {
	over := make(chan struct{})
	svc := newScript(t).pipes(func(ctx context.Context, _ *pipelined) error {
		<-ctx.Done()
		close(over)
		return ctx.Err()
	})
	a := &answers{told: map[uint64]string{}}
	send, hangUp := newSource(t, nil, svc.address).OpenPublish(t.Context(), a.tell)
	for n := range uint64(8) { // more than a stream's window
		send(n+1, "t", &tailracev1.PublishRecord{Value: make([]byte, 1<<20)}, time.Now().Add(time.Second), nil)
	}
	await(t, a, map[uint64]string{1: "OUTCOME_UNKNOWN unknown", 8: hub.ErrUnavailable.Error()})
	hangUp()
	select {
	case <-over:
	case <-time.After(patience):
		t.Error("the stream is still open")
	}
}
