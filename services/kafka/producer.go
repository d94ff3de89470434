package kafka

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

const (
	drainBound    = 5 * time.Second // at shutdown, for acknowledgements under way
	purgeBound    = time.Second     // for the answers of what was given up then
	renewPause    = time.Second     // between attempts to open a producer
	tickEvery     = 100 * time.Millisecond
	leaderEvery   = 250 * time.Millisecond // between questions for leaders in doubt
	leaderTimeout = 2 * time.Second
	topicTimeout  = time.Second // for the producer to hear of a topic or of new partitions
	reportsAhead  = 4096        // delivery reports that may wait
)

// producer appends records. Its goroutine owns the client; another takes the delivery reports, a third asks for leaders in doubt.
type producer struct {
	client    *Client
	log       *slog.Logger
	m         *Metrics
	admission *admission
	fatal     chan *instance // an instance that a fatal error ended
	stopped   chan struct{}  // closed when run has ended: nothing is handed over any more

	// owned by run
	settings *confluent.ConfigMap
	taken    taken
	ending   sync.WaitGroup // instances that were replaced
	doubts   chan []string  // topics to ask for
	lookAt   time.Time
	renewAt  time.Time // not before

	live atomic.Pointer[instance] // written by run
}

func newProducer(c *Client) *producer {
	return &producer{
		client: c, log: c.log, m: c.metrics, admission: newAdmission(c.cfg.PublishBytes),
		fatal: make(chan *instance, 1), stopped: make(chan struct{}), doubts: make(chan []string, 1),
	}
}

func (p *producer) open(settings *confluent.ConfigMap) error {
	p.settings = settings
	return p.renew(map[string]acquaintance{})
}

func (p *producer) renew(met map[string]acquaintance) error {
	client, err := confluent.NewProducer(p.settings)
	if err != nil {
		return err
	}
	i := &instance{p: client, events: make(chan struct{}), met: met, replaced: make(chan struct{})}
	p.live.Store(i)
	go p.reports(i)
	return nil
}

// run hands records over until ctx ends, then waits for what is under way, within bounds, and closes the client.
func (p *producer) run(ctx context.Context) {
	defer close(p.stopped)
	var looking sync.WaitGroup
	looking.Go(func() { p.look(ctx) })
	defer looking.Wait()
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			for _, r := range p.admission.close() {
				p.refuse(r, draining)
			}
			p.end(p.live.Load(), drainBound)
			p.ending.Wait()
			return
		case <-p.admission.work:
			p.hand(time.Now())
		case now := <-tick.C:
			p.tick(now)
		case i := <-p.fatal:
			if i == p.live.Load() {
				retry = p.replace(i)
			}
		case <-retry:
			retry = p.replace(p.live.Load())
		}
	}
}

// replace opens a producer in place of one that a fatal error ended; what that one had under way is given up, with outcomes unknown. Where
// none can be opened it is to be tried again when retry fires; until then the ended one refuses all.
func (p *producer) replace(old *instance) (retry <-chan time.Time) {
	if err := p.renew(old.acquaintances()); err != nil {
		p.log.Error("open a new producer after a fatal error", "error", err, "again in", renewPause)
		return time.After(renewPause)
	}
	p.ending.Go(func() { p.end(old, 0) })
	return nil
}

// update opens a producer in place of one that is outdated. That one goes on with what it has under way; a partition's next records wait for
// that, which keeps their order.
func (p *producer) update(old *instance, now time.Time) *instance {
	if !old.outdated.Load() || now.Before(p.renewAt) {
		return old
	}
	p.renewAt = now.Add(renewPause)
	if err := p.renew(old.acquaintances()); err != nil {
		p.log.Error("open a new producer for a topic that was created anew", "error", err, "again in", renewPause)
		return old
	}
	p.log.Info("a new producer takes over: a topic was created anew")
	close(old.replaced)
	p.ending.Go(func() { p.end(old, drainBound) })
	return p.live.Load()
}

// meet makes sure that the producer knows a topic as it is now.
func (p *producer) meet(ctx context.Context, topic string, info *topicInfo) {
	for {
		i := p.live.Load()
		if i.meet(ctx, topic, info); !i.outdated.Load() {
			return
		}
		p.admission.signal()
		select {
		case <-i.replaced:
		case <-ctx.Done():
			return
		case <-p.stopped:
			return
		case <-time.After(2 * renewPause):
			return
		}
	}
}

// hand hands over what has its turn. librdkafka takes it without blocking.
func (p *producer) hand(now time.Time) {
	i := p.update(p.live.Load(), now)
	p.admission.reach(p.client.health.get().Up, now)
	if p.admission.take(now, i, &p.taken) {
		p.admission.signal()
	}
	for _, r := range p.taken.late {
		p.refuse(r, p.late(r))
	}
	for _, r := range p.taken.records {
		p.m.publishing.Add(float64(r.cost))
		i.under.Add(1)
		if err := i.p.Produce(r.message(), nil); err != nil {
			if r.report() {
				p.settle(r, produceFailure(err), false, true)
			}
			if codeOf(err) == confluent.ErrUnknownPartition {
				i.forget(r.topic)
			}
		}
	}
	clear(p.taken.records)
	clear(p.taken.late)
}

// tick refuses what waits for a leader that is gone, or has waited too long, and has leaders in doubt looked for.
func (p *producer) tick(now time.Time) {
	p.admission.reach(p.client.health.get().Up, now)
	refused, causes, suspects := p.admission.tick(now)
	for i, r := range refused {
		if causes[i] != nil {
			p.refuse(r, *causes[i])
		} else {
			p.refuse(r, p.late(r))
		}
	}
	p.m.doubtful.Set(float64(len(suspects)))
	if len(suspects) > 0 && !now.Before(p.lookAt) {
		p.lookAt = now.Add(leaderEvery)
		select {
		case p.doubts <- suspects:
		default: // it is asking
		}
	}
	if p.admission.more() {
		p.admission.signal()
	}
}

// look asks Kafka for the leaders of topics in doubt until ctx ends.
func (p *producer) look(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case topics := <-p.doubts:
			bounded, cancel := context.WithTimeout(ctx, leaderTimeout)
			infos, err := p.client.admin.describe(bounded, topics)
			cancel()
			if err != nil {
				p.log.Debug("look for leaders", "error", err) // health has said it
				continue
			}
			p.admission.learn(infos, time.Now())
		}
	}
}

// late is why a record was not handed over in time.
func (p *producer) late(r *pending) cause {
	now := time.Now()
	switch {
	case errors.Is(r.ctx.Err(), context.Canceled):
		return canceled
	case p.admission.slow(r, now):
		return silent
	case !p.client.Health().Up:
		return unavailable
	}
	return crowded
}

// refuse answers a record that was not handed over. It may have been answered by its caller.
func (p *producer) refuse(r *pending, why cause) {
	if r.state.CompareAndSwap(recordWaiting, recordOver) {
		p.tell(r, refusal(why))
	}
}

// tell gives a record's answer, unless it has one.
func (p *producer) tell(r *pending, a answer) {
	if r.told.CompareAndSwap(false, true) {
		p.m.told(a.outcome, r.began)
		r.done(a.result)
	}
}

// settle gives the answer of a record that was handed over, and room for the next.
func (p *producer) settle(r *pending, a answer, acked, settled bool) {
	p.m.publishing.Sub(float64(r.cost))
	p.admission.answered(r, acked, settled, time.Now())
	p.tell(r, a)
}

// reports takes the delivery reports of an instance until it is closed.
func (p *producer) reports(i *instance) {
	defer close(i.events)
	for e := range i.p.Events() {
		switch e := e.(type) {
		case *confluent.Message:
			if r, ok := e.Opaque.(*pending); ok && r.report() {
				p.report(r, e.TopicPartition)
			}
		case confluent.Error:
			p.failure(i, e)
		}
	}
}

func (p *producer) report(r *pending, at confluent.TopicPartition) {
	if at.Error == nil {
		p.settle(r, r.published(at), true, true)
		return
	}
	if code := codeOf(at.Error); code == confluent.ErrMsgSizeTooLarge || code == confluent.ErrRecordListTooLarge {
		p.admission.together(r, time.Now())
	}
	a := deliveryFailure(at.Error, r.wire, r.settings.maxBytes)
	p.settle(r, a, false, a.outcome == outcomeRefused)
}

func (p *producer) failure(i *instance, e confluent.Error) {
	switch {
	case e.IsFatal():
		p.log.Error("producer ended by a fatal error; a new one takes over", "code", e.Code().String(), "error", e)
		select {
		case p.fatal <- i:
		default:
		}
	case e.Code() == confluent.ErrAllBrokersDown:
		p.client.health.down(errNoBroker)
	default:
		p.log.Info("producer error", "code", e.Code().String(), "error", e)
	}
}

// end waits for the answers under way, gives up the rest, and closes the instance.
func (p *producer) end(i *instance, wait time.Duration) {
	i.await(wait)
	if n := i.under.Load(); n > 0 {
		p.log.Warn("giving up records without an acknowledgement", "records", n)
		if err := i.p.Purge(confluent.PurgeQueue | confluent.PurgeInFlight); err != nil {
			p.log.Error("purge the producer", "error", err)
		}
		i.await(purgeBound)
	}
	i.close(p.log)
	select {
	case <-i.events:
	case <-time.After(closeBound):
	}
	for _, r := range p.admission.owed(i) { // what never got a report
		if r.report() {
			p.settle(r, unknownOutcome("unavailable", "the producer ended before the acknowledgement"), false, false)
		}
	}
}
