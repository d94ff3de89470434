package edge_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestBehindAndHeard: a client that did not read its answers is heard again once it has taken them, also while its subscription has far more than it takes:
// else it could not even unsubscribe.
func TestBehindAndHeard(t *testing.T) {
	r := start(t, config())
	r.src.CreateTopic("orders", 1)
	const records = 800
	fill(r, "orders", records, 60_000)
	c, err := dial(r.addr, "/ws/orders?start=earliest", clientOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	await(t, "the socket takes nothing", func() bool { return r.metric(t, "tailrace_edge_blocked_sessions", "") == 1 })
	ping := maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"ping","id":"%s"}`, strings.Repeat("p", 32)))
	var saying sync.WaitGroup
	t.Cleanup(saying.Wait)
	saying.Go(func() {
		for range 9000 {
			if c.writeRaw(ping) != nil {
				return
			}
		}
		_ = c.write(opText, []byte(`{"op":"unsubscribe","id":"0"}`))
	})
	await(t, "so many answers wait that nothing more is read", func() bool { return r.metric(t, "tailrace_edge_held_bytes", "") > 128<<10 })
	got := 0
	c.deadline(t)
	for {
		m, err := c.next()
		if err != nil {
			t.Fatal(err)
		}
		if got += len(m.Records); m.Op == "unsubscribed" {
			break
		}
	}
	if got == records {
		t.Errorf("it was unsubscribed after all of %d records, want it heard before", got)
	}
}

// TestFINOfOneWhoTakesNothing: the end of a client is seen at once also while it does not take its answers, so that nothing more is read from it.
func TestFINOfOneWhoTakesNothing(t *testing.T) {
	r := start(t, config())
	c, err := dial(r.addr, "/ws", clientOptions{recvBuffer: 4096})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.conn.Close() })
	ping := maskedFrame(fin|opText, fmt.Appendf(nil, `{"op":"ping","id":"%s"}`, strings.Repeat("p", 32)))
	some := bytes.Repeat(ping, 20) // little enough that the rest, and the FIN, have room in the kernel
	await(t, "so many answers wait that nothing more is read", func() bool {
		if err := c.writeRaw(some); err != nil {
			t.Fatal(err)
		}
		return r.edge.Unread() > 0
	})
	if err := c.conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	r.ended(t, "client_eof")
}
