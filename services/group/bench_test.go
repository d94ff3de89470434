package group_test

import (
	"context"
	"strconv"
	"testing"

	"tailrace.dev/tailrace/services/group"
)

// still is a Cluster whose member is the test, and a DeadLetters that stores everything.
type still struct{ joined chan *group.Group }

func newStill() *still { return &still{joined: make(chan *group.Group, 8)} }

func (*still) Check(context.Context, []string) error { return nil }

func (s *still) Join(ctx context.Context, _ group.Settings, g *group.Group) error {
	s.joined <- g
	<-ctx.Done()
	return nil
}

func (*still) Bury(_ context.Context, _ group.Letter, done func(error)) { done(nil) }

// BenchmarkDelivery is the cost of a record: appended, dealt, acknowledged, with its share of commits.
func BenchmarkDelivery(b *testing.B) {
	for _, c := range []struct {
		name     string
		ordering group.Ordering
		keys     int
		workers  int
	}{
		{"none", group.OrderNone, 0, 1}, {"distinct keys", group.OrderByKey, 1 << 30, 1}, {"1000 keys 10 workers", group.OrderByKey, 1000, 10},
		{"one key", group.OrderByKey, 1, 1},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newStill()
			groups := group.New(group.Config{Cluster: s, DeadLetters: s})
			ctx, cancel := context.WithCancel(context.Background())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = groups.Run(ctx) }()
			defer func() { cancel(); <-ended }()
			var workers []*group.Worker
			for range c.workers {
				w, err := groups.Join(ctx, group.Start{Settings: group.Settings{Group: "g", Topics: []string{"t"}, Ordering: c.ordering}})
				if err != nil {
					b.Fatal(err)
				}
				defer w.Close()
				workers = append(workers, w)
			}
			g := <-s.joined
			id := group.Partition{Topic: "t"}
			g.Assign([]group.Place{{Partition: id}})
			body := make([]byte, 100)
			const batch = 100
			keys := make([][]byte, min(c.keys, 1<<16))
			for i := range keys {
				keys[i] = []byte(strconv.Itoa(i))
			}
			b.ReportAllocs()
			b.ResetTimer()
			tags := make([]int64, 0, batch)
			for offset := int64(0); offset < int64(b.N); {
				records := make([]group.Record, batch)
				for i := range records {
					records[i] = group.Record{Offset: offset, Body: body}
					if len(keys) > 0 {
						records[i].Key = keys[int(offset)%len(keys)]
					}
					offset++
				}
				g.Append(group.Batch{Partition: id, Records: records, Next: offset})
				for left := batch; left > 0; {
					for _, w := range workers {
						p, err := w.Pull(1 << 20)
						if err != nil {
							b.Fatal(err)
						}
						left -= len(p.Deliveries)
						tags = tags[:0]
						for _, d := range p.Deliveries {
							tags = append(tags, d.Tag)
						}
						if refused := w.Ack(tags, 0); len(refused) > 0 {
							b.Fatal("refused", refused)
						}
					}
				}
				g.Committed(g.Turn().Commit, nil)
			}
		})
	}
}
