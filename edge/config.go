package edge

import (
	"context"
	"errors"
	"fmt"
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/trace"
)

// Publisher appends records. It may be called concurrently.
type Publisher interface {
	// OpenPublish returns the way of one socket's records, which keeps their order within a partition. publish queues a record and never waits. tell is
	// called once for each, by its number, from another goroutine, soon after by at the latest; it does not block. With an error the record is certainly not in
	// the log. of is the context of the record's trace; nil: there is none. Number 0 tells that there was none for long. hangUp says that nothing follows: what was not sent is refused. When ctx ends, all
	// does.
	OpenPublish(ctx context.Context, tell func(n uint64, result *tailracev1.PublishResult, err error)) (
		publish func(n uint64, topic string, record *tailracev1.PublishRecord, by time.Time, of *trace.Parent), hangUp func())
	// Publish appends records to a topic in their order and returns one result for each, in the same order. It blocks until all have one or
	// ctx ends. With an error nothing was sent, so that no record is in the log; what may have been sent is told by results.
	Publish(ctx context.Context, topic string, records []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error)
}

// Consumer makes workers of consumer groups. It may be called concurrently.
type Consumer interface {
	// OpenConsume makes a worker, which has to have started at by. tell gets the messages of its stream one after the other, from another goroutine, and
	// then, once, why it is over. While it blocks, nothing more is received. send queues an ack or a nack, and never waits; it is false where too many
	// wait. waiting is about how many bytes those that wait take. hangUp says that the caller is gone: what was queued is sent, then what the worker
	// holds is free, and counts as failed if the caller was lost; tell must not block from then on. The end of ctx hangs up, too.
	OpenConsume(ctx context.Context, start *tailracev1.ConsumeStart, by time.Time, tell func(m *wirev1.ConsumeResponse, err error)) (
		send func(m *tailracev1.ConsumeRequest) bool, waiting func() int, hangUp func(lost bool))
}

// Config of a Server. Start from DefaultConfig.
type Config struct {
	AllowedHosts   []string // Host headers served besides localhost and loopback addresses; names without a port
	AllowedOrigins []string // Origins served besides the request's own host, such as "https://app.example.org"

	Workers       int // workers, each with a shard of the sessions and a poller; 0: GOMAXPROCS
	Subscribes    int // subscribes that are under way at once, at most half of them to one topic; more wait
	Publishes     int // the same of publishes by request; each costs a goroutine and an RPC
	PublishRate   int // publishes of one socket in a second, and by request of one address, twice as many in a burst; more are refused; 0: no such bound
	MaxSessions   int // open sockets and streams of events; more sockets are refused with 503, and more streams told to come back
	MaxPerAddress int // of them from one address, or one IPv6 network of 64 bits; more are refused with 429. 0: as many as MaxSessions
	MaxHandshakes int // connections whose request head is being read; more wait, and take the places of slow ones
	MaxRequests   int // connections that are neither; more are refused with 503. They idle for 5 s, and not at all once half are taken

	MaxSubscriptions int   // open subscriptions and consumes of one session
	MaxKeys          int   // of all of them together
	MaxMessageRate   int   // messages per second of one session, publishes aside; ten times as many may come at once
	MaxMessageBytes  int64 // one message from a client, fragments together
	MaxInputBytes    int64 // held of what clients sent, of all sockets that hold more than 4 KiB; one that wants more is closed, 4029

	HandshakeTimeout  time.Duration // from accept to the end of the request head
	SubscribeTimeout  time.Duration // from a subscribe to its answer, while the service is away
	PublishTimeout    time.Duration // for the answer to a publish; one that was not sent by then is refused
	HeartbeatInterval time.Duration // of pings and heartbeats
	LifeGrace         time.Duration // beyond two intervals: when a silent peer is given up
	StallTimeout      time.Duration // when a peer is given up that neither takes what waits for it nor says anything
	MessageTimeout    time.Duration // from the first byte of a client's message to its last
	UpstreamGrace     time.Duration // from the loss of the service to the end of the sockets, which then look for another edge; 0: never
	MaxConnectionAge  time.Duration // when a socket is sent to connect anew, up to a tenth sooner; 0: never
	CloseTimeout      time.Duration // from our close frame to the end of the connection
	DrainSpread       time.Duration // Drain closes the sessions over at least this time
	DrainRate         int           // sessions per second that Drain closes at most

	// Consumer makes the workers of consume; nil: that is answered with UNIMPLEMENTED.
	Consumer Consumer
	// UpstreamAvailable says whether the service can be reached; heartbeats tell where it cannot. It must not block. nil: always.
	UpstreamAvailable func() bool
	// UpstreamProblem says for people why what a client asked for is not to be had at the moment: the service is away, or what is behind it. It is
	// called where the error does not say it, and must not block. nil: what the error says.
	UpstreamProblem func() string

	// Tracer makes spans of publishes and of subscriptions' first records; nil: there are none.
	Tracer *trace.Tracer
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Subscribes:        512,
		Publishes:         2048,
		PublishRate:       5000,
		MaxSessions:       18000,
		MaxHandshakes:     1024,
		MaxRequests:       1024,
		MaxSubscriptions:  1000,
		MaxKeys:           10000,
		MaxMessageRate:    1000,
		MaxMessageBytes:   2 << 20,
		MaxInputBytes:     256 << 20,
		HandshakeTimeout:  10 * time.Second,
		SubscribeTimeout:  5 * time.Second,
		PublishTimeout:    30 * time.Second,
		HeartbeatInterval: 15 * time.Second,
		LifeGrace:         5 * time.Second,
		StallTimeout:      2 * time.Minute,
		MessageTimeout:    time.Minute,
		CloseTimeout:      5 * time.Second,
		DrainSpread:       5 * time.Second,
		DrainRate:         500,
	}
}

// Validate says what is wrong with c, all at once.
func (c *Config) Validate() error {
	var errs []error
	positive := func(name string, n int64) {
		if n <= 0 {
			errs = append(errs, fmt.Errorf("%s must be positive, not %d", name, n))
		}
	}
	positive("subscribes", int64(c.Subscribes))
	positive("publishes", int64(c.Publishes))
	positive("max sessions", int64(c.MaxSessions))
	positive("max handshakes", int64(c.MaxHandshakes))
	positive("max requests", int64(c.MaxRequests))
	positive("max subscriptions", int64(c.MaxSubscriptions))
	positive("max keys", int64(c.MaxKeys))
	positive("max message rate", int64(c.MaxMessageRate))
	positive("max message bytes", c.MaxMessageBytes)
	positive("max input bytes", c.MaxInputBytes)
	positive("drain rate", int64(c.DrainRate))
	positive("handshake timeout", int64(c.HandshakeTimeout))
	positive("subscribe timeout", int64(c.SubscribeTimeout))
	positive("publish timeout", int64(c.PublishTimeout))
	positive("heartbeat interval", int64(c.HeartbeatInterval))
	positive("message timeout", int64(c.MessageTimeout))
	positive("close timeout", int64(c.CloseTimeout))
	if c.PublishRate < 0 {
		errs = append(errs, fmt.Errorf("publish rate must not be negative, not %d", c.PublishRate))
	}
	if c.Workers < 0 {
		errs = append(errs, fmt.Errorf("workers must not be negative, not %d", c.Workers))
	}
	if c.MaxPerAddress < 0 || c.UpstreamGrace < 0 || c.MaxConnectionAge < 0 {
		errs = append(errs, errors.New("max per address, upstream grace and max connection age must not be negative"))
	}
	if c.LifeGrace < 0 || c.DrainSpread < 0 {
		errs = append(errs, errors.New("life grace and drain spread must not be negative"))
	}
	if c.HeartbeatInterval > 5*time.Minute {
		errs = append(errs, fmt.Errorf("heartbeat interval must be at most 5m, not %v", c.HeartbeatInterval))
	}
	if life := 2*c.HeartbeatInterval + c.LifeGrace; c.StallTimeout < life {
		errs = append(errs, fmt.Errorf("stall timeout must be at least two heartbeat intervals and the grace, %v, not %v", life, c.StallTimeout))
	}
	for _, o := range c.AllowedOrigins {
		if _, err := parseOrigin(o); err != nil {
			errs = append(errs, fmt.Errorf("allowed origin %q: %w", o, err))
		}
	}
	return errors.Join(errs...)
}
