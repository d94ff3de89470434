package hub_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// stepped is bubble over a source that delivers when it is told to.
func stepped(t *testing.T, do func(t *testing.T, h *hub.Hub, src *hubtest.Source)) {
	t.Helper()
	bubbleOver(t, hubtest.NewStepped, hub.Config{}, do)
}

// at is a start at a position of partition 0.
func at(offset int64) hub.Start {
	return hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{{Partition: 0, Offset: offset, Epoch: -1}}}
}

// TestAnswersOutliveNoTruncation: what was resolved before a truncation, and not believed yet, is asked for again.
func TestAnswersOutliveNoTruncation(t *testing.T) {
	stepped(t, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		records(src, "a", 0, 10)
		subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		src.SetDelays(hubtest.Delays{AfterResolve: 100 * time.Millisecond})
		time.AfterFunc(50*time.Millisecond, func() {
			src.Truncate("a", 0, 3)
			src.Deliver("a", 0, 0)
		})
		s := subscribe(t, h, hub.Request{Topic: "a", Start: at(5), OnOutOfRange: hub.OutOfRangeLatest}, newSignal())
		if got := s.Started().Partitions[0]; got.Start != 3 || got.End != 3 {
			t.Errorf("started at %+v, want 3 of 3", got)
		}
		b, err := s.Pull(1 << 20)
		if err != nil || len(b.Parts) != 1 || b.Parts[0].From != 5 || b.Parts[0].Next != 3 || b.Parts[0].Reason != hub.GapTruncation {
			t.Errorf("pull = %+v, %v; want a gap of truncation from 5 to 3", b.Parts, err)
		}
	})
}

// TestLatestIsNotWhatAnOutageHeldBack: a partition is available again, and what it got meanwhile has not come.
func TestLatestIsNotWhatAnOutageHeldBack(t *testing.T) {
	stepped(t, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		src.SetUnavailable("a", 0, true)
		src.Deliver("a", 0, -1)
		records(src, "a", 0, 10)
		src.SetUnavailable("a", 0, false)
		src.SetDelays(hubtest.Delays{AfterResolve: 100 * time.Millisecond})
		time.AfterFunc(50*time.Millisecond, func() { src.Deliver("a", 0, 0) })
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a"}, w)
		if got := s.Started().Partitions[0]; got.Start != 10 || got.End != 10 {
			t.Errorf("started at %+v, want 10 of 10", got)
		}
		records(src, "a", 0, 1)
		src.Deliver("a", 0, -1)
		if got := drainTo(t, s, w, 1)[0]; got != 1 {
			t.Errorf("%d records, want 1", got)
		}
	})
}

// TestGrowthAndReCreationInOneStretch: a reader that gains a partition finds its records also where the partition's log begins after them.
func TestGrowthAndReCreationInOneStretch(t *testing.T) {
	stepped(t, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 1)
		start := at(0)
		start.Missing = hub.MissingSkip
		w := newSignal()
		s := subscribe(t, h, hub.Request{Topic: "a", Start: start}, w)
		subscribe(t, h, hub.Request{Topic: "a"}, newSignal())
		src.Grow("a", 2)
		src.Deliver("a", 0, -1)
		synctest.Wait()
		src.CreateTopic("a", 2)
		records(src, "a", 1, 5)
		for p := range int32(2) {
			src.Deliver("a", p, -1)
		}
		if got := drainTo(t, s, w, 5)[1]; got != 5 {
			t.Errorf("%d records of the partition gained, want 5", got)
		}
	})
}

// TestRetentionUnderALiveReader: what is lost before it came is told, and the policy says where reading goes on.
func TestRetentionUnderALiveReader(t *testing.T) {
	for name, c := range map[string]struct {
		policy  hub.OutOfRange
		to      int64
		records int
	}{
		"earliest": {hub.OutOfRangeEarliest, 10, 10},
		"latest":   {hub.OutOfRangeLatest, 20, 0},
		"fail":     {hub.OutOfRangeFail, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			stepped(t, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
				src.CreateTopic("a", 1)
				w := newSignal()
				s := subscribe(t, h, hub.Request{Topic: "a", OnOutOfRange: c.policy}, w)
				rest(t, s, w)
				records(src, "a", 0, 20)
				src.Retain("a", 0, 10)
				src.Deliver("a", 0, -1)
				b, err := s.Pull(1 << 20)
				var outOfRange *hub.OffsetOutOfRangeError
				if c.policy == hub.OutOfRangeFail {
					if !errors.As(err, &outOfRange) || outOfRange.Offset != 0 || outOfRange.Oldest != 10 || outOfRange.End != 20 {
						t.Errorf("pull = %v, want out of range at 0 of [10, 20)", err)
					}
					return
				}
				if err != nil || len(b.Parts) == 0 || b.Parts[0].Reason != hub.GapRetention || b.Parts[0].From != 0 || b.Parts[0].Next != c.to {
					t.Fatalf("pull = %+v, %v; want a gap up to %d", b.Parts, err, c.to)
				}
				if b.Records != c.records {
					t.Errorf("%d records, want %d", b.Records, c.records)
				}
				records(src, "a", 0, 1)
				src.Deliver("a", 0, -1)
				drainTo(t, s, w, 1)
				if got := s.Positions(nil)[0].Offset; got != 21 {
					t.Errorf("position %d, want 21", got)
				}
			})
		})
	}
}

// TestDeletionWhileNothingIsFollowed: readers hear that their topic was deleted also when the one partition that they read was over before.
func TestDeletionWhileNothingIsFollowed(t *testing.T) {
	stepped(t, func(t *testing.T, h *hub.Hub, src *hubtest.Source) {
		src.CreateTopic("a", 3)
		s := subscribe(t, h, hub.Request{Topic: "a", Keys: [][]byte{[]byte("key-6")}}, newSignal())
		if got := src.Following("a"); len(got) != 1 || got[0] != 2 {
			t.Fatalf("partitions %v are followed, want 2 alone", got)
		}
		src.CreateTopic("a", 2)
		src.Deliver("a", 2, -1)
		src.DeleteTopic("a")
		for began := time.Now(); ; time.Sleep(time.Second) { //nolint:forbidigo // the bubble's clock
			synctest.Wait()
			_, err := s.Pull(1 << 20)
			if errors.Is(err, hub.ErrTopicDeleted) {
				return
			}
			if err != nil || time.Since(began) > time.Minute {
				t.Fatalf("pull = %v after %v, want that the topic was deleted", err, time.Since(began))
			}
		}
	})
}
