package edge_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

const marker = "the last one"

// seen is what a stream told, event by event.
type seen struct {
	id      string   // after the event
	records []string // each once ever: "generation/n", or the marker
	parts   []int32
	cut     bool // a gap: the log was truncated
}

// collect reads a stream up to n markers.
func collect(s *stream, n int) (all []seen, err error) {
	for n > 0 {
		e, err := s.next()
		if err != nil {
			return all, err
		}
		got := seen{id: s.lastID, cut: e.name == "gap" && strings.Contains(e.data, "truncation")}
		if e.name == "message" {
			m, err := e.parse()
			if err != nil {
				return all, err
			}
			for _, rec := range m.Records {
				got.records, got.parts = append(got.records, rec.Text), append(got.parts, rec.Partition)
				if rec.Text == marker {
					n--
				}
			}
		}
		all = append(all, got)
	}
	return all, nil
}

// byPartition puts the records of events into the order of their partitions, without those that are not in the log any more (but may still be
// in the memory of an edge).
func byPartition(all []seen, lost map[string]bool) map[int32][]string {
	got := map[int32][]string{}
	for _, e := range all {
		for i, text := range e.records {
			if !lost[text] {
				got[e.parts[i]] = append(got[e.parts[i]], text)
			}
		}
	}
	return got
}

// TestEveryEventResumes: whichever event was the last that a client got, its id brings exactly what came after it, through holes, transactions,
// new partitions, retention, truncation and a topic that was created anew; for the whole topic, partitions of it and keys.
func TestEveryEventResumes(t *testing.T) {
	checked := 0
	for seed := range uint64(size(6, 400)) {
		ok := t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { checked += everyEventResumes(t, seed) })
		if !ok {
			return
		}
	}
	proof(t, "%d ids, each brought exactly what came after its event", checked)
}

func everyEventResumes(t *testing.T, seed uint64) (checked int) {
	rng, anew := rand.New(rand.NewPCG(7, seed)), seed%2 == 1
	cfg := config()
	cfg.HeartbeatInterval, cfg.LifeGrace = cfg.HeartbeatInterval/300, 0 // 50 ms: positions that moved without a record are told soon
	r := start(t, cfg)
	r.src.SetShape(hubtest.Shape{EntryRecords: 3})
	r.src.CreateTopic("orders", 3)
	const most = 6 // partitions at last
	count := int32(3)
	paths := []string{"/sse/orders?start=earliest", "/sse/orders?start=earliest&key=k1&key=k3", "/sse/orders?start=earliest&partition=0&partition=2", "/sse/orders?start=earliest&as=text"}
	// Three of each: those that share what is rendered are to have the same ids.
	streams, results := make([]*stream, 3*len(paths)), make([][]seen, 3*len(paths))
	for i := range streams {
		streams[i] = r.stream(t, paths[i%len(paths)])
		streams[i].expect(t, "started")
	}
	markers := func(path string) int {
		if strings.Contains(path, "partition=") {
			return 2
		}
		return most
	}

	lost := map[string]bool{}
	var logs [][]string // by partition and offset; "" for a hole
	grow := func(n int32) {
		for int32(len(logs)) < n {
			logs = append(logs, nil)
		}
	}
	grow(count)
	n, generation := 0, 0
	add := func(p int32, open bool) {
		var records []hubtest.Record
		for range 1 + rng.IntN(4) {
			text := fmt.Sprintf("%d/%d", generation, n)
			n++
			records = append(records, hubtest.Text(fmt.Sprintf("k%d", rng.IntN(5)), text))
			logs[p] = append(logs[p], text)
		}
		if open {
			r.src.AppendOpen("orders", p, records...)
		} else {
			r.src.Append("orders", p, records...)
		}
	}
	var reading sync.WaitGroup
	finish := make(chan struct{})
	for i, s := range streams {
		reading.Go(func() {
			<-finish
			var err error
			if results[i], err = collect(s, markers(paths[i%len(paths)])); err != nil {
				t.Errorf("%s: %v", paths[i%len(paths)], err)
			}
		})
	}
	begin := sync.OnceFunc(func() { close(finish) })
	for step := range 150 {
		p := rng.Int32N(count)
		switch what := rng.IntN(20); {
		case what < 12:
			add(p, false)
		case what < 14:
			holes := 1 + rng.IntN(3)
			r.src.AppendHoles("orders", p, holes)
			logs[p] = append(logs[p], make([]string, holes)...)
		case what < 16:
			add(p, true)
			r.src.Commit("orders", p)
			logs[p] = append(logs[p], "") // the control record
		case what == 16 && count < most && step > 50:
			count++
			grow(count)
			r.src.Grow("orders", count)
		case what == 17 && step > 100 && len(logs[p]) > 10:
			oldest := int64(len(logs[p]) / 3)
			r.src.Retain("orders", p, oldest)
			for _, text := range logs[p][:oldest] {
				lost[text] = true
			}
		case what == 18 && step < 70 && len(logs[p]) > 5:
			cut := len(logs[p]) - 1 - rng.IntN(3)
			oldest, _, _ := r.src.Offsets("orders", p)
			if int64(cut) < oldest {
				continue
			}
			r.src.Truncate("orders", p, int64(cut))
			for _, text := range logs[p][cut:] {
				lost[text] = true
			}
			logs[p] = logs[p][:cut]
		}
		if step == 75 {
			begin() // what is there by now is read from history, or the ring, by who comes late
			if anew {
				r.src.CreateTopic("orders", count)
				for p := range logs {
					for _, text := range logs[p] {
						lost[text] = true
					}
					logs[p] = nil
				}
				generation++
			}
		}
		if step%10 == 0 {
			await(t, "what was written is read", func() bool {
				for p := range count {
					_, end, _ := r.src.Offsets("orders", p)
					if next, ok := r.src.FollowedTo("orders", p); ok && next < end {
						return false
					}
				}
				return true
			})
		}
	}
	r.src.Grow("orders", most)
	for p := range int32(most) {
		r.src.Append("orders", p, hubtest.Text("k1", marker))
	}
	reading.Wait()
	if t.Failed() {
		return 0
	}
	for i, path := range paths {
		if a, b := ids(results[i]), ids(results[i+len(paths)]); !slices.Equal(a[len(a)-1:], b[len(b)-1:]) {
			t.Errorf("%s: readers of the same end with the ids %q and %q", path, a[len(a)-1], b[len(b)-1])
		}
		all := results[i]
		// Who is beyond where the log was cut and is not told yet finds that out by the epoch in the id, which this store does not look at.
		from := 0
		for k, e := range all {
			if e.cut {
				from = k + 1
			}
		}
		for k := from; k < len(all)-1; k++ {
			if all[k].id == "" || k > 0 && all[k].id == all[k-1].id || !*full && rng.IntN(3) > 0 {
				continue
			}
			checked++
			want := byPartition(all[k+1:], lost)
			left := 0
			for _, records := range want {
				if records[len(records)-1] == marker {
					left++
				}
			}
			s := r.stream(t, path, "Last-Event-ID: "+all[k].id)
			_ = s.conn.SetReadDeadline(deadline())
			again, err := collect(s, left)
			s.conn.Close()
			if got := byPartition(again, lost); err != nil || !maps.EqualFunc(got, want, slices.Equal) {
				t.Fatalf("%s, id %s after event %d of %d, %v: %v\n got %q\nwant %q", path, all[k].id, k, len(all), all[k].records, err, got, want)
			}
		}
	}
	r.stop()
	return checked
}

func ids(all []seen) (list []string) {
	for _, e := range all {
		list = append(list, e.id)
	}
	return list
}
