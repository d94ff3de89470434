package frame

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// Bounds of a subscription, as in tailrace.v1.SubscribeRequest.
const (
	maxPartitions = 10_000
	maxKeys       = 1_000
	maxHeaders    = 1_000
	maxKeyBytes   = 64 << 10
	maxLast       = 100_000
)

func parseSubscribe(o *object) *Subscribe {
	s := &Subscribe{ID: o.id()}
	r := &s.Request
	r.Topic = o.required("topic")
	r.TopicID, _ = o.text("topicId")
	r.Keys = o.keys()
	r.Partitions = o.partitions()
	r.Start = o.start()
	r.Stop = o.until()
	r.OnOutOfRange = choice(o, "onOutOfRange", outOfRanges())
	r.Slow = choice(o, "slow", slowPolicies())
	s.As = choice(o, "as", forms())
	if n, ok := o.number("maxRecordBytes", 0, math.MaxInt32); ok {
		r.MaxRecordBytes = int(n)
	}
	return s
}

func (o *object) keys() [][]byte {
	elements, ok := o.array("keys")
	if !ok {
		return nil
	}
	if !o.count("keys", len(elements), maxKeys) {
		return nil
	}
	keys := make([][]byte, 0, len(elements))
	total := 0
	for i, raw := range elements {
		key, ok := o.bytesOf(fmt.Sprintf("keys.%d", i), raw)
		if total += len(key); !ok || total > maxKeyBytes {
			o.wrong("keys", fmt.Sprintf("must have at most %d bytes in all", maxKeyBytes))
			return nil
		}
		keys = append(keys, key)
	}
	return keys
}

func (o *object) partitions() []int32 {
	elements, ok := o.array("partitions")
	if !ok {
		return nil
	}
	if !o.count("partitions", len(elements), maxPartitions) {
		return nil
	}
	ps := make([]int32, 0, len(elements))
	for _, raw := range elements {
		n, ok := o.numberOf("partitions", raw, 0, math.MaxInt32)
		if !ok {
			return nil
		}
		ps = append(ps, int32(n))
	}
	return ps
}

// count refuses a list that is empty, since it would mean everything, or too long: that is not looked at any further, as a message has room for
// a million elements.
func (o *object) count(name string, n, most int) bool {
	switch {
	case n == 0:
		o.wrong(name, "must not be empty; leave it out for all")
	case n > most:
		o.wrong(name, fmt.Sprintf("must have at most %d elements", most))
	}
	return 0 < n && n <= most
}

// start takes "latest", "earliest", {"positions":…,"missing":…}, {"time":…} or {"last":…}.
func (o *object) start() hub.Start {
	raw := o.take("start")
	if raw == nil {
		return hub.Start{}
	}
	if raw[0] == '"' {
		word, ok := o.textOf("start", raw)
		kind, known := starts()[word]
		if ok && !known {
			o.wrong("start", `must be "latest", "earliest", {"positions":…}, {"time":…} or {"last":…}`)
		}
		return hub.Start{Kind: kind}
	}
	sub := o.objectOf("start", raw)
	if sub == nil {
		return hub.Start{}
	}
	var s hub.Start
	given := 0
	if ps := sub.object("positions"); ps != nil {
		given++
		s.Kind, s.Positions = hub.AtPositions, ps.positions()
		s.Missing = choice(sub, "missing", missings())
	}
	if text, ok := sub.text("time"); ok {
		given++
		s.Kind, s.Time = hub.AtTime, sub.time("time", text)
	}
	if n, ok := sub.number("last", 1, maxLast); ok {
		given++
		s.Kind, s.Last = hub.Last, int(n)
	}
	sub.refuseRest()
	if given != 1 {
		o.wrong("start", "exactly one of positions, time and last is required")
	}
	return s
}

// until takes "end", {"positions":…} or {"records":…}.
func (o *object) until() hub.Stop {
	raw := o.take("until")
	if raw == nil {
		return hub.Stop{}
	}
	if raw[0] == '"' {
		if word, ok := o.textOf("until", raw); ok && word != "end" {
			o.wrong("until", `must be "end", {"positions":…} or {"records":…}`)
		}
		return hub.Stop{AtEnd: true}
	}
	sub := o.objectOf("until", raw)
	if sub == nil {
		return hub.Stop{}
	}
	var s hub.Stop
	given := 0
	if ps := sub.object("positions"); ps != nil {
		given++
		s.Positions = ps.positions()
	}
	if n, ok := sub.number("records", 1, maxNumber); ok {
		given++
		s.Records = n
	}
	sub.refuseRest()
	if given != 1 {
		o.wrong("until", "exactly one of positions and records is required")
	}
	return s
}

// positions reads {"0":12,"1":[40,3]}: the next offset, or that and the leader epoch of the record before it.
func (o *object) positions() []hub.Position {
	if len(o.members) == 0 || len(o.members) > maxPartitions {
		o.fail.set(o.path[:len(o.path)-1], fmt.Sprintf("must name 1 to %d partitions", maxPartitions))
		return nil
	}
	ps := make([]hub.Position, 0, len(o.members))
	for i := range o.members {
		m := &o.members[i]
		partition, ok := parsePartition(m.name)
		if !ok {
			o.wrong(clip(m.name), "is not a partition")
			return nil
		}
		p := hub.Position{Partition: partition, Epoch: -1}
		if m.raw[0] != '[' {
			p.Offset, _ = o.numberOf(m.name, m.raw, 0, maxNumber)
			ps = append(ps, p)
			continue
		}
		pair, _ := o.arrayOf(m.name, m.raw)
		if len(pair) != 2 {
			o.wrong(m.name, "must be an offset, or [offset, leader epoch]")
			return nil
		}
		p.Offset, _ = o.numberOf(m.name, pair[0], 0, maxNumber)
		epoch, _ := o.numberOf(m.name, pair[1], 0, math.MaxInt32)
		p.Epoch = int32(epoch)
		ps = append(ps, p)
	}
	return ps
}

func (o *object) time(name, text string) time.Time {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		o.wrong(name, "must be a time such as 2026-11-30T12:00:00Z (RFC 3339)")
	}
	return t
}

// parsePartition reads a partition as it stands in a name: digits without leading zeros.
func parsePartition(s string) (int32, bool) {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, false
	}
	return int32(n), true
}

// choice takes one of several words; the zero value where there is none.
func choice[T any](o *object, name string, words map[string]T) (v T) {
	s, ok := o.text(name)
	if !ok {
		return v
	}
	v, known := words[s]
	if !known {
		o.wrong(name, "must be one of "+sortedWords(words))
	}
	return v
}
