package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"golang.org/x/sync/singleflight"

	"tailrace.dev/tailrace/services/hub"
)

const (
	// adminTimeout bounds one question to Kafka, whatever the caller's deadline.
	adminTimeout = 10 * time.Second
	// adminCalls is how many questions are under way at once; more wait.
	adminCalls = 32
	// controllerPatience is how long the controller may be silent before another is looked for.
	controllerPatience = 300 * time.Millisecond
	// infoAge is for how long what is known of a topic answers a Resolve without a question.
	infoAge = time.Second
	// leaderAge is for how long a partition that had no leader is not asked for.
	leaderAge = 2 * time.Second
	// infoTopics bounds the cache; past it, it starts anew.
	infoTopics = 10_000
)

var errLeaderless = errors.New("no leader")

// topicInfo is what Kafka says of a topic.
type topicInfo struct {
	name    string
	id      string
	count   int32
	leaders []int32 // by partition, -1 without one
	missing bool    // there is no such topic
	err     error   // another reason why nothing is known
	at      time.Time
}

// leaderless says that a partition has no leader. Of one that is not there it says nothing.
func (i *topicInfo) leaderless(partition int32) bool {
	return int(partition) < len(i.leaders) && i.leaders[partition] < 0
}

// admin asks questions. Its methods may be called concurrently.
type admin struct {
	health *health
	slots  chan struct{}
	once   singleflight.Group

	// gate is held for reading during a call of the client: it must not be closed meanwhile, and ListOffsets would not notice.
	gate   sync.RWMutex
	client *confluent.AdminClient // nil: closed or not open yet
	life   context.Context        // ends when the client is about to be closed

	mu    sync.Mutex
	infos map[string]topicInfo
	set   map[string]topicSettings

	asking sync.WaitGroup // questions that outlive their askers
}

func newAdmin(h *health) *admin {
	return &admin{health: h, slots: make(chan struct{}, adminCalls), infos: map[string]topicInfo{}, set: map[string]topicSettings{}}
}

// open takes a client whose calls end with ctx.
func (a *admin) open(ctx context.Context, c *confluent.AdminClient) {
	a.gate.Lock()
	defer a.gate.Unlock()
	a.client, a.life = c, ctx
}

func (a *admin) close() {
	a.gate.Lock()
	defer a.gate.Unlock()
	a.asking.Wait()
	if a.client != nil {
		a.client.Close()
		a.client = nil
	}
}

// call runs one question within the bounds, and takes its answer for the state of Kafka.
func (a *admin) call(ctx context.Context, what string, ask func(context.Context, *confluent.AdminClient, time.Duration) error) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	select {
	case a.slots <- struct{}{}:
		defer func() { <-a.slots }()
	case <-ctx.Done():
		return fmt.Errorf("%s: %w: %w", what, hub.ErrUnavailable, ctx.Err())
	}
	a.gate.RLock()
	defer a.gate.RUnlock()
	if a.client == nil {
		return fmt.Errorf("%s: %w", what, hub.ErrDraining)
	}
	defer context.AfterFunc(a.life, cancel)()
	deadline, _ := ctx.Deadline()
	err := ask(ctx, a.client, max(time.Until(deadline), time.Millisecond))
	switch {
	case err == nil:
		a.health.up()
		return nil
	case ctx.Err() == nil: // else the caller may just have been impatient
		a.health.doubt(err)
	}
	return fmt.Errorf("%s: %w: %w", what, hub.ErrUnavailable, err)
}

// ping asks for nothing but an answer.
func (a *admin) ping(ctx context.Context) {
	_ = a.call(ctx, "ping", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		defer a.nudge(c)()
		_, err := c.DescribeCluster(ctx, confluent.SetAdminRequestTimeout(limit))
		return err
	})
}

// nudge makes the client look for the controller for as long as a question to it is under way: until done. librdkafka puts some questions to
// the controller alone, which is any broker, and when that one dies it would wait for it for minutes, were there no metadata that names another.
func (a *admin) nudge(c *confluent.AdminClient) (done func()) {
	quit := make(chan struct{})
	a.asking.Go(func() {
		tick := time.NewTicker(controllerPatience)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
				_, _ = c.GetMetadata(nil, false, int(time.Second/time.Millisecond))
			}
		}
	})
	return func() { close(quit) }
}

// describe asks about topics: one answer for each name, in any order.
func (a *admin) describe(ctx context.Context, names []string) ([]topicInfo, error) {
	var out []topicInfo
	err := a.call(ctx, "describe topics", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		defer a.nudge(c)()
		r, err := c.DescribeTopics(ctx, confluent.NewTopicCollectionOfTopicNames(names), confluent.SetAdminRequestTimeout(limit))
		if err != nil {
			return err
		}
		for _, d := range r.TopicDescriptions {
			out = append(out, newTopicInfo(d))
		}
		return nil
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.infos) > infoTopics {
		clear(a.infos)
	}
	for _, i := range out {
		if i.missing || i.err != nil {
			delete(a.infos, i.name)
		} else {
			a.infos[i.name] = i
		}
	}
	return out, err
}

// topicID makes of librdkafka's base64 the URL-safe one in which Kafka's own tools print ids.
var topicID = strings.NewReplacer("+", "-", "/", "_")

func newTopicInfo(d confluent.TopicDescription) topicInfo {
	i := topicInfo{name: d.Name, at: time.Now()}
	switch d.Error.Code() {
	case confluent.ErrNoError:
	case confluent.ErrUnknownTopicOrPart, confluent.ErrUnknownTopic, confluent.ErrUnknownTopicID, confluent.ErrTopicException:
		i.missing = true
		return i
	default:
		i.err = d.Error
		return i
	}
	i.id, i.count = topicID.Replace(d.TopicID.String()), int32(len(d.Partitions))
	i.leaders = make([]int32, len(d.Partitions))
	for n := range i.leaders {
		i.leaders[n] = -1
	}
	for _, p := range d.Partitions {
		if p.Leader != nil && p.Partition < len(i.leaders) {
			i.leaders[p.Partition] = int32(p.Leader.ID)
		}
	}
	return i
}

// topic tells what is known of a topic: an answer of at most age ago, else a fresh one, for which all who ask at once wait together.
func (a *admin) topic(ctx context.Context, name string, age time.Duration) (topicInfo, error) {
	if !hub.LegalTopic(name) {
		return topicInfo{}, fmt.Errorf("topic %q: %w", name, hub.ErrUnknownTopic)
	}
	i, ok := a.known(name)
	if ok && time.Since(i.at) <= age {
		return i, nil
	}
	answer := a.once.DoChan(name, func() (any, error) {
		// Not the first asker's context: its end is not the others'.
		is, err := a.describe(context.WithoutCancel(ctx), []string{name})
		if err != nil {
			return topicInfo{}, err
		}
		for _, i := range is {
			if i.name == name {
				return i, nil
			}
		}
		return topicInfo{name: name, missing: true}, nil
	})
	select {
	case r := <-answer:
		if r.Err != nil {
			return topicInfo{}, r.Err
		}
		i, _ = r.Val.(topicInfo) // what else could it be
	case <-ctx.Done():
		return topicInfo{}, fmt.Errorf("describe topic %q: %w: %w", name, hub.ErrUnavailable, ctx.Err())
	}
	switch {
	case i.missing:
		return i, fmt.Errorf("topic %q: %w", name, hub.ErrUnknownTopic)
	case isCode(i.err, confluent.ErrTopicAuthorizationFailed):
		return i, forbidden(fmt.Sprintf("see topic %q", name), "topic")
	case i.err != nil:
		return i, fmt.Errorf("describe topic %q: %w: %w", name, hub.ErrUnavailable, i.err)
	}
	return i, nil
}

// known returns the last answer about a topic, however old.
func (a *admin) known(name string) (topicInfo, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i, ok := a.infos[name]
	return i, ok
}

// logBounds is where a partition's log begins and ends (last stable offset).
type logBounds struct {
	oldest, end int64
	epoch       int32 // the newest leader epoch, -1 unknown
	err         error
}

// bounds asks the leaders for both ends of partitions, in one round trip: two questions at once.
func (a *admin) bounds(ctx context.Context, topic string, partitions []int32, isolation Isolation) (map[int32]logBounds, error) {
	var oldest, end map[int32]offset
	var oldestErr, endErr error
	var both sync.WaitGroup
	both.Go(func() {
		oldest, oldestErr = a.offsets(ctx, topic, partitions, confluent.EarliestOffsetSpec, ReadUncommitted)
	})
	end, endErr = a.offsets(ctx, topic, partitions, confluent.LatestOffsetSpec, isolation)
	both.Wait()
	if err := errors.Join(oldestErr, endErr); err != nil {
		return nil, err
	}
	out := make(map[int32]logBounds, len(partitions))
	for _, p := range partitions {
		o, e := oldest[p], end[p]
		out[p] = logBounds{oldest: o.offset, end: e.offset, epoch: e.epoch, err: errors.Join(o.err, e.err)}
	}
	return out, nil
}

func (a *admin) highWatermark(ctx context.Context, topic string, partition int32) (int64, error) {
	os, err := a.offsets(ctx, topic, []int32{partition}, confluent.LatestOffsetSpec, ReadUncommitted)
	if err != nil {
		return -1, err
	}
	return os[partition].offset, os[partition].err
}

type offset struct {
	offset int64 // -1: none, for a time after the last record
	epoch  int32 // leader epoch there, -1 unknown
	err    error
}

// offsets looks up one offset in each partition. Those that have no leader are not asked for: librdkafka would answer for the others only when
// the time is up, and its handling of that is fragile (confluentinc/librdkafka#4605). Unless told the isolation, ListOffsets would answer with the high watermark.
func (a *admin) offsets(ctx context.Context, topic string, partitions []int32, spec confluent.OffsetSpec, isolation Isolation) (map[int32]offset, error) {
	level := confluent.IsolationLevelReadCommitted
	if isolation == ReadUncommitted {
		level = confluent.IsolationLevelReadUncommitted
	}
	want := make(map[confluent.TopicPartition]confluent.OffsetSpec, len(partitions))
	out := make(map[int32]offset, len(partitions))
	i, ok := a.known(topic)
	fresh := ok && time.Since(i.at) < leaderAge
	for _, p := range partitions {
		if fresh && i.leaderless(p) {
			out[p] = offset{offset: -1, epoch: -1, err: errLeaderless}
			continue
		}
		want[confluent.TopicPartition{Topic: &topic, Partition: p}] = spec
		out[p] = offset{offset: -1, epoch: -1, err: errors.New("no answer for the partition")}
	}
	if len(want) == 0 {
		return out, nil
	}
	err := a.call(ctx, "list offsets", func(ctx context.Context, c *confluent.AdminClient, limit time.Duration) error {
		ask := func() (stale bool, err error) {
			r, err := c.ListOffsets(ctx, want, confluent.SetAdminRequestTimeout(limit), confluent.SetAdminIsolationLevel(level))
			if err != nil {
				return false, err
			}
			return take(out, r, spec)
		}
		stale, err := ask()
		if stale {
			// A leader has answered, though not to what our client remembers of it (KIP-320): by itself it would remember that for minutes.
			_, _ = c.GetMetadata(&topic, false, int(min(limit, time.Second)/time.Millisecond))
			_, err = ask()
		}
		return err
	})
	return out, err
}

// take notes an answer of ListOffsets. stale: a leader refused the epoch that it was asked with.
func take(out map[int32]offset, r confluent.ListOffsetsResult, spec confluent.OffsetSpec) (stale bool, err error) {
	broken := 0
	for tp, i := range r.ResultInfos {
		o := offset{offset: int64(i.Offset), epoch: -1}
		if i.LeaderEpoch != nil {
			o.epoch = *i.LeaderEpoch
		}
		switch {
		case i.Error.Code() != confluent.ErrNoError:
			o.err = i.Error
			stale = stale || i.Error.Code() == confluent.ErrFencedLeaderEpoch || i.Error.Code() == confluent.ErrUnknownLeaderEpoch
		case o.offset < -1 || o.offset < 0 && spec < 0:
			// When the leader's connection breaks, librdkafka answers "no error" with the invalid offset -1001. Only a time
			// has no offset (-1) where it lies after the last record.
			o.err = fmt.Errorf("the answer has no offset (%d)", o.offset)
			broken++
		}
		out[tp.Partition] = o
	}
	if broken > 0 && broken == len(r.ResultInfos) {
		return false, errors.New("the answer has no offsets")
	}
	return stale, nil
}
