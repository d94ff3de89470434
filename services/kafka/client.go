package kafka

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"sync/atomic"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// logLines is how many of librdkafka's log lines may wait; its threads then wait too.
const logLines = 1000

// Client is one Kafka cluster in all its roles: a hub.Source, a stream.Publisher, a stream.Topics, a stream.GroupAdmin. Its methods may be called
// concurrently, also before Run, and then wait for it within their context; after Run they answer hub.ErrDraining.
type Client struct {
	cfg       Config
	log       *slog.Logger
	process   string // its name
	metrics   *Metrics
	health    *health
	admin     *admin
	watcher   *watcher
	followers []*follower
	history   *history
	recent    recentBounds
	tails     *tails
	searches  chan struct{} // a slot for each step of a search that is read
	misplaced misplaced
	producer  *producer
	calls     atomic.Uint64 // of Publish
	burials   *slots        // for dead letters
	members   atomic.Int32  // of groups, here
	freed     chan struct{} // has a value when a member was closed since memory was given back

	logs    chan confluent.LogEvent // of all clients; made by Run
	ready   chan struct{}           // closed when the clients are open
	stopped chan struct{}           // closed when Run returns
}

var (
	_ hub.Source        = (*Client)(nil)
	_ group.Cluster     = (*Client)(nil)
	_ group.DeadLetters = (*Client)(nil)
)

// New returns an idle client; Run makes it work. A nil reg registers no metrics. The error is that of Config.Validate.
func New(cfg Config, logger *slog.Logger, reg prometheus.Registerer) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, log: logger, process: processName(), metrics: NewMetrics(reg), ready: make(chan struct{}), stopped: make(chan struct{})}
	c.health = newHealth(logger)
	c.admin = newAdmin(c.health)
	c.watcher = newWatcher(c)
	for n := range cfg.Consumers {
		c.followers = append(c.followers, newFollower(c, n))
	}
	c.history = newHistory(c, cfg.HistoryReaders)
	c.tails, c.searches = newTails(), make(chan struct{}, searching(cfg))
	c.producer = newProducer(c)
	c.burials = newSlots()
	c.freed = make(chan struct{}, 1)
	return c, nil
}

// Run opens the Kafka clients, serves until ctx ends, and closes them all before it returns. It is called once. The error is nil if ctx
// was the cause, else says which client could not be opened: a property is wrong. Kafka need not be there: it is waited for, for ever.
func (c *Client) Run(ctx context.Context) error {
	defer close(c.stopped)
	logs, quit := make(chan confluent.LogEvent, logLines), make(chan struct{})
	var draining sync.WaitGroup
	draining.Go(func() { drainLogs(ctx, logs, quit, c.log) })
	defer draining.Wait()
	defer close(quit) // not logs: a client that did not close may still send

	life, cancel := context.WithCancel(ctx)
	var roles sync.WaitGroup
	defer cancel()

	adminClient, err := confluent.NewAdminClient(c.cfg.admin(logs))
	if err != nil {
		c.abandon()
		return fmt.Errorf("open admin client, check -kafka.property: %w", err)
	}
	c.admin.open(life, adminClient)
	defer closeBounded(c.log, "admin", c.admin.close)
	defer c.burials.close()
	defer roles.Wait() // they ask it questions
	defer cancel()
	for i, f := range c.followers {
		f.open = func() (*confluent.Consumer, error) { return confluent.NewConsumer(c.cfg.follower(logs)) }
		if f.consumer, err = f.open(); err != nil {
			for _, open := range c.followers[:i] {
				closeBounded(c.log, "follower", func() { _ = open.consumer.Close() })
			}
			c.abandon()
			return fmt.Errorf("open consumer, check -kafka.property: %w", err)
		}
	}
	if err := c.producer.open(c.cfg.producer(logs)); err != nil {
		for _, f := range c.followers {
			closeBounded(c.log, "follower", func() { _ = f.consumer.Close() })
		}
		c.abandon()
		return fmt.Errorf("open producer, check -kafka.property: %w", err)
	}
	for _, f := range c.followers {
		roles.Go(func() { f.run(life) })
	}
	for _, r := range c.history.readers {
		r.open = func() (*confluent.Consumer, error) { return confluent.NewConsumer(c.cfg.reader(logs)) }
		roles.Go(func() { r.run(life) })
	}
	roles.Go(func() { c.producer.run(life) })
	roles.Go(func() { c.watcher.run(life) })
	roles.Go(func() { giveBack(life, c.freed) })
	c.logs = logs
	close(c.ready)
	<-ctx.Done()
	return nil
}

// abandon ends the roles that will never run, so that nobody waits for them.
func (c *Client) abandon() {
	for _, f := range c.followers {
		close(f.stopped)
	}
	for _, r := range c.history.readers {
		close(r.stopped)
	}
	close(c.producer.stopped)
}

// started waits until Run has opened the clients.
func (c *Client) started(ctx context.Context) error {
	select {
	case <-c.stopped:
		return hub.ErrDraining
	default:
	}
	select {
	case <-c.ready: // before a context that has ended: a record may be refused by its own result
		return nil
	default:
	}
	select {
	case <-c.ready:
		return nil
	case <-c.stopped:
		return hub.ErrDraining
	case <-ctx.Done():
		return fmt.Errorf("wait for the Kafka client: %w: %w", hub.ErrUnavailable, ctx.Err())
	}
}

// Reached is closed once Kafka has answered for the first time.
func (c *Client) Reached() <-chan struct{} { return c.health.reached }

// Health tells the current state.
func (c *Client) Health() Health { return c.health.get() }

// Follow is hub.Source's. One topic partition is followed by one at a time.
func (c *Client) Follow(t *hub.Topic, partition int32, from int64) (unfollow func()) {
	return c.follow(t, partition, from)
}

func (c *Client) follow(t appender, partition int32, from int64) (unfollow func()) {
	f := c.followers[0]
	if len(c.followers) > 1 {
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(t.Name()))
		f = c.followers[(sum.Sum32()+uint32(partition))%uint32(len(c.followers))]
	}
	c.watcher.add(f, t)
	end := f.follow(t, partition, from)
	return func() {
		end()
		c.watcher.drop(f, t)
	}
}

// ReadAt is hub.Source's. It reads whole stretches: only is not used. A partition that has no leader is hub.ErrUnavailable at once, one
// whose leader is silent after a second.
func (c *Client) ReadAt(ctx context.Context, id hub.ChunkID, to int64, limit int, _ *hub.Terms) (es []*hub.Entry, next int64, err error) {
	if err := c.started(ctx); err != nil {
		return nil, id.From, err
	}
	i, ok := c.admin.known(id.Topic)
	if ok && id.TopicID != "" && i.id != id.TopicID {
		return nil, id.From, foreign(id.Topic)
	}
	if ok && i.leaderless(id.Partition) {
		if i, err = c.look(ctx, id.Topic); err == nil && i.leaderless(id.Partition) {
			err = fmt.Errorf("%q partition %d has no leader: %w", id.Topic, id.Partition, hub.ErrUnavailable)
		}
		if err != nil {
			return nil, id.From, err
		}
	}
	es, next, err = c.history.readAt(ctx, id, to, limit)
	if errors.Is(err, errSilent) {
		_, _ = c.look(ctx, id.Topic) // so that the next reads know at once whether it has a leader
	}
	if i, ok := c.admin.known(id.Topic); err == nil && ok && id.TopicID != "" && i.id != id.TopicID {
		return nil, id.From, foreign(id.Topic)
	}
	return es, next, err
}

// foreign is the error of a read in a topic that is another by now; its follower tells so.
func foreign(topic string) error {
	return fmt.Errorf("topic %q was created anew: %w", topic, hub.ErrUnavailable)
}

// look makes sure that what is known of a topic is fresh, within the patience for a read. The error is hub.ErrUnavailable.
func (c *Client) look(ctx context.Context, topic string) (topicInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, readSilence)
	defer cancel()
	i, err := c.admin.topic(ctx, topic, infoAge)
	if err != nil && !errors.Is(err, hub.ErrUnavailable) {
		err = fmt.Errorf("%w: %w", hub.ErrUnavailable, err)
	}
	return i, err
}

// FiltersHistory is hub.Source's: Kafka knows no keys.
func (c *Client) FiltersHistory() bool { return false }
