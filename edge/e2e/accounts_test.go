package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"
)

// accounts are what Kafka says of groups while a test runs, looked at again and again: who has which partition, and what is committed.
type accounts struct {
	j      *judge
	topic  string
	groups []string
	stop   func()

	mu   sync.Mutex
	said map[string][]account
}

// account is what Kafka said of a group. What was committed was asked for before who has the partitions.
type account struct {
	when      time.Time
	owner     map[int32]string // member, by partition; none while they are being dealt anew
	committed map[int32]int64
}

func (j *judge) watch(topic string, groups ...string) *accounts {
	j.t.Helper()
	a := &accounts{j: j, topic: topic, groups: groups, said: map[string][]account{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(j.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			a.look(ctx)
			pause(ctx, 50*time.Millisecond)
		}
	}()
	a.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
	j.t.Cleanup(a.stop)
	return a
}

func (a *accounts) look(ctx context.Context) {
	for _, group := range a.groups {
		one := account{owner: map[int32]string{}}
		var err error
		if one.committed, err = a.committed(ctx, group); err != nil {
			continue
		}
		described, err := a.j.admin.DescribeGroups(ctx, group)
		if err != nil || described.Error() != nil {
			continue
		}
		for _, m := range described[group].Members {
			assigned, ok := m.Assigned.AsConsumer()
			if !ok || described[group].State != "Stable" {
				continue
			}
			for _, t := range assigned.Topics {
				for _, p := range t.Partitions {
					one.owner[p] = m.MemberID
				}
			}
		}
		one.when = time.Now()
		a.mu.Lock()
		a.said[group] = append(a.said[group], one)
		a.mu.Unlock()
	}
}

// committed are the committed offsets of a group.
func (a *accounts) committed(ctx context.Context, group string) (map[int32]int64, error) {
	offsets, err := a.j.admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	at := map[int32]int64{}
	for partition, o := range offsets[a.topic] {
		at[partition] = o.At
	}
	return at, nil
}

// settled says whether the committed offsets of all groups are these.
func (a *accounts) settled(ends map[int32]int64) bool {
	for _, group := range a.groups {
		if at, err := a.committed(a.j.t.Context(), group); err != nil || !maps.Equal(at, ends) {
			return false
		}
	}
	return true
}

// seconds is how far apart what a worker saw and what Kafka said of it may be.
const seconds = time.Second

// moved says whether a partition may have had two owners between two times.
func (a *accounts) moved(group string, partition int32, from, to time.Time) bool {
	all := a.said[group]
	first := a.before(group, from.Add(-seconds))
	if first < 0 {
		return true
	}
	owner := all[first].owner[partition]
	for _, one := range all[first:] {
		if owner == "" || one.owner[partition] != owner {
			return true
		}
		if one.when.After(to.Add(seconds)) {
			break
		}
	}
	return false
}

// moves is how often partitions got another owner.
func (a *accounts) moves(group string) (n int) {
	last := map[int32]string{}
	for _, one := range a.said[group] {
		for p, owner := range one.owner {
			if last[p] != "" && last[p] != owner {
				n++
			}
			last[p] = owner
		}
	}
	return n
}

// passed says whether the owner of a partition at a time committed beyond an offset.
func (a *accounts) passed(group string, at placeOf, when time.Time) error {
	all := a.said[group]
	first := a.before(group, when)
	if first < 0 {
		return nil
	}
	owner := all[first].owner[at.partition]
	for _, one := range all[first:] {
		if owner == "" || one.owner[at.partition] != owner {
			return nil
		}
		if one.committed[at.partition] > at.offset {
			return fmt.Errorf("%v was committed (%d) by the process that had it", at, one.committed[at.partition])
		}
	}
	return nil
}

// before is the last account that was taken before a time; -1: none.
func (a *accounts) before(group string, when time.Time) int {
	at := -1
	for i, one := range a.said[group] {
		if one.when.After(when) {
			break
		}
		at = i
	}
	return at
}
