package e2e_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// countedKafka is a broker with two listeners; clients of the second one reach it through a relay that counts what the broker sends.
type countedKafka struct {
	direct  string // for writers and judges
	through string // for those whose reading is counted
	sent    atomic.Int64
}

func startCounted(b testing.TB) *countedKafka {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	at := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
	plain, counted, controller := at(freePort(b)), at(freePort(b)), at(freePort(b))
	c := &countedKafka{direct: plain, through: l.Addr().String()}
	kafkatest.StartOwn(b, 1,
		"listeners=PLAINTEXT://"+plain+",COUNTED://"+counted+",CONTROLLER://"+controller,
		"advertised.listeners=PLAINTEXT://"+plain+",COUNTED://"+c.through,
		"listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,COUNTED:PLAINTEXT",
		"controller.quorum.voters=1@"+controller,
	)
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", counted)
			if err != nil {
				client.Close()
				continue
			}
			both := sync.OnceFunc(func() { client.Close(); server.Close() })
			conns.Go(func() { defer both(); _, _ = io.Copy(server, client) })
			conns.Go(func() { defer both(); c.copy(client, server) })
		}
	})
	b.Cleanup(func() { l.Close(); conns.Wait() }) // those who connected have ended: what is cleaned up last was registered first
	return c
}

// copy relays what the broker sends, counting it as it goes.
func (c *countedKafka) copy(client io.Writer, server io.Reader) {
	buf := make([]byte, 256<<10)
	for {
		n, err := server.Read(buf)
		c.sent.Add(int64(n))
		if n > 0 {
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// megabytes that the broker has sent since.
func (c *countedKafka) since(before int64) float64 { return float64(c.sent.Load()-before) / 1e6 }
