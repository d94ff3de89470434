package stream_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// inBubble runs f with a service and a client that live on a fake clock.
func inBubble(t *testing.T, f func(t *testing.T, s *service, client tailracev1connect.StreamServiceClient)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ln := newPipes()
		s := startOn(t, ln, patience)
		transport := &http.Transport{DialContext: ln.Dial, DisableKeepAlives: true}
		f(t, s, tailracev1connect.NewStreamServiceClient(&http.Client{Transport: transport}, "http://tailrace"))
	})
}

// open subscribes without the deadline that other tests have: their patience is soon over on this clock.
func open(t *testing.T, client tailracev1connect.StreamServiceClient, m *tailracev1.SubscribeRequest) *subscription {
	t.Helper()
	stream, err := client.Subscribe(t.Context(), m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stream.Close() })
	return &subscription{t: t, stream: stream}
}

func TestSilenceLastsOneInterval(t *testing.T) {
	inBubble(t, func(t *testing.T, s *service, client tailracev1connect.StreamServiceClient) {
		m := orders()
		m.HeartbeatInterval = durationpb.New(10 * time.Second)
		sub := open(t, client, m)
		sub.started()
		if m := sub.next(); m.GetCaughtUp() == nil {
			t.Fatalf("got %v", m)
		}
		last := time.Now()
		for range 40 { // longer than every timeout of the server
			m := sub.next()
			if m.GetHeartbeat() == nil {
				t.Fatalf("got %v", m)
			}
			if silence := time.Since(last); silence > 10*time.Second || silence < 9*time.Second {
				t.Errorf("silence lasted %v", silence)
			}
			if got := m.GetHeartbeat().GetTime().AsTime(); time.Until(got).Abs() > time.Second {
				t.Errorf("the heartbeat tells %v at %v", got, time.Now())
			}
			last = time.Now()
		}
		if got := len(s.log.lines("session ended")); got != 0 {
			t.Errorf("%d streams ended", got)
		}
	})
}

func TestTrafficPushesHeartbeatsBack(t *testing.T) {
	inBubble(t, func(t *testing.T, s *service, client tailracev1connect.StreamServiceClient) {
		m := orders()
		m.HeartbeatInterval = durationpb.New(10 * time.Second)
		sub := open(t, client, m)
		sub.started()
		for range 100 {
			<-time.After(8 * time.Second)
			s.source.Append("orders", 0, hubtest.Text("k", "v"))
			if m := sub.next(); m.GetHeartbeat() != nil {
				t.Fatal("a heartbeat came amid traffic, with nothing to tell")
			}
		}
	})
}

// Positions that moved without a record are told within an interval, though records of others come all the time.
func TestMovedPositionsAreToldAmidTraffic(t *testing.T) {
	inBubble(t, func(t *testing.T, s *service, client tailracev1connect.StreamServiceClient) {
		m := orders()
		m.HeartbeatInterval = durationpb.New(10 * time.Second)
		m.Keys = [][]byte{[]byte("mine")}
		m.KeyScope = tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS
		sub := open(t, client, m)
		sub.started()
		began := time.Now()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 60 {
				<-time.After(time.Second)
				s.source.Append("orders", 0, hubtest.Text("mine", "v"))
				s.source.Append("orders", 1, hubtest.Text("other", "v"))
			}
		}()
		told := map[int32]int64{}
		for told[0] < 60 || told[1] < 55 {
			m := sub.next()
			for _, b := range m.GetRecords().GetBatches() {
				told[b.GetPartition()] = b.GetNext()
			}
			for _, p := range m.GetHeartbeat().GetPositions() {
				told[p.GetPartition()] = p.GetOffset()
			}
			if due := int64(time.Since(began).Seconds()) - 11; told[1] < min(due, 59) {
				t.Fatalf("partition 1 is told to be at %d, %v after the first record", told[1], time.Since(began))
			}
		}
		<-done
	})
}
