package kafka

import (
	"math/rand/v2"
	"time"
)

// age is for how long the leader has owed an answer.
func (l *lane) age(now time.Time) time.Duration {
	if len(l.out) == 0 {
		return 0
	}
	since := l.out[0].time
	for _, t := range []time.Time{l.leaderSince, l.heard} {
		if t.After(since) {
			since = t
		}
	}
	return now.Sub(since)
}

// gone says why publishing here is refused at once; nil: it is not. What is with librdkafka goes on being tried, so an answer ends it, or
// another leader. Where nothing is, one record tries, unless all of Kafka is away: librdkafka would keep it until its time is over, and nobody
// could say then that it was not sent. away is since when it is.
func (l *lane) gone(now, away time.Time) *cause {
	switch {
	case !away.IsZero() && now.Sub(away) >= leaderPatience:
		return &unavailable
	case now.Before(l.young):
		return nil
	case l.missing:
		return &unknownTopic
	case l.leader < 0 && now.Sub(l.leaderSince) >= leaderPatience:
		return &leaderless
	case l.age(now) >= leaderPatience:
		return &silent
	}
	return nil
}

// learn takes what Kafka said of the topic, unless it has said something since: whoever publishes may have what is a second old.
func (l *lane) learn(i *topicInfo, now time.Time) {
	if i.at.Before(l.said) {
		return
	}
	l.said = i.at
	if l.missing = i.missing || l.partition >= i.count; l.missing {
		return
	}
	if leader := i.leaders[l.partition]; l.leader != leader {
		l.leader, l.leaderSince = leader, now
	}
}

// learn takes what Kafka says of topics that records wait for.
func (a *admission) learn(infos []topicInfo, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := make(map[string]*topicInfo, len(infos))
	for i := range infos {
		of[infos[i].name] = &infos[i]
	}
	for id, l := range a.lanes {
		if i := of[id.topic]; i != nil && i.err == nil {
			l.learn(i, now)
		}
	}
	a.signal()
}

// reach takes whether any broker of Kafka answers.
func (a *admission) reach(up bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !up && a.away.IsZero():
		a.away = now
	case up && !a.away.IsZero():
		a.away = time.Time{}
		a.signal()
	}
}

// answered counts a record out that librdkafka has told the outcome of. acked: it was acknowledged; settled: the broker has judged it.
func (a *admission) answered(p *pending, acked, settled bool, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := p.lane
	if p.answered {
		return
	}
	p.answered = true
	a.handed -= p.cost
	l.handed -= p.cost
	l.wire -= p.wire
	for len(l.out) > 0 && l.out[0].answered {
		l.out[0] = nil
		l.out = l.out[1:]
	}
	l.wary = !acked && (l.wary || !settled)
	if settled {
		l.heard = now
	}
	if l.queued {
		a.signal()
	}
}

// owed lists what an instance was given and nothing was told of.
func (a *admission) owed(by *instance) (left []*pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.lanes {
		for _, p := range l.out {
			if p.via == by && !p.answered {
				left = append(left, p)
			}
		}
	}
	return left
}

// more says whether records wait.
func (a *admission) more() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.turns) > 0
}

// together notes that a batch of several was too large for the broker, whose limit is not what was thought.
func (a *admission) together(p *pending, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.lane.alone = now.Add(aloneTime)
}

// tick takes out what must not wait any longer, with the cause of each, and names the topics whose leaders are in doubt.
func (a *admission) tick(now time.Time) (refused []*pending, causes []*cause, suspects []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	doubtful := map[string]bool{}
	for id, l := range a.lanes {
		why := l.gone(now, a.away)
		for _, f := range l.flows {
			for len(f.queue) > 0 && (why != nil || f.queue[0].late(now)) {
				p := a.pop(f)
				refused, causes = append(refused, p), append(causes, why)
			}
			a.letIn(f)
		}
		l.tidy()
		switch {
		case len(l.turns) > 0 || len(l.out) > 0:
		case now.Sub(l.used) > laneIdle:
			delete(a.lanes, id)
			continue
		}
		if l.leader < 0 || l.age(now) >= suspectAfter || l.missing || !a.away.IsZero() && len(l.turns) > 0 {
			doubtful[id.topic] = true
		}
	}
	for topic := range doubtful {
		suspects = append(suspects, topic)
	}
	for topic, s := range a.sticky {
		if now.Sub(s.until) > laneIdle {
			delete(a.sticky, topic)
		}
	}
	return refused, causes, suspects
}

func (p *pending) late(now time.Time) bool {
	return p.state.Load() != recordWaiting || now.After(p.by) || p.ctx.Err() != nil
}

// tidy forgets flows without records.
func (l *lane) tidy() {
	left := l.turns[:0]
	for _, f := range l.turns {
		if len(f.queue) > 0 {
			left = append(left, f)
		} else {
			delete(l.flows, f.caller)
		}
	}
	clear(l.turns[len(left):])
	l.turns = left
}

// close refuses what waits, and whatever comes.
func (a *admission) close() (refused []*pending) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	for _, l := range a.lanes {
		for _, f := range l.flows {
			for len(f.queue) > 0 {
				refused = append(refused, a.pop(f))
			}
		}
		l.tidy()
	}
	return refused
}

// lively says that a partition was published to a moment ago and its leader answers: nothing need be asked.
func (a *admission) lively(topic string, partition int32, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.lanes[laneID{topic, partition}]
	return l != nil && l.leader >= 0 && !l.missing && now.Sub(l.used) < 5*time.Second && l.age(now) < suspectAfter && !l.wary
}

// slow says that a partition's leader has not answered for a while.
func (a *admission) slow(p *pending, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := p.lane
	return l != nil && (l.leader < 0 || l.age(now) >= suspectAfter)
}

// choose is the partition of a record that may lie in any: one whose leader is there.
func (a *admission) choose(topic string, info *topicInfo, cost int64, now time.Time) int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.sticky[topic]
	if s == nil {
		s = &sticky{}
		a.sticky[topic] = s
	}
	if s.bytes -= cost; s.bytes < 0 || now.After(s.until) || s.partition >= info.count || !a.well(topic, s.partition, info, now) {
		s.bytes, s.until = stickyBytes, now.Add(stickyTime)
		first := rand.Int32N(info.count) //nolint:gosec // spreads load, guards nothing
		s.partition = first
		for i := range info.count {
			if p := (first + i) % info.count; a.well(topic, p, info, now) {
				s.partition = p
				break
			}
		}
	}
	return s.partition
}

// well says that nothing is known against a partition's leader.
func (a *admission) well(topic string, partition int32, info *topicInfo, now time.Time) bool {
	l := a.lanes[laneID{topic, partition}]
	if l == nil {
		return info.leaders[partition] >= 0
	}
	return l.leader >= 0 && !l.wary && l.age(now) < suspectAfter
}
