package kafka_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// outcomeOf is why the stream of a worker ends before it has n records; nil: it has them. served is called once, when it has some.
func outcomeOf(t *testing.T, gs *group.Groups, s group.Start, n int, served func()) error {
	t.Helper()
	w, err := gs.Join(t.Context(), s)
	if err != nil {
		return err
	}
	defer w.Close()
	for over := time.After(patience); n > 0; {
		p, err := w.Pull(64 << 10)
		if err != nil {
			return err
		}
		for _, d := range p.Deliveries {
			w.Ack([]int64{d.Tag}, 0)
			n--
		}
		if len(p.Deliveries) > 0 {
			if served != nil {
				served()
				served = nil
			}
			continue
		}
		select {
		case <-w.Signal():
		case <-over:
			t.Fatal("the worker gets neither records nor an end")
		}
	}
	return nil
}

// TestDeniedGroups: where Kafka refuses a group until somebody changes something, its workers are told what that is; and once it was changed,
// those who come are served.
func TestDeniedGroups(t *testing.T) {
	t.Parallel()
	cluster := kafkatest.StartOwn(t, 1, "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer", "allow.everyone.if.no.acl.found=true")
	for _, protocol := range []string{"classic", "consumer"} {
		with := func(c *kafka.Config) { c.GroupProtocol = protocol }
		for what, test := range map[string]struct {
			refuse func(t *testing.T, name, topic string) (allow func())
			is     func(error) bool
			says   string
			later  bool // those who are served already can be refused, too
		}{
			"group": {
				refuse: func(t *testing.T, name, _ string) func() {
					t.Helper()
					return deny(t, cluster, kadm.NewACLs().Groups(name).Operations(kadm.OpRead))
				}, is: is[*hub.ForbiddenError], says: "READ and DESCRIBE on the group", later: true,
			},
			"topic": {
				refuse: func(t *testing.T, _, topic string) func() {
					t.Helper()
					return deny(t, cluster, kadm.NewACLs().Topics(topic).Operations(kadm.OpDescribe, kadm.OpRead))
				}, is: is[*hub.ForbiddenError], says: "READ and DESCRIBE on the topic", later: true,
			},
			"members of another kind": {
				refuse: func(t *testing.T, name, topic string) func() {
					t.Helper()
					return stranger(t, cluster, name, topic)
				}, is: is[*hub.GroupSettingsError], says: "group",
			},
		} {
			t.Run(protocol+"/"+what, func(t *testing.T) {
				t.Parallel()
				topic := cluster.NewTopic(t, 2, nil)
				writeKeyed(t, cluster, topic, 20)
				name := topic + "-group"
				allow := test.refuse(t, name, topic)
				gs, _ := newGroups(t, cluster, with)
				err := outcomeOf(t, gs, startOf(name, topic), 1, nil)
				if !test.is(err) || !strings.Contains(err.Error(), test.says) {
					t.Fatalf("a worker ended by %v", err)
				}
				allow()
				eventually(t, func() bool { return outcomeOf(t, gs, startOf(name, topic), 20, nil) == nil }, "those who come later are served")
				if !test.later {
					return
				}
				writeKeyed(t, cluster, topic, 20)
				err = outcomeOf(t, gs, startOf(name, topic), 40, func() {
					test.refuse(t, name, topic)
				})
				if !test.is(err) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("a worker that was served ended by %v", err)
				}
			})
		}
	}
}

// TestUnknownTopicIsNamed: of several topics, that which is not there.
func TestUnknownTopicIsNamed(t *testing.T) {
	cluster := kafkatest.Start(t)
	topic := cluster.NewTopic(t, 1, nil)
	gs, _ := newGroups(t, cluster)
	_, err := gs.Join(t.Context(), startOf(topic+"-group", topic, topic+"-missing"))
	if unknown, ok := errors.AsType[*hub.UnknownTopicError](err); !ok || unknown.Topic != topic+"-missing" || !errors.Is(err, hub.ErrUnknownTopic) {
		t.Errorf("got %v", err)
	}
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// deny has Kafka refuse what acls name to everybody.
func deny(t *testing.T, cluster *kafkatest.Cluster, acls *kadm.ACLBuilder) (allow func()) {
	t.Helper()
	acls = acls.Deny("User:*").DenyHosts("*").ResourcePatternType(kadm.ACLPatternLiteral)
	adm := cluster.Admin(t)
	results, err := adm.CreateACLs(t.Context(), acls)
	for _, r := range results {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		results, err := adm.DeleteACLs(t.Context(), acls)
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// stranger is a member of a group that shares partitions as nobody else does.
func stranger(t *testing.T, cluster *kafkatest.Cluster, name, topic string) (leave func()) {
	t.Helper()
	joined := make(chan struct{}, 8)
	client := cluster.Client(t, kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.GroupProtocol("connect"), kgo.Balancers(kgo.RangeBalancer()),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { joined <- struct{}{} }))
	select {
	case <-joined:
	case <-time.After(patience):
		t.Fatal("the stranger does not join")
	}
	return client.Close
}
