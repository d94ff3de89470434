package kafka_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestRedriveThatIsCutShort: of a call whose caller goes away in the middle nothing is remembered. Called again as before it brings back all dead
// letters; twice those of the first call, and in the order in which they lie.
func TestRedriveThatIsCutShort(t *testing.T) {
	const first, rest = 40, 60
	cluster := kafkatest.Start(t)
	c := newClient(t, cluster)
	topic, other, letters := cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 1, nil), cluster.NewTopic(t, 1, nil)
	name := topic + "-group"
	var rs []*kgo.Record
	var want []string
	for i := range first + rest {
		if i == first {
			rs = append(rs, letterOf(letters, other, 0, name, "other"))
		}
		rs = append(rs, letterOf(letters, topic, 0, name, fmt.Sprint(i)))
		want = append(want, fmt.Sprint(i))
	}
	if err := cluster.Client(t).ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	m := &tailracev1.RedriveDeadLettersRequest{DeadLetterTopic: letters, Group: name, MaxRecords: 1000}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := c.RedriveDeadLetters(ctx, m, func(asked string) error {
		if asked == other { // the letters before it are back
			leave()
		}
		return nil
	})
	if err == nil && r.GetDone() {
		t.Fatal("the call was not cut short")
	}
	if n := len(values(t, c, cluster, topic, 0)); n < first || n >= first+rest {
		t.Fatalf("the call has brought back %d letters, want those before the cut", n)
	}
	if all := redriveAll(t, c, m, anyTopic); all.redriven != first+rest+1 || len(all.failures) > 0 {
		t.Errorf("the second call: got %+v", all)
	}
	got := values(t, c, cluster, topic, 0)
	cut := len(got) - len(want)
	if cut < first || cut >= first+rest || !slices.Equal(got[:cut], want[:cut]) || !slices.Equal(got[cut:], want) {
		t.Errorf("brought back: %v", got)
	}
	if got := values(t, c, cluster, other, 0); !slices.Equal(got, []string{"other"}) && !slices.Equal(got, []string{"other", "other"}) {
		t.Errorf("brought back to the other topic: %v", got)
	}
}
