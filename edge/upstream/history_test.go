package upstream_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

var chunkID = hub.ChunkID{Topic: "t", TopicID: "A", Partition: 0, From: 10}

func TestReadAtReadsOneChunk(t *testing.T) {
	for name, c := range map[string]struct {
		to    int64
		limit int
		step  step
		want  []string
		next  int64
	}{
		"up to an offset": {
			14, 100, ends(nil, started("A", 1, from(0, 10, 30)), records(12, 30, 10, 11), records(14, 30, 13)),
			[]string{"records[10,12) 10 11 end 30", "records[12,14) 13 end 30"}, 14,
		},
		"up to an offset, over holes": {
			20, 100, ends(nil, started("A", 1, from(0, 10, 30)), records(12, 30, 11), records(20, 30), caughtUp()),
			[]string{"records[10,12) 11 end 30"}, 20,
		},
		"up to an offset, over holes that nobody tells": {
			20, 100, ends(nil, started("A", 1, from(0, 10, 30)), records(12, 30, 11)),
			[]string{"records[10,12) 11 end 30"}, 20,
		},
		"up to the end below it": {
			20, 100, ends(nil, started("A", 1, from(0, 10, 15)), records(12, 15, 11)),
			[]string{"records[10,12) 11 end 15"}, 15,
		},
		"up to a number of records": {
			20, 2, ends(nil, started("A", 1, from(0, 10, 30)), records(13, 30, 10, 12)),
			[]string{"records[10,13) 10 12 end 30"}, 13,
		},
		"beyond an offset": {
			12, 100, says(started("A", 1, from(0, 10, 30)), records(16, 30, 10, 11, 12, 15), records(20, 30, 19)),
			[]string{"records[10,12) 10 11 end 30"}, 12,
		},
		"beyond an offset, over holes": {
			14, 100, says(started("A", 1, from(0, 10, 30)), records(20, 30, 15)),
			nil, 14,
		},
		"nothing but holes": {20, 100, ends(nil, started("A", 1, from(0, 10, 30))), nil, 20},
		"at the end":        {20, 100, ends(nil, started("A", 1, from(0, 10, 10))), nil, 10},
		"up to a gap": {
			20, 100, ends(nil, started("A", 1, from(0, 10, 30)), records(12, 30, 10, 11), gap(12, 15, tailracev1.GapReason_GAP_REASON_RETENTION), records(16, 30, 15)),
			[]string{"records[10,12) 10 11 end 30"}, 12,
		},
		"up to a loss": {
			20, 100, ends(errCut, started("A", 1, from(0, 10, 30)), records(12, 30, 10, 11)),
			[]string{"records[10,12) 10 11 end 30"}, 12,
		},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newScript(t, c.step)
			es, next, err := newSource(t, nil, svc.address).ReadAt(t.Context(), chunkID, c.to, c.limit, nil)
			var got []string
			for _, e := range es {
				got = append(got, short(e))
			}
			if err != nil || next != c.next || !slices.Equal(got, c.want) {
				t.Errorf("got %q, next %d, %v, want %q, %d", got, next, err, c.want, c.next)
			}
			m := svc.requests()[0]
			if m.GetTopicId() != "A" || !slices.Equal(m.GetPartitions(), []int32{0}) || m.GetStart().GetPositions().GetPositions()[0].GetOffset() != 10 ||
				m.GetStop().GetPositions()[0].GetOffset() != c.to || m.GetStop().GetRecords() != int64(c.limit) || m.GetStop().GetBytes() != 1<<20 ||
				!m.GetStop().GetAtEnd() || m.GetOnOutOfRange() != tailracev1.OutOfRangePolicy_OUT_OF_RANGE_POLICY_EARLIEST || m.Keys != nil {
				t.Errorf("asked %v", m)
			}
		})
	}
}

func TestReadAtTellsWhyNot(t *testing.T) {
	outside := &hub.OffsetOutOfRangeError{Topic: "t", Partition: 0, Offset: 10, Oldest: 15, End: 30}
	for name, c := range map[string]struct {
		step step
		want error
	}{
		"out of range": {ends(failure(connect.CodeOutOfRange, "OFFSET_OUT_OF_RANGE", map[string]string{
			"partition": "0", "offset": "10", "oldest": "15", "end": "30",
		})), outside},
		"out of range by started":  {ends(nil, started("A", 1, from(0, 15, 30)), records(16, 30, 15)), outside},
		"out of range by a gap":    {ends(nil, started("A", 1, from(0, 10, 30)), gap(10, 15, tailracev1.GapReason_GAP_REASON_RETENTION)), outside},
		"another log":              {ends(nil, started("B", 1, from(0, 10, 30)), records(11, 30, 10)), hub.ErrTopicDeleted},
		"deleted":                  {ends(failure(connect.CodeNotFound, "TOPIC_DELETED", nil)), hub.ErrTopicDeleted},
		"unavailable":              {ends(failure(connect.CodeUnavailable, "KAFKA_UNAVAILABLE", nil)), hub.ErrUnavailable},
		"cut":                      {ends(errCut), hub.ErrUnavailable},
		"no message":               {ends(nil), hub.ErrUnavailable},
		"records first":            {ends(nil, records(11, 30, 10)), hub.ErrUnavailable},
		"records of another place": {ends(nil, started("A", 1, from(0, 10, 30)), records(11, 30, 9)), hub.ErrUnavailable},
		"another partition":        {ends(nil, started("A", 1, from(1, 10, 30))), hub.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			svc := newScript(t, c.step)
			es, _, err := newSource(t, nil, svc.address).ReadAt(t.Context(), chunkID, 20, 100, nil)
			if es != nil || !errors.Is(err, c.want) && !reflect.DeepEqual(err, c.want) {
				t.Errorf("got %v, %v, want %v", es, err, c.want)
			}
		})
	}
	if _, _, err := newSource(t, nil, "127.0.0.1:1").ReadAt(t.Context(), chunkID, 20, 100, nil); !errors.Is(err, hub.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

func TestReadAtHasTheServiceFilter(t *testing.T) {
	terms := func(n int, key string) *hub.Terms {
		keys := map[string]struct{}{}
		for i := range n {
			keys[fmt.Sprintf("%s%d", key, i)] = struct{}{}
		}
		return &hub.Terms{Keys: keys}
	}
	svc := newScript(t, ends(nil, started("A", 1, from(0, 10, 30)), records(20, 30, 12)))
	source := newSource(t, nil, svc.address)
	long := make([]byte, 40<<10)
	for i, c := range []struct {
		only *hub.Terms
		keys int
	}{{nil, 0}, {&hub.Terms{}, 0}, {terms(2, "k"), 2}, {terms(1000, "k"), 1000}, {terms(1001, "k"), 0}, {terms(2, string(long)), 0}} {
		es, next, err := source.ReadAt(t.Context(), chunkID, 20, 100, c.only)
		if err != nil || next != 20 || len(es) != 1 || short(es[0]) != "records[10,20) 12 end 30" {
			t.Errorf("got %v, %d, %v", es, next, err)
		}
		if m := svc.requests()[i]; len(m.GetKeys()) != c.keys || m.GetKeyScope() != tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS {
			t.Errorf("asked %d keys, want %d", len(m.GetKeys()), c.keys)
		}
	}
}
