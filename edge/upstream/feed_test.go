package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	"tailrace.dev/tailrace/edge/upstream"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// short is an entry as tests write it.
func short(e *hub.Entry) string {
	s := fmt.Sprintf("[%d,%d)", e.From, e.Next)
	switch e.Kind {
	case hub.Records:
		for _, m := range e.Meta {
			s += fmt.Sprintf(" %d", m.Offset)
		}
		return fmt.Sprintf("records%s end %d", s, e.End)
	case hub.Advance:
		return fmt.Sprintf("advance%s end %d", s, e.End)
	case hub.Gap:
		return fmt.Sprintf("gap%s reason %d", s, e.Reason)
	case hub.Recreated:
		if e.Count > 0 {
			s += fmt.Sprintf(" of %d", e.Count)
		}
		return fmt.Sprintf("recreated%s %s", s, e.TopicID)
	case hub.Topology:
		return fmt.Sprintf("topology %d", e.Count)
	case hub.Deleted:
		return "deleted"
	case hub.Unavailable:
		return "unavailable"
	case hub.Available:
		return "available"
	}
	return fmt.Sprintf("kind %d", e.Kind)
}

// follow follows partition 0 of a topic with the id A and one partition from offset 10, until want was told, or for ever with something else.
func follow(t *testing.T, s *upstream.Source, want ...string) *told {
	t.Helper()
	topic := &told{id: "A", count: 1}
	unfollow := s.FollowTopic(topic, 0, 10)
	var got []string
	eventuallyOr(t, func() bool {
		got = nil
		for _, e := range topic.entries() {
			if e.Partition != 0 {
				t.Errorf("entry of partition %d", e.Partition)
			}
			got = append(got, short(e))
		}
		return len(got) >= len(want)
	})
	unfollow()
	if n := len(topic.entries()); n > len(got) {
		got = append(got, fmt.Sprintf("and %d more", n-len(got)))
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
	return topic
}

// eventuallyOr goes on after a long time, too: the comparison then says what is missing.
func eventuallyOr(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience / 3); !ok() && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
}

var errCut = connect.NewError(connect.CodeInternal, errors.New("cut"))

func TestAFeedTellsWhatTheStreamTells(t *testing.T) {
	svc := newScript(t, says(
		started("A", 1, from(0, 10, 12)),
		records(12, 12, 10, 11),
		caughtUp(),
		records(15, 20),
		records(15, 21),
		gap(15, 18, tailracev1.GapReason_GAP_REASON_RETENTION),
		records(21, 21, 18, 20),
		topology(3),
		beat(nil, 0),
		beat(nil, 0),
		beat([]*tailracev1.Position{{Partition: 0, Offset: 25}}),
		gap(25, 22, tailracev1.GapReason_GAP_REASON_TRUNCATION),
		records(23, 23, 22),
	))
	follow(t, newSource(t, nil, svc.address),
		"records[10,12) 10 11 end 12", "advance[12,15) end 20", "advance[15,15) end 21", "gap[15,18) reason 1", "records[18,21) 18 20 end 21", "topology 3",
		"unavailable", "available", "advance[21,25) end -1", "gap[25,22) reason 2", "records[22,23) 22 end 23")
	m := svc.requests()[0]
	if m.GetTopic() != "t" || m.GetTopicId() != "A" || !slices.Equal(m.GetPartitions(), []int32{0}) || len(m.GetKeys()) != 0 ||
		m.GetStart().GetPositions().GetPositions()[0].GetOffset() != 10 || m.GetStart().GetPositions().GetMissing() != tailracev1.MissingPosition_MISSING_POSITION_SKIP ||
		m.GetOnOutOfRange() != tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_EARLIEST {
		t.Errorf("asked %v", m)
	}
}

func TestALostFeedResumesAtItsPosition(t *testing.T) {
	for name, err := range map[string]error{
		"internal": errCut, "draining": failure(connect.CodeUnavailable, "DRAINING", nil), "without an error": nil,
		"kafka": failure(connect.CodeUnavailable, "KAFKA_UNAVAILABLE", nil), "forbidden": failure(connect.CodePermissionDenied, "FORBIDDEN", nil),
	} {
		t.Run(name, func(t *testing.T) {
			svc := newScript(t,
				ends(err, started("A", 1, from(0, 10, 12)), records(12, 12, 10, 11)),
				ends(err),
				says(started("A", 1, from(0, 12, 14)), records(14, 14, 12, 13)),
			)
			follow(t, newSource(t, nil, svc.address), "records[10,12) 10 11 end 12", "unavailable", "available", "records[12,14) 12 13 end 14")
			p := svc.requests()[2].GetStart().GetPositions().GetPositions()[0]
			if p.GetOffset() != 12 || p.GetLeaderEpoch() != 3 || p.LeaderEpoch == nil {
				t.Errorf("asked for %v", p)
			}
		})
	}
}

func TestAFeedSurvivesTheServicesAbsence(t *testing.T) {
	svc := newScript(t, says(started("A", 1, from(0, 10, 12)), records(12, 12, 10, 11)))
	source := newSource(t, nil, svc.address)
	topic := &told{id: "A", count: 1}
	unfollow := source.FollowTopic(topic, 0, 10)
	defer unfollow()
	count := func(n int) func() bool { return func() bool { return len(topic.entries()) >= n } }
	eventually(t, "records", count(1))
	eventually(t, "it is seen", source.Available)
	svc.close()
	eventually(t, "unavailable", count(2))
	eventually(t, "its absence is seen", func() bool { return !source.Available() })
	svc.steps = []step{says(started("A", 1, from(0, 12, 14)), records(14, 14, 12, 13))}
	svc.listen(t, svc.address)
	eventually(t, "available and records", count(4))
	eventually(t, "its presence is seen", source.Available)
	for i, want := range []string{"records[10,12) 10 11 end 12", "unavailable", "available", "records[12,14) 12 13 end 14"} {
		if got := short(topic.entries()[i]); got != want {
			t.Errorf("entry %d: got %s, want %s", i, got, want)
		}
	}
}

func TestAMissingStretchIsToldWhereverItBecomesKnown(t *testing.T) {
	for name, c := range map[string]struct {
		ms   []*tailracev1.SubscribeResponse
		want []string
	}{
		"retention while away": {
			[]*tailracev1.SubscribeResponse{started("A", 1, from(0, 15, 20)), gap(10, 15, tailracev1.GapReason_GAP_REASON_START), records(16, 20, 15)},
			[]string{"gap[10,15) reason 1", "records[15,16) 15 end 20"},
		},
		"truncation while away": {
			[]*tailracev1.SubscribeResponse{started("A", 1, from(0, 4, 6)), gap(10, 4, tailracev1.GapReason_GAP_REASON_START), records(5, 6, 4)},
			[]string{"gap[10,4) reason 2", "records[4,5) 4 end 6"},
		},
		"without a gap": {
			[]*tailracev1.SubscribeResponse{started("A", 1, from(0, 15, 20)), records(16, 20, 15)},
			[]string{"gap[10,15) reason 1", "records[15,16) 15 end 20"},
		},
		"without records": {
			[]*tailracev1.SubscribeResponse{started("A", 1, from(0, 15, 20)), beat(nil)},
			[]string{"gap[10,15) reason 1"},
		},
		"while it cannot be read": {
			[]*tailracev1.SubscribeResponse{started("A", 1, from(0, 15, 20)), beat(nil, 0), gap(10, 15, tailracev1.GapReason_GAP_REASON_RETENTION), records(16, 20, 15)},
			[]string{"unavailable", "gap[10,15) reason 1", "available", "records[15,16) 15 end 20"},
		},
		"growth while away": {
			[]*tailracev1.SubscribeResponse{started("A", 4, from(0, 10, 20)), records(11, 20, 10)},
			[]string{"topology 4", "records[10,11) 10 end 20"},
		},
		"made anew while away": {
			[]*tailracev1.SubscribeResponse{started("B", 1, from(0, 0, 2)), gap(10, 0, tailracev1.GapReason_GAP_REASON_RECREATED), records(1, 2, 0)},
			[]string{"recreated[10,0) of 1 B", "records[0,1) 0 end 2"},
		},
		"made anew while away, beyond the position": {
			[]*tailracev1.SubscribeResponse{started("B", 1, from(0, 10, 20)), gap(10, 15, tailracev1.GapReason_GAP_REASON_RECREATED), records(16, 20, 15)},
			[]string{"recreated[10,15) of 1 B", "records[15,16) 15 end 20"},
		},
		"made anew while away, without a gap": {
			[]*tailracev1.SubscribeResponse{started("B", 1, from(0, 0, 2)), records(1, 2, 0)},
			[]string{"recreated[10,0) of 1 B", "records[0,1) 0 end 2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			follow(t, newSource(t, nil, newScript(t, says(c.ms...)).address), c.want...)
		})
	}
}

func TestATopicMadeAnewUnderTheFeedIsToldWithItsNewID(t *testing.T) {
	anew := func(to int64, id string) *tailracev1.SubscribeResponse {
		m := gap(11, to, tailracev1.GapReason_GAP_REASON_RECREATED)
		m.GetGap().TopicId = id
		return m
	}
	t.Run("within the stream", func(t *testing.T) {
		svc := newScript(t, says(started("A", 1, from(0, 10, 11)), records(11, 11, 10), anew(5, "B"), records(6, 9, 5)))
		follow(t, newSource(t, nil, svc.address), "records[10,11) 10 end 11", "recreated[11,5) B", "records[5,6) 5 end 9")
	})
	t.Run("and resumed in the new log", func(t *testing.T) {
		svc := newScript(t,
			ends(errCut, started("A", 1, from(0, 10, 11)), records(11, 11, 10), anew(2, "B")),
			says(started("B", 1, from(0, 2, 4)), records(3, 4, 2)),
		)
		follow(t, newSource(t, nil, svc.address), "records[10,11) 10 end 11", "recreated[11,2) B", "unavailable", "available", "records[2,3) 2 end 4")
		if m := svc.requests()[1]; m.GetTopicId() != "B" || m.GetStart().GetPositions().GetPositions()[0].GetOffset() != 2 {
			t.Errorf("asked %v", m)
		}
	})
	t.Run("without its id", func(t *testing.T) {
		svc := newScript(t,
			says(started("A", 1, from(0, 10, 11)), records(11, 11, 10), anew(0, "")),
			says(started("B", 1, from(0, 0, 2)), records(1, 2, 0)),
		)
		follow(t, newSource(t, nil, svc.address), "records[10,11) 10 end 11", "unavailable", "available", "recreated[11,0) of 1 B", "records[0,1) 0 end 2")
	})
}

func TestADeletedTopicEndsItsFeed(t *testing.T) {
	gone := failure(connect.CodeNotFound, "TOPIC_DELETED", nil)
	unknown := failure(connect.CodeNotFound, "UNKNOWN_TOPIC", nil)
	hasty := func(c *upstream.Config) { c.UnknownAfter = 50 * time.Millisecond }

	svc := newScript(t, ends(gone, started("A", 1, from(0, 10, 10))))
	follow(t, newSource(t, nil, svc.address), "deleted")

	svc = newScript(t, ends(errCut, started("A", 1, from(0, 10, 10))), ends(unknown))
	follow(t, newSource(t, hasty, svc.address), "unavailable", "deleted")

	missing := failure(connect.CodeNotFound, "UNKNOWN_PARTITION", nil)
	svc = newScript(t, ends(missing))
	follow(t, newSource(t, hasty, svc.address), "unavailable", "deleted")
	// Or it has grown, and this replica has not heard of it.
	svc = newScript(t, ends(missing), ends(missing), says(started("A", 1, from(0, 10, 11)), records(11, 11, 10)))
	follow(t, newSource(t, nil, svc.address), "unavailable", "available", "records[10,11) 10 end 11")

	// A service that has just started does not know it yet.
	svc = newScript(t, ends(unknown), ends(unknown), says(started("A", 1, from(0, 10, 11)), records(11, 11, 10)))
	follow(t, newSource(t, nil, svc.address), "unavailable", "available", "records[10,11) 10 end 11")
}

// TestATopicMadeAnewWithFewerPartitionsIsTold: while the feed was away, under it, or so that its own partition is not there any more.
func TestATopicMadeAnewWithFewerPartitionsIsTold(t *testing.T) {
	anew := gap(10, 0, tailracev1.GapReason_GAP_REASON_RECREATED)
	anew.GetGap().TopicId = "B"
	topology := &tailracev1.SubscribeResponse{Event: &tailracev1.SubscribeResponse_Topology{Topology: &tailracev1.Topology{Partitions: 2, TopicId: "B"}}}
	over := failure(connect.CodeNotFound, "UNKNOWN_PARTITION", map[string]string{"topic_id": "B", "count": "2"})
	for name, c := range map[string]struct {
		steps []step
		want  []string
	}{
		"while away":            {[]step{says(started("B", 2, from(0, 0, 2)), records(1, 2, 0))}, []string{"recreated[10,0) of 2 B", "records[0,1) 0 end 2"}},
		"the number comes last": {[]step{says(started("A", 4, from(0, 10, 10)), anew, topology)}, []string{"recreated[10,0) B", "topology 2"}},
		"the number comes first": {
			[]step{says(started("A", 4, from(0, 10, 10)), topology, anew, records(1, 2, 0))}, []string{"recreated[10,0) of 2 B", "records[0,1) 0 end 2"},
		},
		"the partition is over": {[]step{ends(over, started("A", 4, from(0, 10, 10)))}, []string{"recreated[10,0) of 2 B"}},
	} {
		t.Run(name, func(t *testing.T) {
			topic := &told{id: "A", count: 4}
			unfollow := newSource(t, nil, newScript(t, c.steps...).address).FollowTopic(topic, 0, 10)
			eventually(t, "it is told", func() bool { return len(topic.entries()) >= len(c.want) })
			unfollow()
			var got []string
			for _, e := range topic.entries() {
				got = append(got, short(e))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestAMalformedStreamIsOpenedAnew(t *testing.T) {
	good := says(started("A", 1, from(0, 10, 11)), records(11, 11, 10))
	for name, bad := range map[string][]*tailracev1.SubscribeResponse{
		"no started":              {records(11, 11, 10)},
		"no message":              {},
		"started elsewhere":       {started("A", 1, from(1, 10, 11))},
		"started nowhere":         {started("A", 1)},
		"records of another one":  {started("A", 1, from(0, 10, 11)), recordsOf(1, 11, 11, 10)},
		"records told before":     {started("A", 1, from(0, 10, 11)), records(10, 11, 9)},
		"a position that is past": {started("A", 1, from(0, 10, 11)), records(9, 11)},
		"offsets that fall":       {started("A", 1, from(0, 10, 11)), records(12, 12, 11, 10)},
		"a gap of another one": {started("A", 1, from(0, 10, 11)), {Event: &tailracev1.SubscribeResponse_Gap{
			Gap: &tailracev1.Gap{Partition: 1, From: 10, To: 11, Reason: tailracev1.GapReason_GAP_REASON_RETENTION},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newScript(t, ends(nil, bad...), good)
			follow(t, newSource(t, nil, svc.address), "unavailable", "available", "records[10,11) 10 end 11")
		})
	}
}

func TestASilentStreamIsOpenedAnew(t *testing.T) {
	svc := newScript(t, says(started("A", 1, from(0, 10, 11))), says(started("A", 1, from(0, 10, 11)), records(11, 11, 10)))
	follow(t, newSource(t, func(c *upstream.Config) { c.Heartbeat = 30 * time.Millisecond }, svc.address),
		"unavailable", "available", "records[10,11) 10 end 11")
}

func TestUnfollowWaitsForTheLastAppend(t *testing.T) {
	var ms []*tailracev1.SubscribeResponse
	ms = append(ms, started("A", 1, from(0, 10, 10)))
	for o := int64(10); o < 2000; o++ {
		ms = append(ms, records(o+1, o+1, o))
	}
	svc := newScript(t, says(ms...))
	source := newSource(t, nil, svc.address)
	for range 20 {
		topic := &told{id: "A", count: 1}
		unfollow := source.FollowTopic(topic, 0, 10)
		eventually(t, "a record", func() bool { return len(topic.entries()) > 0 })
		unfollow()
		n := len(topic.entries())
		<-time.After(time.Millisecond)
		if more := len(topic.entries()); more != n {
			t.Fatalf("%d entries came after unfollow", more-n)
		}
	}
	// Of a service that is not there, too, and of one that never answers.
	source = newSource(t, nil, "127.0.0.1:1")
	source.FollowTopic(&told{id: "A", count: 1}, 0, 10)()
	mute := newScript(t, func(ctx context.Context, _ *tailracev1.SubscribeRequest, _ *subscribing) error {
		<-ctx.Done()
		return ctx.Err()
	})
	source = newSource(t, nil, mute.address)
	unfollow := source.FollowTopic(&told{id: "A", count: 1}, 0, 10)
	eventually(t, "it was asked", func() bool { return len(mute.requests()) > 0 })
	unfollow()
}

func TestAFeedGoesWhereAServiceAnswers(t *testing.T) {
	one := newScript(t, says(started("A", 1, from(0, 10, 11)), records(11, 11, 10)))
	two := newScript(t, says(started("A", 1, from(0, 10, 11)), records(11, 11, 10)))
	source := newSource(t, nil, one.address, two.address)
	eventually(t, "it is seen", source.Available)
	for p := range int32(20) {
		topic := &told{id: "A", count: 1}
		unfollow := source.FollowTopic(topic, p, 10)
		eventually(t, "a try", func() bool { return len(one.requests())+len(two.requests()) > int(p) })
		unfollow()
	}
	if n, m := len(one.requests()), len(two.requests()); n == 0 || m == 0 {
		t.Errorf("the feeds went to one service alone: %d, %d", n, m)
	}
	one.close()
	for p := range int32(20) {
		before := len(two.requests())
		topic := &told{id: "A", count: 1}
		unfollow := source.FollowTopic(topic, p, 10)
		eventually(t, "the other service was asked", func() bool { return len(two.requests()) > before })
		unfollow()
	}
}
