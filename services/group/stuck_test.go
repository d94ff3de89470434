package group_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/group"
)

// heldFronts are the series that name records which hold fronts, with their values.
func heldFronts(t *testing.T, reg *prometheus.Registry) (series []string) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "tailrace_group_front_held_seconds" {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
				series = append(series, fmt.Sprintf("%s %v", strings.Join(labels, " "), m.GetGauge().GetValue()))
			}
		}
	}
	return series
}

// A record that nobody acknowledges holds its partition at the window, others go on, and log and metric name it.
func TestStuckFront(t *testing.T) {
	var lines bytes.Buffer
	reg := prometheus.NewRegistry()
	cfg := group.Config{WindowRecords: 20, Logger: slog.New(slog.NewTextHandler(&lines, nil)), Registerer: reg}
	within(t, cfg, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.AckTimeout, s.Name = time.Hour, "10.0.0.1:4000" })
		defer w.Close()
		g := x.assigned(20, "k", "")
		p1 := group.Partition{Topic: "t", Partition: 1}
		g.Assign([]group.Place{{Partition: p1}})
		pull(t, w)
		var rest []int64
		for tag := int64(2); tag <= 20; tag++ {
			rest = append(rest, tag)
		}
		w.Ack(rest, 0)
		turn := g.Turn()
		if !slices.Equal(turn.Pause, []group.Partition{p0}) || len(turn.Resume) > 0 || !turn.Busy {
			t.Fatalf("got %+v", turn)
		}
		time.Sleep(90 * time.Second)
		synctest.Wait()
		want := "topic=t partition=0 offset=0 key=k attempts=1 state=\"at a worker\" for=1m1s records_beyond=20 bytes_beyond=5200 worker=10.0.0.1:4000"
		if got := strings.Count(lines.String(), "holds its partition"); got != 2 || !strings.Contains(lines.String(), want) {
			t.Errorf("got %d lines in 90 s:\n%s", got, &lines)
		}
		if got, want := heldFronts(t, reg), []string{"group=g offset=0 partition=0 topic=t 90"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		w.Ack([]int64{1}, 0)
		if turn = g.Turn(); !slices.Equal(turn.Resume, []group.Partition{p0}) || turn.Busy || len(turn.Commit) != 1 || turn.Commit[0].Offset != 20 {
			t.Errorf("got %+v", turn)
		}
		time.Sleep(2 * time.Second)
		if got := heldFronts(t, reg); len(got) > 0 || strings.Count(lines.String(), "goes on") != 1 {
			t.Errorf("got %v, and the lines\n%s", got, &lines)
		}
	})
}

// Where many fronts are held, those that have been for longest are named, and what becomes of a record is told.
func TestManyStuckFronts(t *testing.T) {
	reg := prometheus.NewRegistry()
	within(t, group.Config{WindowRecords: 4, Registerer: reg}, func(t *testing.T, x *table) {
		w := x.join(func(s *group.Start) { s.AckTimeout = time.Hour })
		defer w.Close()
		g := <-x.joined
		for p := range int32(group.MaxHolders + 2) {
			id := group.Partition{Topic: "t", Partition: p}
			g.Assign([]group.Place{{Partition: id, Offset: 7}})
			b := group.Batch{Partition: id, Next: 13}
			for i := range int64(4) {
				b.Records = append(b.Records, group.Record{Offset: 9 + i, Body: []byte("body")})
			}
			g.Append(b)
			g.Turn()
			time.Sleep(time.Second)
		}
		holders := x.groups.Stats()[0].Holders
		if len(holders) != group.MaxHolders || len(heldFronts(t, reg)) != group.MaxHolders {
			t.Fatalf("got %d holders, %d series", len(holders), len(heldFronts(t, reg)))
		}
		for i, h := range holders {
			if h.Partition.Partition != int32(i) || h.Offset != 9 || h.State != "waits" || h.Records != 4 {
				t.Errorf("got %+v at %d", h, i)
			}
		}
		p, err := w.Pull(1)
		if err != nil || len(p.Deliveries) != 1 {
			t.Fatalf("got %v, %v", p, err)
		}
		w.Nack([]int64{1}, time.Minute, "not now")
		if h := x.groups.Stats()[0].Holders[0]; h.State != "waits for the delay of its nack" || h.Reason != "not now" || h.Attempts != 1 {
			t.Errorf("got %+v", h)
		}
	})
}
