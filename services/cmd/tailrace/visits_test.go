package main

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// spot is where a record lies in its topic.
type spot struct {
	partition int32
	offset    int64
}

// visit is one delivery; its worker has acknowledged it at once.
type visit struct {
	spot
	life    string // of the process that delivered it
	attempt int32
	when    time.Time
	refused bool // the ack was
}

// visits are all deliveries of a group, as they came.
type visits struct {
	mu   sync.Mutex
	all  []*visit
	here map[string]int // deliveries by life
}

func newVisits() *visits { return &visits{here: map[string]int{}} }

func (b *visits) at(life string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.here[life]
}

// consume is one worker, until its stream ends.
func (b *visits) consume(ctx context.Context, t *testing.T, url, group, topic, life string) error {
	client := h2c(t)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := tailracev1connect.NewStreamServiceClient(client, url).Consume(ctx)
	if err != nil {
		return err
	}
	closing := context.AfterFunc(ctx, func() { _ = s.CloseRequest() }) // net/http does not see the end of ctx while the request may still grow
	defer closing()
	defer func() { _ = s.CloseRequest() }()
	if err := s.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: &tailracev1.ConsumeStart{
		Group: group, Topics: []string{topic}, MaxInFlight: 30, MaxAttempts: 1000,
	}}}); err != nil {
		return err
	}
	mine := map[int64]*visit{}
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		var tags []int64
		b.mu.Lock()
		for _, tag := range m.GetAckRefused().GetTags() {
			mine[tag].refused = true
		}
		for _, d := range m.GetDeliveries().GetDeliveries() {
			v := &visit{spot: spot{d.GetRecord().GetPartition(), d.GetRecord().GetOffset()}, life: life, attempt: d.GetAttempt(), when: time.Now()}
			b.all = append(b.all, v)
			b.here[life]++
			mine[d.GetTag()] = v
			tags = append(tags, d.GetTag())
		}
		b.mu.Unlock()
		if len(tags) == 0 {
			continue
		}
		if err := s.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: tags}}}); err != nil {
			return err
		}
	}
}

// fate is how a process ended.
type fate struct {
	when      time.Time
	committed map[int32]int64 // just then, if it was killed
}

// inFlight is for how long before the kind end of a process what was acknowledged may not have arrived there.
const inFlight = time.Second

// check judges all deliveries: each record was acknowledged; one that was comes again only at another process, and only if the first was killed before it had
// committed that far, or if the first had let the partition go while it, or one before it, was in flight. It returns how many came again after a kill, and else.
func (b *visits) check(t *testing.T, ends map[int32]int64, fates map[string]fate) (killed, moved int) {
	t.Helper()
	type lane struct {
		life      string
		partition int32
	}
	flying := map[lane]int64{} // the lowest offset of which it is not certain that its ack was taken
	by := map[spot][]*visit{}
	for _, v := range b.all {
		by[v.spot] = append(by[v.spot], v)
		if f := fates[v.life]; v.refused || f.committed == nil && !f.when.IsZero() && v.when.After(f.when.Add(-inFlight)) {
			at := lane{v.life, v.partition}
			if low, ok := flying[at]; !ok || v.offset < low {
				flying[at] = v.offset
			}
		}
	}
	for partition, end := range ends {
		for offset := range end {
			at := spot{partition, offset}
			var done *visit // the last one whose ack was taken
			for _, v := range by[at] {
				if done != nil {
					low, flew := flying[lane{done.life, partition}]
					committed := fates[done.life].committed
					if committed != nil {
						killed++
					} else {
						moved++
					}
					switch {
					case done.life == v.life:
						t.Errorf("%v came again at the life %s after it was acknowledged, with the attempt %d", at, v.life, v.attempt)
					case committed != nil && offset < committed[partition]:
						t.Errorf("%v came again, at %s; %s had committed %d before it was killed", at, v.life, done.life, committed[partition])
					case committed == nil && (!flew || offset < low):
						t.Errorf("%v came again, at %s; at %s nothing before it was in flight", at, v.life, done.life)
					}
				}
				if !v.refused {
					done = v
				}
			}
			if done == nil {
				t.Errorf("%v was never acknowledged", at)
			}
			delete(by, at)
		}
	}
	for at := range by {
		t.Errorf("%v was delivered, and is not in the log", at)
	}
	return killed, moved
}

// follower is a reader of the whole topic over one stream.
type follower struct {
	mu    sync.Mutex
	at    map[int32]int64
	wrong []string
}

func newFollower() *follower { return &follower{at: map[int32]int64{}} }

func (f *follower) next() map[int32]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.at)
}

func (f *follower) follow(ctx context.Context, t *testing.T, url, topic string) error {
	client := h2c(t)
	defer client.CloseIdleConnections()
	s, err := tailracev1connect.NewStreamServiceClient(client, url).Subscribe(ctx, &tailracev1.SubscribeRequest{
		Topic: topic, Start: &tailracev1.Start{At: &tailracev1.Start_Earliest{Earliest: &tailracev1.Earliest{}}},
	})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	for s.Receive() {
		f.mu.Lock()
		if gap := s.Msg().GetGap(); gap != nil {
			f.wrong = append(f.wrong, fmt.Sprintf("a gap: %v", gap))
		}
		for _, batch := range s.Msg().GetRecords().GetBatches() {
			for _, r := range batch.GetRecords() {
				if r.GetOffset() != f.at[r.GetPartition()] {
					f.wrong = append(f.wrong, fmt.Sprintf("offset %d of partition %d, want %d", r.GetOffset(), r.GetPartition(), f.at[r.GetPartition()]))
				}
				f.at[r.GetPartition()] = r.GetOffset() + 1
			}
		}
		f.mu.Unlock()
	}
	return s.Err()
}

// check demands each record once, in order.
func (f *follower) check(t *testing.T, ends map[int32]int64) {
	t.Helper()
	for i, wrong := range f.wrong {
		if i < 3 {
			t.Errorf("a reader beside: %s", wrong)
		}
	}
	if !maps.Equal(f.at, ends) {
		t.Errorf("a reader beside is at %v, want %v", f.at, ends)
	}
}
