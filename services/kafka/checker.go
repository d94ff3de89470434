package kafka

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"tailrace.dev/tailrace/services/hub"
)

// How often and how long partitions are looked at.
const (
	checkEvery     = 500 * time.Millisecond // while something is unavailable or in doubt
	checkTimeout   = 2 * time.Second        // for each of its two steps
	beyondInterval = 500 * time.Millisecond // between the two times that the leader must say so
	stuckAfter     = 2                      // reports of statistics: they may be older than an assignment
)

// checker finds out what is wrong with a follower's partitions, because librdkafka's errors do not say: an out-of-range error names no
// partition and stops that one for ever, and one whose topic lost its leader is silent. The state belongs to the follower's goroutine; each
// check is a goroutine of its own, one at a time, and its findings come back as a command.
type checker struct {
	wanted  bool
	running bool
	doubt   bool // a partition awaits a second look
	next    time.Time
	group   sync.WaitGroup
}

func (c *checker) wait() { c.group.Wait() }

// suspect is a partition as it stood when a check began.
type suspect struct {
	p     *followed
	next  int64
	epoch int32 // leader epoch of the record before next
	stuck bool
}

// finding is what the leader says of a partition.
type finding struct {
	suspect
	oldest, end int64 // end: last stable offset
	high        int64 // high watermark, -1 where nobody asked
	lost        int64 // offsets below next that are of a branch which the log has lost, as far as asked
	err         error
}

// check starts a check if one is due.
func (f *follower) check(ctx context.Context) {
	c := &f.checker
	if c.running || len(f.parts) == 0 || !c.wanted && f.unhappy == 0 && !c.doubt {
		return
	}
	now := time.Now()
	if now.Before(c.next) {
		return
	}
	c.wanted, c.running, c.doubt = false, true, false
	c.next = now.Add(checkEvery)
	var lost []*followed
	suspects := make([]suspect, 0, len(f.parts))
	for _, p := range f.parts {
		if p.gone || p.barred {
			continue
		}
		if !p.assigned {
			lost = append(lost, p)
		}
		suspects = append(suspects, suspect{p: p, next: p.next, epoch: p.epoch, stuck: p.stuck})
	}
	f.assign(lost)
	c.group.Go(func() {
		findings := f.client.inspect(ctx, suspects)
		f.send(command{found: func() { f.judge(findings) }})
	})
}

// inspect asks the leaders of partitions where their logs begin and end, and looks at the topics' ids first: a position in the log of a
// topic that was created anew means nothing. Each leader is asked by itself: one that does not answer says nothing of the others' partitions.
func (c *Client) inspect(ctx context.Context, suspects []suspect) []finding {
	look, cancel := context.WithTimeout(ctx, checkTimeout)
	c.watcher.look(look)
	cancel()
	ctx, cancel = context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	byLeader := map[int32]map[string][]suspect{}
	var out []finding
	for _, s := range suspects {
		leader := int32(-1)
		if i, ok := c.admin.known(s.p.key.topic); ok && int(s.p.key.partition) < len(i.leaders) {
			if leader = i.leaders[s.p.key.partition]; leader < 0 {
				out = append(out, finding{suspect: s, high: -1, err: errLeaderless})
				continue
			}
		}
		if byLeader[leader] == nil {
			byLeader[leader] = map[string][]suspect{}
		}
		byLeader[leader][s.p.key.topic] = append(byLeader[leader][s.p.key.topic], s)
	}
	found := make(chan []finding, len(byLeader))
	for _, topics := range byLeader {
		go func() { found <- c.inspectLeader(ctx, topics) }()
	}
	for range byLeader {
		out = append(out, <-found...)
	}
	return out
}

// inspectLeader asks one leader about its partitions, by topic.
func (c *Client) inspectLeader(ctx context.Context, topics map[string][]suspect) []finding {
	var out []finding
	for topic, ss := range topics {
		partitions := make([]int32, len(ss))
		for i, s := range ss {
			partitions[i] = s.p.key.partition
		}
		bounds, err := c.admin.bounds(ctx, topic, partitions, c.cfg.Isolation)
		for _, s := range ss {
			b := bounds[s.p.key.partition]
			fd := finding{suspect: s, oldest: b.oldest, end: b.end, high: -1, err: b.err}
			if err != nil {
				fd.err = err
			}
			if fd.err == nil && s.next > b.end {
				fd.high, fd.err = c.admin.highWatermark(ctx, topic, s.p.key.partition)
			}
			if fd.err == nil && s.stuck && s.next <= b.end { // the log may have lost its end and grown again, which stops librdkafka
				i, _ := c.admin.known(topic)
				fd.lost, fd.err = c.lost(ctx, topic, i.id, s.p.key.partition, s.next, s.epoch, b)
			}
			out = append(out, fd)
		}
	}
	return out
}

// judge acts on findings. A partition that moved since the check began lives, whatever the check says.
func (f *follower) judge(findings []finding) {
	f.checker.running = false
	var lost []string
	var why error
	for _, fd := range findings {
		p := fd.p
		if f.parts[p.key] != p || p.gone || p.barred || p.next != fd.next {
			continue
		}
		switch {
		case fd.err != nil:
			if !p.away {
				lost, why = append(lost, p.key.String()), fd.err
			}
			f.unavailable(p)
			continue
		case p.next < fd.oldest:
			f.lose(p, hub.GapRetention, fd.oldest, fd.end)
		case fd.lost > 0:
			f.lose(p, hub.GapTruncation, p.next-fd.lost, fd.end)
		case fd.high >= 0 && p.next > fd.high:
			// Another replica may have been ahead when this position was made: only the second such answer counts.
			if p.beyond.IsZero() {
				p.beyond = time.Now()
			}
			if time.Since(p.beyond) < beyondInterval {
				f.checker.doubt = true
				continue
			}
			f.lose(p, hub.GapTruncation, fd.end, fd.end)
		default:
			p.beyond = time.Time{}
			if fd.stuck {
				f.log.Warn("partition had stopped, fetching again", "topic", p.key.topic, "partition", p.key.partition, "offset", p.next)
				f.reassign(p)
			}
		}
		p.stuck = false
		p.end = max(p.end, fd.end)
		f.touch(p)
	}
	if n := len(lost); n > 0 {
		slices.Sort(lost)
		f.log.Warn("partitions are unavailable", "count", n, "first", lost[:min(n, 5)], "error", why, "advice", "their readers wait; see that the brokers that lead them run")
	}
}

// lose tells that offsets are gone and goes on where the log does.
func (f *follower) lose(p *followed, reason hub.GapReason, to, end int64) {
	f.log.Warn("offsets are missing", "topic", p.key.topic, "partition", p.key.partition, "from", p.next, "to", to, "reason", reason)
	f.flush()
	e := p.jump(hub.Gap, to, end)
	e.Reason = reason
	f.reassign(p)
	f.emit(p, e)
}

// statistics is the part of librdkafka's statistics that is of interest (its STATISTICS.md).
type statistics struct {
	Topics map[string]struct {
		Partitions map[string]struct {
			Partition  int32  `json:"partition"`
			FetchState string `json:"fetch_state"`
			LSO        int64  `json:"ls_offset"`
			High       int64  `json:"hi_offset"`
		} `json:"partitions"`
	} `json:"topics"`
}

// stats takes a report of librdkafka's, half a megabyte for 400 partitions: too long to be decoded between two records.
func (f *follower) stats(text string) {
	f.checker.group.Go(func() {
		var s statistics
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			f.log.Error("decode statistics", "error", err)
			return
		}
		f.send(command{found: func() { f.compare(&s) }})
	})
}

// compare looks for partitions that should be fetched and are not, and takes the ends of those that lag.
func (f *follower) compare(s *statistics) {
	for topic, t := range s.Topics {
		for _, sp := range t.Partitions {
			p := f.parts[key{topic, sp.Partition}] // never the internal partition -1
			if p == nil || p.gone || !p.assigned || time.Since(p.assignedAt) < stuckAfter*f.client.cfg.StatsInterval {
				continue
			}
			switch sp.FetchState {
			case "none", "stopping", "stopped":
				p.stuck = true
				f.checker.wanted = true
			}
			f.hold(p, sp.LSO, sp.High)
			if sp.LSO > p.end && p.end >= 0 {
				p.end = sp.LSO
				if !p.dirty { // not touch: an old number is no sign of life
					p.dirty = true
					f.dirty = append(f.dirty, p)
				}
			}
		}
	}
}

// isOutOfRange says whether an error event is that of a position outside the log.
func isOutOfRange(e confluent.Error) bool {
	return e.Code() == confluent.ErrAutoOffsetReset || e.Code() == confluent.ErrOffsetOutOfRange
}
