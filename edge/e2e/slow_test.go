package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestSlowPolicies stalls a socket of each slow policy while a topic goes on for longer than they may be behind. Each gets exactly what its policy
// promises: every offset as a record or in a gap, once; a bystander notices nothing.
func TestSlowPolicies(t *testing.T) {
	kafka := broker(t)
	j := newJudge(t, kafka)
	topic := j.topic(1)
	const slowAfter = time.Second
	p := startPair(t, pairOptions{kafka: kafka, edge: []string{"-slow-after", slowAfter.String()}})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	bystanders := newCrowd(t.Context(), t, p, topic, 5, map[string]any{"start": "latest"})

	policies := []string{"skip", "conflate", "fail"}
	readers, sessions := map[string]*reader{}, map[string]*session{}
	for _, policy := range policies {
		readers[policy] = newReader(topic, true)
		s, err := dialSession(ctx, p.ws, "/ws/"+topic+"?slow="+policy, readers[policy], dialOptions{recvBuffer: 4096})
		if err == nil {
			err = s.run(readers[policy].isCaughtUp)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer s.abort(true)
		sessions[policy] = s
	}
	for range 40 { // fills the sockets
		j.write(&kgo.Record{Topic: topic, Key: []byte("big"), Value: []byte(strings.Repeat("z", 200_000))})
	}
	bystanders.awaitEnds(time.Minute, j.ends(topic))
	await(t, time.Minute, "three sockets that take nothing", func() bool {
		return metric(t, p.wsOps, "tailrace_edge_blocked_sessions") == 3
	})
	for i, began := 0, time.Now(); time.Since(began) < 3*slowAfter; i++ {
		r := &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "k%d", i%7), Value: fmt.Appendf(nil, "%d", i)}
		switch i % 10 {
		case 3:
			r.Value = nil
		case 5:
			r.Key = nil
		}
		j.write(r)
		pause(ctx, 20*time.Millisecond)
	}
	ends := j.ends(topic)
	bystanders.awaitEnds(time.Minute, ends)

	for _, policy := range []string{"skip", "conflate"} {
		if err := sessions[policy].run(func() bool { return readers[policy].reached(ends) }); err != nil {
			t.Fatalf("%s, reading again: %v", policy, err)
		}
	}
	err := sessions["fail"].run(forever)
	var closed *closeError
	if !errors.As(err, &closed) || closed.code != 4001 {
		t.Errorf("fail: the socket ended with %v, want close 4001", err)
	}
	if got := sessions["fail"].errors; len(got) != 1 || got[0].Reason != "LAGGED" || !got[0].Final {
		t.Errorf("fail: errors %+v, want one that is LAGGED", got)
	}

	log := j.read(topic, true)
	bystanders.verify(log)
	for policy, reason := range map[string]string{"skip": "slow", "conflate": "conflated"} {
		if err := honest(readers[policy], log, reason); err != nil {
			t.Errorf("%s: %v", policy, err)
		}
	}
	for _, action := range policies {
		if got := metric(t, p.wsOps, "tailrace_hub_slow_readers_total", `action="`+action+`"`); got < 1 {
			t.Errorf("the metric says %v for %s", got, action)
		}
	}
	if streams := upstreams(t, p); streams != 1 {
		t.Errorf("%d upstream streams, want one", streams)
	}
	skipped, conflated := readers["skip"], readers["conflate"]
	proof(t, "of %d records %d came under skip with %d gaps, %d under conflate with %d gaps; fail closed with 4001; bystanders had all",
		log.count(), skipped.count(), len(skipped.gaps), conflated.count(), len(conflated.gaps))
}

// honest says how what a reader was told departs from the log: records and gaps are to cover it, in order, each offset once. A gap of a
// conflation counts what it leaves out, and of each key that it leaves out a later record came.
func honest(r *reader, log *tape, reason string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.gaps) == 0 {
		return errors.New("there is no gap")
	}
	all, at := log.whole[0], r.begun[0]
	got, gaps := r.tape.whole[0], r.gaps
	latest := map[string]int64{} // offset of the last record that came of a key
	for i := range got {
		latest[string(got[i].key)] = got[i].offset
	}
	for len(got) > 0 || len(gaps) > 0 {
		if len(gaps) == 0 || len(got) > 0 && got[0].offset < gaps[0].from {
			if got[0].offset != at || got[0].mark() != all[at].mark() {
				return fmt.Errorf("at %d came %s, the log has %s", at, &got[0], &all[at])
			}
			at, got = at+1, got[1:]
			continue
		}
		g := gaps[0]
		if g.from != at || g.to <= g.from || g.reason != reason {
			return fmt.Errorf("at %d came the gap %+v, want reason %s", at, g, reason)
		}
		left := all[g.from:g.to]
		if reason == "conflated" && g.left != int64(len(left)) {
			return fmt.Errorf("the gap %+v leaves out %d records", g, len(left))
		}
		superseded := func(r record) bool { return r.key != nil && latest[string(r.key)] > r.offset }
		if reason == "conflated" && slices.ContainsFunc(left, func(r record) bool { return !superseded(r) }) {
			return fmt.Errorf("the gap %+v leaves out a record that nothing supersedes", g)
		}
		at, gaps = g.to, gaps[1:]
	}
	if at != int64(len(all)) {
		return fmt.Errorf("it ends at %d of %d", at, len(all))
	}
	return nil
}
