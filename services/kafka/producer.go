package kafka

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"golang.org/x/sync/semaphore"
)

const (
	produceQueue = 256             // batches that wait for the producer's goroutine; more wait in their callers
	chunkCost    = 1 << 20         // what of a request is admitted at once
	drainBound   = 5 * time.Second // at shutdown, for acknowledgements under way
	purgeBound   = time.Second     // for the answers of what was given up then
	renewPause   = time.Second     // between attempts to open a producer
)

// producer appends records. Its goroutine owns the client; another takes the delivery reports. What callers have handed over is bounded by
// slots, far below librdkafka's own queue, which is shared by all topics: one partition without a leader must not fill it for everybody.
type producer struct {
	client  *Client
	log     *slog.Logger
	m       *Metrics
	slots   *semaphore.Weighted // bytes, with recordOverhead for each record
	queue   chan []*pending
	stopped chan struct{} // closed when run has ended: nothing is handed over any more

	// owned by run
	settings *confluent.ConfigMap
	live     *instance
	fatal    chan *instance // an instance that a fatal error ended
}

// instance is one librdkafka producer. A fatal error (an idempotent sequence that broke) ends it, and the next takes over.
type instance struct {
	p      *confluent.Producer
	out    atomic.Int64  // records without a delivery report
	events chan struct{} // closed when the last report was taken

	mu    sync.Mutex // guards the fields below
	cost  int64      // room that records without a report hold
	ended bool       // that room was given back: reports that come late give back nothing
}

// hold notes room that a record takes until its report; a negative cost is given back. It returns false once that is not the record's to do.
func (i *instance) hold(cost int64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.ended {
		i.cost += cost
	}
	return !i.ended
}

// letGo ends hold and returns what was held.
func (i *instance) letGo() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	return i.cost
}

func newProducer(c *Client) *producer {
	return &producer{
		client: c, log: c.log, m: c.metrics,
		slots:   semaphore.NewWeighted(c.cfg.PublishBytes),
		queue:   make(chan []*pending, produceQueue),
		stopped: make(chan struct{}),
		fatal:   make(chan *instance, 1),
	}
}

func (p *producer) open(settings *confluent.ConfigMap) error {
	p.settings = settings
	return p.renew()
}

func (p *producer) renew() error {
	client, err := confluent.NewProducer(p.settings)
	if err != nil {
		return err
	}
	i := &instance{p: client, events: make(chan struct{})}
	p.live = i
	go p.reports(i)
	return nil
}

// run hands records over until ctx ends, then waits for what is under way, within bounds, and closes the client.
func (p *producer) run(ctx context.Context) {
	defer close(p.stopped)
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			p.refuseQueued()
			p.end(p.live, drainBound)
			return
		case batch := <-p.queue:
			p.produce(batch)
		case i := <-p.fatal:
			if i != p.live {
				continue
			}
			retry = p.replace(i)
		case <-retry:
			retry = p.replace(p.live)
		}
	}
}

// replace opens a producer in place of one that a fatal error ended. Where that fails it is to be tried again when retry fires; until then the
// ended one refuses all.
func (p *producer) replace(old *instance) (retry <-chan time.Time) {
	if err := p.renew(); err != nil {
		p.log.Error("open a new producer after a fatal error", "error", err, "again in", renewPause)
		return time.After(renewPause)
	}
	p.end(old, 0)
	return nil
}

// refuseQueued answers what was not handed over yet.
func (p *producer) refuseQueued() {
	for {
		select {
		case batch := <-p.queue:
			for _, r := range batch {
				if r.state.CompareAndSwap(recordWaiting, recordOver) {
					p.settle(r, refusal(draining))
				}
			}
		default:
			return
		}
	}
}

// produce hands a batch over to librdkafka, which never blocks.
func (p *producer) produce(batch []*pending) {
	i := p.live
	for _, r := range batch {
		if !r.state.CompareAndSwap(recordWaiting, recordHanded) {
			p.release(r.cost) // its caller has left, and was told that it is refused
			continue
		}
		r.time = millis(time.Now())
		i.out.Add(1)
		i.hold(r.cost)
		if err := i.p.Produce(r.message(), nil); err != nil {
			i.out.Add(-1)
			i.hold(-r.cost)
			p.settle(r, produceFailure(err))
		}
	}
}

// reports takes the delivery reports of an instance until it is closed.
func (p *producer) reports(i *instance) {
	defer close(i.events)
	for e := range i.p.Events() {
		switch e := e.(type) {
		case *confluent.Message:
			r, ok := e.Opaque.(*pending)
			if !ok {
				continue
			}
			i.out.Add(-1)
			if i.hold(-r.cost) {
				p.release(r.cost)
			}
			if err := e.TopicPartition.Error; err != nil {
				r.of.answer(r, deliveryFailure(err, r.cost-recordOverhead, r.of.settings.maxBytes))
			} else {
				r.of.answer(r, r.published(e.TopicPartition))
			}
		case confluent.Error:
			p.failure(i, e)
		}
	}
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
		p.client.health.down(e)
	default:
		p.log.Info("producer error", "code", e.Code().String(), "error", e)
	}
}

// settle gives a record's answer and lets the next in. It is called once for each record that was admitted.
func (p *producer) settle(r *pending, a answer) {
	p.release(r.cost)
	r.of.answer(r, a)
}

func (p *producer) admit(ctx context.Context, cost int64) error {
	if err := p.slots.Acquire(ctx, cost); err != nil {
		return err
	}
	p.m.publishing.Add(float64(cost))
	return nil
}

func (p *producer) release(cost int64) {
	p.slots.Release(cost)
	p.m.publishing.Sub(float64(cost))
}

// end waits for the answers under way, gives up the rest, and closes the instance.
func (p *producer) end(i *instance, wait time.Duration) {
	i.await(wait)
	if i.out.Load() > 0 {
		p.log.Warn("giving up records without an acknowledgement", "records", i.out.Load())
		if err := i.p.Purge(confluent.PurgeQueue | confluent.PurgeInFlight); err != nil {
			p.log.Error("purge the producer", "error", err)
		}
		i.await(purgeBound)
	}
	closeBounded(p.log, "producer", i.p.Close)
	select {
	case <-i.events:
	case <-time.After(closeBound):
	}
	// What never got a report is told by its caller's own bound; only its room is given back here.
	if left := i.letGo(); left > 0 {
		p.release(left)
	}
}

func (i *instance) await(bound time.Duration) {
	for until := time.Now().Add(bound); i.out.Load() > 0 && time.Now().Before(until); {
		time.Sleep(5 * time.Millisecond)
	}
}
