package edge_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEpollFails: sockets whose epoll has failed are heard again, with what they said meanwhile: once another socket comes, or else once one seems to be
// silent that has said something.
func TestEpollFails(t *testing.T) {
	for _, name := range []string{"another comes", "one seems silent"} {
		t.Run(name, func(t *testing.T) {
			cfg := config()
			cfg.Workers = 1
			if name != "another comes" {
				cfg.HeartbeatInterval, cfg.LifeGrace = 500*time.Millisecond, time.Second
			}
			r := start(t, cfg)
			var cs []*client
			for range 3 {
				c := r.dial(t, "/ws")
				c.expect(t, "welcome")
				cs = append(cs, c)
			}
			if err := r.edge.BreakPollers(); err != nil {
				t.Fatal(err)
			}
			for i, c := range cs {
				c.say(t, fmt.Sprintf(`{"op":"ping","id":"%d"}`, i))
			}
			if name == "another comes" {
				c := r.dial(t, "/ws")
				c.expect(t, "welcome")
				c.say(t, `{"op":"ping","id":"new"}`)
				c.until(t, "pong")
			}
			for i, c := range cs {
				if m := c.until(t, "pong"); m.ID != fmt.Sprint(i) {
					t.Errorf("socket %d: got %s", i, m.raw)
				}
			}
			if got := r.endings(t); len(got) > 0 {
				t.Errorf("sessions ended: %v", got)
			}
		})
	}
}

// TestEpollIsReplacedUnderANewcomer: a socket that was found in the table, and so is registered already, is no failure of its handshake.
func TestEpollIsReplacedUnderANewcomer(t *testing.T) {
	r := start(t, config())
	c := r.dial(t, "/ws")
	c.expect(t, "welcome")
	if err := r.edge.RegisterAgain(); err != nil {
		t.Errorf("got %v, want nothing", err)
	}
	c.say(t, `{"op":"ping","id":"a"}`)
	c.until(t, "pong")
}

// TestNoEpoll: where there is no other epoll either, nobody would hear the sockets: they end with a code to come back. Once there is one, newcomers
// are served.
func TestNoEpoll(t *testing.T) {
	cfg := config()
	cfg.Workers = 1
	r := start(t, cfg)
	c, waits := r.dial(t, "/ws"), r.dial(t, "/ws")
	c.expect(t, "welcome")
	waits.expect(t, "welcome")
	if err := r.edge.BreakPollers(); err != nil {
		t.Fatal(err)
	}
	allow := takeDescriptors(t)
	r.edge.DistrustPollers()
	c.expectClose(t, 1011)
	waits.expectClose(t, 1011)
	await(t, "both ended", func() bool { return r.metric(t, "tailrace_edge_sessions_ended_total", "internal_error") == 2 })
	allow()
	n := r.dial(t, "/ws")
	n.expect(t, "welcome")
	n.say(t, `{"op":"ping","id":"n"}`)
	n.until(t, "pong")
}

// takeDescriptors leaves the process none, until allow.
func takeDescriptors(t *testing.T) (allow func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	allow = func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil && !errors.Is(err, unix.EPERM) {
			t.Error(err)
		}
	}
	t.Cleanup(allow)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	return allow
}
