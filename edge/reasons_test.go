package edge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/hub/hubtest"
)

// trigger is how a session comes to end for a reason.
type trigger struct {
	path  string // default /ws
	proto bool
	set   func(cfg *edge.Config)
	dial  clientOptions
	begin func(r *rig)                          // before the client comes
	do    func(t *testing.T, r *rig, c *client) // once it is welcome
	await func(c *client) (closed *closeFrame)  // default: reads and answers up to the close frame
	own   int                                   // code that the client has sent
}

// triggers has one for each row of the table of reasons.
func triggers() map[string]trigger {
	send := func(data ...[]byte) func(*testing.T, *rig, *client) {
		return func(t *testing.T, _ *rig, c *client) {
			t.Helper()
			if err := c.writeRaw(data...); err != nil {
				t.Fatal(err)
			}
		}
	}
	silent := func(c *client) *closeFrame { // reads, but answers nothing
		for {
			if _, _, err := c.read(); err != nil {
				var closed *closeFrame
				errors.As(err, &closed)
				return closed
			}
		}
	}
	away := func(t *testing.T, r *rig, _ *client) {
		t.Helper()
		await(t, "the session has ended", func() bool { return len(r.endings(t)) > 0 })
	}
	return map[string]trigger{
		"client_close": {do: send(maskedFrame(fin|opClose, []byte{0x0f, 0xa1, 'b', 'y', 'e'})), own: 4001},
		"client_eof": {do: func(t *testing.T, _ *rig, c *client) {
			t.Helper()
			if err := c.conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}},
		"network_error": {do: func(t *testing.T, r *rig, c *client) {
			t.Helper()
			_ = c.conn.SetLinger(0)
			c.conn.Close()
			away(t, r, c)
		}},
		"stopped":        {do: func(_ *testing.T, r *rig, _ *client) { go r.stop() }},
		"protocol_error": {do: send([]byte{fin | 0x40 | opText, 0x80, 1, 2, 3, 4})},
		"binary_frame":   {do: send(maskedFrame(fin|opBin, nil))},
		"text_frame":     {proto: true, do: send(maskedFrame(fin|opText, nil))},
		"invalid_utf8":   {do: send(maskedFrame(fin|opText, []byte("\xff")))},
		"message_too_big": {
			set: func(cfg *edge.Config) { cfg.MaxMessageBytes = 100 },
			do:  send(maskedFrame(opText, make([]byte, 60)), maskedFrame(fin, make([]byte, 60))),
		},
		"internal_error": {do: func(_ *testing.T, r *rig, _ *client) { r.edge.Break() }},
		"draining": {do: func(t *testing.T, r *rig, _ *client) {
			t.Helper()
			go func() { _ = r.edge.Drain(context.Background()) }()
		}},
		"upstream_gone": {set: func(cfg *edge.Config) {
			cfg.HeartbeatInterval, cfg.UpstreamGrace = time.Second, 200*time.Millisecond
			cfg.UpstreamAvailable = func() bool { return false }
		}},
		"no_sign_of_life": {set: func(cfg *edge.Config) { *cfg = quick() }, await: silent},
		"stalled": {
			path: "/ws/orders?start=earliest", set: func(cfg *edge.Config) { *cfg = quick(); cfg.CloseTimeout = 200 * time.Millisecond },
			begin: func(r *rig) { fill(r, "orders", 100, 64<<10) }, dial: clientOptions{recvBuffer: 4096},
			do: away, await: func(*client) *closeFrame { return nil }, // it cannot be told: that is why it ends
		},
		"connection_age": {set: func(cfg *edge.Config) {
			cfg.HeartbeatInterval, cfg.MaxConnectionAge = time.Second, 300*time.Millisecond
		}},
		"over_limit": {
			set: func(cfg *edge.Config) { cfg.MaxInputBytes = 32 << 10 },
			do:  send(maskedFrame(fin|opText, make([]byte, 100<<10))[:64<<10]),
		},
		"slow_message": {
			set: func(cfg *edge.Config) { cfg.HeartbeatInterval, cfg.MessageTimeout = time.Second, 200*time.Millisecond },
			do:  send(maskedFrame(opText, []byte("{"))),
		},
		"bad_frame":        {do: send(maskedFrame(fin|opText, []byte("[]")))},
		"bad_binary_frame": {proto: true, do: send(maskedFrame(fin|opBin, []byte{0x0a}))},
		"forbidden": {path: "/ws/orders", begin: func(r *rig) {
			r.edge.SetAllow(func(_ context.Context, ask access.Request) error { return fmt.Errorf("not %s", ask.Topic) })
		}},
		"unknown_topic": {path: "/ws/nosuch"},
	}
}

// excused are the rows without a trigger here, and why.
func excused() map[string]string {
	return map[string]string{
		"subscription_ended": "ends streams of events alone: their tests trigger it",
		"lagged":             "takes a reader far behind: TestSlowFail triggers it",
		"token_expired":      "nobody is authenticated yet",
		"unauthenticated":    "nobody is authenticated yet",
	}
}

// TestEveryReason triggers each row of the table: the client gets its code and text, where it is to get one, after a goodbye that says the same and
// whether to come back; and the session is counted once, with its reason and initiator.
func TestEveryReason(t *testing.T) {
	all := triggers()
	for _, row := range edge.Reasons() {
		k, known := all[row.Name]
		delete(all, row.Name)
		if why := excused()[row.Name]; known == (why != "") {
			t.Errorf("%s: has a trigger: %v, excused: %q", row.Name, known, why)
		}
		if known {
			t.Run(row.Name, func(t *testing.T) {
				t.Parallel()
				k.test(t, row)
			})
		}
	}
	if len(all) > 0 {
		t.Errorf("triggers for reasons that are not there: %v", all)
	}
}

func (k trigger) test(t *testing.T, row edge.Reason) {
	t.Helper()
	cfg := config()
	if k.set != nil {
		k.set(&cfg)
	}
	book := &lines{}
	r := startLogged(t, cfg, hub.Config{}, slog.New(slog.NewJSONHandler(book, nil)))
	r.src.CreateTopic("orders", 1)
	r.src.Append("orders", 0, hubtest.Text("k", "v"))
	if k.begin != nil {
		k.begin(r)
	}
	path := k.path
	if path == "" {
		path = "/ws"
	}
	k.dial.proto = k.proto
	c, err := dial(r.addr, path, k.dial)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	c.expect(t, "welcome")
	if k.do != nil {
		k.do(t, r, c)
	}
	if row.Name != "network_error" {
		k.judge(t, row, c)
		c.conn.Close()
	}
	if row.Name == "stopped" {
		r.stop()
	}
	await(t, "the session is counted", func() bool { return len(r.endings(t)) > 0 })
	if got, want := r.endings(t), []string{"1 " + row.Name}; !slices.Equal(got, want) {
		t.Errorf("ended: %q, want %q", got, want)
	}
	if got := r.metric(t, "tailrace_edge_sessions_ended_total", row.Initiator); got != 1 {
		t.Errorf("%v sessions were ended by %s, want 1", got, row.Initiator)
	}
	await(t, "the end is logged", func() bool { return len(book.of(t, "session ended")) > 0 })
	book.judge(t, row)
}

// judge reads up to the end and compares it with the row.
func (k trigger) judge(t *testing.T, row edge.Reason, c *client) {
	t.Helper()
	c.deadline(t)
	var goodbye *message
	var closed *closeFrame
	switch {
	case k.await != nil:
		closed = k.await(c)
	default:
		for {
			m, err := c.next()
			if errors.As(err, &closed) || err != nil {
				break
			}
			if goodbye != nil {
				t.Errorf("%s after goodbye", m.raw)
			}
			if m.Op == "goodbye" {
				goodbye = m
			}
		}
		if wants := row.Code >= 4000; wants != (goodbye != nil) {
			t.Errorf("goodbye: %+v, want one: %v", goodbye, wants)
		}
		if goodbye != nil && (fmt.Sprint(goodbye.Code) != fmt.Sprint(row.Code) || goodbye.Reason != row.Text || (goodbye.ReconnectAfterMs != nil) != row.ComeBack) {
			t.Errorf("goodbye: %s, want %+v", goodbye.raw, row)
		}
	}
	switch {
	case row.Name == "stalled":
	case row.Silent:
		if closed != nil {
			t.Errorf("got %v, want no close frame", closed)
		}
	case closed == nil:
		t.Error("no close frame")
	case k.own != 0:
		if closed.code != k.own || closed.reason != "" {
			t.Errorf("got %v, want the echo of %d", closed, k.own)
		}
	case closed.code != row.Code || closed.reason != row.Text:
		t.Errorf("got %v, want %d %q", closed, row.Code, row.Text)
	}
}
