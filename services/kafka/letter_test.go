package kafka_test

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// ownHeaders are those of a letter that begin with tailrace-, without that; the last of a name counts.
func ownHeaders(r *kgo.Record) map[string]string {
	own := map[string]string{}
	for _, h := range r.Headers {
		if name, ok := strings.CutPrefix(h.Key, "tailrace-"); ok {
			own[name] = string(h.Value)
		}
	}
	return own
}

func endOf(t *testing.T, cluster *kafkatest.Cluster, topic string) int64 {
	t.Helper()
	ends, err := cluster.Admin(t).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, 0)
	return end.Offset
}

// TestStrippedDeadLetters: whatever makes a record one that its dead-letter topic would never take is left out, as little as it takes, and marked. So
// the front moves, and nothing of it is redriven as if it were whole.
func TestStrippedDeadLetters(t *testing.T) {
	cluster := kafkatest.Start(t)
	const small = 2048 // the least that is promised to be enough
	long := func(n int) []byte { return bytes.Repeat([]byte("x"), n) }
	head := func(name string, n int) kgo.RecordHeader { return kgo.RecordHeader{Key: name, Value: long(n)} }
	for name, c := range map[string]struct {
		config                   map[string]string
		record                   *kgo.Record
		reason                   int
		value, others            int // bytes of the letter's value, at least; its headers that were the record's
		key, truncated, stripped string
	}{
		"headers": {
			record: &kgo.Record{Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{head("a", 3000), head("b", 10)}},
			value:  1, key: "k", stripped: "headers",
		},
		"value and headers": {
			record: &kgo.Record{Key: []byte("k"), Value: long(50_000), Headers: []kgo.RecordHeader{head("a", 3000)}},
			value:  300, key: "k", truncated: "50000", stripped: "headers",
		},
		"tombstone with headers": {record: &kgo.Record{Key: []byte("k"), Headers: []kgo.RecordHeader{head("a", 3000)}}, key: "k", stripped: "headers"},
		"key": {
			record: &kgo.Record{Key: long(5000), Value: []byte("v"), Headers: []kgo.RecordHeader{head("a", 10)}},
			value:  1, key: "PLACE", stripped: "headers,key",
		},
		"tombstone with a key": {record: &kgo.Record{Key: long(5000)}, key: "PLACE", stripped: "headers,key"},
		"reason": {
			record: &kgo.Record{Key: long(5000), Value: []byte("v")}, config: map[string]string{"max.message.bytes": "1000"}, reason: 1000,
			value: 1, key: "PLACE", stripped: "headers,key,reason",
		},
		"no key for a compacted topic": {
			record: &kgo.Record{Value: []byte("v"), Headers: []kgo.RecordHeader{head("a", 10)}}, config: map[string]string{"cleanup.policy": "compact"},
			value: 1, key: "PLACE", stripped: "headers,key",
		},
		"only the value": {
			record: &kgo.Record{Key: []byte("k"), Value: long(50_000), Headers: []kgo.RecordHeader{head("a", 10)}},
			value:  300, others: 1, key: "k", truncated: "50000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := c.config
			if config == nil {
				config = map[string]string{"max.message.bytes": strconv.Itoa(small)}
			}
			topic, dead := cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 1, config)
			c.record.Topic = topic
			if err := cluster.Client(t).ProduceSync(t.Context(), c.record).FirstErr(); err != nil {
				t.Fatal(err)
			}
			client, gs, _ := newProcess(t, cluster, nil)
			s := startOf(topic+"-group", topic)
			s.MaxAttempts, s.DeadLetter = 1, dead
			w, err := gs.Join(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			eventually(t, func() bool { p, err := w.Pull(1); return err == nil && len(p.Deliveries) == 1 }, "the record comes")
			w.Nack([]int64{1}, 0, "bad"+string(long(c.reason)))
			eventually(t, func() bool { return lag(t, cluster, topic+"-group", topic) == 0 }, "the front moves on")
			letter := readLog(t, cluster, dead, 0, endOf(t, cluster, dead))[0]
			own := ownHeaders(letter)
			key, others := strings.ReplaceAll(string(letter.Key), topic+"/0/0", "PLACE"), len(letter.Headers)-len(own)
			if key != c.key || own["stripped"] != c.stripped || own["truncated"] != c.truncated || others != c.others ||
				len(letter.Value) < c.value || (letter.Value == nil) != (c.record.Value == nil) {
				t.Errorf("got key %q, a value of %d bytes, %d other headers, %v", key, len(letter.Value), others, own)
			}
			if own["topic"] != topic || own["offset"] != "0" || own["attempts"] != "1" || (own["reason"] == "") != (c.stripped == "headers,key,reason") {
				t.Errorf("got %v", own)
			}
			did := redriveAll(t, client, &tailracev1.RedriveDeadLettersRequest{DeadLetterTopic: dead, Group: s.Group, MaxRecords: 10}, anyTopic)
			if want := []string{"0/0 TRUNCATED false"}; did.redriven != 0 || !slices.Equal(did.failures, want) {
				t.Errorf("redrive: got %+v", did)
			}
		})
	}
}

// TestDeadLettersThatGoRound: groups that read each other's dead letters give a record up once it has been one ten times.
func TestDeadLettersThatGoRound(t *testing.T) {
	cluster := kafkatest.Start(t)
	one, other := cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 1, nil)
	writeKeyed(t, cluster, one, 1)
	gs, _ := newGroups(t, cluster)
	for _, way := range [][2]string{{one, other}, {other, one}} {
		s := startOf(way[0]+"-group", way[0])
		s.MaxAttempts, s.DeadLetter = 1, way[1]
		newTaken().work(t, gs, s, func(*tailracev1.Record) bool { return false })
	}
	eventually(t, func() bool {
		return endOf(t, cluster, one) == 6 && lag(t, cluster, one+"-group", one) == 0 && lag(t, cluster, other+"-group", other) == 0
	}, "it comes to an end")
	if n := endOf(t, cluster, other); n != 5 {
		t.Errorf("got %d letters in the other topic, want 5", n)
	}
	var hops []string
	for _, topic := range []string{one, other} {
		for _, r := range readLog(t, cluster, topic, 0, endOf(t, cluster, topic)) {
			hops = append(hops, ownHeaders(r)["hops"])
		}
	}
	if got, want := fmt.Sprint(hops), "[ 2 4 6 8 10  3 5 7 9]"; got != want {
		t.Errorf("got hops %s, want %s", got, want)
	}
}
