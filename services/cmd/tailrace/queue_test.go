package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

var kills = flag.Int("tailrace.kills", 3, "service processes that the test of a queue kills")

// children are a few processes of the service; one that is killed is replaced.
type children struct {
	t    *testing.T
	args []string
	each map[int][]string // more arguments, of one of them
	at   [3]atomic.Pointer[child]
}

type child struct {
	cmd   *exec.Cmd
	rpc   string
	ops   string
	log   *logBook
	ended chan struct{}
}

func (c *children) start(n int) {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	log := &logBook{}
	one := &child{log: log, cmd: exec.Command(self, append([]string{"-tailrace.main", "--", "-log-format", "text", "-listen", "127.0.0.1:0", "-ops-listen", "127.0.0.1:0"}, slices.Concat(c.args, c.each[n])...)...), ended: make(chan struct{})}
	one.cmd.Stderr = log
	if err := one.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() { defer close(one.ended); _ = one.cmd.Wait() }()
	c.t.Cleanup(func() { _ = one.cmd.Process.Kill(); <-one.ended })
	eventually(c.t, "it is ready", func() (ok bool) {
		one.rpc, one.ops, ok = log.addresses()
		return ok && has(log.String(), "msg=ready")
	})
	c.at[n].Store(one)
}

// ledger is what all workers have seen.
type ledger struct {
	t     *testing.T
	mu    sync.Mutex
	acked map[int64]int
	last  map[string]int64 // by key: the newest offset that was seen

	anyOrder bool // there are several partitions: offsets tell no order, nor records apart
}

func (l *ledger) seen(r *tailracev1.Record) {
	if l.anyOrder {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key, at := string(r.GetKey()), r.GetOffset()
	for _, before := range l.before(key, at) {
		l.t.Errorf("offset %d of key %s came before %d was seen", at, key, before)
	}
	l.last[key] = max(l.last[key], at)
}

// before are the offsets of a key that ought to have been seen: the keys are dealt in turns, so that there are queueKeys between two of one key.
func (l *ledger) before(key string, at int64) []int64 {
	if last, ok := l.last[key]; at >= queueKeys && (!ok || last < at-queueKeys) {
		return []int64{at - queueKeys}
	}
	return nil
}

const (
	queueKeys    = 20
	queueRecords = 750 // before each kill, and behind the last
)

// work is one worker after another, each until its stream ends or is cut off.
func (l *ledger) work(ctx context.Context, c *children, group, topic string) {
	for ctx.Err() == nil {
		life, cut := context.WithTimeout(ctx, time.Duration(500+rand.IntN(4000))*time.Millisecond)
		_ = l.stream(life, cut, "http://"+c.at[rand.IntN(2)].Load().rpc, group, topic)
		cut()
	}
}

func (l *ledger) stream(ctx context.Context, cut context.CancelFunc, url, group, topic string) error {
	client := h2c(l.t)
	defer client.CloseIdleConnections()
	s, err := tailracev1connect.NewStreamServiceClient(client, url).Consume(ctx)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.CloseResponse() })
	defer stop()
	defer func() { _ = s.CloseRequest() }()
	if err := s.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: &tailracev1.ConsumeStart{
		Group: group, Topics: []string{topic}, MaxInFlight: 30, MaxAttempts: 1000,
	}}}); err != nil {
		return err
	}
	for {
		m, err := s.Receive()
		if err != nil {
			return err
		}
		for _, d := range m.GetDeliveries().GetDeliveries() {
			l.seen(d.GetRecord())
			request := &tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: []int64{d.GetTag()}}}}
			switch rand.IntN(50) {
			case 0:
				request.Event = &tailracev1.ConsumeRequest_Nack{Nack: &tailracev1.Nack{Tags: []int64{d.GetTag()}}}
			case 1:
				if rand.IntN(10) == 0 {
					cut() // it dies with what it holds
				}
			}
			if err := s.Send(request); err != nil {
				return err
			}
			if request.GetAck() != nil {
				l.mu.Lock()
				l.acked[d.GetRecord().GetOffset()]++
				l.mu.Unlock()
			}
			<-time.After(time.Millisecond)
		}
	}
}

// TestQueueOfTwoProcesses: workers and service processes are killed at random while a group works. Each record is acknowledged, those of a key are seen in order,
// and in the end Kafka has the end of the log as the group's offset. So it is with either of Kafka's group protocols.
func TestQueueOfTwoProcesses(t *testing.T) {
	t.Run("classic", func(t *testing.T) { queueOfTwo(t, kafkatest.Start(t), "classic", *kills) })
	t.Run("consumer", func(t *testing.T) { // its session timeout is the broker's, 45 s if nobody says otherwise
		cluster := kafkatest.StartOwn(t, 1, "group.consumer.min.session.timeout.ms=6000", "group.consumer.session.timeout.ms=6000",
			"group.consumer.min.heartbeat.interval.ms=1000", "group.consumer.heartbeat.interval.ms=1000")
		queueOfTwo(t, cluster, "consumer", (*kills+2)/3)
	})
}

func queueOfTwo(t *testing.T, cluster *kafkatest.Cluster, protocol string, kills int) {
	topic := cluster.NewTopic(t, 1, nil)
	group := topic + "-group"
	c := &children{t: t, args: []string{"-kafka", cluster.Bootstrap, "-kafka.group-protocol", protocol}}
	c.start(0)
	c.start(1)
	producer := cluster.Client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	l := &ledger{t: t, acked: map[int64]int{}, last: map[string]int64{}}
	ctx, cancel := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() { l.work(ctx, c, group, topic) })
	}
	defer workers.Wait()
	defer cancel()
	for round := range kills + 1 {
		records := make([]*kgo.Record, queueRecords)
		for i := range records {
			n := round*len(records) + i
			records[i] = &kgo.Record{Topic: topic, Key: fmt.Appendf(nil, "k%d", n%queueKeys), Value: fmt.Appendf(nil, "v%d", n)}
		}
		if err := producer.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		some := round*queueRecords + rand.IntN(queueRecords*3/4)
		eventually(t, "some of it is acknowledged", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.acked) > some
		})
		if round < kills {
			victim := c.at[round%2].Load()
			_ = victim.cmd.Process.Signal(syscall.SIGKILL)
			<-victim.ended
			c.start(round % 2)
		}
	}
	end := int64(queueRecords * (kills + 1))
	adm := cluster.Admin(t)
	eventually(t, "the group's offset is the end of the log", func() bool {
		commits, err := adm.FetchOffsets(t.Context(), group)
		at, ok := commits.Lookup(topic, 0)
		return err == nil && ok && at.At == end
	})
	cancel()
	workers.Wait()
	again := 0
	for offset := range end {
		switch n := l.acked[offset]; {
		case n == 0:
			t.Errorf("offset %d was never acknowledged", offset)
		case n > 1:
			again++
		}
	}
	t.Logf("%d kills; %d of %d records were acknowledged more than once", kills, again, end)
}

// TestGroupsAreCapped: how many groups a process is in, and their names, are settings; a start beyond them has a reason that programs can rely on.
func TestGroupsAreCapped(t *testing.T) {
	p := boot(t, "-kafka", "embedded", "-demo", "-max-groups", "1", "-group-names", "g[0-9]")
	client := tailracev1connect.NewStreamServiceClient(h2c(t), "http://"+p.rpc)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	start := func(group string) (*tailracev1.ConsumeResponse, error) {
		t.Helper()
		s, err := client.Consume(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); _ = s.CloseRequest(); _ = s.CloseResponse() })
		_ = s.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: &tailracev1.ConsumeStart{Group: group, Topics: []string{"demo"}}}}) // a refusal is received
		return s.Receive()
	}
	for range 2 { // a second worker is no second group
		if m, err := start("g1"); err != nil || m.GetStarted() == nil {
			t.Fatalf("got %v, %v", m, err)
		}
	}
	for group, want := range map[string]struct {
		code   connect.Code
		reason string
	}{
		"g2":  {connect.CodeResourceExhausted, "LIMIT"},
		"g10": {connect.CodePermissionDenied, "FORBIDDEN"}, "xg1": {connect.CodePermissionDenied, "FORBIDDEN"},
	} {
		_, err := start(group)
		reason := ""
		if coded, ok := errors.AsType[*connect.Error](err); ok {
			for _, d := range coded.Details() {
				if info, err := d.Value(); err == nil {
					if info, ok := info.(*errdetails.ErrorInfo); ok {
						reason = info.GetReason()
					}
				}
			}
		}
		if connect.CodeOf(err) != want.code || reason != want.reason {
			t.Errorf("%s: got %v, reason %q, want %v %s", group, err, reason, want.code, want.reason)
		}
	}
}
