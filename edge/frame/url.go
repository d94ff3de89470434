package frame

import (
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"tailrace.dev/tailrace/services/hub"
)

// ParseURL reads the URL form: /ws/{topic}?start=latest&key=… It makes the subscription with the id "0". Repeatable are key, keyBase64 and
// partition; at most one of start, positions, time and last may be given. Unknown parameters are refused by name.
func ParseURL(topic, rawQuery string) (*Subscribe, *Error) {
	q, bad := parseQuery("subscribe", URLID, rawQuery)
	if bad != nil {
		return nil, bad
	}
	return parseURL(topic, q)
}

// parseQuery refuses what url.URL.Query would leave out without a word.
func parseQuery(re, id, raw string) (url.Values, *Error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, Invalid(re, id, "", "the query is malformed: "+strings.ToValidUTF8(err.Error(), "\uFFFD"))
	}
	return q, nil
}

func parseURL(topic string, q url.Values) (*Subscribe, *Error) {
	u := &query{s: &Subscribe{ID: URLID, Request: hub.Request{Topic: topic}}}
	if topic == "" || !utf8.ValidString(topic) {
		u.fail.set("topic", "is required")
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		values := q[name]
		if len(values) > 1 && name != "key" && name != "keyBase64" && name != "partition" {
			u.fail.set(clip(name), "is given twice")
		}
		for _, v := range values {
			u.parameter(name, v)
		}
	}
	if n := len(u.s.Request.Keys); n > maxKeys || u.keyBytes > maxKeyBytes {
		u.fail.set("key", fmt.Sprintf("at most %d keys of %d bytes in all", maxKeys, maxKeyBytes))
	}
	if len(u.s.Request.Partitions) > maxPartitions {
		u.fail.set("partition", fmt.Sprintf("at most %d", maxPartitions))
	}
	if u.starts > 1 {
		u.fail.set("start", "at most one of start, positions, time and last may be given")
	}
	if u.fail.problem != "" {
		return nil, Invalid("subscribe", URLID, strings.ToValidUTF8(u.fail.field, "\uFFFD"), u.fail.problem)
	}
	return u.s, nil
}

// ParseEventsURL is ParseURL for /sse/{topic}?… It also reads where the client was: by lastEventId, a parameter for clients that can't set headers, and
// by the header Last-Event-ID, which is newer. A start in the URL is that of the first time: it does not count then. With id.Done there is
// nothing to subscribe to.
func ParseEventsURL(topic, rawQuery string, header []string) (_ *Subscribe, id EventID, _ *Error) {
	q, bad := parseQuery("subscribe", URLID, rawQuery)
	if bad != nil {
		return nil, id, bad
	}
	const name = "lastEventId"
	last := ""
	if values, given := q[name]; given {
		if len(values) > 1 {
			return nil, id, Invalid("subscribe", URLID, name, "is given twice")
		}
		last = values[0]
		q = maps.Clone(q)
		delete(q, name)
	}
	if len(header) > 0 && header[len(header)-1] != "" {
		last = header[len(header)-1]
	}
	s, bad := parseURL(topic, q)
	if bad != nil || last == "" {
		return s, id, bad
	}
	at, err := ParseEventID(last)
	if err != nil {
		return nil, id, Invalid("subscribe", URLID, name, err.Error())
	}
	if s.Request.Keys != nil { // the partitions are those of the first time, and of those that were added
		s.Request.KeyScope = hub.KeyScopeHashed
		if k := s.Request.Start.Kind; k == hub.Earliest || k == hub.AtTime {
			s.Request.KeyScope = hub.KeyScopeAll
		}
	}
	s.Request.TopicID, s.Request.Start = at.TopicID, hub.Start{Kind: hub.AtPositions, Positions: at.Positions}
	return s, *at, nil
}

type query struct {
	s        *Subscribe
	fail     fault
	starts   int
	keyBytes int
}

func (u *query) parameter(name, v string) {
	r := &u.s.Request
	switch name {
	case "key":
		u.key([]byte(v))
	case "keyBase64":
		key, err := decodeBase64(strings.ReplaceAll(v, " ", "+")) // a plus that was not escaped
		if err != nil {
			u.fail.set(name, err.Error())
		}
		u.key(key)
	case "partition":
		p, ok := parsePartition(v)
		if !ok {
			u.fail.set(name, "must be a partition")
		}
		r.Partitions = append(r.Partitions, p)
	case "start":
		u.starts++
		r.Start.Kind = word(u, name, v, starts())
	case "positions":
		u.starts++
		r.Start.Kind, r.Start.Positions = hub.AtPositions, u.positions(v)
	case "time":
		u.starts++
		t, err := time.Parse(time.RFC3339, strings.ReplaceAll(v, " ", "+")) // a plus that was not escaped
		if err != nil {
			u.fail.set(name, "must be a time such as 2026-11-30T12:00:00Z (RFC 3339)")
		}
		r.Start.Kind, r.Start.Time = hub.AtTime, t
	case "last":
		u.starts++
		n, ok := digits(v)
		if !ok || n < 1 || n > maxLast {
			u.fail.set(name, fmt.Sprintf("must be an integer from 1 to %d", maxLast))
		}
		r.Start.Kind, r.Start.Last = hub.Last, int(n)
	case "until":
		r.Stop.AtEnd = true
		if v != "end" {
			u.fail.set(name, "must be end")
		}
	case "topicId":
		if r.TopicID = v; v == "" || !utf8.ValidString(v) {
			u.fail.set(name, "must be as started told it")
		}
	case "maxRecordBytes":
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil || n < 0 {
			u.fail.set(name, fmt.Sprintf("must be an integer from 0 to %d", math.MaxInt32))
		}
		r.MaxRecordBytes = int(n)
	case "as":
		u.s.As = word(u, name, v, forms())
	case "slow":
		r.Slow = word(u, name, v, slowPolicies())
	case "onOutOfRange":
		r.OnOutOfRange = word(u, name, v, outOfRanges())
	default:
		u.fail.set(clip(name), "unknown parameter")
	}
}

func (u *query) key(key []byte) {
	u.keyBytes += len(key)
	u.s.Request.Keys = append(u.s.Request.Keys, key)
}

// positions reads 0:12,1:40:3, where 3 is the leader epoch of the record before.
func (u *query) positions(v string) []hub.Position {
	var ps []hub.Position
	seen := make(map[int32]struct{})
	for part := range strings.SplitSeq(v, ",") {
		partition, at, _ := strings.Cut(part, ":")
		offset, epoch, hasEpoch := strings.Cut(at, ":")
		p, ok := parsePartition(partition)
		n, number := digits(offset)
		pos := hub.Position{Partition: p, Offset: n, Epoch: -1}
		if hasEpoch {
			var known bool
			pos.Epoch, known = parsePartition(epoch) // written as one is
			ok = ok && known
		}
		_, twice := seen[p]
		if !ok || twice || !number || n > maxNumber || len(ps) == maxPartitions {
			u.fail.set("positions", "must be like 0:12,1:40 or 0:12:5, each partition once; the third is a leader epoch")
			return nil
		}
		seen[p] = struct{}{}
		ps = append(ps, pos)
	}
	return ps
}

// digits reads a number that has no sign and no leading zeros.
func digits(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}

func word[T any](u *query, name, v string, words map[string]T) T {
	t, known := words[v]
	if !known {
		u.fail.set(name, "must be one of "+sortedWords(words))
	}
	return t
}
