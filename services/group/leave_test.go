package group_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/group"
)

// A worker that leaves in order, or whose process drains, has not failed, however few attempts there are. One that is lost has.
func TestLeavingIsNoFailure(t *testing.T) {
	for name, keys := range map[string][]string{"without keys": nil, "of keys": {"a", "b", "c"}} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			within(t, group.Config{Registerer: reg}, func(t *testing.T, x *table) {
				once := func(s *group.Start) { s.MaxAttempts = 1 }
				settled := func(want string) {
					t.Helper()
					synctest.Wait()
					if got := settledBy(t, reg); got != want {
						t.Errorf("got %s, want %s", got, want)
					}
				}
				w := x.join(once)
				g := x.assigned(3, keys...)
				if got := pull(t, w); len(got) != 3 {
					t.Fatalf("got %v", got)
				}
				w.Leave()
				w.Close()
				settled("worker_left 3")
				lost := x.join(once)
				if got := pull(t, lost); len(got) != 3 {
					t.Fatalf("got %v", got)
				}
				lost.Close()
				settled("dead_letter 3 worker_ended 3 worker_left 3")
				feed(g, 3, 2, keys...)
				drained := x.join(once)
				if got := pull(t, drained); len(got) != 2 {
					t.Fatalf("got %v", got)
				}
				x.groups.Drain()
				drained.Close()
				settled("dead_letter 3 worker_ended 3 worker_left 5")
			})
		})
	}
}

// Each delivery that ends is counted once: of those of a key that are given back together as what each of them is.
func TestEndsAreCountedOnce(t *testing.T) {
	reg := prometheus.NewRegistry()
	within(t, group.Config{Registerer: reg}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) {})
		defer w.Close()
		x.assigned(4, "a")
		got, err := w.Pull(1 << 20)
		if err != nil || len(got.Deliveries) != 4 {
			t.Fatalf("got %v, %v", got, err)
		}
		w.Nack([]int64{got.Deliveries[0].Tag, got.Deliveries[2].Tag}, 0, "no")
		if got, want := settledBy(t, reg), "nacked 2 taken_along 2"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}

// settledBy are the ends of deliveries that were counted.
func settledBy(t *testing.T, reg *prometheus.Registry) string {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var counts []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if n := m.GetCounter().GetValue(); n > 0 && f.GetName() == "tailrace_group_settled_total" {
				counts = append(counts, fmt.Sprintf("%s %v", m.GetLabel()[0].GetValue(), n))
			}
		}
	}
	return strings.Join(counts, " ")
}
